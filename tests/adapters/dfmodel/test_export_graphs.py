"""Designs as set-ups of DFModel: the files are evaluated as the graphs are; notes list omitted columns."""

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape
from costmodel.errors import DseError
from costmodel.training.blocks import DECODER
from costmodel.training.run import Run
from dse.adapters.dfmodel.design import DataflowDesign, design_setup
from dse.adapters.dfmodel.evaluation import evaluate
from dse.adapters.dfmodel.export import design_sharding, unsupported_columns, unsupported_shardings
from dse.adapters.dfmodel.files import SetupFile, load_setup, setup_file
from dse.adapters.dfmodel.graph import ALL_REDUCE, NONE, kernel_collectives, least_moving, moved_bytes, sharding_words
from dse.adapters.dfmodel.layer import model_graph
from dse.api.exports import artefacts
from dse.api.study import Study
from dse.cli import main
from dse.output import Artefact
from dse.spaces.space import Space
from tests.support.commands import json_of, stderr_of
from tests.support.runs import ranks_of

GATED = ModelShape(
    num_layers=8, hidden_size=96, num_attention_heads=12, num_query_groups=4, head_size=16,
    ffn_hidden_size=160, gated_mlp=True, dropout=False, seq_len=64,
)  # fmt: skip
GPT = ModelShape(num_layers=8, hidden_size=96, num_attention_heads=12, seq_len=64)
MEGATRON = {
    **dict.fromkeys(("attention_norm", "attention_residual", "mlp_norm", "mlp_residual"), "replicated"),
    "activation": "column", "qkv": "column", "projection": "row", "mlp_up": "column", "mlp_down": "row",
}  # fmt: skip


# Shardings


@pytest.mark.parametrize("model", [GPT, GATED], ids=["gpt", "gated"])
def test_megatrons_design_moves_an_activation_four_times(model):
    """Two all-reduces a pass, the gradient of V among them: as little as the best, up to V's size."""
    graph = model_graph(model)
    sharding = design_sharding(graph, DECODER, MEGATRON)
    reduced = [graph.names[index] for index in np.flatnonzero(kernel_collectives(graph, sharding) == ALL_REDUCE)]
    assert reduced == ["PROJ_GEMM", "FFN1", "FFN0_bwd", "V_bwd"]
    activation = model.hidden_size * model.seq_len * 2
    assert moved_bytes(graph, sharding) == 4 * activation
    assert moved_bytes(graph, sharding) - least_moving(graph).moved_bytes == max(
        0, activation - model.key_value_size * model.seq_len * 2
    )


def test_each_word_is_a_dimension_of_the_kernels_that_it_names():
    graph = model_graph(GATED)

    def split(**changes: str) -> dict[str, str]:
        actual = design_sharding(graph, DECODER, {**MEGATRON, **changes})
        return dict(zip(graph.names, sharding_words(actual), strict=True))

    assert [split()[name] for name in ("Q", "FFN0", "FFN0_bwd", "FFN0_bwd_weight_update")] == [
        "outer", "m", "k", "n",
    ]  # fmt: skip
    turned = split(mlp_up="row", mlp_down="column", activation="replicated", mlp_norm="column")
    assert [turned[name] for name in ("FFN0", "FFN0_bwd", "FFN0_bwd_weight_update")] == ["k", "m", "m"]
    assert [turned[name] for name in ("FFN1", "FFN1_bwd", "FFN1_bwd_weight_update")] == ["m", "k", "n"]
    assert (turned["SwiGLU"], turned["LayerNorm_2"], turned["LayerNorm_2_bwd"]) == ("none", "m", "m")


def test_what_a_split_cannot_say_is_told():
    graph = model_graph(GPT)
    assert list(unsupported_shardings(graph, DECODER, MEGATRON)) == []
    shared = {**MEGATRON, "attention_norm": "sequence", "mlp_norm": "sequence"}
    assert list(unsupported_shardings(graph, DECODER, shared)) == [
        "attention_norm, mlp_norm: sequence cannot be expressed; split by none"
    ]
    assert list(unsupported_shardings(graph, DECODER, {**MEGATRON, "qkv": "row"})) == [
        "qkv: row cannot be expressed; split by outer"
    ]
    shape = ranks_of(GPT, DesignPoints.of(tp=4, sequence_parallel=[0, 1])).design
    whole, split = (shape.assignments.words(number) for number in shape.assignment)
    assert (whole["mlp_norm"], split["mlp_norm"]) == ("replicated", "sequence")
    assert whole == MEGATRON
    assert design_sharding(graph, DECODER, shared)[graph.names.index("LayerNorm_2")] == NONE


