"""Designs as AICB workloads: what they hold, SimAI's price of them, and the commands around both."""

import json
import re
import shlex

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, step
from costmodel.rules.registry import profiles
from costmodel.steps.breakdown import PARTS
from costmodel.steps.micro_batch.rank_memory import layer_parameters
from costmodel.training.blocks import DECODER
from costmodel.training.design import MEGATRON_SP
from costmodel.training.run import Run
from dse import Space, Study
from dse.adapters.simai.bandwidth import GPU_TYPES, NIC_TYPES, REVISIONS
from dse.adapters.simai.design_rows import design_workload, machine_links, simai_step
from dse.adapters.simai.files.aicb import load_workload, workload_file
from dse.adapters.simai.time import price
from dse.cli import main, parsed
from dse.pricing.evaluated import rules_for
from dse.reporting.studies.comparison import comparison
from tests.support.aicb_files import SMALL, published
from tests.support.cases import cases
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of
from tests.support.paths import ROOT
from tests.support.runs import ranks_of


@pytest.fixture
def designs():
    """Layouts of unlike numbers, with every switch on and off."""
    return DesignPoints.of(**cases(__file__, "designs"))


def test_arithmetic_is_that_of_the_native_model(llama, toy_system, designs):
    """To the nanosecond of each row that has none of its own."""
    rows = design_workload(Run(llama, toy_system, designs))
    native = step(llama, toy_system, designs)
    expected = native.forward_time + native.backward_time + native.recompute_time + native.optimizer_time
    assert (rows.counts * rows.time.sum(axis=2)).sum(axis=1) == pytest.approx(expected, abs=20e-9)


def test_messages_follow_from_the_design(llama, toy_system, designs):
    rows = design_workload(Run(llama, toy_system, designs))
    hidden = 2 * designs.micro_batch_size * llama.seq_len * llama.hidden_size
    column, reduced = rows.names.index("attention_column"), rows.names.index("grad_param_comm")
    assert rows.message_bytes[:, column, 0] == pytest.approx(hidden)
    ranks = ranks_of(llama, designs, toy_system)
    weights = llama.num_layers / designs.pp * layer_parameters(ranks, DECODER)
    weights += llama.embedding_parameters / designs.tp
    assert rows.message_bytes[:, reduced, 2] == pytest.approx(4 * weights, abs=1)


def test_other_ways_to_split_kernels_are_refused(llama, toy_system):
    sampled = DesignPoints.of(tp=[1, 2], sharding="sample", qkv_sharding="row")
    with pytest.raises(DseError, match="take sharding: megatron or megatron_sp"):
        design_workload(Run(llama, toy_system, sampled))
    alone = sampled.take(np.array([0]))  # on one rank every way is the same
    assert design_workload(Run(llama, toy_system, alone)).names


def test_a_solved_split_that_has_a_name_has_rows(llama, toy_system):
    design = DesignPoints.of(tp=[2, 8], sharding="solve_bytes")
    actual = design_workload(Run(llama, toy_system, design))
    named = design_workload(Run(llama, toy_system, DesignPoints.of(tp=[2, 8], sharding="megatron")))
    assert np.array_equal(actual.message_bytes, named.message_bytes)


def test_headers_and_row_counts_follow_from_the_design(llama, toy_system, designs):
    rows = design_workload(Run(llama, toy_system, designs))
    for point, columns in enumerate(zip(*(v.tolist() for v in designs.columns().values()), strict=True)):
        design = dict(zip(designs.columns(), columns, strict=True))
        file = workload_file(rows, point=point)
        tokens = {name: float(file.tokens[name]) for name in ("pp", "vpp", "ga", "all_gpus")}
        assert tokens == {
            "pp": design["pp"],
            "vpp": design["vpp"],
            "ga": design["gradient_accumulation_steps"],
            "all_gpus": design["tp"] * design["pp"] * design["dp"],
        }
        per_layer = 4 if design["sharding"] == MEGATRON_SP else 2
        layers = llama.num_layers / design["pp"]
        prologue = 4 + (2 if design["dp"] != 1 else 0)
        assert len(file.text.splitlines()) - 2 == (
            prologue + design["gradient_accumulation_steps"] * (per_layer * layers + 2) + 7
        )


def test_simai_evaluates_a_design_as_it_evaluates_its_file(llama, toy_system, designs, tmp_path):
    """The price of a design in a search, and of its exported file, are the same."""
    breakdown = simai_step(Run(llama, toy_system, designs))
    rows = design_workload(Run(llama, toy_system, designs))
    for point in range(designs.num_points):
        (tmp_path / "workload.txt").write_text(workload_file(rows, point=point).text)
        file = load_workload(tmp_path / "workload.txt").workload
        alone = price(file, machine_links(toy_system), revision="simai-2025-07").totals
        assert alone.total_time[0] == pytest.approx(breakdown.step_time[point], abs=1e-6)


