"""Summaries of comparisons with measurements: errors of each data set, order of layouts, memory, kernels.

Errors are relative; medians, means and 90th percentiles stand next to each other. Order within a sweep is Kendall's
tau; memory has precision and recall of out-of-memory predictions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.columns import grouped
from dse.validation.comparison import ComparedRow
from dse.validation.kernels import kind_of, size_of

#: Of all rows together, where one line sums them up.
ALL: Final = "all"


def validation_record(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Comparisons as one JSON object: each data set, and each row."""
    return {
        "datasets": [dataset_record(*of_name) for of_name in data_sets(rows).items()],
        "accuracy": {name: accuracy_records(rows, name) for name in GROUPINGS},
        "rows": [row_record(one) for one in rows],
    }


def data_sets(rows: Sequence[ComparedRow]) -> dict[str, list[ComparedRow]]:
    """Rows of each data set."""
    return grouped((one.row.dataset, one) for one in rows)


def family_of(one: ComparedRow) -> str:
    """Family of a row's model, such as llama or gpt_oss, from the first word of its name."""
    match = re.match(r"gpt.?oss|[a-z]+", one.row.model.lower())
    return re.sub(r"\W", "_", match[0]) if match else one.row.model


#: Name of a grouping -> the group of a row.
GROUPINGS: Final[Mapping[str, Callable[[ComparedRow], str]]] = {
    "machine": lambda one: one.system,
    "software release": lambda one: one.framework,
    "model family": family_of,
}


def accuracy_records(rows: Sequence[ComparedRow], grouping: str) -> list[dict[str, Any]]:
    """Errors of steps, coverage of intervals and false alarms of each group of runs, a word of `GROUPINGS`. [%]"""
    groups = grouped((GROUPINGS[grouping](one), one) for one in rows if one.is_step or one.ran)
    return [
        {
            "group": name,
            "rows": sum(one.is_step for one in members),
            **error_record(one.error for one in members if one.is_step),
            "coverage_percent": 100 * sum(inside) / len(inside) if inside else math.nan,
            "ran_rows": sum(one.ran for one in members),
            "false_alarms": sum(one.ran and one.said_not_to_fit for one in members),
            "sources": [*dict.fromkeys(one.row.source for one in members if one.row.source)],
        }
        for name, members in sorted(groups.items())
        for inside in [[one.low_s <= one.measured_s <= one.high_s for one in members if one.low_s > 0]]
    ]


def row_record(one: ComparedRow) -> dict[str, Any]:
    """A row with its prediction; nan and None where there is none."""
    return {
        "id": one.row.id,
        **{name: getattr(one, name) for name in ("predicted_s", "measured_s", "low_s", "high_s")},
        "evidence": one.evidence or None,
        "assumed": dict(one.assumed),
        "why_not": one.why_not or None,
    }


def dataset_record(name: str, rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Errors of the rows of a data set."""
    return {
        "dataset": name,
        "rows": len(rows),
        "expressed": sum(one.expressed for one in rows),
        "step_time": {**error_record(one.error for one in rows if one.is_step), "kendall_tau": kendall_tau(rows)},
        "memory": memory_record(rows),
        "kernels": {kind: kernel_record(of_kind) for kind, of_kind in kernels_by_kind(rows).items()},
    }


def error_record(errors: Iterable[float]) -> dict[str, float]:
    """Mean, median, 90th percentile and maximum of the sizes of relative errors, and their mean. [%]"""
    percent = 100 * np.array([*errors])
    size = np.abs(percent) if percent.size else np.array([np.nan])
    return {
        "mean_abs_error_percent": float(size.mean()),
        "median_abs_error_percent": float(np.median(size)),
        "p90_abs_error_percent": float(np.quantile(size, 0.9)),
        "max_abs_error_percent": float(size.max()),
        "bias_percent": float(percent.mean()) if percent.size else math.nan,
    }


def kendall_tau(rows: Sequence[ComparedRow]) -> float:
    """Kendall's tau of layouts within sweeps, averaged over sweeps by their numbers of pairs; NaN without a pair. [-]

    Concordant less discordant pairs, over all. A sweep is the steps of one data set with the same model, ranks, tokens
    and sequences; two runs of one layout are not a pair.
    """
    steps = (one for one in rows if one.is_step and one.row.row_type == "train_step")
    sweeps = grouped(((one.row.dataset, *one.sweep), one) for one in steps)
    concordant, pairs = 0.0, 0
    for runs in sweeps.values():
        _, layouts = np.unique([repr(one.layout) for one in runs], return_inverse=True)
        predicted, measured = np.array([(one.predicted_s, one.measured_s) for one in runs]).T
        for last in range(1, len(runs)):
            signs = np.sign(predicted[last] - predicted[:last]) * np.sign(measured[last] - measured[:last])
            signs = signs[layouts[:last] != layouts[last]]
            concordant, pairs = concordant + float(signs.sum()), pairs + signs.size
    return concordant / pairs if pairs else math.nan


def memory_record(rows: Sequence[ComparedRow]) -> dict[str, float]:
    """Errors of measured memory, and precision and recall of runs that do not fit. [%], [-]

    Recall counts runs out of memory that are not said to fit, tight ones too. Precision counts all runs that
    are said not to fit: one that ran is a false alarm.
    """
    errors = [one.memory_error for one in rows if math.isfinite(one.memory_error)]
    full = [one for one in rows if one.did_not_fit]
    ran = [one for one in rows if one.ran]
    refused = sum(one.said_not_to_fit for one in full)
    false = sum(one.said_not_to_fit for one in ran)
    warned = refused + sum(one.is_tight for one in full)
    return {
        "rows": len(errors),
        **error_record(errors),
        "out_of_memory_rows": len(full),
        "ran_rows": len(ran),
        "false_alarms": false,
        "tight_rows": sum(one.is_tight for one in ran),
        "out_of_memory_recall": warned / len(full) if full else math.nan,
        "out_of_memory_precision": refused / (refused + false) if refused + false else math.nan,
    }


def kernels_by_kind(rows: Iterable[ComparedRow]) -> dict[str, list[ComparedRow]]:
    """Kernels of each kind, products first."""
    return grouped((kind_of(one.row), one) for one in rows if one.row.is_kernel)


def kernel_record(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Errors of kernels of one kind, of all and of each decade of sizes."""
    expressed = [one for one in rows if one.expressed]
    decades = sorted({decade(one) for one in expressed})
    unit = size_of(rows[0].row)[1]
    return {
        "rows": len(rows),
        "expressed": len(expressed),
        **error_record(one.error for one in expressed),
        "by_size": [
            {
                "from": 10.0**power,
                "to": 10.0 ** (power + 1),
                "unit": unit,
                "rows": len(of_decade),
                **error_record(one.error for one in of_decade),
            }
            for power in decades
            for of_decade in [[one for one in expressed if decade(one) == power]]
        ],
    }


def decade(one: ComparedRow) -> int:
    """Power of ten at or below the size of a kernel. [-]"""
    return math.floor(math.log10(size_of(one.row)[0]))


def reasons(rows: Iterable[ComparedRow]) -> dict[str, dict[str, int]]:
    """Reason why rows are not expressed -> number of rows with it in each data set; the most frequent first."""
    names_of = grouped((one.why_not, one.row.dataset) for one in rows if one.why_not)
    return {why: dict(Counter(names)) for why, names in sorted(names_of.items(), key=lambda item: -len(item[1]))}
