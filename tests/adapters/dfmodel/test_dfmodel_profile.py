"""DFModel's rules for whole searches: set-ups from designs, parts of an iteration, what has no number."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel import Host, LinkTier, System, load_model, load_system, step
from costmodel.errors import DseError
from costmodel.rules.registry import design_columns, design_profiles, profiles_reading
from costmodel.rules.rules import Workload
from costmodel.steps.breakdown import PARTS
from costmodel.training.design import MODERN, splits_kernels
from costmodel.training.run import Run
from dse.adapters.dfmodel.design import (
    EXECUTIONS,
    DataflowDesign,
    dataflow_step,
    design_setup,
    group_links,
    network_roles,
    reasons,
)
from dse.adapters.dfmodel.evaluation import evaluate
from dse.adapters.dfmodel.graph import K, published_sharding
from dse.adapters.dfmodel.layer import layer_graph
from dse.adapters.dfmodel.mapping import fastest_mapping, layer_ways, sharded_graph
from dse.adapters.dfmodel.network import system_price
from dse.adapters.dfmodel.setup import GENERATIONS, OVERLAPS, ROLES, TOPOLOGIES
from dse.api.study import Study
from dse.cli import main
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate as evaluated
from dse.pricing.evaluation import remedies
from dse.registry import WorkloadKind, recognized
from dse.spaces.space import Space
from tests.support.cases import by_table, cases
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of

PRINTED = cases(__file__, "PRINTED")
TO_THE_LAST_DIGITS = 1e-12

#: The generations as profiles.
DFMODEL = tuple(f"dfmodel-{generation}" for generation in GENERATIONS)


@pytest.fixture
def published(tmp_path) -> str:
    """A space of the published run alone, by its path."""
    path = tmp_path / "published.yaml"
    path.write_text(json.dumps(cases(__file__, "published")))
    return str(path)


@pytest.fixture
def designs() -> DataflowDesign:
    """Layouts of every topology and overlap, of which some do not fit."""
    rng = np.random.default_rng(0)
    points = 300
    return DataflowDesign.of(
        tp=rng.choice([1, 2, 3, 8], points), pp=rng.choice([1, 2, 5, 12], points),
        dp=rng.choice([1, 3, 16], points), micro_batch_size=rng.choice([1, 2], points),
        gradient_accumulation_steps=rng.integers(1, 50, points), sequence_parallel=rng.integers(0, 2, points),
        topology=rng.integers(0, 11, points), overlap=rng.integers(0, 3, points),
        tile_size=rng.choice([1, 9, 128], points),
    )  # fmt: skip


def alone(run: Run, row: int) -> Run:
    """One design of a batch."""
    return run.take(np.array([row]))


# The published run


def test_the_published_run_is_met_through_the_profile(published):
    actual = json_of("evaluate", published, "--profile", "dfmodel-gen1")["breakdown"]
    assert {name: actual[name] for name in PRINTED} == pytest.approx(PRINTED, rel=TO_THE_LAST_DIGITS)


# Set-ups


def test_a_set_up_has_the_chip_that_the_machine_has(gpt, toy_system):
    design = DataflowDesign.of(tp=4, pp=3, dp=5, tile_size=9, gradient_accumulation_steps=7)
    setup = design_setup(Run(gpt, toy_system, design))
    chip = toy_system.chip
    assert setup.peak_rate == pytest.approx(chip.peak_flop_rate)
    assert setup.peak_rate * setup.utilization == pytest.approx(chip.matrix_flop_rate)
    assert setup.sram_bytes == 11e6 + 17e6
    assert setup.dram_bandwidth == pytest.approx(0.83e12 * 0.79)
    assert (setup.topology, setup.roles) == ("sw_sw_sw", ("TP", "PP", "DP"))
    assert [d.size.item() for d in setup.dimensions] == [4, 3, 5]
    assert [d.bandwidth.item() for d in setup.dimensions] == pytest.approx([97e9 * 0.73, 13e9 * 0.67, 13e9 * 0.67])
    assert (setup.num_chips, setup.global_batch_size, setup.tiles) == (60, 35, 128)


@pytest.mark.parametrize(("tp", "pp", "dp"), [*itertools.product([1, 2, 4, 8], [1, 2, 4], [1, 2, 4, 8])])
def test_a_group_has_the_links_of_the_slowest_tier_between_its_ranks(tp, pp, dp):
    """Ranks are numbered through tp, dp, pp; three tiers of 2, 8 and all, the middle one slowest."""
    speeds = [30e9, 5e9, 11e9]
    tiers = [
        LinkTier.of(name=f"t{index}", size=size, bandwidth=2 * speed, efficiency=0.5, latency=1, launch=0, energy=0)
        for index, (size, speed) in enumerate(zip((2, 8, 4096), speeds, strict=True))
    ]
    system = System(name="three", chip=None, memory=(), network=tuple(tiers), host=Host.of())
    actual = group_links(DataflowDesign.of(tp=tp, pp=pp, dp=dp), system)
    for group, size, stride in (("TP", tp, 1), ("DP", dp, tp), ("PP", pp, tp * dp)):
        ranks = [index * stride for index in range(size)]
        spanned = {
            next(index for index, tier in enumerate(tiers) if one // tier.size == other // tier.size)
            for one, other in itertools.pairwise(ranks)
        }
        slowest = min((speeds[index] for index in spanned), default=speeds[0])
        assert actual[group].bandwidth * actual[group].efficiency == slowest


def test_roles_are_those_of_the_groups_that_need_them():
    """Against trying all roles of the topology in turn."""
    sizes = list(itertools.product([1, 2], [1, 3], [1, 5], range(11)))
    tp, pp, dp, topology = np.array(sizes, dtype=float).T
    places = network_roles(DataflowDesign.of(tp=tp, pp=pp, dp=dp, topology=topology))
    for (tp, pp, dp, code), index in zip(sizes, places, strict=True):
        several = {role for role, size in (("TP", tp), ("PP", pp), ("DP", dp)) if size > 1}
        choices = ROLES[len([*TOPOLOGIES.values()][code])]
        assert index == ([n for n, roles in enumerate(choices) if several <= set(roles)] or [-1])[0]


def test_dimensions_over_unlike_tiers_keep_the_price_of_each(gpt, toy_system):
    """2 x 3 x 5 chips in rings, by hand: 30 links and 30, 20, 12 ports of switches; ports share 2 : 24."""
    setup = design_setup(Run(gpt, toy_system, DataflowDesign.of(tp=2, pp=3, dp=5, topology="r_r_r")))
    node, fabric = toy_system.network
    chips = system_price(setup) - 30 * setup.accelerator_price
    ports = [(30, 2 * 15, node), (30, 2 * 10, fabric), (30, 2 * 6, fabric)]
    assert chips == pytest.approx(
        sum((link * 2 + switch * 24) / 26 * t.bandwidth * t.price for link, switch, t in ports)
    )


@by_table("columns", "said")
def test_designs_that_share_no_set_up_are_refused(columns, said, gpt, toy_system):
    with pytest.raises(DseError, match=said):
        design_setup(Run(gpt, toy_system, DataflowDesign.of(**columns)))


# Parts of an iteration


@pytest.mark.parametrize("generation", GENERATIONS)
def test_parts_add_up_to_the_iteration_of_each_design(generation, gpt, toy_system, designs):
    """One design after the other through `evaluate`, as a file of it would be priced, on machines of their clocks."""
    clock = np.random.default_rng(1).uniform(1e9, 2e9, designs.num_points)
    run = Run(gpt, toy_system.with_quantities({"clock": clock, "node_bandwidth": 50 * clock}), designs)
    actual = dataflow_step(run, generation=generation)
    graph = layer_graph(1536, 24, 1152)
    sharding = published_sharding(graph).choices
    parts = np.sum([getattr(actual, name) for name in PARTS["step_time"]], axis=0)
    for row in np.flatnonzero(network_roles(designs) >= 0)[::4]:
        setup = design_setup(alone(run, row))
        one = evaluate(graph, setup, sharding, generation=generation)
        if one.sram_bytes.max() > setup.sram_bytes:
            assert np.isnan(actual.step_time[row])
            continue
        assert parts[row] == pytest.approx(one.iteration_time[0], rel=1e-12)
        assert actual.step_time[row] == pytest.approx(one.iteration_time[0], rel=1e-12)
        assert (actual.system_price[row], actual.system_power[row]) == pytest.approx((one.price[0], one.power[0]))


def test_memory_and_the_energy_of_the_work_are_native(gpt, toy_system, designs):
    actual = dataflow_step(Run(gpt, toy_system, designs), generation="gen1")
    native = step(gpt, toy_system, designs)
    for name in (*PARTS["peak_memory"], "peak_memory", "compute_energy", "memory_energy", "link_energy", "model_flops"):
        assert getattr(actual, name).tolist() == getattr(native, name).tolist()
    for name in ("recompute_time", "optimizer_time", "host_time"):
        assert not getattr(actual, name).any()


def test_a_bubble_is_the_share_of_the_pipeline_formula(gpt, toy_system):
    """(pp - 1) / (micro-batches x (layers of a stage - 1)) of the rest: 3 / (5 x 5)."""
    design = DataflowDesign.of(pp=4, gradient_accumulation_steps=5)
    actual = dataflow_step(Run(gpt, toy_system, design), generation="gen1")
    rest = actual.step_time - actual.bubble_time - actual.pp_communication_time
    assert actual.bubble_time == pytest.approx(3 / 25 * rest)


def test_links_have_latency_in_the_third_generation_only(gpt, toy_system):
    """2 x 3 hops of 1.9 us for each all-reduce of 4 chips, of the kernels split by k."""
    run = Run(gpt, toy_system, DataflowDesign.of(tp=4, gradient_accumulation_steps=5))
    first, third = (dataflow_step(run, generation=g).tp_communication_time for g in ("gen1", "gen3"))
    _, sharding = sharded_graph(gpt, 2.0)
    assert third - first == pytest.approx(5 * 24 * np.count_nonzero(sharding == K) * 2 * 3 * 1.9e-6)


@pytest.fixture
def fused() -> DataflowDesign:
    """Layouts whose kernels run in groups, of every overlap."""
    rng = np.random.default_rng(2)
    return DataflowDesign.of(
        tp=rng.choice([1, 2, 8], 12), pp=rng.choice([1, 5], 12), dp=rng.choice([1, 3], 12),
        gradient_accumulation_steps=rng.integers(1, 50, 12), topology=rng.integers(0, 3, 12),
        overlap=np.arange(12) % 3, tile_size=rng.choice([1, 9], 12), execution="dataflow",
    )  # fmt: skip


@pytest.mark.parametrize("generation", ["gen1", "gen3"])
@pytest.mark.slow
def test_groups_are_the_fastest_of_each_design(generation, gpt, toy_system, fused):
    """One design after the other, with its own network, bubble and batch; DRAM is without limit."""
    run = Run(gpt, toy_system.with_quantities({"dram_capacity": 1e15}), fused)
    actual = dataflow_step(run, generation=generation)
    graph, sharding = sharded_graph(gpt, 2.0)
    for row in range(12):
        setup = design_setup(alone(run, row))
        best = fastest_mapping(graph, setup, sharding, layer_ways(gpt, 2.0), generation=generation)
        one = evaluate(graph, setup, sharding, generation=generation, groups=best.groups)
        assert actual.step_time[row] == pytest.approx(one.iteration_time[0], rel=1e-12)


def test_tiles_that_exceed_the_sram_have_no_number(gpt, toy_system):
    """Scores of 24 heads, 1152 wide, enter a dropout and leave to two kernels, two tiles each: 84 tokens."""
    design = DataflowDesign.of(tile_size=[1, 72, 96, 128])
    actual = dataflow_step(Run(gpt, toy_system, design), generation="gen1")
    assert 28e6 // (3 * 2 * 24 * 1152 * 2) == 84
    assert np.isnan(actual.step_time).tolist() == [False, False, True, True]
    assert actual.step_time[0] == actual.step_time[1]  # the size of a tile takes no time


@pytest.mark.parametrize("name", ["llama3_8b", "llama2_70b"])
def test_models_of_other_layers_are_priced(name):
    """Grouped queries, gated MLPs, no dropout; no chip is faster than it sustains."""
    model, system = load_model(name), load_system("a100_80g_dgx")
    actual = dataflow_step(Run(model, system, DataflowDesign.of(tp=8)), generation="gen3")
    assert 0 < actual.mfu < float(system.chip.sustained * system.chip.matrix_efficiency)


# Searches


@pytest.fixture
def small(tmp_path, monkeypatch, small_space) -> str:
    """A space with a topology, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(
        small_space.replace(
            "  recompute: [none, selective, full]", "  topology: [r_r_r, sw_sw_sw, r_r]\n  tile_size: [1, 16]"
        )
    )
    return "small.yaml"


