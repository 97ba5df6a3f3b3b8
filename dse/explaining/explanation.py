"""Explanation of the costs of a design: step and memory as trees that add up, kernels and their rooflines.

The cost model repeats the evaluation of the design and keeps its items: a label for every amount that a column adds up.
The difference of two designs is a waterfall of the same parts. Tables of work have the reload analysis of each matrix
product, and the optimizer's costs by parameter group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.columns import FloatArray, grouped, per_kernel, short_repr
from costmodel.errors import DseError
from costmodel.kernels.kernel_cost import Item, Items
from costmodel.kernels.kernel_tables import is_quantised, product_rate
from costmodel.machine import Chip, System
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import TRAINING
from costmodel.training.blocks import Layer
from costmodel.training.design import FUSED_FP8, DesignPoints
from costmodel.training.kinds import KINDS
from costmodel.training.run import TransformerRun, rank_run
from dse.output import part_name
from dse.pricing.evaluated import machine, rules_for
from dse.pricing.evaluation import evaluated_design, transformer_run
from dse.spaces.space import Params, Space

if TYPE_CHECKING:
    import pandas as pd

#: Row of a table.
Row = dict[str, Any]

#: Kinds of tables: of matrix products, and of parameter groups.
WORK_TABLES: Final = ("gemms", "optimizer")


def work_tables(kind: str, space: Space, designs: Sequence[Mapping[str, Any]]) -> Iterator[list[Row]]:
    """A table of the work of each of some designs, one after the other.

    Raises `DseError` if the model is not a transformer, or groups of the optimizer share costs (`parameter_groups`).

    "gemms": a row for each matrix product and pass of one micro-batch on one rank, with the times that each operand
    crosses from each memory level: ``LEVEL_reload_AB`` of A, ``LEVEL_reload_BC`` of B and ``LEVEL_reload_AC`` of C.
    "optimizer": a row for each parameter group of a rank of the stage with most parameters, with gradient clipping and
    update. Columns end in their units.
    """
    if space.workload.work != TRAINING or space.workloads:
        raise DseError(f"space {space.name}: {kind}: known for the training of one transformer only")
    from costmodel.steps.transformer import resolve_tiling  # imports the whole step, here and below

    for design in designs:
        run = transformer_run(space, space.encode([design]), DesignPoints)
        resolved = resolve_tiling(run.model, run.system, run.design)
        sliced = replace(run.of(resolved), system=run.system.sliced(run.design.world_size))
        yield [*(_gemm_rows if kind == "gemms" else _optimizer_rows)(sliced)]


def _gemm_rows(run: TransformerRun) -> Iterator[Row]:
    """Rows of the products of one design, in the order of the model."""
    from costmodel.kernels.products import gemm_reloads

    reloads = gemm_reloads(rank_run(run))
    gemms, costs = reloads.gemms, reloads.costs
    bound = np.where(costs.memory_bound, "memory", "arithmetic")
    launch = per_kernel(run.system.chip.kernel_launch)
    bound = np.where(launch > costs.time / 2, "launch", bound)
    columns = {
        **{name: getattr(gemms, name) for name in ("count", "batch", "m", "n", "k")},
        "tile_m": reloads.tile_m,
        "tile_n": reloads.tile_n,
    }
    for index, label in enumerate(gemms.labels):
        row: Row = {"product": label.name, "pass": label.of_pass, "part": label.part}
        row |= {name: int(values[0, index]) if float(values[0, index]).is_integer() else float(values[0, index])
                for name, values in columns.items()}  # fmt: skip
        for level, reads in reversed([*reloads.levels.items()]):
            for operand, often in (("AB", reads.of_a), ("AC", reads.of_c), ("BC", reads.of_b)):
                row[f"{level}_reload_{operand}"] = float(often[0, index])
            row[f"{level}_bytes"] = float(reads.bytes_moved[0, index])
        row |= {"flops": float(costs.flops[0, index]), "time_s": float(costs.time[0, index])}
        yield row | {"bound": str(bound[0, index])}


def _optimizer_rows(run: TransformerRun) -> Iterator[Row]:
    """Rows of the parameter groups of one design, and of values common to them."""
    from costmodel.steps.transformer import parameter_groups

    for group, columns in parameter_groups(run).items():
        yield {"group": group, **{name: float(values.flat[0]) for name, values in columns.items()}}


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, numbers in full."""
    import pandas as pd

    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


