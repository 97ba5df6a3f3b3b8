"""Machines and models that several tests share, and how Hypothesis runs."""

from __future__ import annotations

import gc
import os

# Matrices are small here: in workers of pytest-xdist and in commands, which inherit this, threads would only spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from costmodel import Chip, Host, LinkTier, MemoryLevel, ModelShape, System
from tests.support.servers import postgresql_server

# Where JAX is there and a test uses it, this processor stands for eight devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

# Time limits of an example say how busy the machine is, not whether the code is right.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


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
    return System(
        name="toy",
        chip=Chip.of(
            cores=37,
            arrays_per_core=3,
            array_height=8,
            array_width=16,
            clock=1.3e9,
            sustained=0.91,
            matrix_efficiency=0.83,
            fp8_speedup=1.9,
            mx_speedup=1.8,
            fp4_speedup=3.7,
            fp8_efficiency=0.93,
            fp4_efficiency=0.89,
            vector_lanes=48,
            kernel_launch=3e-6,
            tile_latency=2e-6,
            collective_cores=5,
            reserved_memory=1.7e9,
            energy_per_flop=0.7e-12,
            idle_power=61,
            fixed_area=230e-6,
            array_area=1.1e-9,
            sram_area=0.9e-12,
            area_price=1.9e5,
            base_price=2300,
        ),
        memory=(
            MemoryLevel.of(name="sram", capacity=11e6, bandwidth=13e12, efficiency=0.97, energy=1.3e-12),
            MemoryLevel.of(name="l2", capacity=17e6, bandwidth=2.9e12, efficiency=0.71, energy=7e-12),
            MemoryLevel.of(
                name="dram", capacity=53e9, bandwidth=0.83e12, efficiency=0.79, energy=43e-12, price=11e-9
            ),
        ),
        network=(
            LinkTier.of(
                name="node", size=4, bandwidth=97e9, efficiency=0.73, latency=1.9e-6, launch=11e-6,
                in_switch=1, energy=19e-12, price=3e-9,
            ),
            LinkTier.of(
                name="fabric", size=4096, bandwidth=13e9, efficiency=0.67, latency=5.3e-6, launch=17e-6,
                energy=59e-12, price=23e-9,
            ),
        ),
        host=Host.of(
            dispatch=23e-6, step_overhead=0.011, straggler=0.007, power=71, price=1700, power_overhead=1.2
        ),
    )  # fmt: skip


@pytest.fixture
def gpt() -> ModelShape:
    """A small GPT of unlike dimensions."""
    return ModelShape(
        name="gpt", num_layers=24, hidden_size=1536, num_attention_heads=24, seq_len=1152, vocab_size=20011
    )


@pytest.fixture
def llama() -> ModelShape:
    """A small Llama with grouped queries."""
    return ModelShape(
        name="llama",
        num_layers=24,
        hidden_size=1536,
        num_attention_heads=24,
        num_query_groups=8,
        ffn_hidden_size=4352,
        seq_len=1152,
        vocab_size=20011,
        gated_mlp=True,
        normalization="rms_norm",
        position_embedding="rotary",
        biases=False,
        dropout=False,
        tied_embeddings=False,
    )


@pytest.fixture(scope="session")
def small_space() -> str:
    """A search space of three parameters, as a file holds it."""
    return """\
schema: search_space/v1
name: small
description: How to split GPT 22B over 64 A100s
model: gpt_22b
system: a100_80g_dgx
given: {world_size: 64, global_batch_size: 128}
parameters:
  tp: [1, 2, 4, 8]
  pp: [1, 2, 4, 8]
  recompute: [none, selective, full]
derived:
  dp: world_size / (tp * pp)
  gradient_accumulation_steps: global_batch_size / dp
constraints:
  fits: peak_memory <= dram_capacity
objectives:
  minimize: [step_time, peak_memory]
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database of each kind; a server of its own where PostgreSQL is."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/dse.db"
        return
    with postgresql_server() as url:
        if url is None:
            pytest.skip("needs psycopg and the PostgreSQL server programs")
        yield url