def test_a_search_keeps_its_profile_when_it_is_resumed(small):
    search = ["search", small, "--profile", "dfmodel-gen2a", "--study", "rings", "--format", "json"]
    assert main([*search, "--budget", "20"]) == 0
    assert main(["resume", "rings", "--budget", "30", "--format", "json"]) == 0
    study = Study.load("rings")
    assert study.profile == "dfmodel-gen2a"
    assert len(study.table.trials) == 30
    [best, *_] = study.table.front().trials
    pins = [f"--set={name}={value}" for name, value in best.params.items()]
    actual = json_of("evaluate", small, "--profile", "dfmodel-gen2a", *pins)
    assert actual["breakdown"]["step_time_s"] == best.user_attrs["breakdown"]["step_time_s"]


def test_designs_without_a_number_are_not_feasible(small):
    """r_r has no dimension for a third group."""
    space = Space.load(small)
    actual = json_of("enumerate", small, "--profile", "dfmodel-gen1")
    [columns] = space.legal.enumerate()
    tp, pp = columns["tp"], columns["pp"]
    several = (tp > 1).astype(int) + (pp > 1) + (64 / (tp * pp) > 1)
    without = (columns["topology"] == [*TOPOLOGIES].index("r_r")) & (several == 3)
    priced = evaluated(space, columns, rules=rules_for(space, "dfmodel-gen1"))
    assert np.isnan(priced.breakdown.step_time).tolist() == without.tolist()
    assert not priced.feasible[without].any()
    assert actual["n_infeasible"] >= without.sum() > 0
    shown = stdout_of(
        *f"evaluate {small} --profile dfmodel-gen1 --set topology=r_r --set tp=2 --set pp=2".split(), code=1
    )
    assert "The profile has no number for tp 2, pp 2, dp 16," in shown
    shown = stdout_of(*f"evaluate {small} --profile dfmodel-gen1 --set tp=2".split(), code=1)
    assert "--profile dfmodel-gen1 --set tp=2" in shown


