"""Predicted against measured steps: `python benchmarks/measured_steps.py [MEASURED.csv [DATASET ...]]`.

Reads a table of published training steps (one row per run, with its complete layout; without an argument
the one in `tests/data/`), prices each row on the system whose fabric the row names, and prints the error of
every row, the mean of each data set, and how well the order of the layouts of each model is kept (Kendall's
tau). No constant depends on a row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from costmodel import DesignPoints, ModelShape, System, load_system, step

#: Published steps, each with its source.
MEASURED = Path(__file__).parents[1] / "tests" / "data" / "measured_steps.csv"
SHOWN = ["model", "tp", "pp", "vpp", "dp", "mbs", "ga", "recompute", "iter_time_s", "predicted_s", "error"]
DATASETS = ("korthikanti_table5", "vtrain_multi_a100", "vtrain_single_a100")

#: A row's hardware and fabric, as the table writes them -> the shipped system, and what differs from it.
SYSTEMS: dict[tuple[str, str], tuple[str, dict[str, float]]] = {
    ("A100-SXM4-80GB", ""): ("a100_80g_dgx", {}),
    ("A100-SXM4-80GB", "8x HDR InfiniBand 200 Gb/s per node"): ("a100_80g_dgx", {}),
    ("A100-SXM4-80GB", "800 Gb/s per node (config)"): ("a100_80g_dgx", {"fabric_bandwidth": 800e9 / 8 / 8}),
}


def read_measured(path: Path) -> pd.DataFrame:
    """The training steps of a table of measurements, empty cells filled with what they mean."""
    table = pd.read_csv(path, low_memory=False)
    blank = {"inter_node": "", "opt_shard": "none", "kv_heads": 0, "vpp": 1, "seq_par": 0}
    return table[table.row_type == "train_step"].fillna(blank)


def model_of(row: pd.Series) -> ModelShape:
    """The model of a row: GPT, or Llama-like where the MLP is gated."""
    gated = bool(row.gated)
    return ModelShape(
        name=row.model,
        num_layers=row.layers,
        hidden_size=row.hidden,
        num_attention_heads=row.heads,
        num_query_groups=row.kv_heads,
        ffn_hidden_size=row.ffn,
        seq_len=row.seq,
        vocab_size=row.vocab,
        gated_mlp=gated,
        normalization="rms_norm" if gated else "layer_norm",
        position_embedding="rotary" if gated else "learned",
        biases=not gated,
        dropout=not gated,
        tied_embeddings=not gated,
    )


def design_of(row: pd.Series) -> DesignPoints:
    """The layout of a row."""
    return DesignPoints.of(
        tp=row.tp,
        pp=row.pp,
        vpp=row.vpp,
        dp=row.dp,
        micro_batch_size=row.mbs,
        gradient_accumulation_steps=row.ga,
        sequence_parallel=row.seq_par,
        recompute=row.recompute.split("(")[0],
        attention="unfused" if row.attn_kernel == "unfused" else "fused",
        distributed_optimizer=not row.opt_shard.startswith("none"),
    )


def system_of(row: pd.Series) -> System:
    """The machine of a row."""
    name, differing = SYSTEMS[row.hw, row.inter_node]
    return load_system(name).with_quantities(differing)


def predicted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column of predicted step times and one of relative errors."""
    times = [
        step(model_of(row), system_of(row), design_of(row)).step_time.item() for _, row in rows.iterrows()
    ]
    table = rows.assign(predicted_s=times)
    return table.assign(error=table.predicted_s / table.iter_time_s - 1)


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Concordant minus discordant pairs, over all pairs. [-]"""
    a, b = np.asarray(first), np.asarray(second)
    upper = np.triu_indices(len(a), 1)
    signs = np.sign(a[:, None] - a) * np.sign(b[:, None] - b)
    return float(signs[upper].mean())


def error_summary(error: pd.Series) -> str:
    """One line on the relative errors of a data set."""
    size = error.abs()
    return (
        f"mean |error| {size.mean():.1%}, median {size.median():.1%}, "
        f"90th percentile {size.quantile(0.9):.1%}, bias {error.mean():+.1%}, {len(error)} runs"
    )


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "measured", type=Path, nargs="?", default=MEASURED, help="table of measured runs, CSV"
    )
    parser.add_argument("datasets", nargs="*", default=DATASETS, help="data sets to compare")
    args = parser.parse_args()
    measured = read_measured(args.measured)
    for dataset in args.datasets:
        table = predicted(measured[measured.dataset == dataset])
        print(f"\n{dataset}")
        print(table[SHOWN].to_string(index=False, float_format="{:.3f}".format))
        print(error_summary(table.error))
        for model, group in table.groupby("model"):
            if len(group) > 2:
                tau = kendall_tau([*group.predicted_s], [*group.iter_time_s])
                print(f"  order of {len(group)} layouts of {model}: tau {tau:.2f}")


if __name__ == "__main__":
    main()