#: Names from the top of a tree to a leaf.
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Portion:
    """Amount of a column that one kernel, exchange or state has."""

    path: Path
    quantity: str  #: such as "time", "flops", "bytes"
    value: float  #: in SI units
    kind: str = ""  #: of a kernel: product, pointwise or attention


def narrow_speedups(space: Space, known: Mapping[str, Any]) -> dict[tuple[str, str], FloatArray]:
    """Kind of item and kernel -> peak rate of their format over that of 16 bits, (points,) each. [-]"""
    if space.workload.work != TRAINING:
        return {}
    design = DesignPoints.of(**{name: known[name] for name in ("precision", "attention") if name in known})
    system, kernels = machine(space, known), [kernel for part in space.model.kinds for kernel in part.kernels]
    rates = {"product": product_rate(design.precision, system, Chip.format_speedup)}
    rates["attention"] = np.where(design.attention == FUSED_FP8, system.chip.format_speedup("fp8"), 1.0)
    return {(kind, k.name): rate for kind, rate in rates.items() for k in kernels if k.is_core or is_quantised(k)}


def leaves(space: Space, items: Items, speedups: Mapping[tuple[str, str], float]) -> Iterator[Portion]:
    """Items of one design as leaves; (1,) arrays. [s], [B], [FLOP], [-]

    "slow flops" are the FLOP that 16-bit units do in the time of a kernel at the peak of its format.
    """
    parts, blocks = part_names(space), block_names(space)
    for item, values in items.items():
        part = parts.get(item.part, item.part)
        names = kernel_names(item, blocks) if item.kind else (item.of_pass, item.collective, item.name)
        path = (part_name(item.column), part, *names)
        value = float(np.ravel(values)[0])
        yield (portion := Portion(tuple(name for name in path if name), item.quantity, value, item.kind))
        if item.quantity == "flops":
            yield replace(portion, quantity="slow flops", value=value / speedups.get((item.kind, item.name), 1.0))


def kernel_names(item: Item, blocks: Mapping[str, str]) -> list[str]:
    """Block, kernel, part of the kernel, and the pass where a direction has several."""
    kernel, name, of_pass = item.kernel, item.name, item.kernel_pass
    if item.kind == "pointwise" and of_pass == "weight_gradient" and name == kernel and kernel in blocks:
        name = "accumulation"
    shown = [blocks.get(kernel, ""), kernel.replace("_", " ")]
    if name != kernel:
        shown.append(name.replace("_", " "))
    if item.column == "backward_time" and of_pass != "backward":
        shown.append(of_pass.replace("_", " "))
    return shown


def kernel_of(path: Path, blocks: Collection[str]) -> Path:
    """Part, block and kernel that a leaf of a pass belongs to, for any part of the kernel.

    >>> kernel_of(("backward", "layers", "mlp", "mlp up", "weight gradient"), {"attention", "mlp"})
    ('layers', 'mlp', 'mlp up')
    """
    return path[1:4] if path[2:3] and path[2] in blocks else path[1:3]


def part_names(space: Space) -> dict[str, str]:
    """Parts of a model, as the cost model numbers them -> their names."""
    if space.workload.work != TRAINING:
        return {}
    kinds = [*space.model.kinds]
    if len(kinds) == 1:
        return {"layer 0": "layers", "mtp": "multi-token prediction"}
    names = [layer_name(layer) for layer in kinds]
    numbered = [
        f"{name} {names[:index].count(name) + 1}" if names.count(name) > 1 else name for index, name in enumerate(names)
    ]
    return {f"layer {n}": name for n, name in enumerate(numbered)} | {"mtp": "multi-token prediction"}


def layer_name(layer: Layer) -> str:
    """A kind of layer, by the blocks that plain layers do not have."""
    kinds = {kernel.kind for kernel in layer.kernels}
    words = [kind.layer_word for kind in reversed(KINDS.values()) if kind in kinds and kind.layer_word]
    return f"{' '.join(words) or 'plain'} layers"


def block_names(space: Space) -> dict[str, str]:
    """Kernel -> block that it is in."""
    if space.workload.work != TRAINING:
        return {}
    return {k.name: block.name for block in space.model.blocks for k in block.kernels}


