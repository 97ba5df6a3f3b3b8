"""Searches: of a space, and from a model and a number of chips straight to the best layouts.

`search` runs the study of a space file. `plan` makes the space itself, from a model, a system and a number of GPUs,
and enumerates it exactly where it is small enough. `compare_plans` puts plans of several systems and numbers of GPUs
side by side; dollars are those of an owner, by the prices of the system file, or of a renter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from costmodel.columns import short_repr
from costmodel.errors import ArgumentText, ParameterError, suggestion
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable
from costmodel.rules.registry import NATIVE
from costmodel.training.design import DesignPoints
from dse.api.design_files import launch_form
from dse.api.designs import AnySpace, Pins, chosen_space, counted_tokens
from dse.api.study import Study
from dse.launches.launch import Launch, refusals
from dse.output import EXPECTED_TIME, STEP_TIME, Record, design_text, percent_more, ranked_rate, ranked_time, write_file
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import transformer_run
from dse.pricing.workers import Jobs, Workers, workers_of
from dse.reporting.answers import PLAN
from dse.searching.batches.loop import Progress
from dse.searching.exact.exact_front import ExactFront
from dse.searching.planned_study import closest, fits, listed_front, opened, stored_front
from dse.searching.samplers.samplers import DEFAULT_SAMPLER
from dse.searching.starting_designs import front_designs, named_starts
from dse.spaces.question import NothingFits, Planned, Question, planned_space, space_text, with_chips
from dse.spaces.space import Params, Space
from dse.storage.optuna_store import Store

#: Values that `Study.run` accepts as its progress.
Shown = Callable[[Progress], None] | bool | None
#: Changes of a question that are tried where no layout fits, with words for one that helps.
REMEDIES: Final = data_beside(__file__, "remedies.yaml")["remedies"]
#: Multiples of the number of chips that are tried where no design fits.
MULTIPLES: Final = (2, 4, 8, 16, 32, 64, 128)


def search(
    space: AnySpace, *, budget: int = 500, study: str | None = None, storage: str | None = None,
    sampler: str | None = None, seed: int | None = None, start: Sequence[str] = (),
    warm_start: str | None = None, robust: bool = False, focus: str | None = None,
    profile: str | None = None, jobs: Jobs = 1, progress: Callable[[Progress], None] | bool | None = None,
    set: Pins = None, layout: str | None = None, objective: Sequence[str] = (), tokens: float | str | None = None,
) -> Study:  # fmt: skip
    """Search a space: run its study, or continue it, until it holds `budget` finished trials in all.

    Parameters
    ----------
    space : Space, str or Path
        The space to search.
    budget : int
        Finished trials in all, earlier runs included. [-]
    jobs : int or Workers
        Processes that evaluate designs, or who else does. [-]
    progress : callable or bool, optional
        Called after every batch; True draws a bar.
    study, storage : str, optional
        Name of the study, by default the space's, and database URL, as for `Study.create`.
    sampler, seed, profile : optional
        The sampler, its random numbers, and the rules of the cost model; fixed when a study starts.
    start, warm_start : sequence of str; str, optional
        Designs to evaluate first, such as ``"tp=8,pp=16"``; a study whose best designs are.
    robust : bool
        Rank by the 95th percentile of the step time.
    focus : str, optional
        A condition that designs have to satisfy, such as ``"step_time < 15 s"``; "" lifts it.
    set, layout, objective, tokens
        Changes of the space, as for `chosen_space`.

    The `pareto_front` and `trials` of the study are tables. Raises `DseError` if the space or an option is wrong, or
    the study is of another space.
    """
    opened = opened_study(
        space, study, storage=storage, sampler=sampler, seed=seed, start=start, warm_start=warm_start,
        robust=robust, focus=focus, profile=profile, set=set, layout=layout, objective=objective,
        tokens=tokens,
    )  # fmt: skip
    opened.run(budget, jobs=jobs, progress=progress)
    return opened


def opened_study(
    space: AnySpace, study: str | None = None, *, storage: str | None = None, sampler: str | None = None,
    seed: int | None = None, start: Sequence[str] = (), warm_start: str | None = None, robust: bool = False,
    focus: str | None = None, profile: str | None = None, set: Pins = None, layout: str | None = None,
    objective: Sequence[str] = (), tokens: float | str | None = None,
) -> Study:  # fmt: skip
    """The study of a space, new or continued, with its first designs and its objectives.

    Raises `DseError` if an option is wrong: before a study comes into being.

    Options are those of `search`.
    """
    space = chosen_space(space, set=set, layout=layout, objective=objective, tokens=tokens)
    space = space.robust() if robust else space
    rules = rules_for(space, profile or NATIVE)
    if focus:
        space.within_focus(focus)
        if sampler not in (None, DEFAULT_SAMPLER):
            raise ParameterError(f"{{focus}}: needs sampler {DEFAULT_SAMPLER}, not {sampler}")
    starts: Mapping[str, Params] = named_starts(space, start)
    if warm_start:
        starts = {**starts, **front_designs(Study.load(warm_start, storage=storage), space, rules)}
    if starts:
        space.with_layouts(starts)
    opened = Study.open(space, study, storage=storage, seed=seed, sampler=sampler, profile=profile)
    opened.steer(focus, starts)
    return opened


@dataclass(frozen=True)
class FasterElsewhere:
    """A layout that is faster than the best one, but that the framework of the question cannot run."""

    step_time: float  #: [s]
    share: float  #: of the step of the fastest that the software runs [-]
    design: str  #: in words
    needs: str  #: the ability that the framework lacks, and those that it has
    software: str  #: title of the framework

    def __str__(self) -> str:
        """One line."""
        change = f"{readable(self.step_time, 's')} ({percent_more(self.share)})"
        return f"Not available in {self.software}: {self.design} would give {change} ({self.needs})."


@dataclass(frozen=True)
class PlannedStudy:
    """The best layouts of a model on a number of chips, kept as a study."""

    __repr__ = short_repr

    study: Study
    planned: Planned
    legal: tuple[int, int] | None  #: legal layouts, and infeasible ones; None: too many to list
    faster: FasterElsewhere | None = None  #: a faster layout that the framework cannot run

    @property
    def assumed(self) -> tuple[ArgumentText, ...]:
        """Arguments that were left out, with the values that are assumed."""
        return self.planned.assumed

    def __str__(self) -> str:
        """The number of evaluated layouts."""
        if self.legal is None:
            return f"{self.study.space.legal.count:,.0f} legal layouts, of which a search evaluated some."
        legal, infeasible = self.legal
        return f"All {legal:,} legal layouts were evaluated; {legal - infeasible:,} fit."


def plan(
    model: str | Path, *, gpus: int, system: str | Path, tokens: float | str | None = None,
    objective: Sequence[str] = (), budget: int = 500, study: str | None = None,
    save: str | Path | None = None, storage: str | None = None, jobs: Jobs = 1,
    progress_of: Callable[[Space], AbstractContextManager[Shown]] = lambda space: nullcontext(),
    seq_len: int | None = None, global_batch_size: int | None = None, batch_tokens: float | None = None,
    precision: Sequence[str] = (), framework: str = "", imbalance: float | None = None,
    headroom: str | None = None, max_days: float | None = None, gpu_hour_price: float | None = None,
    optimistic: bool = False, set: Pins = None, note: Callable[[str], None] = lambda text: None,
    lora: int = 0, lora_targets: str = "", quantized_base: str = "", document_len: int = 0, dpo: bool = False,
    examples: float | str | None = None, offload: bool = False,
) -> PlannedStudy:  # fmt: skip
    """Find the best parallel layouts of a model on some chips: evaluates every legal layout, stores the best as a
    study.

    Raises `DseError` if no layout fits, saying how many chips would do; or an option is wrong.

    Parameters
    ----------
    model : str or Path
        A built-in model, a model file, a config.json, or a launch file, whose batch and software are the defaults.
    gpus : int
        Chips of the run. [-]
    system : str or Path
        A built-in system, or a file.
    tokens : float or str, optional
        Of the whole run, such as ``"15T"``: days and energy. [tokens]
    objective : sequence of str
        Objectives in place of step_time_expected and peak_memory.
    budget : int
        Trials where designs are too many to list. [-]
    study : str, optional
        Name of the study; plan_MODEL_N by default.
    save : str or Path, optional
        Where to write the space as a file, too.
    storage : str, optional
        Database URL, as for `Study.create`.
    jobs : int or Workers
        Processes that evaluate designs, or who else does. [-]
    progress_of : callable
        Space -> context that gives the `progress` of `Study.run`, where designs are too many to list.
    seq_len : int, optional
        Tokens of a sequence; the model's by default.
    global_batch_size, batch_tokens : int and float, optional
        Sequences of a step, or about that number of tokens in it; by default by the size of the model. [-]
    precision : sequence of str
        Formats of products to choose from, such as ``["bf16", "fp8"]``; bf16 by default.
    framework : str
        Training software; by default the usual one of the system.
    imbalance : float, optional
        Tokens of the fullest rank of experts over the mean; the framework's by default. [-]
    headroom : str, optional
        Memory of a GPU that stays free, such as ``"4 GB"``, ``"5 %"`` or ``"0"``; by default the amount by which
        measured peaks of the framework exceed predicted ones.
    max_days : float, optional
        Days that the run of `tokens` may take. [-]
    gpu_hour_price : float, optional
        Rent of a GPU for an hour, for the cost of the run of `tokens`; by default the GPUs are owned. [$]
    optimistic : bool
        Rank by predicted step times in place of expected ones.
    set : mapping, optional
        Values of the layout to fix, such as ``{"tp": 8}``.
    note : callable
        Called with each line on the input and on assumptions, before layouts are evaluated.
    lora : int
        Rank of LoRA adapters on frozen weights; 0 trains all weights. [-]
    lora_targets : str
        Linear layers with adapters: all_linear (default), all_but_mixers, attention, mlp, qkv or query_value.
    quantized_base : str
        Format of frozen weights, such as ``"nf4"``; 16 bits by default.
    document_len : int
        Length of the document of a token where sequences are packs of documents: the sum of squares of their lengths
        over their sum. [tokens]
    dpo : bool
        Train on pairs with a frozen reference model (direct preference optimization); a pair is two sequences.
    examples : float or str, optional
        Sequences of the whole run, or pairs with `dpo`, in place of `tokens`. [-]
    offload : bool
        Also try optimizer states and activations in host memory, with enough room for them.
    """
    for name, value in (("max_days", max_days), ("gpu_hour_price", gpu_hour_price)):
        if value and not (tokens or examples):
            raise ParameterError(f"{{{name}}}: of how many tokens? name them with {{tokens}}, such as 15T")
    question = Question(
        model=str(model), system=str(system), chips=gpus, seq_len=seq_len, sequences=global_batch_size,
        batch_tokens=batch_tokens, precision=precision, framework=framework, imbalance=imbalance,
        headroom=headroom, max_days=max_days, pins=set or {}, optimistic=optimistic, gpu_hour_price=gpu_hour_price,
        tokens=counted_tokens(tokens) if tokens else None, examples=counted_tokens(examples) if examples else None,
        lora=lora, lora_targets=lora_targets, quantized_base=quantized_base, document_len=document_len, dpo=dpo,
        offload=offload,
    )  # fmt: skip
    if form := launch_form(str(model)):
        from dse.api.launch_files import question_of

        question = question_of(question, form, note)
    planned = planned_space(question)
    for text in planned.model.notes:
        note(text)
    if planned.assumed:
        note(ArgumentText.joined("assumed: ", planned.assumed))
    space = planned.space.with_objectives(objective) if objective else planned.space
    if save:
        data = {**planned.data, "name": Path(save).stem}
        data |= {"objectives": space.data["objectives"]} if objective else {}
        write_file(Path(save), space_text(data).encode())
    return answer(question, planned, space, study or space.name, budget, progress_of,
                  storage=storage, again=study is None, workers=workers_of(jobs))  # fmt: skip


def answer(
    question: Question, planned: Planned, space: Space, name: str, budget: int,
    progress_of: Callable[[Space], AbstractContextManager[Shown]], *, storage: str | None, again: bool,
    workers: Workers,
) -> PlannedStudy:  # fmt: skip
    """The study of the best layouts that a question asks for; a `DseError` if none fits."""
    exact = listed_front(space, workers)
    if exact is not None and not len(exact.costs):
        raise NothingFits(what_would_do(question, planned))
    if exact is not None:
        stored_study = stored_front(exact, name, storage=storage, again=again)
    else:
        stored_study = opened(space, name, storage, again=again)
        with progress_of(space) as progress:
            stored_study.run(budget, jobs=workers, progress=progress)
    faster = faster_elsewhere(question, planned, exact, workers) if exact else None
    legal = (exact.legal, exact.infeasible or 0) if exact else None
    answered = PlannedStudy(Study.load(stored_study.name, storage=storage), planned, legal, faster)
    texts = {"counts": str(answered), "exact": legal is not None, "notes": [str(faster)] if faster else [],
             "assumed": ", ".join(text.flags for text in planned.assumed)}  # fmt: skip
    with Store(answered.study.storage, "write") as store:
        store.set_user_attrs(store.study_id(stored_study.name), {PLAN: texts})
    return replace(answered, study=Study.load(stored_study.name, storage=storage))


def faster_elsewhere(
    question: Question, planned: Planned, exact: ExactFront, workers: Workers
) -> FasterElsewhere | None:
    """The fastest layout that the framework cannot run; None where none is faster, or too many must be evaluated."""
    keys = [objective.key for objective in exact.space.objectives]
    key = next((step_key for step_key in (EXPECTED_TIME, STEP_TIME) if step_key in keys), None)
    if not planned.runnable:
        return None  # the plan is for any software
    space = planned_space(replace(question, any_software=True)).space
    other = listed_front(space, workers) if space.fingerprint != planned.space.fingerprint else None
    if other is None or not len(other.costs) or key is None:
        return None
    here, elsewhere = float(exact.costs[:, keys.index(key)].min()), float(other.costs[:, 0].min())
    if elsewhere >= here:
        return None
    row = int(other.costs[:, 0].argmin())
    [params] = space.decode({name: values[[row]] for name, values in other.designs.items()})
    launches = Launch.of_run(transformer_run(space, space.encode([params]), DesignPoints))
    [reasons] = refusals(launches, planned.framework)
    if not reasons:
        return None
    design = design_text(space, params)
    return FasterElsewhere(elsewhere, elsewhere / here, design, reasons[0], planned.framework.title)


def what_would_do(question: Question, planned: Planned) -> str:
    """The reason why no layout fits, and a number of GPUs that is enough."""
    days = question.max_days or math.inf
    if question.max_days:
        question = replace(question, max_days=None)
        planned = planned_space(question)
    space = planned.space
    nearest = closest(space)
    if nearest.margin >= 0:
        return too_slow(question, planned, days)
    chips = f"{question.chips:,} {space.chip_word}{'s' * (question.chips != 1)}"
    text = (
        f"none of {space.legal.count:,.0f} layouts fits on {chips}: the smallest needs "
        f"{readable(-nearest.margin, nearest.unit)} more per {space.chip_word} ({design_text(space, nearest.params)})"
    )
    for remedy in REMEDIES:
        changed = replace(question, **remedy["change"])
        marks = [getattr(side, name, 0) for side in (question, planned.framework) for name in remedy["of"]]
        asked = (any(marks) or not marks) and changed != question
        if asked and fits(with_chips(changed, planned, question.chips)):
            text += f"; {remedy['words']}"
    for times in MULTIPLES:
        if fits(with_chips(question, planned, times * question.chips)):
            return f"{text}; enough: {{gpus}} {times * question.chips}"
    return f"{text}; {MULTIPLES[-1]} times as many {space.chip_word}s are not enough: try shorter sequences"


def too_slow(question: Question, planned: Planned, days: float) -> str:
    """The days of the fastest layout, and a number of GPUs that is enough."""
    text = (
        f"no layout on {question.chips:,} {planned.space.chip_word}{'s' * (question.chips != 1)} finishes "
        f"within {days:g} day{'s' * (days != 1)}: the fastest takes {shortest_days(planned.space):,.0f} days"
    )
    for times in MULTIPLES:
        other = with_chips(question, planned, times * question.chips)
        took = shortest_days(other) if other else math.inf
        if took <= days:
            return f"{text}; {{gpus}} {times * question.chips} takes {took:.1f} days"
    return f"{text}; {MULTIPLES[-1]} times as many are not enough: try a larger {{global_batch_size}}"


def shortest_days(space: Space) -> float:
    """Days of the run by the fastest feasible layout; infinite where none is. [-]"""
    exact = listed_front(space, Workers())
    times = [] if exact is None else exact.evaluation.derived["run_time"].tolist()
    return float(min(times, default=math.inf)) / 86400


@dataclass(frozen=True)
class PlanRow:
    """The fastest layout on a number of GPUs of a system, or the reason why none fits."""

    system: str
    gpus: int
    plan: PlannedStudy | NothingFits
    gpu_hour_price: float | None = None  #: rent [$]; None: the GPUs are owned

    @cached_property
    def record(self) -> Record | None:
        """The fastest layout; None where none fits."""
        if isinstance(self.plan, NothingFits) or not (front := self.plan.study.table.front().records()):
            return None
        return min(front, key=ranked_time)

    @property
    def cost(self) -> float | None:
        """Cost of the run, or without tokens the rent for a billion of them; None where unknown. [$]"""
        run = (self.record or {}).get("run", {})
        if self.record is None or self.gpu_hour_price is None:
            return float(run["run_cost_usd"]) if "run_cost_usd" in run else None
        rate = ranked_rate(self.record, "tokens_per_second_per_gpu")
        return float(self.gpu_hour_price * (run["gpu_hours"] if run else 1e9 / rate / 3600))

    def to_json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        head: dict[str, Any] = {"system": self.system, "gpus": self.gpus, "fits": self.record is not None}
        if self.record is None or isinstance(self.plan, NothingFits):
            return {**head, "reason": str(self.plan)}
        owner = "owned" if self.gpu_hour_price is None else "rented"
        money = {"dollars": owner, "gpu_hour_price": self.gpu_hour_price, "cost_usd": self.cost}
        keys = ("trial", "params", "values", "breakdown", "step_time_low_s", "step_time_high_s", "run")
        figures = {key: self.record[key] for key in keys if key in self.record}
        return {**head, "study": self.plan.study.name, **figures, **money}


@dataclass(frozen=True)
class PlanTable:
    """Plans side by side, in the order in which they were given."""

    __repr__ = short_repr

    rows: tuple[PlanRow, ...]

    @property
    def fastest(self) -> PlanRow | None:
        """The row with the most tokens per second; None where nothing fits."""
        rates = [ranked_rate(row.record, "tokens_per_second") if row.record else 0.0 for row in self.rows]
        return self.rows[rates.index(max(rates))] if any(rates) else None

    @property
    def cheapest(self) -> PlanRow | None:
        """The row with the lowest cost; None where no cost is known."""
        costs = {at: row.cost for at, row in enumerate(self.rows) if row.cost is not None}
        return self.rows[min(costs, key=lambda at: costs[at])] if costs else None


#: Plans by system and number of GPUs.
Plans: TypeAlias = Mapping[tuple[str, int], PlannedStudy | NothingFits]


def compare_plans(plans: Plans, *, gpu_hour_price: float | Mapping[str, float] | None = None) -> PlanTable:
    """Plans of one model side by side, with the cheapest and the fastest.

    Parameters
    ----------
    plans : mapping
        System and number of GPUs -> result of `dse.plan`, or its error where nothing fits.
    gpu_hour_price : float or mapping, optional
        Rent of a GPU for an hour, or that of each system, as in ``{"h100": 2.5, "b200": 4.2}``; by default
        the GPUs are owned. [$]
    """
    prices = prices_of(list(dict.fromkeys(name for name, _ in plans)), gpu_hour_price)
    return PlanTable(tuple(PlanRow(name, gpus, plan, prices.get(name)) for (name, gpus), plan in plans.items()))


def prices_of(systems: Sequence[str], asked: float | Mapping[str, float] | None) -> dict[str, float]:
    """The price of a GPU-hour of each system; none where GPUs are owned. [$]"""
    if not isinstance(asked, Mapping):
        return {} if asked is None else dict.fromkeys(systems, float(asked))
    if unknown := next((name for name in asked if name not in systems), None):
        raise ParameterError(f"{{gpu_hour_price}}: {unknown}: not planned{suggestion(unknown, systems)}")
    if missing := next((name for name in systems if name not in asked), None):
        raise ParameterError(f"{{gpu_hour_price}}: no price of {missing}; give one for each system")
    return dict(asked)
