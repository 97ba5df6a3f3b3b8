"""Models, machines and designs by chance: unlike numbers, and every option that there is.

Nothing divides on purpose, and little is sensible: laws hold for what nobody would run, too.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import numpy as np

from costmodel import Chip, DesignPoints, Host, LinkTier, LstmShape, MemoryLevel, ModelShape, System
from costmodel.columns import FloatArray
from costmodel.machine import Software
from costmodel.training.blocks import assignments_of
from costmodel.training.design import (
    SAMPLE,
    SCHEDULE_WORDS,
    SOLVE,
    SOLVE_BYTES,
    TILE_EDGES,
    tile_columns,
    tiled_kernels,
)
from costmodel.training.design_table import Design, Domain

#: Columns of a design that count something -> the most that is drawn, by powers of two and their neighbours.
MOST: Final = {
    "tp": 64, "cp": 16, "pp": 32, "vpp": 6, "dp": 512, "ep": 64, "etp": 16, "micro_batch_size": 32,
    "gradient_accumulation_steps": 256, "group_size": 64, "first_stage_layers": 12, "last_stage_layers": 12,
    "cp_a2a": 16, "recompute_layers": 12, "shard_replicas": 16, "hidden_dim1": 16, "hidden_dim2": 16,
    "softmax_dim1": 16, "softmax_dim2": 16, "tile_size": 64, "lora_rank": 256,
}  # fmt: skip

#: Columns of other schedules than 1F1B, and of stages that are not as even as can be.
PIPELINES: Final = (
    "schedule", "group_size", "first_stage_layers", "last_stage_layers", "count_embedding", "count_loss",
)  # fmt: skip

#: Assignments of shardings of a model beyond which none are solved for: all of them are counted for each.
MOST_ASSIGNMENTS: Final = 2_000


def counts(rng: np.random.Generator, most: float, points: int, low: float = 1.0) -> FloatArray:
    """Whole numbers up to some, small ones as often as large ones; (points,). [-]"""
    drawn = 2 ** rng.uniform(0.0, np.log2(most + 1), points)
    even = 2 ** np.round(np.log2(drawn))
    whole = np.minimum(np.where(rng.random(points) < 0.6, even, np.floor(drawn)), most)
    return np.where(rng.random(points) < 0.4, low, np.maximum(whole, low))


def column_values(rng: np.random.Generator, name: str, domain: Domain, points: int) -> FloatArray:
    """Values of a column, all over its domain; (points,). [-]"""
    if not domain.whole:
        high = domain.high if domain.high < 1e30 else 4.0
        return np.where(rng.random(points) < 0.5, domain.low, rng.uniform(domain.low, high, points))
    if domain.high < 1e30:
        return rng.integers(int(domain.low), int(domain.high) + 1, points).astype(float)
    return counts(rng, MOST[name], points, domain.low)


def random_columns(rng: np.random.Generator, table: type[Design], blocks: Any, points: int) -> dict[str, Any]:
    """Every column of a table of designs but the layouts of pipelines, which are of one model each."""
    domains = table.domains(blocks)
    columns = {
        name: column_values(rng, name, domain, points)
        for name, domain in domains.items()
        if name not in ("pipeline_layout", *table.aliases)
    }
    edges = np.array([(m, n) for m, n in product(TILE_EDGES[4:8], repeat=2) if m <= 2 * n and n <= 2 * m])
    for kernel in tiled_kernels(blocks):
        if tile_columns(kernel)[0] in columns:
            pairs = edges[rng.integers(len(edges), size=points)]
            columns |= dict(zip(tile_columns(kernel), pairs.T.astype(float), strict=True))
    return columns


def lawful_pipelines(rng: np.random.Generator, columns: dict[str, Any], layers: float) -> dict[str, Any]:
    """The columns of pipelines that there are, as drawn where they may be, and as near as may be."""
    pp, vpp, batches = (columns[name] for name in ("pp", "vpp", "gradient_accumulation_steps"))
    word = np.array(SCHEDULE_WORDS)[columns["schedule"].astype(int)]
    v_shaped, halves = np.isin(word, ("zb_v", "dualpipe_v")), word == "dualpipe"
    vpp = np.where(v_shaped, 2.0, np.where(np.isin(word, ("1f1b", "breadth_first")), vpp, 1.0))
    pp = np.where(halves, 2 * np.ceil(pp / 2), pp)
    batches = np.where(halves, 2 * np.ceil(batches / 2), batches)
    batches = np.where(halves | (word == "dualpipe_v"), np.maximum(batches, 2 * pp), batches)
    batches = np.where((vpp > 1) & (word == "1f1b"), pp * np.ceil(batches / pp), batches)
    group = np.maximum(columns["group_size"], pp)
    rest = batches % group
    grouped = (columns["group_size"] > 0) & (group <= batches) & ((rest == 0) | (rest >= pp))
    told = layers - vpp * (pp - 1) * rng.integers(1, 4, pp.size)  # what the others leave to one stage
    told = np.where((told > 0) & (pp > 1) & (rng.random(pp.size) < 0.3), told, 0.0)
    first = rng.random(pp.size) < 0.5
    both = columns["count_embedding"] + columns["count_loss"]
    counted = (told == 0) & ((layers + both) % (pp * vpp) == 0)
    return {
        "pp": pp, "vpp": vpp, "gradient_accumulation_steps": batches,
        "group_size": np.where(grouped, group, 0.0),
        "first_stage_layers": np.where(first, told, 0.0), "last_stage_layers": np.where(first, 0.0, told),
        **{name: np.where(counted, columns[name], 0.0) for name in ("count_embedding", "count_loss")},
    }  # fmt: skip


def lawful_columns(
    rng: np.random.Generator, table: type[DesignPoints], model: ModelShape, points: int
) -> dict[str, Any]:
    """Columns of designs of a model, a third with plain pipelines and named shardings; (points,). [-]"""
    columns = random_columns(rng, table, model.blocks, points)
    columns |= lawful_pipelines(rng, columns, model.num_layers)
    plain, usual = rng.random(points) < 1 / 3, DesignPoints().columns()
    for name in (*PIPELINES, "sharding", "tiling"):
        columns[name] = np.where(plain, usual[name], columns[name])
    if assignments_of(tuple(model.kinds), model.last_layer).count > MOST_ASSIGNMENTS:
        solved = np.isin(columns["sharding"], (SOLVE, SOLVE_BYTES))
        columns["sharding"] = np.where(solved, SAMPLE, columns["sharding"])
    return columns


def random_designs(rng: np.random.Generator, model: ModelShape, points: int) -> DesignPoints:
    """Designs of a model, all columns drawn."""
    return DesignPoints.of(blocks=model.blocks, **lawful_columns(rng, DesignPoints, model, points))


def random_model(rng: np.random.Generator) -> ModelShape:
    """A transformer of any of the kinds that there are."""

    def some(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    heads, layers = some(8, 12, 16, 24, 40, 64), int(rng.integers(4, 60))
    fields: dict[str, Any] = {
        "num_layers": layers, "num_attention_heads": heads, "num_query_groups": some(heads, heads // 4, heads // 2),
        "hidden_size": int(rng.integers(4, 130)) * 64, "head_size": some(64, 80, 128, 192),
        "ffn_hidden_size": int(rng.integers(4, 400)) * 64, "seq_len": int(2 ** rng.uniform(7, 17)),
        "vocab_size": int(2 ** rng.uniform(10, 18)), "vocab_multiple": some(0, 128),
        "gated_mlp": some(False, True),
        "activation": some("gelu", "silu", "squared_relu"), "biases": some(False, True),
        "normalization": some("layer_norm", "layer_norm_no_bias", "rms_norm"), "dropout": some(False, True),
        "position_embedding": some("learned", "rotary"), "tied_embeddings": some(False, True),
        "qk_norm": some(False, True), "sinks": some(False, True), "mtp_layers": some(0, 0, 1, 2),
        "num_residual_streams": some(1, 1, 1, 2, 4),
    }  # fmt: skip
    shape = some("plain", "parallel", "post_norms")
    fields |= {
        "plain": {},
        "parallel": {"parallel_block": True, "parallel_norms": some(False, True), "norms_per_layer": 1},
        "post_norms": {"norms_per_layer": 4},
    }[shape]
    attention = some("full", "full", "window", "latent", "delta_net", "compressed")
    fields |= {
        "full": {},
        "window": {"window": some(16, 512, 4096), "window_kind": some("sliding", "chunked"),
                   "full_attention_every": some(0, 2, 6)},
        "latent": {"attention": "mla", "q_lora_rank": some(0, 768), "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                   "qk_rope_head_dim": some(0, 64), "v_head_dim": some(64, 128),
                   "attention_output_gate": some(False, True), "attention_head_gate": layers % 2 == 0},
        "delta_net": {"linear_attention": some("gated_delta_net", "mamba2", "kda"), "linear_key_heads": 16,
                      "linear_value_heads": 32, "linear_head_dim": 128, "linear_conv_kernel": 4,
                      "linear_state_size": 64, "full_attention_every": some(0, 2, 4),
                      "attention_output_gate": some(False, True), "linear_full_rank_gate": some(False, True),
                      "linear_full_rank_decay": layers % 2 == 0},
        "compressed": {"window": 128, "q_lora_rank": 512, "qk_rope_head_dim": 64, "o_groups": 2, "o_lora_rank": 256,
                       "index_heads": 16, "index_head_dim": 128, "index_topk": 64, "num_query_groups": 1,
                       "layer_order": "".join("wsh"[int(kind)] for kind in rng.integers(0, 3, layers)),
                       "layer_kinds": tuple((letter, ("compressed", "dense", sizes)) for letter, sizes in (
                           ("w", (("index_heads", 0.0),)), ("s", (("compress_ratio", 4.0),)),
                           ("h", (("compress_ratio", 128.0), ("index_heads", 0.0)))))},
    }[attention]  # fmt: skip
    if some(False, True) and not fields.get("parallel_block"):
        experts = some(4, 8, 60, 128)
        fields |= {
            "num_experts": experts, "moe_topk": some(1, 2, 4), "moe_ffn_hidden_size": int(rng.integers(2, 100)) * 64,
            "shared_ffn_hidden_size": (shared := some(0, 1024)),
            "shared_expert_gate": bool(shared) and some(False, True),
            "router_bias": some(False, True), "moe_latent_size": some(0, 0, 512),
            "first_dense_layers": some(0, 1, 3), "moe_layer_freq": some(1, 1, 2),
        }  # fmt: skip
    return ModelShape(name="random", **fields)


def random_lstm(rng: np.random.Generator) -> LstmShape:
    """A language model of LSTM cells."""
    names = ("hidden_size", "projection_size", "vocab_size")
    sizes: dict[str, Any] = {name: float(rng.integers(1, 150) * 64) for name in names}
    return LstmShape(num_layers=int(rng.integers(1, 9)), seq_len=int(rng.integers(1, 80)), **sizes)


def random_system(rng: np.random.Generator) -> System:
    """A machine of any numbers of memory levels and tiers of links, some of the tiers a torus."""

    def about(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def share() -> float:
        return float(rng.uniform(0.2, 1.0))

    def none_or(value: float) -> float:
        return value if rng.random() < 0.5 else 0.0

    chip = Chip.of(
        cores=rng.integers(1, 300), arrays_per_core=rng.integers(1, 9), array_height=2.0 ** rng.integers(2, 9),
        array_width=2.0 ** rng.integers(2, 9), clock=about(0.3e9, 3e9), sustained=share(), matrix_efficiency=share(),
        flash_2_efficiency=share(), fp8_speedup=none_or(about(1, 3)), mx_speedup=none_or(about(1, 3)),
        fp4_speedup=none_or(about(1, 6)), fp8_efficiency=share(), fp4_efficiency=share(),
        vector_lanes=rng.integers(1, 2000), kernel_launch=none_or(about(1e-7, 1e-5)),
        tile_latency=none_or(about(1e-7, 1e-5)), collective_cores=rng.integers(0, 40),
        tp_collective_cores=rng.choice([np.nan, 0.0, 7.0]), dp_collective_cores=rng.integers(0, 40),
        reserved_memory=none_or(about(1e8, 1e10)), energy_per_flop=about(1e-13, 1e-11),
        nominal_clock=none_or(about(0.3e9, 3e9)), least_voltage=share(), idle_power=none_or(about(1, 300)),
        fixed_area=none_or(about(1e-5, 1e-3)), array_area=about(1e-10, 1e-8), sram_area=about(1e-13, 1e-11),
        area_price=about(1e4, 1e7), defect_density=none_or(about(1, 3000)), defect_clustering=about(0.5, 10),
        base_price=none_or(about(100, 30000)),
    )  # fmt: skip
    inner = ("sram", "l2", "l3")[: rng.integers(1, 4)]
    levels = zip((*inner, "dram"), [*sorted(about(1e5, 3e8) for _ in inner), about(4e9, 3e11)], strict=True)
    memory = [
        MemoryLevel.of(
            name=name, capacity=capacity, bandwidth=about(1e11, 1e14), efficiency=share(), energy=about(1e-13, 1e-10),
            price=none_or(about(1e-9, 1e-7)), bandwidth_price=none_or(about(1e-11, 1e-9)),
        )
        for name, capacity in levels
    ]  # fmt: skip
    return System(
        name="random", chip=chip, memory=tuple(memory), network=tuple(random_tiers(rng, about, share, none_or)),
        host=Host.of(
            dispatch=none_or(about(1e-6, 1e-4)), step_overhead=none_or(about(1e-4, 1)),
            straggler=none_or(about(1e-4, 0.1)), power=none_or(about(10, 500)), price=none_or(about(100, 1e4)),
            power_price=none_or(about(0.1, 10)), power_overhead=about(1, 2),
            link_bandwidth=about(1e9, 1e12), memory_bandwidth=about(1e9, 1e12),
        ),
        software=Software.of(
            pointwise_kernels=about(1, 5), kept_activations=about(1, 3), blocking_launches=none_or(share()),
            collective_launches=about(0.5, 5), pipelined_launches=none_or(about(0.5, 5)),
            whole_gradients=float(rng.integers(2)), expert_casts=none_or(about(0.1, 1)),
        ),
    )  # fmt: skip


def random_tiers(rng: np.random.Generator, about: Any, share: Any, none_or: Any) -> Iterator[LinkTier]:
    """Tiers of links from the inside out, each of more chips than the one before."""
    size = 1.0
    for name in ("node", "rack", "fabric")[: rng.integers(1, 4)]:
        axes = 2.0 ** rng.integers(1, 4, 3)
        torus = rng.random() < 0.25
        size = float(np.prod(axes)) * size if torus else size * int(rng.integers(2, 40))
        yield LinkTier.of(
            name=name, size=size, bandwidth=about(1e9, 1e12), efficiency=share(), latency=none_or(about(1e-7, 1e-5)),
            launch=none_or(about(1e-7, 1e-4)), ramp=none_or(about(1e5, 1e8)), own_share=none_or(share()),
            in_switch=float(rng.random() < 0.3), in_switch_rate=about(0.5, 2),
            used=rng.choice([np.inf, size, max(size // 2, 1)]), oversubscription=about(1, 4),
            peer_bandwidth=rng.choice([np.inf, about(1e9, 1e12)]), energy=about(1e-12, 1e-9),
            price=none_or(about(1e-10, 1e-7)), torus_wrap=float(rng.integers(1, 5)),
            **(dict(zip(("torus_x", "torus_y", "torus_z"), axes, strict=True)) if torus else {}),
        )  # fmt: skip
