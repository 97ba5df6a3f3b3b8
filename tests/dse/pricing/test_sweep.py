"""Designs of a sweep or a file: completed and evaluated together, or illegal for a stated reason."""

import re
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from costmodel import DseError
from dse.pricing.evaluation import evaluated_design
from dse.pricing.sweep import combinations, evaluated_designs, swept_values
from dse.pricing.workers import Workers
from dse.spaces.space import Space
from tests.support.cases import by_table
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of


@by_table("text", "unit", "values")
def test_what_a_sweep_stands_for(text, unit, values):
    assert swept_values("name", text, unit) == values


@by_table("text", "unit", "message")
def test_what_a_sweep_cannot_be(text, unit, message):
    with pytest.raises(DseError, match=message):
        swept_values("name", text, unit)


SWEEPS = {"pp": [1, 2, 3, 8, 16], "vpp": [1, 2], "micro_batch_size": [1, 4, 16], "node_bandwidth": [2e11, 6e11]}


@pytest.fixture(scope="module")
def layouts() -> Space:
    return Space.load("gpt3_175b_1024_a100").pinned({"tp": 8, "recompute": "full"})


@pytest.fixture(scope="module")
def swept(layouts):
    """The designs of the sweeps, evaluated together."""
    return evaluated_designs(layouts, combinations(SWEEPS), 60)


def alone(space: Space, values: dict[str, object]) -> dict[str, object] | None:
    """The same design as its own space has it; nothing where that has none."""
    one = space.opened({name: [value] for name, value in values.items()})
    return evaluated_design(one, one.completed({})) if one.legal.count else None


def test_each_row_has_the_cost_of_the_design_alone(layouts, swept):
    """Named values are kept, the others are the simplest with them; a row that no design has is illegal."""
    records = swept.records
    assert [tuple(r["params"][name] for name in SWEEPS) for r in records] == [*product(*SWEEPS.values())]
    for record in records:
        one = alone(layouts, {name: record["params"][name] for name in SWEEPS})
        if one is None:
            assert record["reason"].startswith("not legal: ")
            assert record["values"] == {}
            continue
        for key in ("params", "values", "margins", "breakdown", "feasible", "step_time_low_s"):
            assert record[key] == one[key]
        assert (record["reason"] == "") == one["feasible"]
    assert 0 < swept.feasible < swept.legal < 60


def test_a_rule_is_named_that_no_design_keeps(layouts):
    """Each is too much for every design of the row that keeps the rules before it."""
    actual = evaluated_designs(layouts, combinations({"pp": [3, 5, 8], "vpp": [1, 2, 7]}), 9)
    reasons = [record["reason"].partition(" (")[0].removeprefix("not legal: ") for record in actual.records]
    assert reasons[6:8] == [record["reason"] for record in actual.records[6:8]]  # of limits, or none
    dp, layers = "dp", "whole_layers_per_chunk"  # 1,024 ranks by threes; 96 layers by fives and sevens
    assert reasons[:6] == [dp, dp, layers, layers, layers, layers]
    assert reasons[8] == layers


def test_a_sweep_of_what_makes_a_space_is_priced_space_by_space(layouts):
    """The length of sequences is the model's."""
    actual = evaluated_designs(layouts, combinations({"micro_batch_size": [1, 2], "seq_len": [1024, 4096]}), 4)
    assert [record["params"]["seq_len"] for record in actual.records] == [1024, 4096, 1024, 4096]
    frame = actual.to_frame()
    assert frame["seq_len"].tolist() == [1024, 4096, 1024, 4096]
    one = layouts.pinned({"seq_len": 4096, "micro_batch_size": 2})
    assert frame["step_time_s"][3] == evaluated_design(one, one.completed({}))["values"]["step_time_s"]


def test_who_prices_changes_no_bit(layouts, swept, monkeypatch):
    monkeypatch.setattr("dse.pricing.evaluation.SENT_SECONDS", 1e-9)
    parallel = evaluated_designs(layouts, combinations(SWEEPS), 60, jobs=Workers(2))
    pd.testing.assert_frame_equal(swept.to_frame(), parallel.to_frame(), check_exact=True)


def test_records_and_frames_hold_the_same(swept):
    for row, record in zip(swept.to_frame().to_dict("records"), swept.records, strict=True):
        for group in ("params", "values", "breakdown"):
            assert {name: row[name] for name in record[group]} == record[group]
        assert (row["reason"], row["feasible"]) == (record["reason"], record["feasible"])
        assert row["legal"] == bool(record["values"])


