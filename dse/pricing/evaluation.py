"""Evaluates designs of a space: columns of parameters -> objectives, margins, breakdown; and designs as records.

`evaluate` takes a batch of designs as rows of codes and returns an `Evaluation`: the breakdown of the cost model, the
objectives and margins that the formulas of the space give, and which designs are feasible. A record holds one design as
JSON output has it, with the shardings and tiles of its kernels.

A machine of several workloads is evaluated with every legal layout of each. The best feasible one represents the
workload; where none is feasible, the one with the least violation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from costmodel.columns import FloatArray, concatenated, layout_of
from costmodel.errors import DseError
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import TRAINING, WorkloadRules
from costmodel.steps.breakdown import ResultTable
from costmodel.training.design import DesignPoints, kernel_of_tile, tile_columns
from costmodel.training.model import ModelShape
from costmodel.training.run import Run, rank_run
from dse.pricing import evaluated
from dse.pricing.evaluated import Evaluation
from dse.pricing.workers import Jobs, Pricer, workers_of
from dse.spaces.definition import SpaceWorkload
from dse.spaces.formulas.expressions import Expression
from dse.spaces.sections.parameters import Constraint, Value
from dse.spaces.space import Space

AnyDesign = TypeVar("AnyDesign", bound=DesignPoints)

#: Designs evaluated at a time: a number that keeps the intermediate arrays in the cache, for any batch.
CHUNK: Final = 16384
#: CPU time of a chunk that is sent to another process, by the nominal rate of its space. [s]
SENT_SECONDS: Final = 0.1


def evaluate(space: Space, columns: Mapping[str, FloatArray], *, rules: WorkloadRules | None = None,
             chunk: int = CHUNK, jobs: Jobs = 1) -> Evaluation:  # fmt: skip
    """Evaluate a batch of designs, (points,) columns as `Space.encode` returns them. [SI units]

    `rules` are those of the native cost model by default; `chunk` designs are evaluated at a time, which bounds the
    memory. [-] `jobs` processes evaluate chunks if there is enough work for two of them.
    """
    rules = rules or evaluated.rules_for(space)
    space.check_batch(columns)
    points = next(iter(columns.values())).size
    if not points:
        any_design = space.legal.random(1, np.random.default_rng(0))
        return evaluate(space, any_design, rules=rules).take(slice(0))
    if space.workloads:
        return evaluate_workloads(space, columns, rules, jobs)
    workers = workers_of(jobs)
    if not workers.here:
        chunk = min(chunk, max(1, round(SENT_SECONDS * evaluated.nominal_rate(space))))
    starts = range(0, points, chunk)
    parts = [{name: values[start : start + chunk] for name, values in columns.items()} for start in starts]
    pricer = Pricer(space, rules)
    return evaluated.joined([*workers.map(_evaluated, [(pricer, part) for part in parts])])


def _evaluated(task: tuple[Pricer, dict[str, FloatArray]]) -> Evaluation:
    """A chunk, evaluated in the process that received it."""
    pricer, columns = task
    known, points = pricer.space.known_values(columns), next(iter(columns.values())).size
    return _evaluation(pricer.space, known, _step(pricer.space, known, pricer.rules), points, pricer.rules.profile)


def untimed_margins(space: Space, columns: Mapping[str, FloatArray], rules: WorkloadRules) -> FloatArray | None:
    """Margins of all limits, (points, limits), found without times; None where a limit needs times. [unit of each]

    They equal those of `evaluate`, which has the same arguments, to the last bit.
    """
    if space.workloads:
        return None
    known = space.known_values(columns)
    footprint = rules.footprint(evaluated.machine(space, known), known) if space.limits else None
    if footprint is None:
        return None
    available = {
        **known,
        **{space.workload.work.results.key(name): values for name, values in footprint.items()},
        **footprint,
    }
    words = {word for column in space.names.values() for word in column.words}
    for derived in space.derived:
        if derived.evaluated and Expression.parse(derived.expression).names <= available.keys() | words:
            available[derived.name] = derived.formula(available)
    if any(not Expression.parse(limit.expression).names <= available.keys() | words for limit in space.limits):
        return None
    return _limits(space.limits, available, next(iter(columns.values())).size)[0]


def transformer_run(
    space: Space, columns: Mapping[str, FloatArray], table: type[AnyDesign]
) -> Run[ModelShape, AnyDesign]:
    """Model, machines and designs of a batch, as a table of some profile.

    Raises `DseError` if the space's model is not a transformer.
    """
    if space.workload.work != TRAINING:
        raise DseError(f"space {space.name}: its model is not a transformer")
    known, blocks = space.known_values(columns), space.model.blocks
    columns_of_table = {name: known[name] for name in table.domains(blocks) if name in known}
    return Run(space.model, evaluated.machine(space, known), table.of(blocks=blocks, **columns_of_table))


def reasons(space: Space, profile: str, params: Mapping[str, Any]) -> list[str]:
    """Reasons why a profile has no number for one design, with remedies; empty where it has one.

    Of several workloads that is not known.
    """
    if space.workloads:
        return []
    known = space.known_values(space.encode([params]))
    return evaluated.rules_for(space, profile).reasons(evaluated.machine(space, known), known)


def remedies(space: Space, profile: str, columns: Mapping[str, FloatArray]) -> str:
    """Reasons why designs have no number, with their counts, and remedies; "" where not known.

    `columns` are parameters as `Space.encode` returns them, (points,). [SI units]
    """
    if space.workloads or not any(values.size for values in columns.values()):
        return ""
    known = space.known_values(columns)
    return evaluated.rules_for(space, profile).remedies(evaluated.machine(space, known), known)


def evaluate_unique(space: Space, columns: Mapping[str, FloatArray], rules: WorkloadRules) -> Evaluation:
    """Evaluate a batch with many designs that differ only in columns without effect: each kind once.

    Arguments and results are those of `evaluate`.
    """
    points = next(iter(columns.values())).size
    if not points or space.workloads:
        return evaluate(space, columns, rules=rules)
    known = space.known_values(columns)
    system = evaluated.machine(space, known)
    unique = rules.unique(system, known)
    rows = np.arange(points) if unique.places is None else unique.rows
    kinds = _rows(known, points, rows)
    starts = range(0, rows.size, CHUNK)
    parts = [_step(space, _rows(kinds, rows.size, slice(start, start + CHUNK)), rules) for start in starts]
    return _evaluation(space, known, unique.spread(concatenated(parts)), points, rules.profile)


def _rows(known: Mapping[str, Any], points: int, rows: Any) -> dict[str, Any]:
    """Rows taken from columns; one value for all stays one value."""
    return {
        name: values[rows] if np.ndim(values) and np.size(values) == points else values
        for name, values in known.items()
    }


def _step(space: Space, known: Mapping[str, Any], rules: WorkloadRules) -> ResultTable:
    """The breakdown of designs with all columns that need no evaluation."""
    points = max(np.size(known[parameter.name]) for parameter in space.parameters)
    return rules.step(evaluated.machine(space, known), known).map(lambda values: _filled(values, points))


def _evaluation(
    space: Space, known: Mapping[str, Any], breakdown: ResultTable, points: int, profile: str
) -> Evaluation:
    """The evaluation of a breakdown by the formulas of a space."""
    values = evaluated_columns(space, known, breakdown, profile)
    return _judged(space, values, breakdown, _limits(space.limits, values, points), points)


def _judged(
    space: Space, values: Mapping[str, Any], breakdown: ResultTable, limits: tuple[FloatArray, FloatArray], points: int
) -> Evaluation:
    """The evaluation of designs with all of their columns, and their margins and violations of `limits`."""
    objectives, (margins, violations) = stacked([o.formula(values) for o in space.objectives], points), limits
    objectives[~np.isfinite(breakdown.time)] = np.nan  # a design that no rule can run has no number at all
    return Evaluation(
        values=objectives,
        margins=margins,
        violations=violations,
        feasible=np.logical_and((margins >= 0).all(axis=1), np.isfinite(objectives).all(axis=1)),
        breakdown=breakdown,
        derived={d.name: _filled(values[d.name], points) for d in space.derived},
    )


def evaluated_columns(space: Space, known: Mapping[str, Any], breakdown: ResultTable, profile: str) -> dict[str, Any]:
    """Every column of a batch of designs by name, derived ones included."""
    values: dict[str, Any] = {**breakdown.by_key(), **breakdown.columns(), **known}
    if space.reads_intervals:
        values = {**evaluated.interval_columns(space, known, breakdown, profile), **values}
    for derived in space.derived:
        if derived.evaluated:
            values[derived.name] = derived.formula(values)
    return values


def evaluate_workloads(space: Space, columns: Mapping[str, FloatArray], rules: WorkloadRules, jobs: Jobs) -> Evaluation:
    """Evaluate machines by all of their workloads; arguments and results are those of `evaluate`.

    A machine keeps a limit where all of its workloads do; its margin is the least of their margins.
    """

    points = next(iter(columns.values())).size
    layouts = {
        workload.name: best_layouts(workload, columns, points, rules.profile, jobs) for workload in space.workloads
    }
    parts = [layout.evaluation for layout in layouts.values()]
    weights = [workload.weight for workload in space.workloads]
    worst = space.data.get("combine") == "worst"
    breakdown = combined([part.breakdown for part in parts], weights, worst=worst)
    values = evaluated_columns(space, space.known_values(columns), breakdown, rules.profile)
    limits = np.min([part.margins for part in parts], axis=0), np.max([part.violations for part in parts], axis=0)
    return replace(_judged(space, values, breakdown, limits, points), workloads=layouts)


def best_layouts(
    workload: SpaceWorkload[Space], columns: Mapping[str, FloatArray], points: int, profile: str, jobs: Jobs
) -> evaluated.BestLayouts:
    """The best layout of a workload, by the one objective of its space, on each of some machines.

    `columns` are the machines, (points,). [SI units]
    """
    from dse.spaces.exact_parameters import OuterDesigns

    space = workload.space
    outer, rules = space.outer, evaluated.rules_for(space, profile)
    assert isinstance(outer, OuterDesigns)
    rows = np.flatnonzero(outer.has({**columns}, points))
    kept: list[tuple[np.ndarray[Any, Any], Mapping[str, FloatArray], Evaluation]] = []
    for owner, designs in outer.inner({name: column[rows] for name, column in columns.items()}, rows.size):
        evaluation = evaluate(space, designs, rules=rules, jobs=jobs)
        first = first_of_each(space, rows[owner], evaluation)
        chosen = {name: design[first] for name, design in designs.items()}
        kept.append((rows[owner][first], chosen, evaluation.take(first)))
    if not kept:
        designs = space.legal.random(1, np.random.default_rng(0))
        kept = [(np.zeros(1, dtype=np.intp), designs, evaluate(space, designs, rules=rules))]
        rows = rows[:0]
    owner = np.concatenate([owners for owners, _, _ in kept])
    every = evaluated.joined([evaluation for _, _, evaluation in kept])
    best = first_of_each(space, owner, every)
    rows_of_points = np.zeros(points, dtype=np.intp)
    rows_of_points[owner[best]] = best
    missing = ~np.isin(np.arange(points), rows)
    designs = {
        name: np.concatenate([chosen_designs[name] for _, chosen_designs, _ in kept])[rows_of_points]
        for name in space.by_name
    }
    return evaluated.BestLayouts(designs, without(every.take(rows_of_points), missing))


def _limits(limits: tuple[Constraint, ...], values: Mapping[str, Any],
            points: int) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Margins, and violations relative to the limits; no number means far outside."""
    pairs = [limit.formula.margins(values) for limit in limits]
    margins = stacked([margin for margin, _ in pairs], points)
    scales = stacked([scale for _, scale in pairs], points)
    undefined = np.isnan(margins)
    violations = np.where(undefined, evaluated.NAN_VIOLATION, -margins / scales)
    return np.where(undefined, -np.inf, margins), np.clip(violations, -evaluated.NAN_VIOLATION, evaluated.NAN_VIOLATION)


