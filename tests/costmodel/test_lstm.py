"""LSTM language models evaluated natively: counts by hand, laws, and a space to search."""

from typing import Any

import pytest

from costmodel import DseError, System, load_model, load_system
from costmodel.lstm import LstmDesign, LstmShape, lstm_gemms, lstm_step
from costmodel.training.run import Run
from dse.adapters.deepflow.step import price
from tests.adapters.deepflow.test_deepflow import probe
from tests.support.commands import stdout_of

# Dimensions that no two of are alike; all splits below divide them.
MODEL = LstmShape(name="lstm", num_layers=3, hidden_size=480, gates=4, projection_size=240, vocab_size=7200, seq_len=11)
SPLITS = {
    "whole": {},
    "column-row": {"hidden_kind": "cr", "hidden_dim1": 6, "softmax_kind": "cr", "softmax_dim1": 6},
    "row-column": {"hidden_kind": "rc", "hidden_dim1": 2, "hidden_dim2": 3, "softmax_kind": "rc",
                   "softmax_dim1": 3, "softmax_dim2": 2},
    "one of each": {"hidden_kind": "cr", "hidden_dim1": 6, "softmax_kind": "rc", "softmax_dim2": 6},
}  # fmt: skip


def layout(split: str, **changes: Any) -> LstmDesign:
    """One design with a split, of 24 sequences a step."""
    return LstmDesign.of(**{"micro_batch_size": 12, "gradient_accumulation_steps": 2, **SPLITS[split], **changes})


def test_parameters_by_hand():
    """Word table, three layers of 4 gates with biases, projection, softmax, the last two with biases."""
    assert MODEL.num_parameters == 7200 * 480 + 3 * 4 * 480 * (2 * 480 + 1) + 240 * 481 + 7200 * 241


@pytest.mark.parametrize("split", SPLITS)
def test_devices_together_multiply_as_much_as_the_model_needs(split):
    """Forward and both gradients: six FLOP per weight and token, however the products are split."""
    design = layout(split)
    gemms = lstm_gemms(Run(MODEL, load_system("a100_80g_dgx"), design))
    runs = {"cell": MODEL.num_layers * MODEL.seq_len, "layer": MODEL.num_layers}
    flops = 0.0
    for index, label in enumerate(gemms.labels):
        devices = (design.softmax if label.part == "head" else design.hidden).shards[0]
        product = gemms.m[0, index] * gemms.n[0, index] * gemms.k[0, index]
        flops += 2 * product * devices * runs.get(label.part, 1)
    assert flops == pytest.approx(3 * MODEL.forward_flops_per_sequence * 12)


#: Devices that share: weights of cells, weights of the softmax, activations, the softmax's input.
SHARES = {"whole": (1, 1, 1, 1), "column-row": (6, 6, 6, 6), "row-column": (3, 2, 6, 3),
          "one of each": (6, 6, 6, 1)}  # fmt: skip
HEAD = 7200 * 241


@pytest.mark.parametrize("split", SPLITS)
def test_memory_by_hand(toy_system: System, split):
    """18 bytes a weight; gates, states and tangent of each cell; 16-bit and fp32 logits."""
    actual = lstm_step(MODEL, toy_system, layout(split))
    by_cells, by_head, by_group, by_input = SHARES[split]
    weights = (MODEL.num_parameters - HEAD) / by_cells + HEAD / by_head
    assert actual.weights_memory + actual.gradients_memory + actual.optimizer_memory == pytest.approx(18 * weights)
    tokens = 12 * 11
    cells, logits = 2 * tokens * (3 * 7 * 480 + 480), tokens * 7200
    kept = cells / by_group + 2 * tokens * 240 / by_input + 4 * logits / by_group
    assert actual.activations_memory == pytest.approx(kept)
    assert actual.buffers_memory == pytest.approx(4 * logits / by_group + (2 * logits if split == "column-row" else 0))