def test_a_certificate_is_by_the_profile_of_the_study(small):
    outputs_of("search", small, "--profile", "dfmodel-gen1", "--study", "rings", "--budget", "40")
    assert json_of("enumerate", "--certify", "rings")["certificate"]["hypervolume_ratio"] <= 1
    error = stderr_of("enumerate", "--certify", "rings", "--profile", "dfmodel-gen3")
    assert "study 'rings': is evaluated by dfmodel-gen1; leave --profile out" in error
    outputs_of("compare", "rings", "--profile", "dfmodel-gen3")


@pytest.mark.parametrize("command", ["search", "evaluate", "enumerate"])
@pytest.mark.parametrize("profile", [[], ["--profile", "simai"]])
def test_columns_that_a_profile_does_not_know_are_refused(command, profile, small):
    error = stderr_of(command, small, *profile)
    name = profile[-1] if profile else "native"
    assert (
        f"dse: space small: topology: profile {name} does not have it; take dfmodel-gen0, dfmodel-gen1, dfmodel-gen1b"
        in error
    )


def test_columns_of_designs_that_not_all_profiles_know(gpt):
    """DFModel's own are none of the others', and how native splits and tiles is none of DFModel's."""
    training = Workload.of(gpt)
    known = {name: tuple(profiles_reading(name, training)) for name in design_columns(training)}
    assert {name: by for name, by in known.items() if by != design_profiles()} == {
        **dict.fromkeys(("topology", "tile_size", "overlap", "execution"), DFMODEL),
        **dict.fromkeys(filter(splits_kernels, known), ("native", "simai")),
        **dict.fromkeys({*MODERN} & {*known}, ("native",)),
    }