def quantities(row: Mapping[str, float], system: System) -> dict[str, float | str]:
    """Quantities of a kernel or several together, and their roofline. [s], [FLOP], [B], [FLOP/s]"""
    seconds, flops = row.get("time", 0.0), row.get("flops", 0.0)
    moved = {level.name: row.get(f"{level.name} bytes", 0.0) for level in system.memory}
    farthest = moved[system.dram.name]
    intensity = flops / farthest if farthest else float("inf") if flops else 0.0
    peak = float(system.chip.peak_flop_rate) * (flops / row["slow flops"] if row.get("slow flops") else 1.0)
    return {
        "seconds": seconds,
        "launches": row.get("launches", 0.0),
        "flops": flops,
        **{f"{name} bytes": value for name, value in moved.items()},
        "bound": bound(row, system),
        "intensity": intensity,
        "attained": flops / seconds if seconds else 0.0,
        "ceiling": min(peak, intensity * float(system.dram.bandwidth)),
    }


def bound(row: Mapping[str, float], system: System) -> str:
    """The largest part of a kernel's time: launches, a level of memory, or arithmetic.

    The cost model says whether it waits for memory; among levels the one counts whose bytes take longest.
    """
    seconds = row.get("time", 0.0)
    launching = row.get("launches", 0.0) * float(system.chip.kernel_launch)
    if launching > seconds / 2:
        return "launch"
    if row.get("memory bound", 0.0) <= seconds / 2:
        return "arithmetic"
    transfer = {
        level.name: row.get(f"{level.name} bytes", 0.0) / float(level.bandwidth * level.efficiency)
        for level in system.memory
    }
    return max(transfer, key=lambda name: transfer[name])


#: Total of a breakdown -> quantity of the items that add up to it, and the column of a tree that has it.
TOTALS = {"step_time": ("time", "seconds"), "peak_memory": ("bytes", "bytes")}
#: Last name of a leaf that is the parent of others.
ITSELF = "itself"


