"""Chips of DeepFlow's second and present generation: rates, sizes and links from areas, powers and the perimeter.

A sheet holds the numbers of a hardware file by their path. Area limits how many compute units, banks, stacks and
links a chip has; power limits their voltage, and the voltage their clock. A size, bandwidth or clock that the file
states replaces the one that would follow; the second generation states none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray

#: Numbers of a hardware file by their path, or of a block by name; (points,) columns. [SI units], [mm2]
Values = dict[str, FloatArray]

#: Memories of a chip; `area_breakdown` and `power_breakdown` name an SRAM by the second word.
SRAMS: Final = {"SRAM-R": "reg_mem", "SRAM-L1": "L1", "SRAM-L2": "L2"}
MEMORIES: Final = (*SRAMS, "DRAM")
#: Parts of a chip that a part of a memory serves, in the order of their codes.
SCOPES: Final = ("global", "mcu-bundle", "mcu")
#: Links -> directions in which a device has them: a mesh of four within a node, one chain between nodes. [-]
DEGREES: Final = {"intra_node": 4, "inter_node": 1}
#: Parallel dimensions whose messages take links within or between nodes.
DIMENSIONS: Final = ("kp1", "kp2", "dp", "lp")


def within(sheet: Values, path: str) -> Values:
    """Columns of a block of a sheet by their last word."""
    return {key.rpartition(".")[2]: values for key, values in sheet.items() if key.rpartition(".")[0] == path}


def real_root(threshold: FloatArray, constant: FloatArray) -> FloatArray:
    """First real root of ``v (v - threshold)^2 = constant``, (points,). [V]

    Roots are eigenvalues of the companion matrix in the order of LAPACK, as `numpy.roots` gives them. Where `constant`
    is 0 the matrix is that of the square, whose root differs from `threshold` by rounding, and 0 is the last root.
    """
    threshold, constant = np.broadcast_arrays(threshold, constant)
    first = np.full(constant.shape, np.nan)
    finite = np.isfinite(threshold) & np.isfinite(constant)
    for order, rows in ((3, finite & (constant != 0)), (2, finite & (constant == 0))):
        companion = np.zeros((int(rows.sum()), order, order))
        companion[:, range(1, order), range(order - 1)] = 1.0
        terms = 2 * threshold, -(threshold**2), constant
        companion[:, 0] = np.stack([term[rows] for term in terms[:order]], axis=-1)
        roots = np.linalg.eigvals(companion)
        roots = np.concatenate([roots, np.zeros((len(roots), 1))], axis=1)
        is_real = np.abs(roots.imag) < 1e-10
        first[rows] = np.take_along_axis(roots.real, np.argmax(is_real, axis=1)[:, None], axis=1)[:, 0]
    return first


def operating_point(
    block: Values, power: FloatArray, nominal: FloatArray, clock: FloatArray, *, powered: BoolArray, raised: bool
) -> tuple[FloatArray, FloatArray]:
    """Voltage and clock at which a block takes its power: clock ~ (v - vt)^2 / v, power ~ v (v - vt)^2. [V], [Hz]

    Below the least voltage the clock falls with the square of the ratio: the clock of the voltage itself, or of the
    least one if it is `raised`. No clock exceeds that of `max_voltage`. The voltage is that before both limits; both
    are 0 where a block is not `powered`. `nominal` is the power at the nominal voltage. [W]
    """
    usual, threshold, (least, most) = block["nominal_voltage"], block["threshold_voltage"], voltage_limits(block)
    constant = power / nominal * usual * (usual - threshold) ** 2
    solved = real_root(threshold, np.where(powered, constant, 1.0))

    def speed(voltage: FloatArray) -> FloatArray:
        return (voltage - threshold) ** 2 / voltage

    free = clock * (speed(solved) / speed(usual))
    slowed = (solved / least) ** 2 * (clock * (speed(least) / speed(usual)) if raised else free)
    capped = free * (speed(most) / speed(solved))
    frequency = np.where(solved < least, slowed, np.where(solved > most, capped, free))
    return np.where(powered, solved, 0.0), np.where(powered, frequency, 0.0)


def voltage_limits(block: Values) -> tuple[FloatArray, FloatArray]:
    """Least and largest voltage of a block. [V]"""
    return block["threshold_voltage"] + block["margin_voltage"], block.get("max_voltage", np.full(1, np.inf))


def chip(sheet: Values, *, states: bool) -> dict[str, Values]:
    """Blocks of the chip that a sheet describes: core, the memories of all levels from registers on, and links.

    (points,) columns. [FLOP/s], [B/s], [B], [s] `states` is True for the generation whose files state sizes; in the
    other a memory without bandwidth has no size.
    """
    core = core_figures(sheet, states=states)
    units = dict(zip(SCOPES, (np.ones(1), core["num_bundle"], core["num_mcu"]), strict=True))
    blocks = {"core": core}
    for level in range(4):
        memory, scope = (int(sheet[f"memory_hierarchy.l{level}.{key}"][0]) for key in ("type", "scope"))
        name, unit = MEMORIES[memory], units[SCOPES[scope]]
        block = within(sheet, f"tech_param.{name}")
        figures = sram(sheet, name, core["num_bundle"]) if name in SRAMS else dram(sheet, states=states)
        figures["size"] = np.where((figures["bandwidth"] <= 0) & (not states), 0.0, figures["size"])
        figures |= {"used_bandwidth": figures["bandwidth"] * block["util"], "latency": block["latency"]}
        blocks[name] = figures | {"share": np.where(unit > 0, figures["size"] / unit, 0.0)}
    return blocks | {name: network(sheet, name) for name in DEGREES}


def core_figures(sheet: Values, *, states: bool) -> Values:
    """Compute units (mcu), their bundles, voltage and clock. [-], [V], [Hz], [mm2], [W]"""
    block = within(sheet, "tech_param.core")
    area, power = sheet["area_breakdown.core"], sheet["power_breakdown.core"]
    unit_area, per_bundle = block["operating_area_per_mcu"], block["num_mcu_per_bundle"]
    scale = np.where(block["nominal_area_per_mcu"] > 0, unit_area / block["nominal_area_per_mcu"], 1.0)
    stated = block["num_bundles"] > 0
    mcus = np.where(stated, block["num_bundles"] * per_bundle, area // unit_area)
    nominal_power = block["nominal_power_per_mcu"] * mcus * scale
    clock, frequency = block["nominal_frequency"], block["operating_frequency"]
    powered = (power > 0) & (nominal_power > 0)
    voltage, solved = operating_point(block, power, nominal_power, clock, powered=powered, raised=states)
    voltage = np.maximum(voltage, voltage_limits(block)[0])
    drawn = block["nominal_power_per_mcu"] * (solved / clock) * (voltage / block["nominal_voltage"]) ** 2
    clocked = np.where(powered & (frequency > 0), frequency, solved)
    return {
        "operating_voltage": voltage, "operating_freq": clocked,
        "voltage_lowerbound": voltage_limits(block)[0], "num_mcu": mcus,
        "num_bundle": np.where(stated, block["num_bundles"], mcus // per_bundle), "eff_area": mcus * unit_area,
        "tot_area": area, "eff_power": mcus * np.where(frequency > 0, power / mcus, drawn), "tot_power": power,
        "throughput": block["nominal_flop_rate_per_mcu"] * scale * clocked * mcus,
    }  # fmt: skip


def sram(sheet: Values, memory: str, bundles: FloatArray) -> Values:
    """Banks and controllers of an SRAM, and its bandwidth: power without leakage over energy. [B/s], [B], [mm2], [W]"""
    block = within(sheet, f"tech_param.{memory}")
    area, power = (sheet[f"{kind}_breakdown.{SRAMS[memory]}"] for kind in ("area", "power"))
    cells, link_area = 1 - block["overhead"], block["controller_area_per_link"]
    bank_area = block["bank_capacity"] * (block["area_per_bit"] * 8)
    fitting = np.floor((cells * area) // (bank_area + cells * bundles * link_area))
    banks = np.where(block["size"] > 0, block["size"] // block["bank_capacity"], fitting)
    size = np.where(block["size"] > 0, block["size"], banks * block["bank_capacity"])
    leakage = block["static_power_per_bit"] * 8 * size
    energy = block["dynamic_energy_per_bit"] * 8
    derived = np.where(banks == 0, 0.0, np.where(power < leakage, 0.0, power - leakage) / energy)
    bandwidth = np.where(block["bandwidth"] > 0, block["bandwidth"], derived)
    dynamic, controllers = bandwidth * energy, banks * bundles * link_area
    bank_areas = banks * bank_area / cells
    return {
        "size": size, "bandwidth": bandwidth, "num_banks": banks,
        "bank_bandwidth": np.where(banks == 0, 0.0, bandwidth / banks), "bank_capacity": block["bank_capacity"],
        "ctrl_area": controllers, "bank_area": bank_areas, "eff_area": controllers + bank_areas, "tot_area": area,
        "dynamic_power": dynamic, "static_power": leakage, "eff_power": dynamic + leakage, "tot_power": power,
    }  # fmt: skip


def dram(sheet: Values, *, states: bool) -> Values:
    """Stacks of DRAM that area and controllers allow, and the clock of links. [V], [Hz], [B/s], [B], [mm2], [W]"""
    block, area = within(sheet, "tech_param.DRAM"), within(sheet, "area_breakdown")
    power, stacks_area = sheet["power_breakdown.DRAM"], area["device_area_budget"] - area["proc_chip_area_budget"]
    by_area, by_chip = stacks_area // block["area_per_stack"], area["DRAM"] // block["mem_ctrl_area"]
    stacks = np.where(block["num_stacks"] > 0, block["num_stacks"], np.minimum(by_area, by_chip))
    edge = np.sqrt(area["proc_chip_area_budget"]) * 4 * sheet["perimeter_breakdown.DRAM"]
    bound = np.trunc(edge * block["num_links_per_mm"])
    links = np.minimum(bound, block["num_links_per_stack"] * stacks)
    stated = block["size"] > 0
    stacks = np.where(stated, block["size"] // block["stack_capacity"], stacks)
    links = np.where(stated, block["num_links_per_stack"] * stacks, links)
    size = np.where(stated, block["size"], stacks * block["stack_capacity"])
    leakage = block["static_power_per_bit"] * 8 * size
    dynamic = np.where(power < leakage, 0.0, power - leakage)
    clock = np.where(block["nominal_frequency"] > 0, block["nominal_frequency"], block["operating_frequency"])
    nominal_power = block["dynamic_energy_per_bit"] * links * clock
    powered = (dynamic > 0) & (nominal_power > 0)
    voltage, solved = operating_point(block, dynamic, nominal_power, clock, powered=powered, raised=states)
    least, most = voltage_limits(block)
    voltage = np.where(voltage < least, least, np.minimum(voltage, most))
    frequency = np.where(powered & (block["operating_frequency"] > 0), block["operating_frequency"], solved)
    bandwidth = np.where(block["bandwidth"] > 0, block["bandwidth"], np.where(size <= 0, 0.0, links * frequency / 8))
    per_stack = np.where(stacks == 0, 0.0, bandwidth / stacks)
    links = np.where((size > 0) & states, block["num_links_per_stack"] * stacks, links)
    drawn = links * (block["dynamic_energy_per_bit"] * (voltage / block["nominal_voltage"]) ** 2) * frequency
    return {
        "size": size, "bandwidth": bandwidth, "operating_voltage": voltage, "operating_freq": frequency,
        "voltage_lowerbound": least, "voltage_upperbound": block["max_voltage"],
        "num_stacks": stacks, "node_area_limit": by_area, "chip_area_limit": by_chip, "num_links": links,
        "stack_limit": bound, "perimeter_limit": block["num_links_per_stack"] * stacks, "stack_bandwidth": per_stack,
        "stack_capacity": block["stack_capacity"], "eff_ctrl_area": stacks * block["mem_ctrl_area"],
        "tot_ctrl_area": area["DRAM"], "eff_stack_area": stacks * block["area_per_stack"],
        "tot_stack_area": stacks_area, "dynamic_power": drawn, "static_power": leakage, "eff_power": drawn + leakage,
        "tot_power": power,
    }  # fmt: skip


def network(sheet: Values, name: str) -> Values:
    """Links that area and perimeter allow, and bandwidth of one direction after utilization. [-], [V], [Hz], [B/s]"""
    block = within(sheet, f"tech_param.network.{name}")
    area, power = (sheet[f"{kind}_breakdown.network.{name}"] for kind in ("area", "power"))
    length = sheet[f"perimeter_breakdown.{name}"] * (np.sqrt(sheet["area_breakdown.proc_chip_area_budget"]) * 4)
    links = np.trunc(np.minimum(area / block["nominal_area_per_link"], length * block["num_links_per_mm"]))
    energy, clock = block["nominal_energy_per_link"], block["nominal_frequency"]
    voltage, frequency = operating_point(block, power, energy * links * clock, clock, powered=links > 0, raised=False)
    drawn = links * frequency * (energy * (voltage / block["nominal_voltage"]) ** 2)
    return {
        "bandwidth": links * frequency * block["util"] / (8 * DEGREES[name]), "latency": block["latency"],
        "operating_voltage": voltage, "operating_freq": frequency, "voltage_lowerbound": voltage_limits(block)[0],
        "num_links": links, "eff_area": links * block["nominal_area_per_link"], "tot_area": area, "eff_power": drawn,
        "tot_power": power, "eff_perimeter": links / block["num_links_per_mm"], "tot_perimeter": length,
    }  # fmt: skip


def links(sheet: Values, blocks: Mapping[str, Values], sizes: Mapping[str, FloatArray]) -> Values:
    """Bandwidth and latency of the links that groups of `DIMENSIONS` take, by "bandwidth.kp1" and so on. [B/s], [s]

    Messages between nodes pass the links within both nodes. Groups of up to 4, 8 and more members lose 1/2, 4/5 and 3/4
    of the bandwidth, a group of one too.
    """
    system, inter, intra = within(sheet, "system_hierarchy"), blocks["inter_node"], blocks["intra_node"]
    workers, nodes, derated = system["num_workers"], system["num_nodes"], system["intra_derate"] != 0
    local, far = intra["bandwidth"] / system["intra_derate"], inter["bandwidth"] / system["inter_derate"]
    far = np.where((nodes > 1) & (workers > 1), np.where(derated, np.minimum(local, far), far), 0.0)
    local = np.where((workers > 1) & derated, local, 0.0)
    columns = Values()
    for name in DIMENSIONS:
        crosses, size = system[f"{name}_inter"] != 0, sizes[name]
        left = np.where(crosses, far, local) / np.where(size <= 4, 2.0, np.where(size <= 8, 5.0, 4.0))
        columns |= {f"bandwidth.{name}": left, f"latency.{name}": np.where(crosses, inter["latency"], intra["latency"])}
    return columns