def test_a_table_of_designs_reads_back():
    """Designs of a table that a sweep wrote cost the same to the bit, from CSV and from Parquet."""
    space = "gpt_1t_codesign"  # none of these fits, so the exit code is 1
    sweeps = ("--sweep", "nodes=64:256:x2", "--sweep", "node_bandwidth=200,800 GB/s", "--sweep", "recompute")
    for ending, reader in {"csv": pd.read_csv, "parquet": pd.read_parquet}.items():
        stderr_of("evaluate", space, *sweeps, "-o", f"swept.{ending}")
        error = stderr_of("evaluate", space, "--designs", f"swept.{ending}", "-o", f"again.{ending}")
        assert "results among its columns are not read: world_size" in error
        one, two = reader(f"swept.{ending}"), reader(f"again.{ending}")
        assert len(one) == 18
        pd.testing.assert_frame_equal(one, two[one.columns], check_exact=True)


def test_rows_of_a_file_may_leave_cells_blank(tmp_path):
    (tmp_path / "designs.csv").write_text("tp,pp,clock\n8,16,1.2 GHz\n4,,\n8,7,\n")
    actual = json_of("evaluate", "gpt_1t_codesign", "--designs", "designs.csv", code=1)
    first, second, third = actual["designs"]
    space = Space.load("gpt_1t_codesign")
    assert (first["params"]["clock"], second["params"]["clock"]) == (1.2e9, 1.6e9)
    assert second["params"] == space.pinned({"tp": 4}).completed({})
    assert (third["params"], third["reason"].partition(" (")[0]) == ({"tp": 8, "pp": 7}, "not legal: dp")
    assert (actual["n_legal"], actual["n_feasible"]) == (2, 0)


def test_the_table_leaves_out_what_is_alike():
    sweep = ("--set", "pp=64", "--set", "recompute=full", "--sweep", "nodes=128,256", "--sweep", "tp=8,16")
    shown = stdout_of("evaluate", "gpt_1t_codesign", *sweep)
    assert "gpt_1t_codesign: 4 designs, 2 feasible, 2 not legal." in shown
    assert "not legal: tp_stays_in_the_node\n" in shown
    assert "tp_stays_in_the_node: tp <= node_size" in shown
    assert "All have pp=64 " in shown.replace("\n", " ")
    assert "recompute  " not in shown


def test_a_picture_has_a_line_for_each_value_of_the_second_name(tmp_path):
    sweep = ("--set", "pp=64", "--sweep", "nodes=64:1024:x2", "--sweep", "recompute", "--sweep", "tp")
    stdout_of("evaluate", "gpt_1t_codesign", *sweep, "-o", "sweep.svg")
    root = ElementTree.fromstring((tmp_path / "sweep.svg").read_text())
    groups = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if "mark-line" in g.get("class", "")]
    lines = [re.findall(r"[ML]([\d.]+),([\d.]+)", group[0].get("d")) for group in groups]
    assert [len(line) for line in lines] == [5, 5, 5]
    texts = "".join(root.itertext())
    assert "the best of tp" in texts
    assert "recompute selective" in texts
    heights = [float(up) for _, up in lines[0]]
    assert heights == sorted(heights)  # more nodes, less time: further down


@by_table("arguments", "message")
def test_mistakes_are_one_line(arguments, message, tmp_path):
    (tmp_path / "designs.csv").write_text("tp\n8\nx\n")
    (tmp_path / "other.csv").write_text("tp,pq\n8,1\n")
    (tmp_path / "empty.csv").write_text("tp\n")
    out, err = outputs_of("evaluate", "gpt_1t_codesign", *arguments.split(), code=1)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("dse: ")
    assert message in err


def test_where_nothing_is_legal_the_rows_say_why():
    out, err = outputs_of("evaluate", "gpt_1t_codesign", "--sweep", "nodes=7,9", code=1)
    assert out.count("not legal: dp\n") == 2
    assert err == "dse: nothing feasible among 2 designs, 0 of them legal\n"


def test_one_design_is_a_table_of_one_row(tmp_path):
    stdout_of("evaluate", "gpt_1t_codesign", "-o", "one.csv", code=1)
    [row] = pd.read_csv(tmp_path / "one.csv").to_dict("records")
    record = json_of("evaluate", "gpt_1t_codesign", code=1)
    assert np.isclose(row["step_time_s"], record["values"]["step_time_s"], rtol=0)
