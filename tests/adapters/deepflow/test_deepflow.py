"""DeepFlow's first generation: every printed figure, parallel splits, batches, and files that are wrong."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from costmodel.errors import DseError
from dse.adapters.deepflow.configuration import Configuration, broken_guards, hardware, load_configuration
from dse.adapters.deepflow.step import GIB, plain, price
from tests.support.cases import cases
from tests.support.commands import outputs_of, stderr_of, stdout_of
from tests.support.paths import TEST_DATA

PROBE = TEST_DATA / "lstm_power_probe.yaml"
NONE, CR, RC = 0, 1, 2
#: What DeepFlow printed for the configuration of `PROBE`; a comment there says which of its commits did.
PRINTED = pd.read_csv(TEST_DATA / "deepflow_figures.csv", comment="#", dtype=str, index_col="figure")[
    "printed"
].to_dict()


def as_printed(value: float, printed: str) -> str:
    """A value in the form of a printed one: as many decimals, thousands apart, or all 17 digits."""
    _, _, decimals = printed.partition(".")
    return repr(value) if len(decimals) > 10 else f"{value:{',' if ',' in printed else ''}.{len(decimals)}f}"


def probe(**changes: object) -> Configuration:
    """The probe's configuration with other columns."""
    return Configuration.of(**{**load_configuration(PROBE).columns(), **changes})


def test_all_293_figures_are_those_that_the_reference_printed():
    """As many decimals as it prints; of times all their digits, such as 0.03375421076190477 s."""
    actual = plain(price(probe()))
    assert len(PRINTED) == 293
    assert {name: as_printed(float(actual[name]), text) for name, text in PRINTED.items()} == PRINTED


KINDS = cases(__file__, "KINDS")
BY_THE_RULES = cases(__file__, "BY_THE_RULES")


@pytest.mark.parametrize("split", KINDS)
def test_parallel_configurations_agree_with_the_rules_one_by_one(split):
    config = probe(**KINDS[split])
    time, forward, backward, shard_bytes = BY_THE_RULES[split]
    report = price(config)
    assert report["Time"][0] == pytest.approx(time, rel=1e-13)
    assert (report["sum.projection_f"][0], report["sum.projection_b"][0]) == pytest.approx(
        (forward, backward), rel=1e-13
    )
    assert report["mem2.total"][0] * GIB == pytest.approx(shard_bytes, rel=1e-14)


# DeepFlow, commit e6a5da0 (2019), run for the configuration of PROBE with links in a mesh. Not the backward
# pass of row-column splits, where the program prints its forward pass again.
SPLIT_PROJECTION = cases(__file__, "SPLIT_PROJECTION")


@pytest.mark.parametrize(("kind", "dim1", "dim2", "forward", "backward"), SPLIT_PROJECTION)
def test_a_split_projection_takes_what_the_reference_printed(kind, dim1, dim2, forward, backward):
    """To the last place but one: gathers are added in one go. The projection is never charged."""
    actual = plain(price(probe(projection_kind=kind, projection_dim1=dim1, projection_dim2=dim2)))
    assert actual["sum.projection_f"] == pytest.approx(forward, rel=1e-15, abs=0)
    if backward:
        assert actual["sum.projection_b"] == pytest.approx(backward, rel=3e-16, abs=0)
    assert actual["Time"] == plain(price(probe()))["Time"]


def test_a_row_column_projection_gathers_what_its_gradients_need_by_hand():
    """(m, k, n) = (10 tokens, 6 inputs, 4 outputs) in 2 x 2 pieces, links of a byte a second.

    Products of (3, 10, 2) and (5, 4, 3); three gathers over the rows and three over the columns, of which
    each sends half of a matrix once. With elements of 16 bytes none is a message under 128 bytes.
    """
    config = probe(batch_size=10, seq_len=1, hidden_size=6, projection_size=4, element_bytes=16,
                   launch_overhead=0.0, link_latency=0.0, flop_energy=1.0, core_derate=1.0, core_fraction=1.0,
                   tdp=1.0, dram_fraction=1e9, l2_fraction=1e9, shared_memory_fraction=1e9, link_fraction=1.0,
                   link_energy=1.0, projection_kind=RC, projection_dim1=2, projection_dim2=2)  # fmt: skip
    report = price(config)
    assert hardware(config)["link_bandwidth"] == 1.0
    products = (2 * 3 * 10 * 2 + 3 * 2 * 20) + (2 * 5 * 4 * 3 + 5 * 3 * 20)
    matrices = (6 * 10) + 2 * (10 * 2) + (5 * 4) + (6 * 4) + (5 * 6)
    assert report["sum.projection_b"][0] == pytest.approx(products + 16 * matrices / 2)


