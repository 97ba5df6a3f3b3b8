"""Intervals of predicted steps: their classes, what they rest on, and ranking by their worse ends."""

import numpy as np
import pytest

from benchmarks import intervals as made
from costmodel import load_model, load_system
from costmodel.formats import shipped
from dse.predictions import (
    CALIBRATED,
    EXTRAPOLATED,
    FABRIC_SPREAD,
    LAYERS,
    MEASURED,
    NINETY,
    SCALES,
    SLOWER_FABRIC,
    at_worse_ends,
    interval,
    kind_codes,
    mean_ratio,
    residuals,
    unmeasured_features,
    wider_classes,
)
from dse.pricing.evaluation import evaluate
from dse.spaces.space import Space
from dse.validation.table import SHIPPED
from tests.support.cases import cases
from tests.support.commands import json_of, stdout_of

CHIPS = {"tp": 8.0, "world_size": 512.0}


def ends(framework="megatron_core", system="h100_80g_dgx", model="llama3_70b", **design):
    """Low, high and evidence of one design."""
    actual = interval(framework, load_system(system), load_model(model), {**CHIPS, **design})
    return float(actual.low[0]), float(actual.high[0]), int(actual.evidence[0])


def test_a_class_is_in_all_wider_ones():
    """Of fewer words, of any chip, of all releases, of all of Megatron; last that of all steps."""
    classes = wider_classes("internevo", "h100_80g_dgx", SCALES[1], staged=True, layers=LAYERS[0])
    assert classes[0] == ("internevo", "h100_80g_dgx", "several nodes", "dense", "stages")
    assert [len(words) for words in classes] == [5, 5, 4, 4, 3, 3, 2, 2, 0]
    versions = wider_classes("megatron_core", "h100_80g_dgx", SCALES[0], staged=False, layers=LAYERS[0])
    assert ("megatron", "h100_80g_dgx") in versions
    releases = shipped.opened("megatron_core", "frameworks")[2].data["releases"]
    assert versions[0][0] == f"megatron_core@{max(releases)}"
    old = wider_classes("megatron_core@2021", "a100_80g_dgx", SCALES[0], staged=False, layers=LAYERS[0])
    assert [words[0] for words in old[:3]] == ["megatron_core@2019", "megatron_core", "megatron"]
    assert () in residuals().classes


def test_what_is_like_no_measured_run_has_a_wider_interval():
    """A chip of no measured step, one that is faster than any that there is, and far more chips."""
    low, high, evidence = ends(pp=8.0)
    assert evidence == MEASURED
    other_low, other_high, of_others = ends(pp=8.0, system="mi300x_192g")
    assert of_others == EXTRAPOLATED
    assert other_low < low
    assert other_high > high
    faster = load_system("h100_80g_dgx").with_quantities({"clock": [1.83e9, 2.5e9]})
    actual = interval("megatron_core", faster, load_model("llama3_70b"), {"pp": 8.0, **CHIPS})
    assert actual.evidence.tolist() == [MEASURED, EXTRAPOLATED]
    assert ends(pp=8.0, world_size=1e6)[2] == EXTRAPOLATED


@pytest.mark.parametrize("columns", [{"pp": 8.0}, {"precision": 1.0}, {"tp": 16.0}, {"world_size": 8.0}])
def test_an_unmeasured_chip_is_as_uncertain_as_any_measured_one(columns):
    """By construction: it has the union of the classes of all measured chips, and is wider by left-out runs."""
    low, high, evidence = ends(system="mi300x_192g", **columns)
    assert evidence == EXTRAPOLATED
    for system in ("a100_80g_dgx", "h100_80g_dgx", "h200_141g_dgx", "b200_180g_dgx"):
        lowest, highest, _ = ends(system=system, **columns)
        assert low <= lowest
        assert high >= highest


@pytest.mark.slow
def test_the_table_counts_the_runs_that_ship():
    """`python benchmarks/intervals.py -o dse/predictions.yaml` counts them anew."""
    assert residuals().kinds == made.kinds_of(made.timed_runs(SHIPPED), residuals().chips)


#: Model, system, columns -> evidence. Rows that ship have Llama and Mixtral on H100 in 16 bits; one run of
#: Llama with context parallelism, two of latent attention, one of windows, fewer than three of overlapped experts by
#: dispatcher, none of a delta net or of a schedule but 1F1B with stages in Megatron Core.
KINDS = cases(__file__, "KINDS")


@pytest.mark.parametrize(("model", "system", "columns", "evidence"), KINDS)
def test_measured_is_what_rows_that_ship_have(model, system, columns, evidence):
    assert ends(model=model, system=system, **columns)[2] == evidence


def test_a_class_of_few_rows_falls_back_on_a_wider_one():
    assert ends(framework="nanotron", system="a100_80g_dgx", pp=8.0)[2] == CALIBRATED  # Megatron ran these
    assert ends(framework="", pp=8.0) == ends(framework="megatron", pp=8.0)
    unknown = ends(framework="of my own", pp=8.0)
    assert unknown[:2] == residuals().classes[()]
    assert unknown[2] == CALIBRATED