def test_an_lstm_has_no_layer_for_dfmodel():
    error = stderr_of("evaluate", "lstm_24b_power", "--profile", "dfmodel-gen1")
    assert "profile dfmodel-gen1: knows transformers only; take native" in error


#: Every profile, every overlap and every execution.
EXPORTED = [
    pytest.param(profile, OVERLAPS[index % 3], EXECUTIONS[index % 2], marks=pytest.mark.slow if index else ())
    for index, profile in enumerate(DFMODEL)
]


@pytest.mark.parametrize(("profile", "overlap", "execution"), EXPORTED)
def test_an_exported_design_is_priced_as_it_was(profile, overlap, execution, small):
    """To the precision of the file's 32-bit numbers, with the sharding that moves least.

    In the profile's generation, text and binary; without its name where a text tells it.
    """
    search = ["search", small, "--profile", profile, "--study", "rings", "--budget", "6"]
    pins = {"execution": execution, "overlap": overlap} | ({"tp": 8} if execution == "dataflow" else {})
    assert main([*search, *(f"--set={name}={value}" for name, value in pins.items())]) == 0
    [best, *_] = Study.load("rings").table.front().trials
    anew = ["--resolve", "--format", "json"]
    if execution == "dataflow":
        anew += ["--groups=46", f"--tile-size={best.params['tile_size']}"]
    for form in ("dfmodel", "dfmodel-binary"):
        export = ["export", "rings", "--trial", str(best.number), "--format", form, "-o", form]
        named = f"evaluate it with --profile {profile}" in stderr_of(*export, code=0)
        assert named != (profile_of(form) == profile)
        for option in [["--profile", profile], *([[]] if form == "dfmodel" and not named else [])]:
            same_price(json.loads(stdout_of("cost", form, *anew, *option)), best.user_attrs["breakdown"])
    alike = profile.removeprefix("dfmodel-") in ("gen0", "gen1b", "gen2b", "gen4", "gen5")
    tells = profile == "dfmodel-gen3" or not (alike or overlap == "compute_memory")
    assert (profile_of("dfmodel") == profile) == tells


