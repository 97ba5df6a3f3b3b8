"""DeepFlow's energy of a step, with the counts that its times have."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray, per_kernel
from costmodel.profiles.deepflow.configuration import Configuration
from costmodel.profiles.deepflow.kernels import GEMMS, GemmPrices, KernelPrice
from costmodel.workload.kernel_tables import total


def step_energy(config: Configuration, gemms: GemmPrices, pointwise: dict[str, KernelPrice]) -> FloatArray:
    """Energy of one step of all data shards.

    Parameters
    ----------
    config : Configuration
        Energies and sizes; (points,) columns.
    gemms, pointwise
        Kernels with their times.

    Returns
    -------
    energy : (points,) array
        Cells, softmax, embedding, stage transfers, and the reduction over data shards; nan where products
        are split, whose energy the reference leaves open. [J]

    Notes
    -----
    The reference counts its energies by an older set of kernels, which is not known well enough to be
    repeated: these are its rules with the counts of the times. Like its own, they leave the optimizer,
    the projection, and the shared memory out.
    """
    by_gemm = (
        gemms.flops * per_kernel(config.flop_energy)
        + gemms.traffic("dram") * per_kernel(config.dram_energy)
        + gemms.traffic("l2") * per_kernel(config.l2_energy)
    )

    def energy(part: str, *names: str) -> FloatArray:
        places = [place for place, (of_part, _) in enumerate(GEMMS.values()) if of_part == part]
        products = total(by_gemm[:, places])
        for name in names:
            kernel = pointwise[name]
            products = products + (kernel.flops * config.flop_energy + kernel.dram_bytes * config.dram_energy)
        return products

    cells = config.num_layers * config.seq_len * energy("hidden", "Hidden_f", "Hidden_b")
    embedded = config.element_bytes * config.tokens * config.hidden_size
    embedding = 2 * (2 * embedded * config.dram_energy)
    transfers = config.element_bytes * config.shard_batch * config.hidden_size * config.link_energy
    shard = cells + energy("softmax", "Softmax_f", "Softmax_b") + embedding + transfers * (config.lp - 1)

    weights = 2 * config.hidden_size * config.gate_size
    reduction = (
        2 * config.element_bytes * weights * config.link_energy
        + weights * config.flop_energy
        + 3 * config.element_bytes * weights * config.dram_energy
    )
    whole = ~(config.split("hidden").sharded | config.split("softmax").sharded)
    return np.where(whole, config.dp * shard + reduction * (config.dp - 1), np.nan)