def test_intervals_of_a_batch_are_those_of_its_designs():
    columns = {"tp": [1.0, 8.0, 16.0], "pp": [1.0, 8.0, 1.0], "world_size": [8.0, 512.0, 512.0], "precision": 0.0}
    actual = interval("megatron_core", load_system("h100_80g_dgx"), load_model("llama3_70b"), columns)
    alone = [ends(**{name: np.broadcast_to(values, 3)[row] for name, values in columns.items()}) for row in range(3)]
    assert list(zip(actual.low, actual.high, actual.evidence, strict=True)) == alone


def test_a_robust_space_reads_worse_ends_wherever_times_are_read():
    data = {
        "derived": {"days": "1e6 * step_time / (24 * 3600)", "cost": "system_price * step_time_s"},
        "constraints": {"soon": "days < 60", "busy": "mfu > 0.3", "fits": "peak_memory <= 80 GB"},
        "objectives": {"minimize": ["step_time", "peak_memory"], "maximize": "tokens_per_second"},
    }
    robust = at_worse_ends(data)
    assert robust["derived"]["days"] == "1e6 * step_time_high / (24 * 3600)"
    assert robust["derived"]["cost"] == "system_price * step_time_high_s"
    assert robust["constraints"] == {**data["constraints"], "busy": "mfu_low > 0.3"}
    assert robust["objectives"] == {"minimize": ["step_time_high", "peak_memory"], "maximize": "tokens_per_second_low"}
    assert at_worse_ends(robust) == robust


def test_help_states_the_percentile_of_the_upper_end():
    """The interval leaves out the same share on either side."""
    assert f"rank by the {100 * (1 - made.OUTSIDE):.0f}th percentile" in stdout_of("search", "--help")


def test_a_robust_space_ranks_by_the_upper_end():
    space = Space.load("gpt3_175b_1024_a100")
    designs = space.legal.random(50, np.random.default_rng(0))
    usual, robust = (evaluate(one, designs) for one in (space, space.robust()))
    assert [o.key for o in space.robust().objectives] == ["step_time_high_s", "peak_memory_bytes"]
    assert (robust.values[:, 0] > usual.values[:, 0]).all()
    assert (robust.values[:, 1] == usual.values[:, 1]).all()
    assert (robust.breakdown.step_time == usual.breakdown.step_time).all()


def test_other_profiles_have_no_intervals():
    evaluate_one = ["evaluate", "gpt3_175b_1024_a100", "--set", "tp=8", "--set", "pp=8"]
    assert "evidence" not in json_of(*evaluate_one, "--profile", "simai")
    assert json_of(*evaluate_one)["evidence"] == "measured"


def test_the_mean_ratio_is_that_of_log_normal_draws():
    low, high = 0.7, 1.9
    middle, deviation = np.log(low * high) / 2, np.log(high / low) / (2 * NINETY)
    draws = np.random.default_rng(0).lognormal(middle, deviation, 400_000)
    assert np.quantile(draws, [0.05, 0.95]) == pytest.approx([low, high], rel=0.01)
    assert float(mean_ratio(np.array([low, high]))) == pytest.approx(draws.mean(), rel=0.005)


def test_a_fabric_is_slower_by_the_mean_of_draws_below_its_nominal_rate():
    slower = np.exp(FABRIC_SPREAD * np.abs(np.random.default_rng(0).standard_normal(400_000)))
    assert slower.mean() - 1 == pytest.approx(SLOWER_FABRIC, rel=0.01)


#: Exposed communication in seconds; no two sums of these are equal.
EXPOSED = {f"{name}_communication_time": 2.0**at for at, name in enumerate(("tp", "cp", "ep", "pp", "dp"))}


@pytest.mark.parametrize(("design", "spanning"), cases(__file__, "GROUPS"))
def test_only_exposed_communication_between_nodes_is_slower(design, spanning):
    """Of the groups that span nodes of eight."""
    actual = interval("megatron_core", load_system("h100_80g_dgx"), load_model("mixtral_8x22b"), design)
    slower = SLOWER_FABRIC * sum(EXPOSED[f"{name}_communication_time"] for name in spanning.split())
    assert actual.expected({"step_time": np.array([100.0]), **EXPOSED}) == pytest.approx(actual.mean * (100.0 + slower))


def test_the_mean_of_a_class_is_the_same_with_and_without_stages():
    """A layout does not lead because runs with so many stages had smaller errors."""
    system, model = load_system("h100_80g_dgx"), load_model("llama3_70b")
    actual = interval("nanotron", system, model, {"tp": 8.0, "pp": np.array([1.0, 8.0]), "world_size": 512.0})
    assert actual.high[0] != actual.high[1]
    assert actual.mean[0] == actual.mean[1]


@pytest.mark.parametrize(("model", "system", "design", "features"), cases(__file__, "FEATURES"))
def test_features_without_measured_runs_have_names(model, system, design, features):
    """Features of a design that no measured run of its chip has."""
    codes = [code.item() for code in kind_codes(design)]
    ranks = design.get("world_size", 512.0)
    assert unmeasured_features(load_system(system), load_model(model), ranks, codes) == features
