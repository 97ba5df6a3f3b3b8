"""AICB's generator, release by release: the files that its own program writes, by their SHA-256.

Written by aliyun/aicb at commits 7a5ac72 (October 2024), af5cf2b (November), f16eafb (December), ed1dee4
(January 2025) and 23eec3c (September), with and without `--aiob_enable`; its texts of before its first
release are those of commit 4f33c8e.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from costmodel.errors import DseError
from costmodel.profiles.simai import price
from costmodel.profiles.simai.files.aicb import read_workload, workload_file
from costmodel.profiles.simai.generator import (
    GeneratorRun,
    LayerTimes,
    LinearTimes,
    Sections,
    measured,
    placeholder,
    prerelease,
)
from tests.aicb_files import links, nanoseconds

#: 3 layers a stage, 2 replicas, 4 micro-batches.
RUN = {
    "num_layers": 6, "hidden_size": 96, "ffn_hidden_size": 160, "seq_len": 32, "vocab_size": 1000,
    "world_size": 16, "global_batch_size": 24, "micro_batch_size": 3, "tp": 4, "pp": 2,
    "num_attention_heads": 8,
}  # fmt: skip
SHARED = {"sequence_parallel": 1}
EXPERTS = {"num_experts": 4, "experts_per_token": 3, "ep": 2}
LATENT = {
    **EXPERTS, "first_dense_layers": 1, "num_shared_experts": 2, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "q_lora_rank": 12, "kv_lora_rank": 10, "v_head_dim": 8,
}  # fmt: skip
ALONE = {"tp": 1, "world_size": 4}
RELEASES = ("2024-10", "2024-11", "2024-12", "2025-01", "2025-09")

#: Changes of the run -> for each release the first digits of the file's digest, timed and not timed; the last
#: releases alone where there are fewer.
WRITTEN = {
    "sequence parallelism": (SHARED, [
        "319919ba be19a60d", "2629c9c0 8bf74f00", "8bb9adfd 51233d57", "cf9ff684 2ce01888",
        "cf9ff684 2ce01888"]),
    "without": ({}, [
        "64be8a16 e967299b", "ec0048f0 a7ceaef6", "e7926f5b 73312562", "e7926f5b 73312562",
        "e7926f5b 73312562"]),
    "recomputation": (SHARED | {"recompute": 1}, [
        "213fe2d2 d563011e", "882d9e00 47302461", "16cf86fd f9f7b335", "7699aba4 b6de429b",
        "7699aba4 b6de429b"]),
    "experts": (SHARED | EXPERTS, [
        "f5575384 d05b9a04", "f7709bff 9216b33c", "4bf0f46c 9e4dc32a", "066d04e1 d94eb7db",
        "94420e9b 45e2e1b9"]),
    "experts, tp 1": (SHARED | EXPERTS | ALONE, [
        "baca12e7 8d7ce1ee", "49f7ffdc 8a1acfb2", "894865ba 89ac7aba", "b9500f58 b88b66f3",
        "31bdf662 79afe1d8"]),
    "padding, biases": (
        SHARED | {"vocab_size": 50257, "make_vocab_size_divisible_by": 64, "add_bias_linear": 1}, [
        "32456f7c dd9e6b43", "ecdf0c34 7a40df93", "23f1a3ed 8d4f859f", "581883da 74a85497",
        "581883da 74a85497"]),
    "tp 1": (SHARED | ALONE, [
        "3545af04 b5c368de", "e93ddfee 7626e9a7", "7cd9fa69 a4d3d90c", "03261bc9 e353f36a",
        "f4d73b5f e353f36a"]),
    "DeepSeek": (SHARED | LATENT, ["12c6226d"]),
    "DeepSeek without": (LATENT | {"recompute": 1}, ["2568d956 0723c060"]),
}  # fmt: skip
TIMES = nanoseconds(attention=101, mlp=203, embedding=31, gradient_forward=5, gradient_backward=7)
PRODUCTS = nanoseconds(q_down=11, q_up=13, kv_down=17, kv_up=19, projection=41)
FILES = [
    (name, release) for name, (_, digests) in WRITTEN.items() for release in RELEASES[len(RELEASES) - len(digests) :]
]


@pytest.mark.parametrize(("name", "release"), FILES)
def test_files_are_those_of_aicbs_own_generator(name, release):
    """Byte for byte: header, rows, sizes beside NONE."""
    changes, digests = WRITTEN[name]
    run = GeneratorRun.of(**RUN | changes)
    timed = measured(run, Sections.of(**TIMES, **PRODUCTS), release=release)
    expected = digests[RELEASES.index(release) - len(RELEASES)].split()
    templates = [timed, *([placeholder(run, release=release)] if len(expected) > 1 else [])]
    texts = [workload_file(rows, header=release).text for rows in templates]
    assert [hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts] == expected
    for text in texts:
        assert read_workload(text, "workload.txt").text == text


GPT = {
    "num_layers": 40, "hidden_size": 5120, "ffn_hidden_size": 20480, "seq_len": 2048, "vocab_size": 32000,
    "global_batch_size": 1, "tp": 8, "world_size": 8,
}  # fmt: skip
LLAMA = GPT | {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 11008, "gated_mlp": 1, "tp": 2, "world_size": 2,
}  # fmt: skip
UPDATE = {"gradient_forward": 14565000, "gradient_backward": 13391000}
#: File of aicb's workload/simAI/model_workload -> its run, its times, and the SHA-256 of its text.
PUBLISHED = {
    "G13B-M1-C01_GPT13B_megatron_tp8_pp1_mbs1_A100.txt": (
        GPT,
        LayerTimes.of(**nanoseconds(
            attention_forward=752000, attention_backward=752000, mlp_forward=750000, mlp_backward=750000,
            **UPDATE)),
        "a5373da592bddf18cf2f4e43ea60ac8f113d56fd2e10c0473c3ab57ae9d5ff9f",
    ),
    "G13B-M1-C02_GPT13B_megatron_tp8_pp1_mbs1_sp_A100.txt": (
        GPT | SHARED,
        LinearTimes.of(**nanoseconds(
            attention_column=375000, attention_row=376000, mlp_column=923000, mlp_row=1125000, **UPDATE)),
        "70f15d6400fe8710b05123afd75a9cfcb4a63f7ce56181f3a85027c36338cb81",
    ),
    "L7B-M1-C04_Llama7B_megatron_tp2_pp1_mbs1_A100.txt": (
        LLAMA,
        LayerTimes.of(**nanoseconds(
            attention_forward=539986, attention_backward=592000, mlp_forward=486330, mlp_backward=529500)),
        "366506e956a9fd5d27042dfd2fac3a0691222d27742b636b5bccab66b9a3eeae",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_texts_of_before_the_first_release_come_from_their_parameters(name):
    run, times, digest = PUBLISHED[name]
    text = workload_file(prerelease(GeneratorRun.of(**run), times), header="2024-07").text
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def test_times_of_one_mode_are_not_those_of_the_other():
    """Before the first release rows with and without sequence parallelism are others."""
    (plain, whole, _), (shared, linear, _), _ = PUBLISHED.values()
    with pytest.raises(DseError, match="without sequence_parallel the rows are others; give their times as LayerTimes"):
        prerelease(GeneratorRun.of(**plain), linear)
    with pytest.raises(DseError, match="with sequence_parallel the rows are others; give their times as LinearTimes"):
        prerelease(GeneratorRun.of(**shared), whole)
    with pytest.raises(DseError, match="num_experts: the generator knew none"):
        prerelease(GeneratorRun.of(**shared | EXPERTS), linear)


def test_a_vocabulary_is_padded_as_the_release_pads_it():
    """To 128 entries for each rank; before the first release to whole entries alone."""
    run = GPT | {
        "vocab_size": 32001,
        "hidden_size": 8,
        "ffn_hidden_size": 8,
        "num_layers": 1,
        "tp": 4,
        "global_batch_size": 2,
    }
    times = PUBLISHED["G13B-M1-C01_GPT13B_megatron_tp8_pp1_mbs1_A100.txt"][1]
    tables = []
    for rows in (prerelease(GeneratorRun.of(**run), times), measured(GeneratorRun.of(**run), Sections.of(**TIMES))):
        weights = rows.message_bytes.max() / 4
        tables.append((weights - 2048 * 8 - (4 + 2) * 8 * 8 / 4) / 8)
    assert tables == [2 * 32004 / 4, 4 * 32256 / 4]


def test_models_of_deepseek_have_a_row_for_each_product_and_experts_behind_dense_layers():
    """Tokens go to experts in 8 bits with scales, 33/64 of their size, and come back in 16."""
    rows = measured(GeneratorRun.of(**RUN | SHARED | LATENT), Sections.of(**TIMES, **PRODUCTS))
    lines = [line.split("\t") for line in workload_file(rows).text.splitlines()[2:]]
    latent = ["linear_q_lora", "q_column", "linear_kv_lora", "kv_column", "o_row"]
    attention, mlp = [f"attention_{name}" for name in latent], ["mlp_column", "mlp_row"]
    sparse = [*attention, *["mlp_moelayer"] * 5, *mlp]
    body = ["embedding_layer", *attention, *mlp, *sparse, *sparse, "final_column"]
    names = [line[0] for line in lines]
    assert names[4 : 4 + len(body)] == body
    there, back = (next(line for line in lines if line[at] == "ALLTOALL_EP") for at in (3, 6))
    assert float(there[4]) == np.floor(float(back[7]) * 33 / 64)
    report = price(rows, links(370.8, 48.5), revision="simai-2025-07")
    assert report.totals.exposed_ep_time[0] > 0
    assert np.isfinite(report.totals.total_time).all()


def test_runs_that_a_release_does_not_know_are_refused():
    latent = GeneratorRun.of(**RUN | SHARED | LATENT)
    with pytest.raises(DseError, match="release 2025-01: has no latent attention"):
        measured(latent, Sections.of(**TIMES), release="2025-01")
    with pytest.raises(DseError, match="latent attention with sequence_parallel has timed rows alone"):
        placeholder(latent)
    with pytest.raises(DseError, match="num_attention_heads: missing"):
        GeneratorRun.of(**RUN | LATENT | {"num_attention_heads": 0})