def test_columns_that_a_file_leaves_out_are_told():
    assert list(unsupported_columns(DesignPoints.of(tp=4, attention="unfused"), 0)) == []
    design = DataflowDesign.of(
        recompute=["none", "full"], vpp=[1, 2], distributed_optimizer=1, overlap="compute_memory"
    )
    first, second = (" ".join(unsupported_columns(design, point)) for point in (0, 1))
    assert first.startswith("left out: distributed_optimizer (")
    assert "recompute (" in second
    assert "vpp (" in second
    assert "overlap=" not in first


# Files of studies


@pytest.fixture
def searched(tmp_path, monkeypatch, small_space):
    """A folder with a small study."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_space)
    assert main(["search", "small.yaml", "--budget", "8", "--out", "out", "--emit", "dfmodel", "--emit-all"]) == 0
    return tmp_path


def test_the_file_of_each_design_is_priced_as_its_graph_and_set_up_are(searched):
    """From Python and from the file: the same iteration, but for the file's float32."""
    study = Study.load("small")
    graph = model_graph(study.space.model)
    files = sorted((searched / "out" / "dfmodel").iterdir())
    assert len(files) == len(study.table.trials) == 8
    for trial, path in zip(study.table.trials, files, strict=True):
        actual = json_of("cost", str(path))
        tp, pp = trial.params["tp"], trial.params["pp"]
        dp = 64 // (tp * pp)
        design = DataflowDesign.of(tp=tp, pp=pp, dp=dp, gradient_accumulation_steps=128 // dp)
        setup = design_setup(Run(study.space.model, study.space.system, design))
        alone = evaluate(graph, setup, design_sharding(graph, DECODER, MEGATRON), generation="gen1")
        assert actual["final_s"] == pytest.approx(alone.iteration_time[0], rel=1e-6)
        assert actual["sharding"]["PROJ_GEMM"] == "k"


def test_a_trial_is_exported_in_every_form(searched):
    for form in ("dfmodel", "dfmodel-binary"):
        notes = stderr_of("export", "small", "--trial", "3", "--format", form, "-o", form, code=0)
        assert f"dse: {form}: left out: " in notes
        assert "attention=fused (scores are kernels of their own)" in notes
    text, binary = (load_setup(searched / form) for form in ("dfmodel", "dfmodel-binary"))
    assert text == binary
    assert text == load_setup(searched / "out" / "dfmodel" / "trial_00003.txt")
    assert setup_file(text, "text").graph.names == model_graph(Study.load("small").space.model).names


def designed(small_space: str, folder, given: str, **params: object) -> tuple[Artefact, SetupFile]:
    """The file of one design of a space that has some columns besides, and what is read from it."""
    path = folder / "space.yaml"
    path.write_text(small_space.replace("global_batch_size: 128}", f"global_batch_size: 128, {given}}}"))
    [file] = artefacts(Space.load(str(path)), [{"pp": 2, "recompute": "none", **params}], "dfmodel")
    (folder / "setup.txt").write_bytes(file.content)
    return file, setup_file(load_setup(folder / "setup.txt"), "setup")


def test_splits_that_are_told_or_solved_are_those_of_the_file(small_space, tmp_path):
    ways = {f"{kernel}_sharding": way for kernel, way in MEGATRON.items()}
    ways |= {"mlp_up_sharding": "row", "mlp_norm_sharding": "sequence"}
    file, read = designed(small_space, tmp_path, "sharding: sample", tp=4, **ways)
    split = dict(zip(read.graph.names, sharding_words(read.sharding), strict=True))
    assert [split[name] for name in ("FFN0", "FFN0_bwd", "LayerNorm_2", "PROJ_GEMM")] == ["k", "m", "none", "k"]
    assert file.notes[0] == "mlp_norm: sequence cannot be expressed; split by none"
    _, read = designed(small_space, tmp_path, "sharding: solve_bytes", tp=4)
    split = dict(zip(read.graph.names, sharding_words(read.sharding), strict=True))
    assert [split[name] for name in ("FFN0", "FFN1", "PROJ_GEMM")] == ["m", "k", "k"]


def test_kernels_of_a_dataflow_are_in_their_fastest_groups(small_space, tmp_path):
    (_, alone), (_, fused) = (
        designed(small_space, tmp_path, f"execution: {style}", tp=8) for style in ("kernel_by_kernel", "dataflow")
    )
    assert alone.most_groups == 0
    forward = ~fused.graph.backward
    assert set(fused.pins[forward]).isdisjoint(fused.pins[~forward])
    times = [
        evaluate(file.graph, file.setup, file.sharding, generation="gen1", groups=file.pins) for file in (alone, fused)
    ]
    assert times[1].fits.all()
    assert times[1].iteration_time < times[0].iteration_time
    apart = np.where(forward, fused.pins, fused.pins.max() + np.arange(len(forward)))
    slower = evaluate(fused.graph, fused.setup, fused.sharding, generation="gen1",
                      groups=np.unique(apart, return_inverse=True)[1])  # fmt: skip
    assert slower.iteration_time > times[1].iteration_time


def test_groups_of_a_file_are_those_of_the_search_whatever_the_dram(small_space, tmp_path):
    """The native memory decides on DRAM there; what DFModel's rule finds too little is told."""
    (roomy, groups), (tight, same) = (
        designed(small_space, tmp_path, f"execution: dataflow, dram_capacity: {capacity}", tp=8)
        for capacity in ("1 TB", "1 GB")
    )
    assert same.setup.dram_bytes == 1e9
    assert same.pins.tolist() == groups.pins.tolist()
    assert not any("does not fit" in note for note in roomy.notes)
    needed = evaluate(same.graph, same.setup, same.sharding, generation="gen1", groups=same.pins).dram_bytes
    assert tight.notes[-1] == (
        f"does not fit: DRAM: {needed[0]:,.0f} bytes are needed, {needed[0] - 1e9:,.0f} more than there are"
    )


def test_groups_that_fit_no_chip_say_what_would_do(small_space, tmp_path):
    path = tmp_path / "space.yaml"
    given = "global_batch_size: 128, execution: dataflow, tile_size: 2048}"
    path.write_text(small_space.replace("global_batch_size: 128}", given))
    params = {"tp": 1, "pp": 1, "recompute": "none"}
    [file] = artefacts(Space.load(str(path)), [params], "dfmodel", profile="dfmodel-gen3")
    assert file.content is None
    [note] = file.notes
    assert note.startswith("execution=dataflow: no groups fit: SRAM: at least ")
    assert note.endswith("; take a smaller tile_size")


def test_a_design_without_such_a_file_is_told(searched, small_space):
    """Two dimensions serve two groups: 1 and 8 stages leave a third group of one chip."""
    two = small_space.replace("name: small", "name: two").replace(
        "global_batch_size: 128}", "global_batch_size: 128, topology: r_r}"
    )
    (searched / "two.yaml").write_text(two.replace("tp: [1, 2, 4, 8]", "tp: [8]"))
    search = ["search", "two.yaml", "--profile", "dfmodel-gen1", "--budget", "12"]
    notes = stderr_of(*search, "--out", "two", "--emit", "dfmodel", "--emit-all", code=0)
    trials = {trial.number: trial.params["pp"] for trial in Study.load("two").table.trials}
    written = {int(path.stem.removeprefix("trial_")) for path in (searched / "two" / "dfmodel").iterdir()}
    assert written == {number for number, pp in trials.items() if pp in (1, 8)}
    [without, *_] = trials.keys() - written
    said = f"topology r_r: too few dimensions for tp=8 pp={trials[without]}"
    assert f"trial_{without:05d}.txt: {said}" in notes
    assert f"trial {without}: {said}" in stderr_of("export", "two", "--trial", str(without), "--format", "dfmodel")


def test_an_unknown_form_is_refused_with_the_nearest():
    """Also one that earlier versions had: nothing falls through to another form."""
    space = Space.load("gpt3_175b_1024_a100")
    with pytest.raises(DseError, match="unknown form 'astra_sim'; did you mean 'astra-sim'"):
        next(artefacts(space, [space.completed({})], "astra_sim"))
    with pytest.raises(DseError, match="unknown form 'dot'"):
        next(artefacts(space, [space.completed({})], "dot"))
