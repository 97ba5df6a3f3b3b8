"""Enumeration on a Dask cluster: two workers of this machine, one of which dies."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from costmodel import DseError
from dse.cli import main
from dse.pricing.workers import Workers
from dse.searching.exact import exact_front as exact
from dse.searching.exact.exact_front import exact_front
from dse.spaces.space import Space

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # of the cluster's own processes and sockets


@pytest.fixture(scope="module")
def address():
    """Address of a scheduler with two workers."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def dies_once(marker: str, low: int, high: int) -> tuple[int, int]:
    """A range; whoever works on the one that starts at 6 first is lost."""
    if low == 6 and not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)
    return low, high


def test_a_front_is_the_same_on_a_cluster(address, monkeypatch):
    space = Space.load("gpt3_175b_1024_a100")
    here = exact_front(space)
    monkeypatch.setattr(exact, "STEP", 300)
    there = exact_front(space, workers=Workers(backend="dask", scheduler=address))
    assert (there.costs == here.costs).all()
    assert all((there.designs[name] == values).all() for name, values in here.designs.items())
    assert there.broken == here.broken


def test_a_lost_worker_loses_nothing(address, tmp_path):
    function = partial(dies_once, str(tmp_path / "died"))
    results = sorted(Workers(backend="dask", scheduler=address).map_ranges(function, 20, 3))
    assert results == [(low, min(low + 3, 20)) for low in range(0, 20, 3)]
    assert (tmp_path / "died").exists()


def test_the_command_takes_a_cluster(address, capsys):
    command = ["enumerate", "gpt3_175b_1024_a100", "--backend", "dask", "--scheduler", address, "--format", "csv"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("tp,pp,vpp")


@pytest.mark.parametrize("scheduler", [None, "tcp://127.0.0.1:9"])
def test_a_cluster_has_to_answer(scheduler):
    with pytest.raises(DseError, match="scheduler"):
        list(Workers(backend="dask", scheduler=scheduler).map(str, [1, 2]))