def sent_by_hand(split: str) -> float:
    """Bytes that all devices send in one micro-batch, ring shares of whole messages. [B]"""
    steps, tokens = 3 * 11, 12 * 11
    if split == "whole":
        return 0.0
    if split == "column-row":  # partial sums forward, gathered back; statistics of the rows twice around
        results = steps * 12 * 4 * 480 + tokens * 240 + tokens * 7200
        return 6 * 5 / 6 * (2 * 2 * results + 2 * 8 * tokens)
    # row-column: 2 rows of 3 columns in the cells, 3 rows of 2 columns in the softmax
    cells = steps * 6 * (480 + 960) + tokens / 2 * (240 + 480)
    softmax = tokens / 3 * 240
    return 6 * (2 / 3 * 2 * cells + 1 / 2 * (2 * softmax + 2 * 8 * tokens / 3))


@pytest.mark.parametrize("split", ["whole", "column-row", "row-column"])
def test_bytes_between_devices_by_hand(toy_system: System, split):
    """On links of one energy; gradients are reduced once, however many micro-batches a step has."""
    flat = toy_system.with_quantities({"node_energy": 1.0, "fabric_energy": 1.0, "node_in_switch": 0.0})

    def sent(micro_batches: int) -> float:
        design = layout(split, gradient_accumulation_steps=micro_batches)
        return float(lstm_step(MODEL, flat, design).link_energy[0])

    assert sent(4) - sent(2) == pytest.approx(2 * sent_by_hand(split))
    by_cells, by_head, by_group, _ = SHARES[split]
    weights = ((MODEL.num_parameters - HEAD) / by_cells, HEAD / by_head)
    holders = (by_group / by_cells, by_group / by_head)
    reduced = sum(4 * w * 2 * (n - 1) / n for w, n in zip(weights, holders, strict=True))
    assert sent(2) - 2 * sent_by_hand(split) == pytest.approx(by_group * reduced, abs=1e-3)


def test_what_the_reference_leaves_out_is_charged(toy_system: System):
    """DeepFlow's step is blind to the projection, and to optimizer work of all layers but one."""
    assert price(probe(projection_size=4096))["Time"] == price(probe())["Time"]
    wider = LstmShape(**{**dimensions(MODEL), "projection_size": 480})
    narrow, wide = (lstm_step(model, toy_system, layout("whole")) for model in (MODEL, wider))
    assert wide.forward_time > narrow.forward_time
    deeper = LstmShape(**{**dimensions(MODEL), "num_layers": 30})
    assert lstm_step(deeper, toy_system, layout("whole")).optimizer_time > 3 * narrow.optimizer_time


def dimensions(model: LstmShape) -> dict[str, Any]:
    """Every dimension of a model."""
    return {name: getattr(model, name) for name in model.dimensions}


def test_the_shipped_model_and_its_mistakes(tmp_path):
    assert isinstance(load_model("lstm_24b"), LstmShape)
    path = tmp_path / "lstm.yaml"
    path.write_text("schema: lstm_model/v1\nsource: x\nnum_layers: 2\nhiden_size: 10\nprojection_size: 4.5\n"
                    "vocab_size: 100\n")  # fmt: skip
    with pytest.raises(DseError) as raised:
        load_model(path)
    assert [line.split(": ", 1)[1] for line in str(raised.value).splitlines()] == [
        "hidden_size: missing",
        "hiden_size: unknown key; did you mean 'hidden_size'?",
    ]
    path.write_text(path.read_text().replace("hiden", "hidden"))
    with pytest.raises(DseError, match=r"projection_size: expected a whole number from 1, got 4\.5"):
        load_model(path)


def test_a_study_of_an_lstm_runs(tmp_path):
    search = ("search", "lstm_24b_power", "--budget", "30", "--storage", f"sqlite:///{tmp_path / 'dse.db'}")
    assert "on the Pareto front." in stdout_of(*search)
