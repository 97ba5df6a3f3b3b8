"""Models and machines that several modules of these tests share."""

from dataclasses import replace

import pytest

from costmodel import ModelShape, System, load_model, load_system


@pytest.fixture
def experts() -> ModelShape:
    """Eight layers of eight experts, of which a token meets two."""
    return replace(
        load_model("mixtral_8x7b"), num_layers=8.0, seq_len=2048.0, hidden_size=1024.0, head_size=128.0,
        num_attention_heads=8.0, num_query_groups=2.0, moe_ffn_hidden_size=1536.0,
    )  # fmt: skip


@pytest.fixture
def links() -> System:
    """Every byte sent costs a joule, on either tier, and nothing else counts."""
    waits = {f"{tier}_{name}": 0.0 for tier in ("node", "fabric") for name in ("latency", "launch", "in_switch")}
    return load_system("h100_80g_dgx").with_quantities({**waits, "node_energy": 1.0, "fabric_energy": 1.0})


@pytest.fixture(scope="session")
def a100() -> System:
    return load_system("a100_80g_dgx")


@pytest.fixture(scope="session")
def h100() -> System:
    return load_system("h100_80g_dgx")