def test_parts_of_simais_step_add_up(llama, toy_system, designs):
    breakdown = simai_step(Run(llama, toy_system, designs))
    for total, parts in PARTS.items():
        assert getattr(breakdown, total) == pytest.approx(sum(getattr(breakdown, part) for part in parts))
    native = step(llama, toy_system, designs)
    for same in ("peak_memory", "backward_time", "recompute_time", "optimizer_time", "system_price"):
        assert getattr(breakdown, same) == pytest.approx(getattr(native, same))
    assert (breakdown.host_time == 0).all()


def test_profiles_are_refused_where_they_do_not_fit():
    with pytest.raises(DseError, match="profile 'simia': unknown; did you mean 'simai'"):
        rules_for(Space.load("gpt3_175b_1024_a100"), "simia")
    with pytest.raises(DseError, match="profile simai: knows transformers only"):
        rules_for(Space.load("lstm_24b_power"), "simai")


@pytest.fixture(scope="module")
def studies(tmp_path_factory, small_space):
    """A folder with a study of each profile, searched with files for the front and for every trial."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "small.yaml").write_text(small_space)
    search = ["search", "small.yaml", "--budget", "24", "--emit", "aicb"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*search, "--study", "native", "--out", "n"]) == 0
        assert main([*search, "--study", "simai", "--profile", "simai", "--out", "s", "--emit-all"]) == 0
    return folder


@pytest.fixture
def searched(studies, monkeypatch):
    """This folder, which is the current one."""
    monkeypatch.chdir(studies)
    return studies


def test_a_search_emits_workloads_and_compares_profiles(searched):
    front = [trial.number for trial in Study.load("native").table.front().trials]
    assert sorted(path.name for path in (searched / "n" / "aicb").iterdir()) == [
        f"trial_{number:05d}.txt" for number in sorted(front)
    ]
    assert len(list((searched / "s" / "aicb").iterdir())) == 24
    outputs_of("export", "native", "--trial", front[0], "-o", "best.txt")
    best = (searched / "best.txt").read_text()
    assert stdout_of("export", "native") == best == (searched / "n" / "aicb" / f"trial_{front[0]:05d}.txt").read_text()

    study = Study.load("simai")
    assert study.profile == "simai"
    design = study.table.trials[0]
    alone = json_of("cost", "s/aicb/trial_00000.txt", "--profile", "simai", *machine(study.space))
    assert alone["total_us"] / 1e6 == pytest.approx(design.user_attrs["breakdown"]["step_time_s"], abs=1e-6)

    actual = json_of("compare", "native", "--profile", "simai")
    assert actual["profiles"] == ["native", "simai"]
    assert 0.5 < actual["rank_correlation"] <= 1
    ranks = [design["ranks"]["native"] for design in actual["designs"]]
    assert ranks == sorted(ranks)
    compared = " ".join(stdout_of("compare", "simai").split())
    assert "Under native, the step time of the same design changes by" in compared


def machine(space: Space) -> list[str]:
    """A space's machine as `dse cost` takes it."""
    links = machine_links(space.system)
    return [
        "--nvlink-bandwidth", f"{float(links.nvlink_bandwidth) / 2**30!r}",
        "--nic-bandwidth", f"{float(links.nic_bandwidth) / 2**30!r}",
    ]  # fmt: skip


def test_a_study_keeps_its_profile(searched):
    space = Space.load("small.yaml")
    with pytest.raises(DseError, match="has profile native, not simai"):
        Study.open(space, "native", profile="simai")
    assert Study.open(space, "simai").profile == "simai"
    with pytest.raises(DseError, match="is evaluated by simai already"):
        comparison(Study.load("simai"), "simai")


def test_a_trial_that_is_not_there_is_not_exported(searched):
    assert "no finished trial 99; it holds 24, from 0 to 23" in stderr_of("export", "native", "--trial", "99")


BUSBW = "TP: {allreduce: 300, allgather: 280, alltoall: 230}\nDP: {allgather: 380}\nPP: {busbw: 47.5}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a published workload and bandwidths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workload.txt").write_text(published("gpt_13b_scaled"))
    (tmp_path / "small.txt").write_text(SMALL)
    (tmp_path / "busbw.yaml").write_text(BUSBW)
    return tmp_path


def test_cost_says_where_the_time_of_a_workload_goes(folder):
    told = ["cost", "workload.txt", "--profile", "simai", "--busbw", "busbw.yaml", "--gpus", "512"]
    actual = json_of(*told)
    assert actual["profile"] == "simai-2024-12"
    assert actual["missing"] == []
    printed = cases(__file__, "PRINTED")
    assert {key: actual[key] for key in printed} == pytest.approx(printed, abs=0.5)
    assert len(actual["rows"]) == 172
    assert actual["rows"][1]["forward"]["communication_us"] == pytest.approx(37819, abs=0.5)

    table = stdout_of(*told, "--pp-overlap", "0")
    assert "simai-2024-12, 512 GPUs: tp 8, pp 8, ep 1, vpp 8" in table
    assert "attention_column_layer     40" in table
    assert "messages between stages        6.578 ms" in table
    assert stdout_of(*told, "--format", "csv").splitlines()[1].endswith(", 2059161")


