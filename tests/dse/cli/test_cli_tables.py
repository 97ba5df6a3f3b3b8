"""`dse studies`, `pareto`, `trials`, `evaluate`, `enumerate` and the catalogue."""

import io
import json
import re

import pandas as pd
import pytest

from dse import Space, Study
from dse.output import csv_pieces, json_text, parquet_pieces, study_record
from dse.pricing.evaluated import RECORD_KEYS
from tests.support.cases import by_table
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of

pytestmark = pytest.mark.usefixtures("stored")


def test_studies_lists_counts_and_best_values():
    table = stdout_of("studies")
    assert "30 finished" in table
    assert "step_time " in table
    [study] = json_of("studies")["studies"]
    assert (study["name"], study["complete"], study["failed"], study["running"]) == ("small", 30, 0, 0)
    assert study["best"].keys() == {"step_time_s", "peak_memory_bytes"}


def trials_of(table):
    """Numbers of the trials of a printed table."""
    return [int(number) for number in re.findall(r"^ *(\d+) ", table, flags=re.MULTILINE)]


@pytest.mark.parametrize(("command", "part"), [("pareto", "front"), ("trials", "trials")])
def test_every_format_holds_the_same_designs(command, part, tmp_path):
    record = json_of(command, "small")
    numbers = [design["trial"] for design in record[part]]
    assert list(pd.read_csv(io.StringIO(stdout_of(command, "small", "--format", "csv")))["trial"]) == numbers
    for ending in ("parquet", "txt"):
        stdout_of(command, "small", "-o", f"table.{ending}")
    assert list(pd.read_parquet(tmp_path / "table.parquet")["trial"]) == numbers
    assert trials_of((tmp_path / "table.txt").read_text()) == numbers


def test_tables_written_in_pieces_are_the_same(monkeypatch):
    commands = [("trials", "small", "--format", form) for form in ("csv", "json", "table")]
    whole = [stdout_of(*command) for command in commands]
    monkeypatch.setattr("dse.searching.trials.trial_table.BLOCK", 7)
    monkeypatch.setattr("dse.reporting.design_table.ROWS_DRAWN", 5)
    assert [stdout_of(*command) for command in commands] == whole
    assert json.loads(whole[1]) == json.loads(json_text(study_record(Study.load("small"), "trials")))


@pytest.mark.parametrize("part", ["front", "trials"])
def test_tables_of_columns_are_those_of_records(storage, part, monkeypatch):
    """Tables are made from columns of the database; here, from a record of each trial."""
    monkeypatch.setattr("dse.searching.trials.trial_table.BLOCK", 7)
    study = Study.load("small", storage=storage)
    table = study.table.front() if part == "front" else study.table
    assert table.as_stored
    records = pd.concat([block._frame_of_records() for block in table.blocks()], ignore_index=True)
    pd.testing.assert_frame_equal(table.to_frame(), records, check_exact=True, check_dtype=False)


def test_files_hold_words_with_commas(tmp_path):
    """A cell that holds a comma or a quote is quoted; pieces of a Parquet file are one table."""
    frames = [pd.DataFrame({"n": [1, 2], "word": words}) for words in (["a", None], ['b, "c"', "d"])]
    whole = pd.concat(frames, ignore_index=True).fillna("nothing")
    (tmp_path / "t.csv").write_bytes(b"".join(csv_pieces(frames)))
    (tmp_path / "t.parquet").write_bytes(b"".join(parquet_pieces(frames)))
    assert (tmp_path / "t.csv").read_text().splitlines()[:2] == ["n,word", "1,a"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv").fillna("nothing"), whole)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet").fillna("nothing"), whole)


@pytest.mark.parametrize("words", [[], ["--columns", "step_time"]])
def test_show_prints_twenty_rows_unless_more_are_asked_for(words, tmp_path):
    show = ["show", "small", "--trials", *words]
    printed = stdout_of(*show)
    assert trials_of(printed) == [*range(20)]
    assert "The first 20 of 30; --top 30 shows all" in printed
    assert trials_of(stdout_of(*show, "--top", "25")) == [*range(25)]
    stdout_of(*show, "-o", "all.txt")
    assert trials_of((tmp_path / "all.txt").read_text()) == [*range(30)]


def test_a_printed_sweep_shows_twenty_rows():
    words = ["evaluate", "gpt3_175b_1024_a100", "--set", "recompute=full", "--sweep", "tp", "--sweep", "pp=8,16"]
    assert "The first 20 of 32; -o sweep.csv writes all." in stdout_of(*words, "--sweep", "micro_batch_size")


@by_table("command", "endings")
def test_an_ending_that_nothing_writes_is_refused(command, endings, tmp_path):
    error = f"dse: -o table.xlsx: cannot write .xlsx files; end the name in {endings}\n"
    assert stderr_of(*command.split(), "-o", "table.xlsx") == error
    assert list(tmp_path.iterdir()) == []


