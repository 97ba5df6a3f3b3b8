"""A study in Python: its designs, explanations of them, and plots.

`Study` adds reports, plots and comparisons to the stored study of `dse.searching.study`. Each method that draws imports
its modules when it is called, so that a search never loads a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dse.arguments import checked_methods
from dse.pricing.workers import Jobs, workers_of
from dse.searching.study import BaseStudy
from dse.storage.optuna_store import Store, delete_study

if TYPE_CHECKING:  # each takes long to import, and a search takes none
    import altair as alt
    import pandas as pd

    from dse.api.designs import NearestFit, Pins
    from dse.explaining.explanation import Explanation
    from dse.explaining.importance import Importance
    from dse.explaining.neighbours import Sensitivity
    from dse.output import Artefact
    from dse.reporting.studies.comparison import Comparison, StudyPair
    from dse.searching.exact.certificate import Certificate, StudyBound
    from dse.searching.exact.exact_front import Method
    from dse.searching.trials.measured_runs import MeasuredRun
    from dse.searching.trials.trial_table import TrialTable
    from dse.tuning.study_candidates import Proposal

#: Designs that a notebook shows of a study, and trials that a check evaluates where not all are. [-]
SHOWN, SAMPLE = 5, 100


@checked_methods
class Study(BaseStudy):
    """A study in a database. `create`, `load` or `open` one; `run` it; read `trials` and `pareto_front`.

    Nothing is kept open between calls, so a study that another process continues is read afresh.
    """

    _importance: tuple[TrialTable, Importance] | None = None

    def __repr__(self) -> str:
        """Name, space, and how far it is, in a line."""
        table = self.table
        return (
            f"<Study {self.name!r} of space {self.space.name}: {len(table)} trials, "
            f"{int(table.feasible.sum())} feasible, {len(table.front())} on the front>"
        )

    def _repr_html_(self) -> str:
        """The line of `repr`, and the first designs of the front with their objectives."""
        from html import escape

        front = self.pareto_front().head(SHOWN)
        names = [*(p.name for p in self.space.parameters), *(objective.key for objective in self.space.objectives)]
        shown = front[[name for name in dict.fromkeys(names) if name in front]]
        return f"<p>{escape(repr(self))}</p>{shown.to_html(index=False)}"

    def explain(
        self, trial: int | None = None, *, objective: Sequence[str] = (), profile: str | None = None
    ) -> Explanation:
        """Parts of the costs of a design: ``.time`` and ``.memory`` are tables whose rows add up to the total.

        Raises `DseError` if there is no such trial, nothing feasible was found yet, or the design has no number.

        Parameters
        ----------
        trial : int, optional
            Its number; by default that of the best design by the first objective. [-]
        objective : sequence of str
            Objectives that replace those of the study.
        profile : str, optional
            Rules of the cost model; the study's by default.
        """
        from dse.api.designs import with_number
        from dse.explaining.explanation import explain

        number, params = self.design(trial)
        space = self.space.with_objectives(objective) if objective else self.space
        return with_number(explain(space, params, profile=profile or self.profile, trial=number))

    def sensitivity(self, trial: int | None = None) -> Sensitivity:
        """Change of the step time with each parameter and quantity of a design; arguments as for `explain`."""
        from dse.explaining.neighbours import sensitivity

        return sensitivity(self.explain(trial))

    def importance(self) -> Importance:
        """Which parameters matter for each objective; a `DseError` if too few trials are feasible."""
        from dse.explaining.importance import importance

        table = self.table
        if self._importance is None or self._importance[0] is not table:
            self._importance = table, importance(self.space, table, self.profile)
        return self._importance[1]

    def fit(self, set: Pins) -> NearestFit:
        """The design of its space within all limits that is nearest to some values: `dse.fit`."""
        from dse.api.designs import fit

        return fit(self.space, set, profile=self.profile)

    def export(
        self, trial: int | None = None, format: str = "aicb", path: str | Path | None = None, *, winner: int = 0,
        workload: str | None = None, anyway: bool = False,
    ) -> Artefact:  # fmt: skip
        """A design as a file for other programs.

        Parameters
        ----------
        trial : int, optional
            Its number; by default that of the best design by the first objective. [-]
        format : str
            One of `dse.registry.export_forms()`, such as "megatron".
        path : str or Path, optional
            Where to write it; chakra and astra-sim are folders.
        winner : int
            Which of the designs that the trial has found. [-]
        workload : str, optional
            Which workload, of a space that has several.
        anyway : bool
            Whether to write a launch file of a model that the framework cannot train.

        Returns the ``content``, and ``notes`` on its gaps. Raises `DseError` if there is no such design, it has no such
        file, or the file cannot be written.
        """
        from dse.api.exports import trial_artefact, write_artefact

        file = trial_artefact(self, trial, format, winner, workload, anyway=anyway)
        if path:
            write_artefact(Path(path), file)
        return file

    def compare(
        self, other: BaseStudy | None = None, *, profile: str | None = None, system: str | None = None
    ) -> StudyPair | Comparison:
        """Compare its front with another study's, or its designs with another profile's or machine's.

        Raises `DseError` if the studies have no objective in common, or nothing feasible was found.
        """
        from dse.reporting.studies.comparison import comparison, study_pair

        return comparison(self, profile, system) if other is None else study_pair(self, other)

    def report(self, path: str | Path | None = None) -> Path:
        """Write a page, or a picture of the front if the path ends in .svg, .png or .pdf; returns the path.

        Raises `DseError` if it cannot be written.
        """
        from dse.output import write_file
        from dse.storage.atomic_files import file_name

        path = Path(path or f"{file_name(self.name)}.html")
        form = path.suffix.lower().removeprefix(".")
        if form in ("svg", "png", "pdf"):
            from dse.reporting.pictures.study_figures import study_picture

            content = study_picture(self.table, self.name, form)
        else:
            from dse.api.exports import design_launches
            from dse.reporting.pages.study_page import study_page

            content = study_page(self, partial(design_launches, self.space, self.profile)).encode()
        write_file(path, content)
        return path

    def check(self, *, most: int | None = SAMPLE, jobs: Jobs = 1) -> pd.DataFrame:
        """Stored figures that differ from those of the present cost model: trial, column, stored, model, unit.

        Parameters
        ----------
        most : int, optional
            Trials to evaluate again, spread over all of them; None evaluates every one. [-]
        jobs : int or Workers
            Processes that evaluate designs, or who else does. [-]
        """
        import pandas as pd

        rows = [asdict(figure) for _, mismatches in self.differing(jobs, most=most) for figure in mismatches]
        return pd.DataFrame(rows, columns=["trial", "column", "stored", "model", "unit"])

    def certify(self, *, method: Method = "auto", jobs: Jobs = 1) -> Certificate:
        """Compare the study with the exact front of its space, as `dse enumerate --certify` does.

        Raises `DseError` if the space is not finite, or has too many designs for the method.
        """
        from dse.searching.exact.certificate import certified

        return certified(self, workers_of(jobs), method=method)

    def bound(self, *, evaluations: float = 1e6, jobs: Jobs = 1) -> StudyBound:
        """A bound that no legal design can beat, from at most some number of evaluations. [-]"""
        from dse.searching.exact.certificate import study_bound

        return study_bound(self, workers_of(jobs), evaluations=evaluations)

    def delete(self) -> int:
        """Delete it and all of its trials from the database, for good; how many there were. [-]"""
        with Store(self.storage, "write") as store:
            return delete_study(store, store.study_id(self.name))

    def ask(self, parallel: int = 1) -> tuple[Proposal, ...]:
        """Trials to run next on the real cluster; empty once 2 % more speed is unlikely.

        Proposed designs that are not trials yet become trials. Raises `DseError` if the study opens the machine.
        `parallel` is how many runs there can be at once. [-]
        """
        from dse.tuning.study_candidates import tuning

        return tuning(self, parallel).proposals

    def tell(
        self, trial: int, *, step_time: float | None = None, spread: float | None = None,
        peak_memory: float | None = None, failed: str = "", software: str = "",
    ) -> MeasuredRun:  # fmt: skip
        """Store a real run of a trial, as `ask` proposes them.

        `step_time` is the time of a step after warm-up, `spread` the standard deviation of step times over their
        median, `peak_memory` the memory that the framework's allocator reserved at most, `failed` "oom" or "other" for
        a run that died, `software` the framework and its release. [s], [-], [B]

        Raises `DseError` if there is no such trial, or the run has neither a step time nor a failure.
        """
        from dse.tuning.study_candidates import tell

        numbers = {"step_time": step_time, "spread": spread, "peak_memory": peak_memory}
        return tell(self, trial, failed=failed, software=software, **numbers)

    def runs(self) -> pd.DataFrame:
        """Real runs of trials, a row for each, with predicted and measured step times."""
        import pandas as pd

        from dse.tuning.study_candidates import run_records

        return pd.DataFrame(run_records(self))

    def plot_front(self) -> alt.ChartType:
        """The Pareto front by each pair of objectives, or of a single one the best so far by trial."""
        from dse.reporting.pictures.study_figures import front_figure, front_picture

        return front_figure(front_picture(self.table))