@dataclass(frozen=True)
class Explanation:
    """A design of a space with its costs, and all terms of its step time and its memory.

    Times are those of the slowest pipeline stage, waiting included; memory is that of the fullest one.
    """

    __repr__ = short_repr

    space: Space
    profile: str  #: name of the rules that evaluated it
    trial: int | None  #: its number, where it is of a study
    record: Mapping[str, Any]  #: params, derived, values, margins and breakdown, as JSON has them
    portions: tuple[Portion, ...]  #: items of the cost model [s], [B], [FLOP], [-]

    @property
    def params(self) -> Params:
        """Parameters of the design. [SI units]"""
        return dict(self.record["params"])

    @property
    def step_time(self) -> float:
        """Step time of the design. [s]"""
        return float(self.record["breakdown"]["step_time_s"])

    @property
    def peak_memory(self) -> float:
        """Peak memory of a rank of the fullest stage. [B]"""
        return float(self.record["breakdown"]["peak_memory_bytes"])

    @property
    def time(self) -> pd.DataFrame:
        """The step as a tree: a row for each leaf, ``path`` (a tuple) and ``seconds``. [s]"""
        return self._tree("step_time")

    @property
    def memory(self) -> pd.DataFrame:
        """The peak memory as a tree: a row for each leaf, ``path`` (a tuple) and ``bytes``. [B]"""
        return self._tree("peak_memory")

    @property
    def hidden(self) -> pd.DataFrame:
        """Exchanges that overlap with kernels, so that they are not part of the step: ``path`` and ``seconds``. [s]"""
        hidden_times = summed((leaf.path, leaf.value) for leaf in self.portions if leaf.quantity == "hidden")
        return frame({path: value for path, value in hidden_times.items() if value > 0}, "seconds")

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """A row for each kernel of the slowest stage, in the order of the model.

        Columns are ``path``, ``kind``, ``seconds``, ``launches``, ``flops``, ``LEVEL bytes`` for each memory level, and
        the roofline: ``bound`` is the resource that limits it: arithmetic, a level of memory, or launches.
        ``intensity`` is FLOP per byte of the farthest level, ``attained`` the rate, ``ceiling`` the most that the
        chip's peak and that level allow at this intensity. [s], [-], [FLOP], [B], [FLOP/B], [FLOP/s]
        """
        import pandas as pd

        kinds = {leaf.path: leaf.kind for leaf in self.portions if leaf.kind}
        amounts = grouped((leaf.path, (leaf.quantity, leaf.value)) for leaf in self.portions if leaf.kind)
        work = {path: summed(of_kernel) for path, of_kernel in amounts.items()}
        timed = {path: quantities(of_kernel, self.system) for path, of_kernel in work.items() if of_kernel["time"] > 0}
        rows = [{"path": path, "kind": kinds[path], **row} for path, row in timed.items()]
        return pd.DataFrame(rows, columns=["path", "kind", *quantities({}, self.system)])

    @cached_property
    def gemms(self) -> pd.DataFrame:
        """Matrix products of a micro-batch with the reads of each operand from each memory level (`work_tables`).

        Raises `DseError` if the cost model has none for this design, as for `optimizer`.
        """
        return self._work_table("gemms")

    @cached_property
    def optimizer(self) -> pd.DataFrame:
        """Clipping and update of each parameter group of a rank (`work_tables`). [FLOP], [B], [s]"""
        return self._work_table("optimizer")

    def _work_table(self, kind: str) -> pd.DataFrame:
        """A table of work; a `DseError` where there is none."""
        import pandas as pd

        if self.profile != NATIVE:
            raise DseError(f"profile {self.profile}: {kind}: known for the native cost model only")
        return pd.DataFrame(next(work_tables(kind, self.space, [self.params])))

    def work(self, kind: str) -> pd.DataFrame | str:
        """A table of `WORK_TABLES`, or the reason why there is none."""
        if kind not in WORK_TABLES:
            raise DseError(f"{kind!r}: no table of work; expected one of {', '.join(WORK_TABLES)}")
        try:
            table: pd.DataFrame = getattr(self, kind)
        except DseError as error:
            return str(error)
        return table

    @cached_property
    def system(self) -> System:
        """The machine of the design, each quantity one number."""
        quantities = machine(self.space, self.space.known_values(self.space.encode([self.params])))
        return quantities.map(lambda values: np.asarray(values.reshape(-1)[0]))

    @cached_property
    def stages(self) -> dict[str, int]:
        """``slowest stage`` and ``fullest stage``: places in the pipeline from 0, where there is one. [-]"""
        return {leaf.path[0]: round(leaf.value) for leaf in self.portions if leaf.quantity == "rank"}

    def _tree(self, total: str) -> pd.DataFrame:
        """Leaves of a total; a part without known terms is a single leaf. [unit of the total]"""
        quantity, column = TOTALS[total]
        counted = (leaf for leaf in self.portions if leaf.quantity == quantity)
        of_part = grouped((leaf.path[0], (leaf.path, leaf.value)) for leaf in counted)
        amounts: dict[Path, float] = {}
        results = self.space.workload.work.results
        for part in results.totals().get(total, ()):
            whole = float(self.record["breakdown"].get(results.key(part), 0.0))  # earlier versions have fewer parts
            amounts |= summed(of_part.get(part_name(part), [((part_name(part),), whole)]))
        return frame({path: value for path, value in amounts.items() if value}, column)

    def to_json(self) -> dict[str, Any]:
        """The trees and kernels as one JSON object; the leaves of ``time`` and ``memory`` add up."""
        return {
            **({"trial": self.trial} if self.trial is not None else {}),
            "profile": self.profile,
            **{key: self.record[key] for key in ("params", "values", "margins", "breakdown")},
            "stages": self.stages,
            **{name: records(getattr(self, name)) for name in ("time", "memory", "hidden", "kernels")},
            **{kind: [] if isinstance(table := self.work(kind), str) else records(table) for kind in WORK_TABLES},
        }


def explain(space: Space, params: Mapping[str, Any], *, profile: str = NATIVE, trial: int | None = None) -> Explanation:
    """Evaluate one design with the terms of its time and memory.

    Raises `DseError` if the profile has no rules for this kind of work.

    Parameters
    ----------
    space : Space
        Where the design comes from.
    params : mapping
        The design, a value for each parameter. [SI units]
    profile : str
        The rules that evaluate it. Those of the native cost model name every kernel; others name the parts of their
        breakdown.
    trial : int, optional
        Its number in a study. [-]
    """
    record = evaluated_design(space, params, rules=rules_for(space, profile))
    [explanation] = explanations(space, [record if trial is None else {**record, "trial": trial}], profile)
    return explanation


