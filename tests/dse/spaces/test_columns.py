"""`dse columns`, and `--columns`: the names that a space has, and tables of some of them."""

import csv
import io
import re

import pytest

from costmodel.formats import shipped
from dse import Space
from dse.spaces.formulas.expressions import Expression
from dse.spaces.listed_names import listed_names, meaning
from tests.support.commands import json_of, stderr_of, stdout_of


@pytest.mark.parametrize("name", shipped.names("spaces"))
def test_every_name_has_a_meaning(name):
    """But for those that a space file makes up, which are its own formulas and parameters."""
    space = Space.load(name)
    chosen = {*space.by_name, *space.given, *(derived.name for derived in space.derived)}
    memories, tiers = ([part.name for part in parts] for parts in (space.system.memory, space.system.network))
    without = {one.name for one in listed_names(space) if one.group != "margins"} - chosen
    assert not [one for one in without if not meaning(one, memories, tiers)]


@pytest.mark.parametrize("name", ["gpt3_175b_1024_a100", "gpt_1t_codesign", "mixtral_8x22b_128_h100"])
def test_every_name_that_formulas_of_the_space_use_is_listed(name):
    space = Space.load(name)
    words = {word for column in space.names.values() for word in column.words}
    formulas = [*(rule.expression for rule in (*space.rules, *space.limits)), *(d.expression for d in space.derived)]
    used = set().union(*(Expression.parse(text).names for text in formulas)) - words
    assert used <= {one.name for one in listed_names(space)}


def test_a_table_has_groups_and_a_word_narrows_it():
    table = stdout_of("columns", "gpt3_175b_1024_a100")
    assert "Parameters of designs; --set fixes one" in table
    assert "  dram_bandwidth " in table
    narrow = stdout_of("columns", "gpt3_175b_1024_a100", "bubble").splitlines()[-1]
    assert " ".join(narrow.split()) == "bubble_time s time in which pipeline ranks wait"
    assert stdout_of("columns", "gpt3_175b_1024_a100", "nosuch", code=1) == ""


def test_every_format_holds_the_same_names():
    rows = json_of("columns", "gpt_1t_codesign")["columns"]
    assert [*csv.DictReader(io.StringIO(stdout_of("columns", "gpt_1t_codesign", "--format", "csv")))] == rows
    assert {"group": "parameters", "name": "cores", "unit": "-", "value": "64, 96, 128, 160, 192",
            "meaning": "cores of a chip"} in rows  # fmt: skip


def test_tables_have_the_columns_that_are_named(stored):
    shown = stdout_of("pareto", "small", "--columns", "mfu,tp,bubble_time,dp,fits")
    *_, heading = (line for line in shown.splitlines() if "trial" in line)
    assert heading.split() == ["trial", "mfu", "tp", "time", "dp", "fits"]
    trials = stdout_of("trials", "small", "--columns", "mfu,step_time", "--format", "csv")
    rows = [*csv.DictReader(io.StringIO(trials))]
    assert [*rows[0]] == ["trial", "mfu", "step_time_s"]
    assert len(rows) == 30


def test_a_column_that_is_none_is_told_so(stored):
    error = stderr_of("pareto", "small", "--columns", "step_tim")
    assert "step_tim: no column of this study; did you mean 'step_time_s'?" in error


@pytest.mark.parametrize("space", shipped.names("spaces"))
def test_values_of_names_are_numbers_that_people_read(space):
    for value in re.findall(r"\[(.*)\]$", stdout_of("columns", space), re.MULTILINE):
        assert not re.search(r"\bnan\b|\binf\b|\d\.\d{7}|\de[-+]\d", value), value