def profile_of(path: str) -> str:
    """The rules that price a file by its content."""
    kind = recognized(Path(path))
    assert isinstance(kind, WorkloadKind)
    return kind.profile_of(Path(path))


def same_price(actual: dict[str, float], breakdown: dict[str, float]) -> None:
    """Prices that `dse cost` prints of a file are those of the design in a search."""
    names = {"step_time_s": "final_s", "system_price_usd": "system_cost_usd", "system_power_w": "system_power_w"}
    for mine, its in names.items():
        assert actual[its] == pytest.approx(breakdown[mine], rel=1e-6)


# Designs without a number


@by_table("columns", "said")
def test_every_reason_is_told_with_what_would_do(columns, said, gpt, toy_system):
    """Of the second of two designs, if and only if it has no number; the first has one."""
    run = Run(gpt, toy_system, DataflowDesign.of(**columns))
    told = reasons(alone(run, 1), generation="gen1")
    assert np.isfinite(dataflow_step(run, generation="gen1").step_time).tolist() == [True, not told]
    assert len(told) == len(said)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(said, told, strict=True))


def test_kernels_too_large_for_any_tile_need_more_sram(gpt, toy_system):
    """So much as is told to be missing is enough."""
    design = DataflowDesign.of(execution=["kernel_by_kernel", "dataflow"])
    tiny = toy_system.with_quantities({"sram_capacity": 1, "l2_capacity": 1})
    for row in range(2):
        short = alone(Run(gpt, tiny, design), row)
        [reason] = reasons(short, generation="gen3")
        assert reason.endswith("; take more SRAM, or a larger tp")
        least = float(reason.split("at least ")[1].split(" ")[0].replace(",", ""))
        fitting = replace(short, system=tiny.with_quantities({"sram_capacity": least, "l2_capacity": 0}))
        assert reasons(fitting, generation="gen3") == []
        assert np.isfinite(dataflow_step(fitting, generation="gen3").step_time)
        assert np.isnan(dataflow_step(short, generation="gen3").step_time)