def stacked(columns: list[Any], points: int) -> FloatArray:
    """(points, columns) array of columns of one value or (points,)."""
    if not columns:
        return np.zeros((points, 0))
    return np.stack([_filled(column, points) for column in columns], axis=1)


def _filled(values: Any, points: int) -> FloatArray:
    """A column of full length."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64).reshape(-1), (points,))


def kernel_choices(space: Space, columns: Mapping[str, FloatArray]) -> list[dict[str, Value]]:
    """Values of `Space.solved` for each design: name -> word of a sharding, or edge of an output tile. [elements]

    Empty where nothing is solved for; the edge is 0 without the product. `columns` are (points,) values of parameters.
    """
    points = next(iter(columns.values())).size
    if not space.solved or not points:
        return [{} for _ in range(points)]
    from costmodel.steps.transformer import resolve_sharding, resolve_tiling  # imports the whole step

    run = transformer_run(space, columns, DesignPoints)
    names = [parameter.name for parameter in space.solved]
    tiled = any(name.endswith("_tile_m") for name in names)
    design = (resolve_tiling if tiled else resolve_sharding)(run.model, run.system, run.design)
    shape = rank_run(run.of(design)).design
    choices_of: list[dict[str, Value]] = [{} for _ in range(points)]
    for parameter in space.solved:
        if parameter.words:
            places = shape.assignments.place(shape.assignment, parameter.name.removesuffix("_sharding"))
            values: list[Value] = [parameter.words[code] for code in np.broadcast_to(places, (points,))]
        else:
            edges = design.tile_edges.get(parameter.name, np.zeros(1))
            values = [int(edge) for edge in np.broadcast_to(edges, (points,))]
        for choices, value in zip(choices_of, values, strict=True):
            choices[parameter.name] = value
    return choices_of


def with_kernels(space: Space, records: Sequence[evaluated.Record]) -> list[evaluated.Record]:
    """Records of designs whose `params` say how each kernel is split and tiled, where that is solved for.

    Trials of a study have that already, unless an earlier version stored them.
    """
    lacking = [not all(p.name in record["params"] for p in space.solved) for record in records]
    if not any(lacking):
        return [*records]
    columns = space.encode([record["params"] for record in records])
    return [
        {**record, "params": {**record["params"], **choices}}
        for record, choices in zip(records, kernel_choices(space, columns), strict=True)
    ]


def kernels_text(space: Space, params: Mapping[str, Any]) -> str:
    """Shardings and tiles of the kernels of a design, in words; "" if the space does not choose them.

    ``column: qkv, mlp_up; row: projection, mlp_down; tiles 128 x 256: qkv, mlp_up``
    """
    names = {name: params[name] for name in space.kernel_columns if name in params}
    groups: dict[str, list[str]] = {}
    for name, value in names.items():
        if name.endswith("_sharding"):
            groups.setdefault(str(value), []).append(name.removesuffix("_sharding"))
        elif name.endswith("_tile_m") and value:
            kernel = kernel_of_tile(name)
            other = names.get(tile_columns(kernel)[1], value)
            groups.setdefault(f"tiles {value} x {other}", []).append(kernel)
    return "; ".join(f"{group}: {', '.join(kernels)}" for group, kernels in groups.items())


def design_records(space: Space, designs: Mapping[str, FloatArray], evaluation: Evaluation) -> list[dict[str, Any]]:
    """One nested record per evaluated design, as in JSON output; names end in their units."""
    points = len(evaluation.values)

    def rows(columns: Mapping[str, FloatArray]) -> list[dict[str, float]]:
        lists = {name: np.broadcast_to(values, (points,)).tolist() for name, values in columns.items()}
        return [{name: values[row] for name, values in lists.items()} for row in range(points)]

    parts = {
        "feasible": evaluation.feasible.tolist(),
        "params": space.decode(designs),
        "derived": rows(evaluation.derived),
        "values": rows(dict(zip((o.key for o in space.objectives), evaluation.values.T, strict=True))),
        "margins": rows({limit.key: evaluation.margins[:, i] for i, limit in enumerate(space.limits)}),
        "breakdown": rows(evaluation.breakdown.by_key()),
    }
    records = [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if space.workloads:
        layouts, of_workloads = layouts_of(space, evaluation), rows(prefixed_columns(evaluation))
        for record, layout, breakdown in zip(records, layouts, of_workloads, strict=True):
            record["layouts"], record["breakdown"] = layout, {**record["breakdown"], **breakdown}
    return evaluated.with_runs(space, records)


def evaluated_design(space: Space, params: Mapping[str, Any], *, rules: WorkloadRules | None = None) -> dict[str, Any]:
    """The record of one design, with its solved values."""
    columns = space.encode([params])
    records = with_kernels(space, design_records(space, columns, evaluate(space, columns, rules=rules)))
    return evaluated.with_intervals(space, records, rules.profile if rules else NATIVE)[0]


#: Units of columns that are summed over consecutive steps.
TAKEN = ("s", "J", "FLOP")
#: Columns that are rates or shares of a step's time.
RATES = ("tokens_per_second", "tokens_per_second_per_gpu", "mfu", "average_power")


def first_of_each(space: Space, owner: np.ndarray[Any, Any], evaluation: Evaluation) -> Any:
    """Row of the best design of each owner; of equal ones the first."""
    from dse.fronts import as_costs  # of several workloads alone

    cost = as_costs(evaluation.values, space.directions)[:, 0]
    broken = np.maximum(evaluation.violations, 0.0).sum(axis=1)
    broken = np.where(evaluation.feasible, 0.0, broken + np.where(np.isfinite(cost), 0.0, evaluated.NAN_VIOLATION))
    order = np.lexsort((cost, broken, owner))
    return order[np.unique(owner[order], return_index=True)[1]]


def without(evaluation: Evaluation, missing: Any) -> Evaluation:
    """Evaluation without a number for some designs, which break every limit."""
    if not missing.any():
        return evaluation
    rows = missing[:, None]
    return replace(
        evaluation,
        values=np.where(rows, np.nan, evaluation.values),
        margins=np.where(rows, -np.inf, evaluation.margins),
        violations=np.where(rows, evaluated.NAN_VIOLATION, evaluation.violations),
        feasible=evaluation.feasible & ~missing,
        breakdown=evaluation.breakdown.map(lambda values: np.where(missing, np.nan, values)),
    )


def combined(parts: Sequence[ResultTable], weights: Sequence[float], *, worst: bool) -> ResultTable:
    """Weighted steps of several workloads on the same machines; columns are (points,).

    With `worst`, the workload whose weighted step takes longest stands for all; else times, energies and FLOPs add up
    by weight, and rates and shares are those over that time.

    Memory is that of the workload that needs most, which need not be the slowest.
    """
    scale = np.array(weights)[:, None]
    tables = [part.columns() for part in parts]
    times = scale * np.stack([part.time for part in parts])
    slowest, fullest = times.argmax(axis=0), np.stack([part.memory for part in parts]).argmax(axis=0)
    points = np.arange(times.shape[1])

    def column(name: str, unit: str) -> FloatArray:
        every = np.stack([table[name] for table in tables])
        if unit == "B":
            return np.asarray(every[fullest, points])
        taken = scale * every if unit in TAKEN else every
        if worst:
            return np.asarray(taken[slowest, points])
        if unit in TAKEN:
            return np.asarray(taken.sum(axis=0))
        if name in RATES:
            return np.asarray((times * every).sum(axis=0) / times.sum(axis=0))
        return np.asarray(every.max(axis=0))

    units = layout_of(type(parts[0])).units
    return parts[0].with_columns({name: column(name, unit) for name, unit in units.items()})


def prefixed_columns(evaluation: Evaluation) -> dict[str, FloatArray]:
    """Breakdowns of the workloads of machines: ``dense.step_time_s``; (points,) each. [SI units]"""
    return {
        f"{name}.{key}": values
        for name, workload in evaluation.workloads.items()
        for key, values in workload.evaluation.breakdown.by_key().items()
    }


def layouts_of(space: Space, evaluation: Evaluation) -> list[dict[str, dict[str, Any]]]:
    """For each machine, the layout of each workload that has one."""
    layouts: list[dict[str, dict[str, Any]]] = [{} for _ in range(evaluation.num_points)]
    for workload in space.workloads:
        part = evaluation.workloads[workload.name]
        names = [parameter.name for parameter in workload.space.inner]
        has_layout = np.isfinite(part.evaluation.values[:, 0]).tolist()
        for layout, params, is_there in zip(layouts, workload.space.decode(part.designs), has_layout, strict=True):
            if is_there:
                layout[workload.name] = {name: params[name] for name in names}
    return layouts
