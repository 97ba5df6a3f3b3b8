"""AICB workloads: files both ways, what is wrong with a file, and the generator row by row."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from costmodel.errors import DseError
from costmodel.profiles.simai.files.aicb import load_workload, read_workload, workload_file
from costmodel.profiles.simai.generator import GeneratorRun, Sections, measured, parameters, placeholder
from costmodel.profiles.simai.workload_rows import COLLECTIVES, GROUPS
from tests.aicb_files import MOE_RUN, SMALL, SP_RUN, moe_rows, scaled_rows, sp_rows

#: A run of unlike numbers: 3 layers a stage, 2 replicas, 4 micro-batches.
SMALL_RUN = {
    "num_layers": 6,
    "hidden_size": 96,
    "ffn_hidden_size": 160,
    "seq_len": 32,
    "vocab_size": 1000,
    "world_size": 16,
    "global_batch_size": 24,
    "micro_batch_size": 3,
    "tp": 4,
    "pp": 2,
}
TIMES = Sections.of(attention=101e-9, mlp=203e-9, embedding=31e-9, gradient_forward=5e-9, gradient_backward=7e-9)
HIDDEN = 2 * 3 * 32 * 96  #: bytes of a micro-batch's hidden states


def lines_of(rows, **header):
    """The rows of a workload as a file has them, fields apart."""
    return [line.split("\t") for line in workload_file(rows, **header).text.splitlines()[2:]]


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def small_run(**changes):
    return GeneratorRun.of(**{**SMALL_RUN, **changes})


def test_a_small_file_survives_with_its_unknown_tokens_and_their_order():
    file = read_workload(SMALL, "small.txt")
    assert file.text == SMALL
    assert file.tokens["colour"] == "blue"
    layout = {name: float(values[0]) for name, values in file.workload.layout.columns().items()}
    assert layout == {
        "tp": 4, "pp": 3, "ep": 2, "vpp": 2, "gradient_accumulation_steps": 5, "world_size": 96,
        "pp_message_bytes": 1048576,
    }  # fmt: skip


#: How texts differ that hold the same: in line ends, in columns, in a mark before the first word.
DIALECTS = {
    "no last newline": lambda text: text.rstrip("\n"),
    "empty lines": lambda text: text.replace("\nmlp", "\n\n \t\nmlp", 1) + "\n\n",
    "Windows": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    "padded columns": lambda text: text.replace("\t", "  \t ").replace(" pp: ", "\t  pp:   "),
    "blanks at the ends": lambda text: text.replace("\n", " \t\n"),
    "leading zeros": lambda text: text.replace("\t100\n", "\t0100\n").replace("\n5\n", "\n 05\n"),
    "fractions of bytes": lambda text: text.replace("\t33554432\t", "\t33554432.5\t"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_keeps_its_bytes_whatever_its_columns_and_line_ends(dialect, tmp_path):
    path, text = tmp_path / "workload.txt", DIALECTS[dialect](SMALL)
    path.write_bytes(text.encode())
    file = load_workload(path)
    assert file.text.encode() == path.read_bytes()
    plain = read_workload(SMALL, "small.txt")
    assert file.words == plain.words
    for name in ("time", "collective", "group", "message_bytes", "delay"):
        assert np.array_equal(getattr(file.workload, name), getattr(plain.workload, name))
    wrong = text.replace("ALLTOALL_EP", "ALLTOALL_XP")
    line = next(n for n, line in enumerate(wrong.split("\n"), start=1) if "_XP" in line)
    with pytest.raises(DseError, match=f"x.txt:{line}: field 4: 'ALLTOALL_XP': unknown collective"):
        read_workload(wrong, "x.txt")


def test_the_group_of_a_collective_follows_from_its_column_and_suffix():
    rows = read_workload(SMALL, "small.txt").workload
    found = [
        [(COLLECTIVES[k], GROUPS[g]) for k, g in zip(*row, strict=True) if k]
        for row in zip(rows.collective[0].tolist(), rows.group[0].tolist(), strict=True)
    ]
    assert found == [
        [("reduce_scatter", "dp")],
        [("all_reduce", "tp"), ("broadcast", "tp")],
        [("all_gather", "tp"), ("reduce_scatter", "tp")],
        [("all_to_all", "ep"), ("all_to_all", "ep"), ("all_reduce", "dp_ep")],
        [("all_reduce", "tp")],
    ]


MISTAKES = {
    ("\n5\n", "\n839\n"): "2: 839 rows are declared, and 5 are there",
    ("\n5\n", "\nfive\n"): "2: 'five': expected the number of rows",
    ("ALLREDUCE_DP_EP", "ALREDUCE_DP_EP"): "6: field 10: 'ALREDUCE_DP_EP': unknown collective; did you mean",
    ("ALLTOALL_EP", "ALLTOALL_XP"): "6: field 4: 'ALLTOALL_XP': unknown collective",
    ("33554432\t31000", "-1\t31000"): "5: field 5: '-1': expected a whole number of bytes from 0",
    ("\t29000\t", "\t29.5\t"): "5: field 3: '29.5': expected a whole number of ns",
    ("0\t100\nmlp", "0\nmlp"): "4: 11 fields; expected 12",
    ("grad\t-1", "grad\t0"): "3: dependency: '0': expected -1",
    ("model_parallel_NPU_group: 4 ", ""): "1: model_parallel_NPU_group: missing; every reader needs it",
    ("pp: 3 ", ""): "1: pp: missing",
    ("ep: 2 ", ""): "1: ep: missing; every reader needs it where a collective ends in _DP_EP",
    ("ga: 5", "ga: 0"): "1: ga: '0': expected a whole number from 1",
    ("ga: 5", "ga: 5 ga: 5"): "1: ga: given twice",
    ("checkpoints: 0", "checkpoints: 2 1"): "1: checkpoints: '2 1': expected a count and as many rows",
    ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID"): "1: 'HYBRID': expected a training loop",
}


@pytest.mark.parametrize(("old", "new"), MISTAKES, ids=lambda text: repr(text))
def test_a_mistake_is_told_with_its_line(old, new):
    with pytest.raises(DseError) as told:
        read_workload(SMALL.replace(old, new), "small.txt")
    assert f"small.txt:{MISTAKES[old, new]}" in str(told.value)


def test_all_mistakes_are_told_at_once():
    wrong = SMALL.replace("\n5\n", "\n6\n").replace("ALLGATHER", "ALLGATHERED").replace("pp: 3 ", "")
    with pytest.raises(DseError) as told:
        read_workload(wrong, "small.txt")
    assert [line.split(": ")[0] for line in str(told.value).splitlines()] == [f"small.txt:{line}" for line in (1, 2, 5)]


def test_checkpoints_repeat_the_forward_pass_of_rows():
    """From the row that starts a segment up to, not including, the one that initiates; the first alone."""
    marked = SMALL.replace("checkpoints: 0 checkpoint_initiates: 0", "checkpoints: 2 1 2 checkpoint_initiates: 1 3")
    file = read_workload(marked, "small.txt")
    repeated = (file.executed.time - file.workload.time)[0] * 1e9
    assert repeated[:, 0] == pytest.approx([0, 17000, 29000, 0, 0])
    assert not repeated[:, 1:].any()
    assert file.text == marked
    assert read_workload(SMALL, "small.txt").executed.time.tolist() == file.workload.time.tolist()


# Published file -> its rows from their parameters, its header, its SHA-256, and how many rows it has.
PUBLISHED = {
    "SimAI's analytical example of October 2024": (
        sp_rows, "2024-10", "d4d801b96c62f65434987924514950bc3f856138ef616c2aa3fcdfac8c4cec34", 557,
    ),
    "AICB's GPT 13B before its first release, scaled": (
        scaled_rows, "prerelease", "b9a478d9e5296bd19de8be77933a8083e031789f9847bf7f815b9b091a5fef97", 172,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_come_from_their_parameters_and_survive_reading_and_writing(name, tmp_path):
    """Byte for byte."""
    rows, header, digest, number = PUBLISHED[name]
    text = workload_file(rows(), header=header).text
    assert sha256(text) == digest
    assert len(text.splitlines()) - 2 == number
    path = tmp_path / "workload.txt"
    path.write_text(text)
    assert load_workload(path).text == text


def test_published_moe_file_from_its_parameters():
    """SimAI, example/workload_analytical.txt of November 2024: 140399 bytes, and these rows."""
    text = workload_file(moe_rows(), header="2024-12").text.replace("pp_comm:", "pp_comm")  # as it has it
    assert len(text) == 140399
    for row in (
        "moe_grad_norm2\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER_DP_EP\t38654705664\t100",
        "embedding_layer\t-1\t622731\tALLREDUCE\t50331648\t1\tNONE\t0\t15091072\tNONE\t0\t100",
        "mlp_moelayer\t-1\t7956367\tALLGATHER\t1572864\t7956367\tALLGATHER\t1572864\t1\tNONE\t0\t100",
        "mlp_moelayer\t-1\t1\tALLTOALL\t25165824\t1\tALLTOALL\t25165824\t1\tNONE\t0\t100",
        "mlp_moelayer\t-1\t1\tALLTOALL_EP\t100663296\t1\tALLTOALL_EP\t100663296\t1\tNONE\t0\t100",
        "mlp_moelayer\t-1\t1\tALLGATHER\t201326592\t1\tREDUCESCATTER\t201326592\t1\tNONE\t0\t100",
    ):
        assert f"\n{row}\n" in text
    assert parameters(MOE_RUN, "2024-11")[0] * 2 == 2807758848


# Without and with: sequence parallelism, experts per release, and replicas equal to expert groups.
ROW_COUNTS = [
    # changes, release, rows: prologue + micro-batches * (rows of layers + embedding + final) + epilogue
    ({"sequence_parallel": 1}, "2025-09", 4 + 2 + 4 * (4 * 3 + 2) + 7),
    ({}, "2025-09", 5 + 2 + 4 * (2 * 3 + 1) + 7),
    ({"sequence_parallel": 1, "num_experts": 4, "ep": 2}, "2025-09", 4 + 4 * (7 * 3 + 2) + 7),
    ({"sequence_parallel": 1, "num_experts": 4, "ep": 2}, "2024-11", 4 + 4 * (9 * 3 + 2) + 7),
    ({"sequence_parallel": 1, "num_experts": 4, "ep": 1}, "2025-09", 4 + 2 + 4 * (7 * 3 + 2) + 7),
]


@pytest.mark.parametrize(("changes", "release", "rows"), ROW_COUNTS)
def test_row_counts_follow_from_layers_and_micro_batches(changes, release, rows):
    assert len(lines_of(measured(small_run(**changes), TIMES, release=release))) == rows


def test_recomputation_doubles_the_forward_time_of_attention_alone():
    """In sequence parallelism; without it the reference forgets to."""
    once, twice = (lines_of(measured(small_run(sequence_parallel=1, recompute=r), TIMES)) for r in (0, 1))
    changed = [(a[0], a[2], b[2]) for a, b in zip(once, twice, strict=True) if a != b]
    assert set(changed) == {("attention_column", "50", "101"), ("attention_row", "50", "101")}
    without = (lines_of(measured(small_run(recompute=r), TIMES)) for r in (0, 1))
    assert next(without) == next(without)


def test_one_tensor_parallel_rank_sends_nothing_to_others():
    run = small_run(tp=1, world_size=4, sequence_parallel=1)
    parts = ("embedding_layer", "attention_", "mlp_", "final_")
    for release, size in (("2025-01", str(HIDDEN)), ("2025-09", "0")):  # sizes stay, up to the last one
        body = [line for line in lines_of(measured(run, TIMES, release=release)) if line[0].startswith(parts)]
        assert {word for line in body for word in (line[3], line[6], line[9])} == {"NONE"}
        assert {line[4] for line in body} == {size}


def test_headers_of_all_generations():
    rows = measured(small_run(sequence_parallel=1), TIMES)
    first = [workload_file(rows, header=h).text.splitlines()[0].split(" ", 1)[1] for h in (
        "2024-10", "2024-11", "2024-12", "2025-01", "prerelease")]  # fmt: skip
    groups, ends = "model_parallel_NPU_group: 4 ep: 1 pp: 2", "checkpoints: 0 checkpoint_initiates: 0"
    assert first == [
        f"{groups} ga: 4 all_gpus: 16 {ends}",
        f"{groups} vpp: 3 ga: 4 all_gpus: 16 {ends}",
        f"{groups} vpp: 3 ga: 4 all_gpus: 16 {ends} pp_comm: {HIDDEN // 4}",
        f"{groups} vpp: 3 ga: 4 all_gpus: 16 {ends} pp_comm: {HIDDEN // 4}.0",
        f"{groups} vpp: 3 ga: 4 all_gpus: 16 pp_comm: {HIDDEN // 4} {ends}",
    ]


def test_bytes_between_stages_have_a_fraction_where_the_generator_divided_them():
    """In sequence parallelism from January 2025 on, also by 1; before they are whole hidden states."""
    shared, alone, whole = (
        measured(small_run(**changes), TIMES)
        for changes in ({"sequence_parallel": 1}, {"sequence_parallel": 1, "tp": 1, "world_size": 4}, {})
    )
    sizes = [workload_file(rows, header="2025-01").tokens["pp_comm"] for rows in (shared, alone, whole)]
    assert sizes == [f"{HIDDEN / 4}", f"{HIDDEN}.0", f"{HIDDEN}"]
    december = measured(small_run(sequence_parallel=1), TIMES, release="2024-12")
    assert workload_file(december).tokens["pp_comm"] == f"{HIDDEN}"


def test_one_stage_sends_no_messages():
    rows = measured(small_run(pp=1, world_size=8), TIMES)
    assert workload_file(rows).tokens["pp_comm"] == "0"


def test_placeholders_have_sizes_and_no_times():
    lines = lines_of(placeholder(small_run(sequence_parallel=1, recompute=1)))
    assert {line[2] for line in lines} == {"1", "0"}
    column, norm = (next(line for line in lines if line[0] == name) for name in ("attention_column", "embedding_norm"))
    assert column[3:5] == ["ALLGATHER", str(2 * HIDDEN)]
    assert norm[3:5] == ["ALLREDUCE", str(2 * 1000 * 96)]
    assert len(lines) == 1 + 2 + 4 * (4 * 3 + 3) + 7


def test_a_batch_gives_each_run_its_own_rows():
    """Different stages, micro-batches and groups out of one template."""
    changes = [
        {"tp": 4, "pp": 2, "sequence_parallel": 1},
        {"tp": 2, "pp": 1, "sequence_parallel": 0},
        {"tp": 1, "pp": 4, "sequence_parallel": 1},
    ]
    columns = {name: [change[name] for change in changes] for name in changes[0]}
    together = measured(small_run(**columns), TIMES)
    for point, change in enumerate(changes):
        alone = measured(small_run(**change), TIMES)
        assert workload_file(together, point=point).text == workload_file(alone).text
        assert len(lines_of(alone)) == together.counts[point].sum()


def test_impossible_runs_are_refused():
    for changes, message in (
        ({"world_size": 17}, "world_size: not a multiple of tp \\* pp"),
        ({"global_batch_size": 2}, "less than one micro-batch per replica"),
        ({"num_layers": 1}, "less than one layer per stage"),
        ({"num_experts": 4}, "experts with sequence_parallel only"),
        ({"hiden_size": 4}, "hiden_size: unknown column; did you mean 'hidden_size'"),
    ):
        with pytest.raises(DseError, match=message):
            small_run(**changes)
    with pytest.raises(DseError, match="release 2024-10: experts need ep above 1"):
        measured(small_run(num_experts=4, sequence_parallel=1), TIMES, release="2024-10")


def test_the_template_is_as_short_as_a_layer():
    assert len(sp_rows().names) < 40 < len(lines_of(sp_rows()))
    assert np.array_equal(sp_rows().layers * sp_rows().micro_batches, SP_RUN.stage_layers * 16)