def test_no_half_written_file_stays(tmp_path):
    stdout_of("pareto", "small", "-o", "nosuch/front.csv", code=1)
    (tmp_path / "front.csv").mkdir()
    stdout_of("pareto", "small", "-o", "front.csv", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["front.csv"]


LAYOUT = ("--set", "tp=8", "--set", "pp=16", "--set", "vpp=1", "--set", "micro_batch_size=1",
          "--set", "sequence_parallel=true", "--set", "distributed_optimizer=true")  # fmt: skip


@pytest.mark.parametrize("form", ["table", "json", "csv", "parquet"])
def test_evaluate_writes_designs_in_each_format(form, tmp_path):
    words = ["evaluate", "gpt3_175b_1024_a100", *LAYOUT, "--sweep", "recompute=full", "--format", form]
    stdout_of(*words, "-o", str(tmp_path / "designs"))
    assert (tmp_path / "designs").stat().st_size > 100


def test_evaluate_prints_one_design():
    design = json_of("evaluate", "gpt3_175b_1024_a100", *LAYOUT, "--set", "recompute=full")
    assert list(design) == [*("feasible", "given", "params", "derived", "values", "margins", "breakdown"), *RECORD_KEYS]
    assert design["derived"] == {"dp": 8, "gradient_accumulation_steps": 192}
    assert design["feasible"] is True
    assert design["params"] == {
        "tp": 8, "pp": 16, "vpp": 1, "micro_batch_size": 1,
        "sequence_parallel": True, "recompute": "full", "distributed_optimizer": True,
    }  # fmt: skip
    report = stdout_of("evaluate", "gpt3_175b_1024_a100", *LAYOUT, "--set", "recompute=full")
    assert "Fits   tp 8, pp 16, dp 8, micro-batch 1, 192 accumulation steps" in report


def test_evaluate_takes_the_simplest_for_what_is_not_named_and_says_so():
    command = ["evaluate", "gpt3_175b_1024_a100", "--set", "tp=8", "--set", "vpp=2", "--format", "json"]
    out, err = outputs_of(*command, code=1)  # it does not fit
    taken, nearest = err.splitlines()
    assert taken == (
        "dse: unset parameters get: pp=2 micro_batch_size=1 sequence_parallel=false "
        "recompute=none distributed_optimizer=false"
    )
    assert re.fullmatch(r"dse: [a-z_]+=\S.* would fit, [+-]\d+\.\d % step time", nearest)
    assert json.loads(out)["params"]["pp"] == 2  # interleaving needs a pipeline


def test_evaluate_starts_from_the_system_for_open_hardware():
    params = json_of("evaluate", "gpt_1t_codesign", code=1)["params"]  # it does not fit
    assert (params["cores"], params["clock"], params["dram_capacity"]) == (128, 1.6e9, 80e9)


def test_an_interrupted_enumeration_writes_what_it_has_under_another_name(monkeypatch, small_space, tmp_path):
    (tmp_path / "small.yaml").write_text(small_space)
    legal = int(Space.load(tmp_path / "small.yaml").legal.count)
    monkeypatch.setattr("dse.searching.exact.exact_front.STEP", 20)
    monkeypatch.setattr("dse.searching.exact.exact_front.CHUNK", 20)

    def interrupted(headway):
        if headway.evaluated >= 40:
            raise KeyboardInterrupt

    monkeypatch.setattr("dse.cli.commands.enumerate.headway_lines", lambda stream: interrupted)
    said = f"dse: interrupted after 40 of {legal} designs; their front is in front.partial.csv\n"
    assert stderr_of("enumerate", "small.yaml", "-o", "front.csv", code=130) == said
    assert not (tmp_path / "front.csv").exists()
    assert len(pd.read_csv(tmp_path / "front.partial.csv"))
    report = stdout_of("enumerate", "small.yaml", code=130)
    assert report.startswith(f"PARTIAL: 40 of {legal} legal designs of space small")
    record = json_of("enumerate", "small.yaml", code=130)
    assert (record["partial"], record["n_priced"], record["n_legal"]) == (True, 40, legal)


@pytest.mark.parametrize(("kind", "name"), [
    ("spaces", "gpt3_175b_1024_a100"), ("models", "llama3_70b"), ("systems", "h100_80g_dgx"),
])  # fmt: skip
def test_the_catalogue_lists_what_ships_and_prints_a_file(kind, name):
    assert name in stdout_of(kind)
    assert name in [row["name"] for row in json_of(kind)[kind]]
    assert stdout_of(kind, name).startswith("schema: ")


def test_a_printed_space_is_one_to_start_from(tmp_path):
    (tmp_path / "mine.yaml").write_text(stdout_of("spaces", "gpt3_175b_1024_a100"))
    assert Space.load(tmp_path / "mine.yaml").fingerprint == Space.load("gpt3_175b_1024_a100").fingerprint
