"""Software of measured runs: releases, defaults that rows do not state, and labels, which change nothing."""

from dataclasses import replace

import pytest

from costmodel.formats.input_files import parse
from costmodel.formats.shipped import ROOT
from dse.validation.comparison import compared
from dse.validation.expressed import framework_of
from dse.validation.rows import RECOMPUTING, expressed_row
from dse.validation.table import SHIPPED, MeasuredRow, read_table
from tests.support.cases import by_table

ROWS = [row for path in SHIPPED for row in read_table(path)]

#: A run of experts on two nodes, by its columns.
EXPERTS = MeasuredRow(
    row_type="train_step", dataset="mine", framework="megatron_core@26.04", hw="h100_80g_dgx", model="mixtral_8x7b",
    gpus=16, tp=2, pp=1, dp=8, ep=8, mbs=1, gbs=256, dtype="bf16", iter_time_s=10,
)  # fmt: skip
#: The same run without the cells that a design says.
BY_DESIGN = replace(EXPERTS, mbs=0, gbs=0, gpus=0, tp=0, dp=0, ep=0)
DESIGN = "tp=2 dp=8 ep=8 gradient_accumulation_steps=32"


def predictions(rows):
    """Predicted time and memory, verdict and evidence of each row, by its id."""
    return {
        one.row.id: (one.predicted_s, one.predicted_bytes, one.low_s, one.high_s, one.verdict, one.evidence)
        for one in compared(rows)
    }


@pytest.mark.slow
def test_no_label_changes_a_prediction():
    """Data set, source and notes are labels; the order of rows is none of their business either."""
    rows = ROWS[::3]
    before = predictions(rows)
    labels = {"dataset": "simumax_b200", "source": "", "notes": "tied embeddings, policy PURE"}
    after = predictions([replace(row, **labels) for row in rows[::-1]])
    assert repr({name: after[name] for name in before}) == repr(before)


def test_a_design_leaves_the_defaults_of_its_software_in_place():
    """The same run by its columns and by its design; both list the settings that neither states."""
    by_columns, by_design = expressed_row(EXPERTS), expressed_row(replace(EXPERTS, design=DESIGN))
    for run in (by_columns, by_design):
        assert run.columns["tp_overlap"] == run.assumed["tp_overlap"] == "chunked"
        assert run.columns["gradient_reduction"] == run.assumed["gradient_reduction"] == "bf16"
        assert run.assumed["routing"] == "balanced"
    [first, second] = compared([EXPERTS, replace(EXPERTS, design=DESIGN)])
    assert first.predicted_s == second.predicted_s > 0
    stated = expressed_row(replace(EXPERTS, tp_overlap="no", opt_shard="zero2 (mine)"))
    assert (stated.columns["tp_overlap"], stated.columns["zero"]) == ("none", 2)
    assert not {"tp_overlap", "zero"} & {*stated.assumed}
    assert stated.assumed["recompute"] == "none"
    defaults = {"precision": "bf16", "overlap_ep": 0, "micro_batch_size": 1}
    assert defaults.items() <= expressed_row(replace(EXPERTS, dtype="", mbs=0)).assumed.items()
    assert expressed_row(replace(EXPERTS, framework="")).assumed["framework"] == "megatron_core"


@by_table("cells", "columns")
def test_cells_and_defaults_become_columns(cells, columns):
    run = expressed_row(replace(EXPERTS, **cells))
    assert {name: run.columns[name] for name in columns} == columns
    if "design" not in cells and cells.keys() <= {"dispatcher", "ep_overlap", "routing", "offload"}:
        assert expressed_row(replace(EXPERTS, design=DESIGN, **cells)).columns.items() >= columns.items()


@by_table("cells", "columns")
def test_recipes_recompute_unless_a_row_says_what(cells, columns):
    """All recomputation that a run has is its row's, or all of it is that of recipes for its model and chip."""
    run = expressed_row(replace(BY_DESIGN, **cells))
    assert {name: value for name, value in run.columns.items() if name in RECOMPUTING and value != "none"} == columns


def test_recipes_of_nemotron_look_two_tokens_ahead():
    """FLOP of a token that Megatron-Bridge prints for GB300: 873.33 TFLOP/s over 10,307.7 tokens a second."""
    row = replace(BY_DESIGN, model="nemotron_3_super_120b_a12b", seq=8192, design=DESIGN)
    [new, old] = [expressed_row(replace(row, framework=f"megatron_core@{one}")) for one in ("26.06", "26.04")]
    assert (new.model.mtp_layers, new.assumed["mtp_layers"], old.model.mtp_layers) == (2, 2, 1)
    assert 3 * new.model.forward_flops(causal=True) == pytest.approx(873.33e12 / 10307.7, rel=0.01)
    assert expressed_row(replace(row, framework="megatron_core@26.06", given="mtp_layers=1")).model.mtp_layers == 1


def test_a_constant_of_a_release_counts_on_its_chip():
    """Products on a B200 were slower before Megatron Core 25.09; on an H100 nothing changed there."""
    dense = replace(EXPERTS, model="llama3_8b", ep=1, tp=1, dp=16, gbs=512)
    for hw, slower in (("B200", 1.2), ("h100_80g_dgx", 1.0)):
        old, new = compared(
            [replace(dense, hw=hw, framework=f"megatron_core@{release}", dtype="bf16", vpp=1, opt_shard="zero1",
                     design="dp=16 gradient_accumulation_steps=32 gradient_reduction=fp32")
             for release in ("25.05", "26.04")]
        )  # fmt: skip
        assert old.predicted_s / new.predicted_s >= slower
    assert old.predicted_s == new.predicted_s


SOFTWARE = parse((ROOT / "software.yaml").read_text(), "software.yaml").data["software"]


@pytest.mark.parametrize("name", [*SOFTWARE, "maxtext@2026", "megatron_lm@2021", "nemo@24.07"])
def test_every_name_of_software_stands_for_a_framework(name):
    assert framework_of(replace(EXPERTS, framework=name)).given


def test_graphs_of_whole_iterations_need_no_launches():
    """Graphs of layers leave experts to the host. Of other parts all launches count, as the JSON says."""
    words = ("whole", "attn+moe_router", "no", "moe_router")
    whole, layers, none, parts = compared([replace(EXPERTS, seq=128, gbs=16, cuda_graphs=word) for word in words])
    assert whole.predicted_s < layers.predicted_s < none.predicted_s == parts.predicted_s
    assert parts.assumed["cuda_graphs"] == "the host launches all kernels"
    assert "cuda_graphs" not in none.assumed | whole.assumed | layers.assumed


def test_a_model_with_fewer_layers_than_its_file_keeps_a_dense_one():
    row = replace(EXPERTS, model="deepseek-v3 (4 layers)", layers=4, moe_experts=256, tp=1, dp=16, seq=4096)
    run = expressed_row(row)
    assert (run.model.num_layers, run.model.first_dense_layers, run.model.mtp_layers) == (4, 1, 0)
    assert run.assumed["mtp_layers"] == 0
