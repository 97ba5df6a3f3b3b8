"""The kernel tables of an LSTM language model: design columns in, one column per kernel out.

Everything is of one rank and one micro-batch. Kernels of the part "cell" happen once per layer and time
step, those of "layer" once per layer, the others once per model. The product of input and state with the
weights runs step by step; the gradient of the weights is one product over all steps.
"""

from __future__ import annotations

from costmodel.columns import FloatArray
from costmodel.lstm.model import LstmRun
from costmodel.lstm.splits import Split
from costmodel.training.kinds import loss_passes
from costmodel.workload.kernel_tables import Gemms, Label, Pointwise, PointwiseRow, pointwise_rows

#: Parts of the model, how often each runs being for the step to say.
PARTS = ("cell", "layer", "embedding", "projection", "head")


def tokens(run: LstmRun) -> FloatArray:
    """Tokens of one micro-batch. [-]"""
    return run.design.micro_batch_size * run.model.seq_len


def lstm_gemms(run: LstmRun) -> Gemms:
    """Matrix products of the forward pass and of both gradients, (points, kernels).

    Gradients of weights are added to fp32 accumulators, which are read and written.
    """
    model, design, precision = run.model, run.design, run.precision
    rows_per_step, whole = design.micro_batch_size, tokens(run)
    hidden = model.hidden_size
    operand, accumulated = precision.element_bytes, 2 * precision.gradient_bytes
    table: list[tuple[str, str, Split, FloatArray, FloatArray, float, float]] = [
        # name, part of the weight gradient, split, m, m of the weight gradient, n, k
        ("cell", "layer", design.hidden, rows_per_step, whole, model.gate_size, 2 * hidden),
        ("projection", "projection", design.hidden, whole, whole, model.projection_size, hidden),
        ("head", "head", design.softmax, whole, whole, model.vocab_size, model.projection_size),
    ]
    rows = []
    for name, weight_part, split, m, m_of_weights, n, k in table:
        forward = split.forward(m, n, k)
        activation = split.activation_gradient(m, n, k)
        weight = split.weight_gradient(m_of_weights, n, k)
        rows += [
            (Label(name, "forward", name), (*forward, 1.0, operand, 1.0)),
            (Label(name, "activation_gradient", name), (*activation, 1.0, operand, 1.0)),
            (Label(name, "weight_gradient", weight_part), (*weight, 1.0, accumulated, 1.0)),
        ]
    return Gemms.stack(rows)


def lstm_pointwise(run: LstmRun) -> Pointwise:
    """Kernels without reuse of a cell, of the embedding and of the loss, (points, kernels).

    A cell is one kernel: forward it reads gates and state, and writes gates, both states and the hyperbolic tangent
    that the backward pass needs; back it reads these and both gradients, and writes the gradients of gates and state.
    """
    model, design, precision = run.model, run.design, run.precision
    gates = model.gates
    state = design.micro_batch_size * model.hidden_size / design.hidden.shards
    embedded = tokens(run) * model.hidden_size / design.hidden.shards
    logits = tokens(run) * model.vocab_size / design.softmax.shards
    sums = 2 * precision.gradient_bytes
    rows: list[PointwiseRow] = [
        (Label("cell", "forward", "cell"), state, 2 * gates + 4, 0, 8 * (gates + 1) + 4, 1.0),
        (Label("cell", "activation_gradient", "cell"), state, 2 * gates + 5, 0, 6 * gates + 10, 1.0),
        (Label("bias_gradient", "weight_gradient", "layer"), gates * embedded, 1, 0, 1, 1.0),
        (Label("embedding", "forward", "embedding"), embedded, 2, 0, 0, 1.0),
        (Label("embedding", "weight_gradient", "embedding"), embedded, 1, sums, 1, 1.0),
        *pointwise_rows(loss_passes(logits), "loss", "head"),
    ]
    return Pointwise.of_rows(rows, element_bytes=precision.element_bytes)
