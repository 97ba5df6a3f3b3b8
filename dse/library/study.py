"""A study as Python has it: what was searched and found, why it is so, and figures of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.searching.study import BaseStudy

if TYPE_CHECKING:
    import altair as alt

    from dse.explaining.explanation import Explanation


class Study(BaseStudy):
    """A study in a database. `create`, `load` or `open` one; `run` it; read `trials` and `pareto_front`.

    Nothing is kept open between calls, so a study that another process continues is read afresh.
    """

    def explain(self, trial: int | None = None) -> Explanation:
        """Why a design costs what it does: ``.time`` and ``.memory`` are tables that add up.

        Parameters
        ----------
        trial : int, optional
            Its number; by default that of the best design by the first objective. [-]

        Raises
        ------
        DseError
            If there is no such trial, or nothing feasible was found yet.
        """
        from dse.explaining.explanation import explain

        number, params = self.design(trial)
        return explain(self.space, params, profile=self.profile, trial=number)

    def plot_front(self) -> alt.ChartType:
        """The Pareto front by each pair of objectives, or of a single one the best so far by trial."""
        from dse.reporting.pictures.study_figures import pareto_figure

        return pareto_figure(self.table)

    def plot_parallel(self) -> alt.LayerChart:
        """Parameters and objectives of the front, and of some other feasible trials, as lines."""
        from dse.reporting.pictures.study_figures import lines_figure

        return lines_figure(self.table)

    def plot_importance(self) -> alt.Chart:
        """How much of each objective's variance over the space each parameter explains alone.

        Raises
        ------
        DseError
            If too few trials are feasible.
        """
        from dse.reporting.pictures.study_figures import shares_figure

        return shares_figure(self.table, self.profile)

    def plot_hypervolume(self) -> alt.Chart:
        """Hypervolume after each finished trial."""
        from dse.reporting.pictures.study_figures import progress_figure

        return progress_figure(self.hypervolume_history())