def test_cost_takes_a_machine_by_type_or_by_number(folder):
    by_type = ["--gpu-type", "H100", "--nic-type", "cx7"]
    for network in (by_type, ["--nvlink-bandwidth", "370.8", "--nic-bandwidth", "48.5 GiB/s"]):
        actual = json_of("cost", "workload.txt", "--profile", "simai", *network)
        assert actual["total_us"] == pytest.approx(2119203, abs=0.5)


def test_cost_says_what_is_missing_and_shows_what_simai_shows(folder):
    (folder / "old.txt").write_text((folder / "workload.txt").read_text().replace("vpp: 8 ", ""))
    told = ["cost", "old.txt", "--profile", "simai", "--gpu-type", "H100", "--format", "json"]
    out, err = outputs_of(*told)
    assert json.loads(out)["total_us"] is None
    assert "header: vpp: missing" in err
    assert json.loads(stdout_of(*told, "--strict-compat"))["total_us"] == "NaN or Inf"


WRONG = cases(__file__, "WRONG")


@pytest.mark.parametrize("arguments", WRONG)
def test_mistakes_of_cost_are_one_clear_line(arguments, folder):
    assert WRONG[arguments] in stderr_of("cost", *arguments.split())


def test_a_workload_is_known_by_its_content_and_evaluated_without_an_option(folder):
    """On a usual machine, which is said."""
    out, err = outputs_of("cost", "small.txt", "--format", "json")
    assert err.startswith("dse: small.txt: no --gpu-type named, so evaluated on H100s")
    assert stdout_of("cost", "small.txt", "--profile", "simai", "--gpu-type", "H100", "--format", "json") == out


def test_a_header_without_chunks_has_one_of_them_unless_a_revision_is_asked_for(folder):
    """SimAI itself has no number for the bubble then."""
    (folder / "old.txt").write_text((folder / "workload.txt").read_text().replace("vpp: 8 ", ""))
    (folder / "one.txt").write_text((folder / "workload.txt").read_text().replace("vpp: 8 ", "vpp: 1 "))
    totals = {}
    for name in ("old.txt", "one.txt"):
        out, err = outputs_of("cost", name, "--gpu-type", "H100", "--format", "json")
        totals[name] = json.loads(out)["total_us"]
        assert ("header: vpp: missing, so taken to be 1" in err) == (name == "old.txt")
    assert totals["old.txt"] == totals["one.txt"] > 0


def test_the_first_revision_needs_every_token_at_its_place(folder):
    (folder / "small.txt").write_text(SMALL.replace("all_gpus: 96 ", ""))
    error = stderr_of("cost", "small.txt", "--profile", "simai-2024-10", "--busbw", "busbw.yaml", "--gpus", "96")
    assert "small.txt:1: all_gpus: missing; simai-2024-10 needs them" in error


def test_other_gpus_than_those_of_the_file_are_noted(folder):
    notes = stderr_of("cost", "small.txt", "--profile", "simai", "--gpu-type", "A100", "--gpus", "48", code=0)
    assert "all_gpus: 96 there, and 48 counted" in notes


def test_the_command_knows_every_revision_and_type(capsys):
    assert {profile.name for profile in profiles().values() if profile.file == "aicb"} == {"simai", *REVISIONS}
    with pytest.raises(SystemExit, match="0"):
        main(["cost", "--help"])
    text = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", text) for name in (*GPU_TYPES, *NIC_TYPES))
    for option, wrong, hint in (("--gpu-type", "A10", "did you mean"), ("--nic-type", "cx8", "known: bf3, cx6, cx7")):
        with pytest.raises(SystemExit, match="2"):
            main(["cost", "workload.txt", option, wrong])
        assert hint in capsys.readouterr().err


def test_a_row_on_which_simai_never_ends_is_noted(monkeypatch, tmp_path, small_space):
    """A whole GPT 22B on one chip: its optimizer alone takes seconds."""
    monkeypatch.chdir(tmp_path)
    one = small_space.replace("world_size: 64", "world_size: 1")
    (tmp_path / "one.yaml").write_text(one)
    slow = ["--set", "dram_bandwidth=100GB/s", "--study", "slow", "--out", "out", "--emit", "aicb", "--emit-all"]
    notes = stderr_of("search", "one.yaml", "--budget", "1", *slow)
    assert "trial_00000.txt: row grad_param_compute: a time of 2^31 ns or more" in notes
    notes = stderr_of("export", "slow", "--trial", "0", "-o", "workload.txt", code=0)
    assert "workload.txt: row grad_param_compute" in notes


DOCS = (ROOT / "docs" / "aicb.md").read_text()


def test_the_documentation_holds(folder):
    names: dict[str, object] = {}
    [snippet] = re.findall(r"^```python\n(.*?)^```$", DOCS, flags=re.MULTILINE | re.DOTALL)
    exec(compile(snippet, "docs/aicb.md", "exec"), names)
    assert np.isfinite(names["report"].totals.total_time).all()
    commands = re.findall(r"^    dse (.*)$", DOCS, flags=re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        assert parsed(shlex.split(re.split(r"\s+[#>]", command)[0])).run
