"""Training that is interrupted: how often to save a checkpoint, and what share of the time is then useful."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray


def young_interval(checkpoint_time: FloatArray, mtbf: FloatArray) -> FloatArray:
    """Useful time between checkpoints that loses least, to first order [Young1974]_.

    Parameters
    ----------
    checkpoint_time : (points,) array
        That training stands still for one checkpoint. [s]
    mtbf : (points,) array
        Mean time between failures of the whole machine. [s]

    Returns
    -------
    interval : (points,) array
        [s]
    """
    return np.asarray(np.sqrt(2 * checkpoint_time * mtbf))


def daly_interval(checkpoint_time: FloatArray, mtbf: FloatArray) -> FloatArray:
    """Useful time between checkpoints that loses least, also where failures are frequent [Daly2006]_.

    Parameters
    ----------
    checkpoint_time, mtbf
        As for `young_interval`. [s]

    Returns
    -------
    interval : (points,) array
        [s]

    Notes
    -----
    Equation 37 there, a series for where `daly_goodput` is highest: within 0.02 % of the best goodput while a
    checkpoint takes no longer than the mean time between failures, within 0.15 % always.
    """
    share = np.minimum(checkpoint_time / (2 * mtbf), 1.0)
    higher_order = 1 + np.sqrt(share) / 3 + share / 9
    interval = young_interval(checkpoint_time, mtbf) * higher_order - checkpoint_time
    return np.asarray(np.where(checkpoint_time < 2 * mtbf, interval, mtbf))


def daly_goodput(
    interval: FloatArray, checkpoint_time: FloatArray, restart_time: FloatArray, mtbf: FloatArray
) -> FloatArray:
    """Share of wall-clock time that is useful training: not saved, waited for, or done again [Daly2006]_.

    Parameters
    ----------
    interval : (points,) array
        Useful time between two checkpoints. [s]
    checkpoint_time, mtbf
        As for `young_interval`. [s]
    restart_time : (points,) array
        From a failure to the first new step: detection, another node, reading the checkpoint. [s]

    Returns
    -------
    goodput : (points,) array
        From 0 to 1. [-]

    Notes
    -----
    Equation 20 there: failures come at random, at a constant rate, also while a checkpoint is written and
    while a restart is under way; each costs all that was done since the last checkpoint, and a restart. No
    time between checkpoints that take none is the limit of short intervals.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        useful = interval / mtbf / np.expm1((interval + checkpoint_time) / mtbf)
    useful = np.where((interval == 0) & (np.asarray(checkpoint_time) == 0), 1.0, useful)
    return np.asarray(useful * np.exp(-restart_time / mtbf))