def test_the_swapped_order_is_run_where_it_is_faster():
    """k within a tile, a memory-bound product, and n > m: the transpose moves less."""
    config = probe(batch_size=16, seq_len=1, dram_fraction=1e-3)
    name = "Cb_wt"  # m = 2 D, k = 16, n = 4 D
    direct, swapped, chosen = traffic_by_order(config, name)
    assert swapped > direct == chosen
    turned = probe(batch_size=16, seq_len=1, dram_fraction=1e-3, gates=1)  # n = D < m
    direct, swapped, chosen = traffic_by_order(turned, name)
    assert direct > swapped == chosen


def traffic_by_order(config: Configuration, name: str) -> tuple[float, float, float]:
    """DRAM traffic of a product in the direct and in the swapped order, and of the order that is run. [B]"""
    figures = plain(price(config))
    orders = (figures[f"{name}.GEMM_flop"] / figures[f"{name}.{order}.comp_int"] for order in ("direct", "swapped"))
    direct, swapped = (float(round(moved)) for moved in orders)
    return direct, swapped, figures[f"{name}.GEMM_gmem"]


def mixed_batch(points: int, seed: int = 1) -> Configuration:
    """Configurations of unlike power splits and splits of the model."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(5), points).T
    names = ("core", "dram", "l2", "shared_memory", "link")
    return probe(
        **{f"{name}_fraction": share for name, share in zip(names, shares, strict=True)},
        batch_size=rng.choice([96, 512, 1000], points),
        dp=rng.choice([1, 2, 3], points),
        hlp=rng.choice([1, 2], points),
        lp=rng.choice([1, 4], points),
        hidden_kind=rng.choice([NONE, CR, RC], points),
        hidden_dim1=rng.choice([3, 4, 8], points),
        hidden_dim2=rng.choice([1, 2, 7], points),
        softmax_kind=rng.choice([NONE, CR, RC], points),
        softmax_dim1=rng.choice([2, 3], points),
        softmax_dim2=rng.choice([1, 5], points),
        projection_kind=rng.choice([NONE, CR, RC], points),
        projection_dim1=rng.choice([2, 7], points),
        projection_dim2=rng.choice([1, 3], points),
    )


def test_a_batch_gives_the_bits_of_one_by_one_pricing():
    """Fractional shards among them: nothing that stands beside a row changes it."""
    config = mixed_batch(60)
    together = price(config)
    for row in range(config.num_points):
        alone = price(config.take(np.array([row])))
        assert all(np.array_equal(together[name][row], alone[name][0], equal_nan=True) for name in together)


MISTAKES = cases(__file__, "MISTAKES")


@pytest.mark.parametrize(("text", "instead", "said"), MISTAKES)
def test_a_wrong_file_is_told_where_what_and_what_would_do(tmp_path, text, instead, said):
    path = tmp_path / "wrong.yaml"
    content = PROBE.read_text()
    assert text in content
    path.write_text(content.replace(text, instead, 1).replace("link: 0.2 ", "link: 0.1 "))
    told = stderr_of("cost", str(path)).splitlines()
    assert len(told) == 1
    assert said in told[0]
    assert told[0].startswith(f"dse: {path}:")


# DeepFlow, commit e6a5da0, search_scripts/hw_architecture/membw_batch/data_scale100: stored runs of the model
# of PROBE whose shares of 300 W sum to more than 1, and the time that each printed.
SURPLUS = cases(__file__, "SURPLUS")


def with_shares(tmp_path: Path, shares: tuple[float, ...], **others: str) -> Path:
    """The probe's file with other shares of the power, and other text."""
    text = PROBE.read_text()
    for part, share in zip(("core", "dram", "l2", "shared_memory"), shares, strict=True):
        text = re.sub(rf"    {part}: 0\.\d+", f"    {part}: {share}", text)
    for old, new in others.items():
        text = re.sub(rf"  {old}: .*", f"  {old}: {new}", text)
    path = tmp_path / "shares.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("shares", "total", "printed"), SURPLUS)
