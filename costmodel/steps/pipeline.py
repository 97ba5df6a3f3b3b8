"""Pipeline schedules: layers per stage, bubble, micro-batches in flight."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray


def stage_layers(num_layers: float, pp: FloatArray, vpp: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Layers of an outer (first or last) stage, and of the fullest inner one. [-]

    Layers that do not divide evenly go to inner stages first, since the outer ones carry the embedding
    and the head as well.

    Parameters
    ----------
    num_layers : float
        Layers of the model. [-]
    pp, vpp : (points,) array
        Stages, and model chunks per stage. [-]

    Returns
    -------
    outer, inner : (points,) array
        Layers; `inner` is 0 where there are only outer stages. [-]
    """
    chunks = pp * vpp
    even = np.floor(num_layers / chunks) * vpp
    left_over = num_layers - even * pp
    inner_stages = np.maximum(pp - 2, 0.0)
    outer = even + np.where(
        left_over > inner_stages * vpp, np.ceil((left_over - inner_stages * vpp) / 2), 0.0
    )
    outer = np.where(pp == 1, num_layers, np.minimum(outer, even + vpp))
    inner = np.where(
        inner_stages > 0, even + np.minimum(np.ceil(left_over / np.maximum(inner_stages, 1)), vpp), 0.0
    )
    return outer, inner


def bubble_time(
    slowest_stage_time: FloatArray,
    all_stages_time: FloatArray,
    *,
    pp: FloatArray,
    vpp: FloatArray,
    gradient_accumulation_steps: FloatArray,
) -> FloatArray:
    """Time that the slowest stage waits for others in 1F1B, interleaved when vpp > 1. [s]

    Parameters
    ----------
    slowest_stage_time, all_stages_time : (points,) array
        Forward and backward of one micro-batch on the slowest stage, and on all stages one after the
        other. [s]
    pp, vpp, gradient_accumulation_steps : (points,) array
        Stages, chunks per stage, micro-batches. [-]

    Returns
    -------
    bubble : (points,) array
        Filling and draining, 1/vpp of a pass through all other stages; equal stages give the
        (p - 1) / (m v) of the ideal time of [Narayanan2021]_. Micro-batches run in groups of pp when
        interleaved: a last group that is not full still waits for its missing members in all chunks
        but one. [s]
    """
    missing = np.mod(-gradient_accumulation_steps, pp)
    ragged = missing * slowest_stage_time * (vpp - 1) / vpp
    return (all_stages_time - slowest_stage_time) / vpp + ragged


def layers_in_flight(
    layers: FloatArray, *, pp: FloatArray, vpp: FloatArray, gradient_accumulation_steps: FloatArray
) -> FloatArray:
    """Layers whose activations the first stage holds at once, counted per micro-batch. [-]

    1F1B keeps min(pp, m) micro-batches in flight on the first stage; interleaving adds (p-1)/(p v) of
    them, and never more than all m [Korthikanti2022]_.

    Parameters
    ----------
    layers : (points,) array
        Layers of the first stage. [-]
    pp, vpp, gradient_accumulation_steps : (points,) array
        Stages, chunks per stage, micro-batches. [-]

    Returns
    -------
    in_flight : (points,) array
        Layers times micro-batches. [-]
    """
    interleaving = np.where(vpp > 1, 1 + (pp - 1) / (pp * vpp), 1.0)
    return layers * np.minimum(pp * interleaving, gradient_accumulation_steps)


def last_layers_in_flight(
    layers: FloatArray, *, pp: FloatArray, vpp: FloatArray, gradient_accumulation_steps: FloatArray
) -> FloatArray:
    """Layers whose activations the last stage holds at once, counted per micro-batch. [-]

    It runs (v - 1) p chunks forward before its last chunk turns the first micro-batch round, and then one
    chunk more: a single micro-batch in plain 1F1B. Parameters as for `layers_in_flight`.
    """
    chunks = np.minimum((vpp - 1) * pp + 1, gradient_accumulation_steps * vpp)
    return layers / vpp * chunks
