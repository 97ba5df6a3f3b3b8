"""What a power budget buys: rates from shares of the power, capacities from rates.

The idea, and the three formulas, are those of the first generation of [DeepFlow]_.
"""

from __future__ import annotations

from costmodel.columns import FloatArray


def affordable_rate(power: FloatArray, energy: FloatArray) -> FloatArray:
    """Rate at which a block does its work when it draws all of its power.

    Parameters
    ----------
    power : array
        What the block may draw. [W]
    energy : array
        Of one unit of work: a FLOP or a byte. [J], [J/B]

    Returns
    -------
    rate : array
        Work in a second. [FLOP/s] or [B/s]
    """
    return power / energy


def banked_capacity(
    bandwidth: FloatArray, *, bank_capacity: FloatArray, bank_bandwidth: FloatArray
) -> FloatArray:
    """Capacity of the banks, in fractions of one, that give a bandwidth. [B]

    Parameters
    ----------
    bandwidth : array
        Of all banks. [B/s]
    bank_capacity, bank_bandwidth : array
        Of one bank or stack. [B], [B/s]
    """
    return bandwidth / bank_bandwidth * bank_capacity
