"""`dse plan`: the best parallel layouts of a model on N GPUs.

A plan is an exact search over layouts that need no space file. The answer names the layout, the time and price of the
run, the evidence behind the numbers, and the commands that come next."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from itertools import product
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.formats.quantity import count_value
from costmodel.formats.system_file import load_system
from dse.api.searching import PlannedStudy, compare_plans, plan, prices_of
from dse.cli.options import name_list, number, pin, positive
from dse.cli.output import write_answer, write_json, write_report
from dse.cli.progress import progress_of
from dse.cli.terminal import say
from dse.output import study_record
from dse.pricing.workers import Workers
from dse.registry import launch_forms
from dse.reporting.answers import study_words
from dse.reporting.designs.side_by_side_report import rent_text, side_by_side_report
from dse.reporting.study_report import plan_report
from dse.spaces.question import NothingFits

#: Powers of two, as lengths of sequences are counted: 8k is 8,192.
_BINARY: Final = {"k": 1024, "m": 1024**2}


def counts(text: str) -> list[int]:
    """Numbers of GPUs between commas."""
    return [positive(word) for word in name_list(text)]


def prices(text: str) -> float | dict[str, float]:
    """One price, or one for each system.

    >>> prices("2.50"), prices("h100=2.5,b200=$4.2")
    (2.5, {'h100': 2.5, 'b200': 4.2})
    """
    if "=" not in text:
        return number(text.strip().removeprefix("$"))
    return {name: number(price.removeprefix("$")) for name, price in map(pin, text.split(","))}


def batch(text: str) -> tuple[int | None, float | None]:
    """Sequences of a step, or tokens of one: a count with a letter is one of tokens.

    >>> batch("2048"), batch("16M tokens"), batch("4M")
    ((2048, None), (None, 16000000.0), (None, 4000000.0))
    """
    words = text.strip().lower()
    noun = next((noun for noun in ("tokens", "sequences") if words.endswith(noun)), "")
    number = words.removesuffix(noun).strip().upper()
    try:
        value = count_value(number.replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a count, such as 2048 or 16M tokens") from None
    is_of_tokens = noun == "tokens" or (not noun and number[-1].isalpha())
    return (None, value) if is_of_tokens else (int(value), None)


def packed(text: str) -> tuple[float, int]:
    """Mean length of documents, and the length of that of a token: by the root mean square too, if lengths differ.

    >>> packed("500"), packed("500,800")
    ((500.0, 500), (500.0, 1280))
    """
    mean, *others = [number(word) for word in text.split(",")]
    rms = others[0] if others else mean
    if len(others) > 1 or mean <= 0 or rms < mean:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a mean length, and a root mean square that is no less")
    return mean, max(1, round(rms**2 / mean))


def sequence(text: str) -> int:
    """Length of a sequence; ``k`` is 1,024.

    >>> sequence("8k"), sequence("8192"), sequence("128K")
    (8192, 8192, 131072)
    """
    scale = _BINARY.get(text[-1:].lower(), 1)
    return positive(text[:-1] if scale > 1 else text) * scale


def days(text: str) -> float:
    """Days, with or without the word.

    >>> days("10"), days("10d"), days("10 days")
    (10.0, 10.0, 10.0)
    """
    return number(re.sub(r"\s*d(ays?)?$", "", text, flags=re.IGNORECASE))


def run(args: argparse.Namespace) -> int:
    """Plan; 1 when nothing fits."""
    sequences, batch_tokens = args.global_batch_size or (None, None)
    single = ("seq_len", "tokens", "max_days", "framework", "imbalance", "headroom", "objective", "optimistic",
              "budget", "study", "save", "storage", "lora", "lora_targets", "quantized_base",
              "examples", "document_len", "dpo", "offload")  # fmt: skip
    mean, args.document_len = args.packed or (0.0, 0)
    if mean and args.examples and not args.tokens:  # a sequence has several
        args.tokens, args.examples = args.examples * mean, None
    workload = {
        **{name: getattr(args, name) for name in single},
        "global_batch_size": sequences,
        "batch_tokens": batch_tokens,
        "precision": [word.lower() for word in args.precision],
        "set": dict(args.set),
        "jobs": Workers(args.jobs, args.backend, args.scheduler),
        "progress_of": lambda space: progress_of(space, sys.stderr),
    }
    if len(args.gpus) * len(args.system) > 1:
        return side_by_side(args, workload)
    rent = prices_of(args.system, args.gpu_hour_price).get(args.system[0])
    workload["gpu_hour_price"] = rent if args.tokens or args.examples else None
    planned = plan(args.model, gpus=args.gpus[0], system=args.system[0], note=say, **workload)
    write(args, planned)
    return 0 if planned.study.table.feasible.any() else 1


def side_by_side(args: argparse.Namespace, workload: dict[str, Any]) -> int:
    """Plan every system and number of GPUs; 1 where nothing fits."""
    if option := next((name for name in ("save", "study") if getattr(args, name)), ""):
        raise DseError(f"--{option}: needs one system and one number of GPUs")
    prices_of(args.system, args.gpu_hour_price)  # mistakes are refused before anything is planned
    for name in args.system:
        load_system(name)
    said = set[str]()

    def once(text: str) -> None:
        if text not in said:
            say(text)
        said.add(text)

    plans: dict[tuple[str, int], PlannedStudy | NothingFits] = {}
    for system, gpus in product(args.system, args.gpus):
        try:
            plans[system, gpus] = plan(args.model, gpus=gpus, system=system, note=once, **workload)
        except NothingFits as error:
            plans[system, gpus] = error
    table = compare_plans(plans, gpu_hour_price=args.gpu_hour_price)
    record = {"model": args.model, "tokens": args.tokens, "rows": [row.to_json() for row in table.rows]}
    write_answer(args.format, record, lambda width: side_by_side_report(table, width))
    return 0 if table.fastest else 1


def write(args: argparse.Namespace, answer: PlannedStudy) -> None:
    """The results, to stdout."""
    study, legal = answer.study, answer.legal
    if args.format == "json":
        counted = {} if legal is None else {"n_legal": legal[0], "n_legal_infeasible": legal[1]}
        faster = asdict(answer.faster) if answer.faster else None
        more = {"exact": legal is not None, **counted, "any_software": faster,
                "assumed": [text.flags for text in answer.assumed]}  # fmt: skip
        write_json(study_record(study) | more | {"space_file": str(args.save) if args.save else None}, None)
        return
    notes = [str(answer.faster)] if answer.faster else []
    [row] = compare_plans({(args.system[0], args.gpus[0]): answer}, gpu_hour_price=args.gpu_hour_price).rows
    rent = [("Rent", rent_text(row))] if args.gpu_hour_price and not (args.tokens or args.examples) else []
    commands = next_commands(args, answer, notes)
    write_report(lambda width: plan_report(study, str(answer), notes, commands, width, rent), None)


def next_commands(args: argparse.Namespace, answer: PlannedStudy, notes: list[str]) -> list[str]:
    """Commands that launch the best layout and explain it; the reason why no launch file states it joins the notes."""
    from dse.api.exports import artefacts

    study = answer.study
    fastest = study.table.front().take(np.arange(1))
    usual, framework = answer.planned.space.system.framework, answer.planned.framework
    forms = framework.launch if answer.planned.runnable and usual in ("", framework.name) else ()
    name = study_words(study.name, args.storage)
    designs = [trial.params for trial in fastest.trials]
    files = {form: next(artefacts(answer.planned.space, designs, form)) for form in (forms if designs else ())}
    written = sorted((form for form in files if files[form].content), key=lambda form: files[form].differs)
    if written:
        ending = launch_forms()[written[0]].ending
        notes += [f"{text}." for form in written if files[form].differs for text in files[form].notes]
        export = f"dse export {name} --trial {fastest.numbers[0]} --format {written[0]} -o train{ending}"
        return [export, f"dse explain {name}"]
    for reason in dict.fromkeys(file.notes[0] for file in files.values()):
        names = ", ".join(form for form in files if files[form].notes[0] == reason)
        notes.append(f"No launch file for {names}: {reason}.")
    return [f"dse explain {name}"]