def explanations(space: Space, records: Sequence[Mapping[str, Any]], profile: str) -> list[Explanation]:
    """Explanations of a batch of designs, without portions where they have no number; `DseError` if none has parts."""
    if not space.workload.work.reads_system:
        raise DseError(f"space {space.name}: {space.workload.work.about} has no parts to explain; see `dse evaluate`")
    rules = rules_for(space, profile)
    known = space.known_values(space.encode([record["params"] for record in records]))
    has_times = any(np.isfinite(record["breakdown"]["step_time_s"]) for record in records)
    items = rules.items(machine(space, known), known) if has_times else {}
    columns = {item: np.broadcast_to(np.ravel(values), (len(records),)) for item, values in items.items()}
    speedups = {key: np.broadcast_to(rates, (len(records),)) for key, rates in narrow_speedups(space, known).items()}
    children = []
    for row, record in enumerate(records):
        values = {item: column[row] for item, column in columns.items() if column[row] or item.quantity == "rank"}
        of_formats = {key: float(rates[row]) for key, rates in speedups.items()}
        portions = leaves(space, values, of_formats) if np.isfinite(record["breakdown"]["step_time_s"]) else ()
        children.append(Explanation(space, profile, record.get("trial"), record, tuple(portions)))
    return children


def summed(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """Values of equal keys added up. [their unit]"""
    return {key: sum(values) for key, values in grouped(pairs).items()}


def frame(values: Mapping[Path, float], column: str) -> pd.DataFrame:
    """A tree as a table: ``path`` and a column of values, whose every row is a leaf. [their unit]

    A parent of other leaves with a value as well, like a fused kernel that overlaps with other work, is a leaf below
    its name.
    """
    import pandas as pd

    branches = {path[:depth] for path in values for depth in range(1, len(path))}
    parts_summed = summed(((*path, ITSELF) if path in branches else path, value) for path, value in values.items())
    return pd.DataFrame({"path": pd.Series([*parts_summed], dtype=object), column: [*parts_summed.values()]})


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as JSON has them."""
    return [
        {str(key): [*value] if isinstance(value, tuple) else value for key, value in row.items()}
        for row in table.to_dict("records")
    ]


@dataclass(frozen=True)
class Difference:
    """Two designs: the leaves by which the second takes more than the first."""

    one: Explanation
    other: Explanation

    @property
    def time(self) -> pd.DataFrame:
        """``path`` and ``seconds``: additional time of the other; they add up to the difference of steps. [s]"""
        return frame(tree_difference(self.one.time, self.other.time, "seconds"), "seconds")

    @property
    def memory(self) -> pd.DataFrame:
        """``path`` and ``bytes``: additional memory of the other on its fullest stage. [B]"""
        return frame(tree_difference(self.one.memory, self.other.memory, "bytes"), "bytes")

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Parameters that differ, with their values in both; None where one has no such. [SI units]"""
        one, other = self.one.params, self.other.params
        names = dict.fromkeys((*one, *other))
        pairs = {name: (one.get(name), other.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def to_json(self) -> dict[str, Any]:
        """``difference`` and ``memory_difference`` as in JSON, with a description of the other design."""
        return {
            "against": {
                **({"trial": self.other.trial} if self.other.trial is not None else {}),
                **{key: self.other.record[key] for key in ("params", "values", "margins", "breakdown")},
            },
            "difference": records(self.time),
            "memory_difference": records(self.memory),
        }


def tree_difference(one: pd.DataFrame, other: pd.DataFrame, column: str) -> dict[Path, float]:
    """Leaves of another tree less those of one, by path; those that are alike are left out. [of the tree]"""
    pairs = [*zip(other["path"], other[column], strict=True), *zip(one["path"], -one[column], strict=True)]
    return {path: value for path, value in summed(pairs).items() if value}


def gathered(table: pd.DataFrame, column: str, depth: Callable[[Path], int]) -> dict[Path, float]:
    """Leaves added up to branches of a depth each, the largest change first. [of the tree]"""
    pairs = zip((path[: depth(path)] for path in table["path"]), table[column], strict=True)
    return dict(sorted(summed(pairs).items(), key=lambda item: -abs(item[1])))