def test_shares_beyond_the_power_are_priced_as_the_reference_does_and_told(shares, total, printed, tmp_path):
    path = with_shares(tmp_path, shares)
    told = outputs_of("cost", str(path), "--format", "json")
    assert f"{json.loads(told.out)['figures']['Time']:.8f}" == printed
    assert told.err == (
        f"dse: {path}: power.fractions: core, dram, l2, shared_memory sum to {total} of 300 W; "
        "each keeps its share, as in the reference; lower them to stay within tdp\n"
    )


def test_only_links_that_exist_count_against_the_power(tmp_path):
    """0.9 without links, 1.1 with them, which one device does not have; exactly 1 is not a surplus."""
    whole, exact = (0.3, 0.3, 0.15, 0.15), (0.4, 0.4, 0.1, 0.1)
    told = {}
    for name, shares, others in (("whole", whole, {}), ("split", whole, {"dp": "2"}), ("exact", exact, {})):
        told[name] = stderr_of("cost", str(with_shares(tmp_path, shares, **others)), "--format", "json", code=0)
    assert (told["whole"], told["exact"]) == ("", "")
    assert "core, dram, l2, shared_memory, link sum to 1.1, 330 W of 300 W; " in told["split"]


@pytest.mark.parametrize(("text", "said"), [
    ("schema: search_space/v1\nmodel: gpt_22b\n", ["schema: 'search_space/v1' is not a value; known: deepflow/v1"]),
    ("schema: deepflow/v1\nworkload: {}\n", ["banks: missing", "energy: missing", "power: missing"]),
])  # fmt: skip
def test_another_kind_of_file_and_missing_sections_are_told(text, said, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(DseError) as raised:
        load_configuration(path)
    lines = str(raised.value).splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == said
    assert all(line.startswith(f"{path}:") for line in lines)


@pytest.mark.parametrize(
    ("whole", "split"), [("dp: 1", "dp: 2"), ("projection: {kind: none", "projection: {kind: cr, dim1: 2")]
)
def test_a_split_needs_links(whole, split, tmp_path):
    path = tmp_path / "ring.yaml"
    path.write_text(PROBE.read_text().replace(whole, split).replace("mesh, ", "ring, "))
    with pytest.raises(DseError, match="a split model needs links"):
        load_configuration(path)


def test_guards_say_which_shards_do_not_divide():
    broken = broken_guards(probe(hidden_kind=[CR, CR, RC], hidden_dim1=[2, 3, 8], hidden_dim2=[1, 1, 8]))
    assert [name for name, rows in broken.items() if np.any(rows)] == ["hidden.dim1: is neither 2 nor a multiple of 4"]
    assert broken["hidden.dim1: is neither 2 nor a multiple of 4"].tolist() == [False, True, False]


def test_cost_prints_a_report_with_every_section():
    lines = stdout_of("cost", str(PROBE)).splitlines()
    sections = ("Matrix products", "Pointwise kernels and optimizer", "Memory", "Parameters", "Hardware",
                "Parallelism", "Step")  # fmt: skip
    assert [line for line in lines if line in sections] == list(sections)
    assert any(line.split() == ["total", "198.8", "GiB", "198.8", "GiB"] for line in lines)
    assert max(map(len, lines)) <= 100


#: A log of the configuration of `PROBE` in the words of the reference, from the figures that it printed.
LOG = cases(__file__, "LOG")


def test_a_log_evaluates_the_configuration_that_it_echoes(tmp_path):
    """Capacities have the digits of the log."""
    log = tmp_path / "summary.txt"
    log.write_text(re.sub(r"\{([\w.]+)\}", lambda match: PRINTED[match[1]], LOG))
    told = outputs_of("evaluate", str(log), "--format", "json")
    assert told.err == f"dse: {log}: evaluates the configuration that the log echoes; it printed Time: 302.88817584\n"
    actual = json.loads(told.out)["figures"]
    for name, text in PRINTED.items():
        digits = len(text.partition(".")[2])
        assert actual[name] == pytest.approx(float(text.replace(",", "")), rel=1e-14, abs=0.5001 * 10**-digits), name


def test_a_log_of_a_split_model_needs_its_configuration(tmp_path):
    log = tmp_path / "summary.txt"
    log.write_text("inflection_point: 4.03\n(Hidden) gradclip_flop: 12, gradclip_mem: 36\n")
    assert "a log of DeepFlow without projection_flop" in stderr_of("evaluate", str(log))
