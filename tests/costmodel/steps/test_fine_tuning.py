"""Packs of documents against sequences one by one, and preference optimization with a reference model."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, step

SYSTEM = load_system("h100_80g_dgx")
LAYOUT = {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "dp": 8, "zero": 1, "overlap_grad_reduce": 1}


def packed(name, length, document):
    return replace(load_model(name), seq_len=float(length), document_len=float(document))


def test_queries_of_a_pack_see_the_keys_of_their_document():
    """Counted query by query; the model counts half of the own key, as published FLOP do."""
    lengths = [100, 1500, 37, 411]
    seen = [position + 1 for length in lengths for position in range(length)]
    document = sum(length**2 for length in lengths) / sum(lengths)
    model = packed("llama3_8b", sum(lengths), round(document))
    assert model.keys_seen(windowed=False) == pytest.approx(np.mean(seen), abs=1.0)


def test_windows_in_packs_of_equal_documents_are_those_of_one_document():
    model = packed("gpt_oss_20b", 8192, 1024)
    assert model.keys_seen(windowed=True) == replace(model, seq_len=1024.0, document_len=0.0).keys_seen(windowed=True)


@pytest.mark.parametrize("name", ["llama3_8b", "gpt_oss_20b", "llama_4_scout", "deepseek_v2_lite"])
def test_a_pack_of_one_document_is_a_sequence(name):
    one, several = (
        step(model, SYSTEM, DesignPoints.of(blocks=model.blocks, **LAYOUT))
        for model in (packed(name, 8192, 8192), packed(name, 8192, 0))
    )
    for column, values in one.columns().items():
        np.testing.assert_array_equal(values, getattr(several, column), err_msg=column)


def test_a_pack_of_equal_documents_costs_what_these_sequences_cost():
    pack = step(packed("llama3_8b", 8192, 1024), SYSTEM, DesignPoints.of(**LAYOUT))
    alone = step(packed("llama3_8b", 1024, 0), SYSTEM, DesignPoints.of(**{**LAYOUT, "micro_batch_size": 8}))
    assert pack.model_flops == pytest.approx(alone.model_flops)
    assert pack.step_time == pytest.approx(alone.step_time, rel=0.005)
    assert pack.peak_memory == pytest.approx(alone.peak_memory)


@pytest.mark.parametrize("zero", [1, 3])
def test_a_reference_model_is_a_second_forward_pass_and_a_second_set_of_weights(zero):
    model = load_model("llama3_8b")
    alone, pairs = (
        step(model, SYSTEM, DesignPoints.of(**{**LAYOUT, "zero": zero}, reference_model=on)) for on in (0, 1)
    )
    assert pairs.forward_time == pytest.approx(2 * alone.forward_time, rel=1e-3)
    assert pairs.backward_time == pytest.approx(alone.backward_time)
    assert pairs.weights_memory == pytest.approx(2 * alone.weights_memory)
    assert pairs.gradients_memory == pytest.approx(alone.gradients_memory)
    assert pairs.optimizer_memory == pytest.approx(alone.optimizer_memory)
    assert pairs.model_flops == pytest.approx(4 / 3 * alone.model_flops)
    assert pairs.dp_communication_time >= alone.dp_communication_time * (1 - 1e-12)
