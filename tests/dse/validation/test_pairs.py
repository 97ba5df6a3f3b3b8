"""Pairs of runs that differ in one setting: effects, their signs, and tables that are none."""

from dataclasses import replace

import pytest

from dse.validation.comparison import ComparedRow
from dse.validation.pairs import PUBLISHED, ComparedPair, compared_pairs
from dse.validation.table import MeasuredRow, csv_cells
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of

HEADING = "id,model,system,gpus,framework,base_design,changed_design,base_step_s,changed_step_s,changed_gpus\n"
ROW = "recompute,gpt_22b,a100_80g_dgx,8,megatron_core@2022,tp=8 micro_batch_size=4,tp=8 micro_batch_size=4 {},1,1.3,\n"


@pytest.fixture(scope="module")
def published():
    return compared_pairs()


def pair_of(measured, predicted):
    """A pair of these effects."""
    rows = [MeasuredRow(row_type="train_step", dataset="x", design=f"tp={tp} micro_batch_size=1") for tp in (1, 2)]
    runs = [
        ComparedRow(row=row, measured_s=1 + measured * index, predicted_s=2 + 2 * predicted * index)
        for index, row in enumerate(rows)
    ]
    return ComparedPair("x", "tp", (runs[0], runs[1]))


@by_table("measured", "predicted", "sign_right", "close")
def test_an_effect_below_two_percent_is_none(measured, predicted, sign_right, close):
    pair = pair_of(measured, predicted)
    assert (pair.measured, pair.predicted) == pytest.approx((measured, predicted))
    assert (pair.sign_right, pair.close, pair.why_not) == (sign_right, close, "")


def test_signs_of_published_pairs_are_right(published):
    """Designs of four pairs differ in a setting that they have no column for; one model is not built in."""
    known = [pair for pair in published if not pair.why_not]
    assert len(known) >= 24
    assert sum(pair.sign_right for pair in known) >= 0.9 * len(known)
    assert sum(pair.close for pair in known) >= 0.55 * len(known)


def test_every_published_pair_has_a_source_and_a_name_of_its_own():
    heading, lines = csv_cells(PUBLISHED)
    pairs = [dict(zip(heading, cells, strict=True)) for _, cells in lines]
    assert all(pair["source"] and pair["what_changed"] for pair in pairs)
    assert len({pair["id"] for pair in pairs}) == len(pairs)


def test_memory_and_seconds_of_offloaded_updates_without_a_batch(published):
    """The host updates 1.9e9 parameters of a process in 3.2 s; the chip keeps 4 bytes of each, and fp32 gradients."""
    pairs = [pair for pair in published if pair.id.startswith("offload_q30")]
    assert max(abs(run.memory_error) for pair in pairs for run in pair.runs) < 0.02
    assert pairs[3].predicted == pytest.approx((4.189 - 0.996) / 0.996, rel=0.05)


def test_a_table_of_pairs_is_read_and_summed_up(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text(HEADING + ROW.format("recompute=full") + ROW.format("") + ROW.format("turbo=1"))
    record = json_of("validate", "--pairs", str(table))
    assert (record["pairs"], record["expressed"], record["sign_right"]) == (3, 1, 1)
    first, same, odd = record["rows"]
    assert first["measured_percent"] == pytest.approx(30)
    assert 20 < first["predicted_percent"] < 45
    assert same["why_not"] == "a difference between its designs"
    assert odd["why_not"] == "designs have no column turbo"
    assert "Sign right in 1 of 1 (100%)" in stdout_of("validate", "--pairs", str(table), "--strict", code=1)


def test_a_wrong_table_of_pairs_says_where_and_what_would_do(tmp_path):
    validate = ["validate", "--pairs", "pairs.csv"]
    (tmp_path / "pairs.csv").write_text("id,model\nx,y\n")
    assert "pairs.csv: no column system, base_design, changed_design" in stderr_of(*validate)
    assert "dse validate --pairs: leave out --system" in stderr_of(*validate, "--system", "h100")


def test_a_run_on_another_number_of_gpus_is_the_changed_one(tmp_path):
    table = tmp_path / "pairs.csv"
    row = ROW.format("dp=2").strip() + "16\n"
    table.write_text(HEADING + row)
    [pair] = compared_pairs(table)
    assert [run.row.gpus for run in pair.runs] == [8, 16]
    assert pair.why_not == ""
    assert replace(pair.runs[0].row, gpus=16) != pair.runs[1].row