def test_an_evaluation_says_why_it_has_no_number(small):
    pins = ["--set=topology=r_r", "--set=tp=2", "--set=pp=2", "--set=recompute=full"]
    for form in ("table", "json"):
        assert (
            "dse: profile dfmodel-gen2b: no number: recompute=full: each kernel runs once; "
            "take recompute=none; topology r_r: too few dimensions for tp=2 pp=2 dp=16; "
            "take one of three, such as sw_sw_sw\n"
        ) in stderr_of("evaluate", small, "--profile", "dfmodel-gen2b", "--format", form, *pins)


def test_a_search_of_designs_without_a_number_names_the_pins_that_would_do(small, small_space):
    """Where only some have none, the limits that the others break come after it."""
    search = ["search", small, "--profile", "dfmodel-gen1", "--budget", "20"]
    told = stderr_of(*search, "--set", "recompute=full", "--set", "vpp=2", "--set", "topology=sw_sw_sw")
    assert "no legal design has finite objectives under profile dfmodel-gen1, for recompute (" in told
    assert "; take --set recompute=none --set vpp=1\n" in told
    Path("small.yaml").write_text(small_space)
    error = stderr_of(*search, "--budget", "48", "--set", "dram_capacity=1 GB")
    [line] = [line for line in error.splitlines() if "no feasible design" in line]
    assert line.startswith(
        "dse: no feasible design: 32 of 48 have no number under profile dfmodel-gen1, for recompute (32); "
        "take --set recompute=none; of the others, 16 of 16 break fits, closest by "
    )
    assert "no number" not in stderr_of("evaluate", small, "--profile", "dfmodel-gen1", "--set", "recompute=none")


def test_pins_count_what_the_tiles_exceed(small, small_space):
    space = Space.load(small)
    design = {"tp": 8, "pp": 8, "topology": "sw_sw_sw", "tile_size": 16}
    assert remedies(space, "dfmodel-gen1", space.encode([design])) == "for SRAM (1); take --set tile_size=1"
    smallest = space.encode([design, {**design, "tile_size": 1}])
    assert remedies(space, "dfmodel-gen1", smallest) == (
        "for SRAM (2); take --set tile_size=1, and more SRAM, or a larger tp"
    )
    native = Space.from_text(small_space)
    assert remedies(native, "native", native.encode([{"tp": 8, "pp": 8, "recompute": "none"}])) == ""
