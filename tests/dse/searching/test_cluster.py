"""Enumeration on a Dask cluster of this machine, of which a worker or the scheduler dies, or runs another program."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from costmodel import DseError
from dse.cli import main
from dse.pricing import cluster as dask_cluster
from dse.pricing.workers import Workers
from dse.searching.exact import exact_front as exact
from dse.searching.exact.exact_front import exact_front, merged_front
from dse.spaces.space import Space
from tests.dse.searching.test_enumeration import random_space, same
from tests.support.commands import stdout_of

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # of the cluster's own processes and sockets


@pytest.fixture(scope="module")
def address():
    """Address of a scheduler with two workers."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def dies_once(marker: str, number: int) -> int:
    """A number; the first worker that gets 6 is lost."""
    if number == 6 and not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)
    return number


def test_a_front_is_the_same_on_a_cluster(address, monkeypatch):
    space = Space.load("gpt3_175b_1024_a100")
    here = exact_front(space)
    monkeypatch.setattr(exact, "STEP", 300)
    assert same(exact_front(space, workers=Workers(backend="dask", scheduler=address)), here)


@pytest.mark.slow
def test_a_lost_worker_loses_nothing(address, tmp_path, monkeypatch):
    """Its results are computed again, which may take longer than the scheduler has for an answer."""
    function = partial(dies_once, str(tmp_path / "died"))
    assert [*Workers(backend="dask", scheduler=address).map(function, range(20))] == [*range(20)]
    assert (tmp_path / "died").exists()
    monkeypatch.setattr(dask_cluster, "ANSWER", 1.0)
    with closing(dask_cluster._Cluster(address)) as cluster:
        assert cluster.result(cluster.submit(time.sleep, 2.0)) is None


def test_the_command_takes_a_cluster(address):
    command = ["enumerate", "gpt3_175b_1024_a100", "--backend", "dask", "--scheduler", address, "--format", "csv"]
    assert stdout_of(*command).startswith("tp,pp,vpp")


def another_model() -> None:
    """Make the links of this process slower than those of the cost model."""
    from costmodel.kernels import collectives

    honest = collectives.RING["all_gather"]
    collectives.RING["all_gather"] = lambda n: (1000 * honest(n)[0], 1000 * honest(n)[1])


def another_program() -> None:
    """Give this process the version of another program."""
    from dse.pricing import cluster

    setattr(cluster, "program_digest", lambda: "dse 0.0.1")  # noqa: B010


@pytest.mark.slow
def test_workers_with_another_model_or_program_are_refused(monkeypatch):
    """The program is looked at before the results of its model."""
    monkeypatch.setattr(exact, "STEP", 300)
    monkeypatch.setattr("dse.searching.bounding.branching.WORTH_SENDING", 10)
    changes = {another_model: "its cost model gives other results",
               another_program: r"runs another dse or NumPy \(dse 0.0.1"}  # fmt: skip
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = Workers(jobs=2, backend="dask", scheduler=cluster.scheduler_address)
        for change, message in changes.items():
            client.run(change)
            for space, method in [(Space.load("gpt3_175b_1024_a100"), "list"), (random_space(2), "bounds")]:
                with pytest.raises(DseError, match=message):
                    exact_front(space, workers=workers, method=method)


@pytest.fixture
def cluster(tmp_path):
    """The process of a scheduler with a worker, and its address."""
    module, file = [sys.executable, "-m", "distributed.cli.dask_scheduler"], tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [*module, "--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = subprocess.Popen(command, **quiet)
    while not file.exists() or not file.read_text():
        time.sleep(0.05)
    address = json.loads(file.read_text())["address"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--nthreads", "1"]
    processes = (subprocess.Popen([*worker, "--no-nanny"], **quiet), scheduler)
    yield scheduler, address
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.slow
def test_the_loss_of_the_scheduler_is_one_line(cluster, tmp_path, number, capfd, monkeypatch):
    """Nothing waits for it; the same command continues from the finished ranges."""
    scheduler, address = cluster
    monkeypatch.setattr(dask_cluster, "ANSWER", 2.0)
    monkeypatch.setattr(exact, "STEP", 60)
    path = tmp_path / "part1"
    command = ["enumerate", "gpt3_175b_1024_a100", "--part", "1/1", "-o", str(path)]
    lost = threading.Thread(target=lose, args=(path, scheduler, number))
    lost.start()
    assert main([*command, "--backend", "dask", "--scheduler", address]) == 1
    lost.join()
    errors = [line for line in capfd.readouterr().err.splitlines() if "designs" not in line]
    assert errors == [f"dse: scheduler {address}: lost; start it again, then repeat the command "
                      "(`dse enumerate --checkpoint FILE` continues from its finished parts)"]  # fmt: skip
    stored = path.read_bytes()
    assert 2 < stored.count(b"\n") < 40
    assert main(command) == 0
    assert path.read_bytes().startswith(stored)
    front = merged_front([path])
    assert front.costs.tobytes() == exact_front(front.space).costs.tobytes()


def lose(path: Path, scheduler: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a scheduler once some ranges are stored, or after a minute if its workers were refused."""
    late = time.monotonic() + 60
    while time.monotonic() < late and (not path.exists() or path.read_bytes().count(b"\n") < 4):
        time.sleep(0.01)
    scheduler.send_signal(number)


@pytest.mark.slow
def test_a_cluster_without_workers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(dask_cluster, "WORKERS", 0.5)
    monkeypatch.setattr(dask_cluster, "LOOK", 0.2)
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        workers = Workers(backend="dask", scheduler=cluster.scheduler_address)
        with pytest.raises(DseError, match="no worker for 0 s; start some"):
            list(workers.map(str, [1, 2]))


@pytest.mark.parametrize("scheduler", [None, "tcp://127.0.0.1:9"])
@pytest.mark.slow
def test_a_cluster_has_to_answer(scheduler):
    with pytest.raises(DseError, match="scheduler"):
        list(Workers(backend="dask", scheduler=scheduler).map(str, [1, 2]))
