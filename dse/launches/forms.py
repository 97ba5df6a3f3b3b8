"""Writes designs as launch files, and reads launch files as designs, in any form that an adapter knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from costmodel.formats.framework_file import launching, load_framework
from costmodel.training.run import TransformerRun
from dse.launches.launch import Launch, NotExpressible, launch_text, script_file
from dse.output.artefact import Artefact
from dse.registry import launch_forms, load

Writer = Callable[["Launch"], tuple[str, list[str]]]
Reader = Callable[[Path, int | None], tuple["Launch", list[str]]]

#: The comment that keeps by whose rules a design was priced: a framework's name or path; "none" by none.
_FRAMEWORK: Final = re.compile(r"^# dse framework: (.*\S)$", re.MULTILINE)


def launch_files(run: TransformerRun, form: str, framework: str = "", *,
                 anyway: bool = False) -> Iterator[Artefact]:  # fmt: skip
    """Designs as launch files, one of `launch_forms()`; `framework` is the one that prices them, "" none.

    With `anyway`, a model is written that the framework cannot train; notes list the losses.
    """
    write: Writer = load(launch_forms()[form].write)
    usual = load_framework(run.system.framework) if run.system.framework else launching(form)
    if form not in usual.launch:
        other = f"use --format {usual.launch[0]}" if usual.launch else "dse writes no launch files for it"
        text = f"system {run.system.name} trains with {usual.title}, not {launching(form).title}; {other}"
        yield from [Artefact(None, (text,))] * run.num_points
        return
    for point in range(run.num_points):
        launch = replace(Launch.of_run(run, point, framework), anyway=anyway)
        try:
            text, lost = write(launch)
        except NotExpressible as error:
            yield Artefact(None, (str(error),))
            continue
        if launch["pp"] == 1 and launch.differs("schedule"):  # all micro-batches at once, without stages
            lost = [*lost, f"schedule={launch['schedule']}"]
        notes = (f"{form} has no setting for {'; '.join(lost)}",) if lost else ()
        yield Artefact(with_framework(text, framework).encode(), notes)


def with_framework(text: str, framework: str) -> str:
    """A launch file with the framework that evaluated it, below the first line of its comment."""
    return re.sub(r"^# .*$", rf"\g<0>\n# dse framework: {framework or 'none'}", text, count=1, flags=re.M)


def read_launch(path: Path, form: str, chips: int | None = None,
                framework: str = "") -> tuple[Launch, list[str]]:  # fmt: skip
    """The launch of a file, and notes on settings that are not read; `form` is one of `launch_forms()`.

    Its framework is `framework`; else the one that the file says; else the form's own.

    Raises `DseError` if it is no such file, or says too little.
    """
    read: Reader = load(launch_forms()[form].read)
    launch, notes = read(path, chips)
    file = script_file(path)
    said = _FRAMEWORK.search(launch_text(file)) if file.is_file() else None
    named = "" if said and said[1] == "none" else said[1] if said else launching(form).name
    return replace(launch, framework=framework or named), notes
