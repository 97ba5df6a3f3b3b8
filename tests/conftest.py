"""Machines and models that several tests share, and how Hypothesis runs."""

import compileall
import gc
import os
from importlib import import_module, util
from pathlib import Path

# Matrices are small here: in workers of pytest-xdist and in commands, which inherit this, threads would only spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from costmodel import Chip, Host, LinkTier, MemoryLevel, ModelShape, System
from tests.support.cases import cases
from tests.support.commands import outputs_of
from tests.support.paths import ROOT

# Little of what is dropped has circles: looking for them as often as Python does takes a tenth of the time.
gc.set_threshold(100_000, 50, 100)

# Studies are those of the folder where a command runs, not of whoever runs the tests.
os.environ.pop("DSE_STORAGE", None)

# Where JAX is there and a test uses it, this processor stands for eight devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

# Time limits of an example say how busy the machine is, not whether the code is right.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """In a fresh environment modules are compiled once, before workers start that would all compile them."""
    for folder in ("costmodel", "dse", "tests"):
        compileall.compile_dir(ROOT / folder, quiet=2)
    for library in ("altair", "distributed", "jax", "optuna", "pandas", "psycopg", "pyarrow", "scipy.stats"):
        if (spec := util.find_spec(library)) and not Path(spec.cached).exists():
            import_module(library)


def pytest_collection_finish():
    """Modules and collected tests stay until the end: the garbage collector need not visit them again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Reports are laid out for 100 columns, whatever terminal runs the tests."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def toy_system() -> System:
    """A machine of unlike numbers, so that one quantity taken for another shows."""
    parts = cases(__file__, "toy_system")
    return System(
        name="toy",
        chip=Chip.of(**parts["chip"]),
        memory=tuple(MemoryLevel.of(**level) for level in parts["memory"]),
        network=tuple(LinkTier.of(**tier) for tier in parts["network"]),
        host=Host.of(**parts["host"]),
    )


@pytest.fixture
def gpt() -> ModelShape:
    """A small GPT of unlike dimensions."""
    return ModelShape(**cases(__file__, "gpt"))


@pytest.fixture
def llama() -> ModelShape:
    """A small Llama with grouped queries."""
    return ModelShape(**cases(__file__, "llama"))


@pytest.fixture(scope="session")
def small_space() -> str:
    """A search space of three parameters, as a file holds it."""
    return cases(__file__, "small_space")


@pytest.fixture
def small_study(tmp_path, monkeypatch, small_space) -> Path:
    """The current folder, with `small.yaml` and its study `small` of four trials."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(small_space)
    outputs_of("search", "small.yaml", "--budget", "4")
    return tmp_path
