"""Studies as optuna-dashboard can show them: numbers in separate columns, and only the feasible front.

Objectives are shown in units that people use, such as GB, which their names contain. The page of a study does not show
its space, which would fill the first screen. The dashboard sorts by attributes that are numbers, and takes its front
from all finished trials, feasible or not. So it is given each trial with its tables laid out, and the infeasible ones
as pruned. Nothing of this is stored: an attribute for each number would make databases 1.9 times as large, and take 2.4
times as long to write.

A page may delete studies, and every account of a machine reaches its ports. So `private` requires
the token in the printed URL, and only reads.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from http.cookies import CookieError, SimpleCookie
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qs

from optuna.storages import RDBStorage, _CachedStorage
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from costmodel.errors import DseError
from costmodel.installation import installation
from dse.storage.database import optuna_url
from dse.storage.optuna_store import Store


class DashboardStorage(_CachedStorage):
    """Optuna's storage of a database, whose finished trials are `laid_out`."""

    def __init__(self, url: str) -> None:
        # Optuna never closes its connections; without a pool it holds none between calls.
        super().__init__(RDBStorage(optuna_url(url), engine_kwargs={"poolclass": NullPool}))
        self._laid_out: dict[int, FrozenTrial] = {}

    def shown_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials of a study as the dashboard shows them."""
        names = self.get_study_system_attrs(study_id).get(NAMES, ())
        shown = [self._shown(trial, names) for trial in super().get_all_trials(study_id, deepcopy=False)]
        return [trial for trial in shown if states is None or trial.state in states]

    get_all_trials = shown_trials  # Optuna's name

    def shown_studies(self) -> list[FrozenStudy]:
        """The studies with units in the names of their objectives, and without long attributes."""
        studies = []
        for study in super().get_all_studies():
            names = [shown_name(name)[0] for name in study.system_attrs.get(NAMES, ())]
            shown = copy(study)
            shown.system_attrs = {**study.system_attrs, **({NAMES: names} if names else {})}
            attributes = study.user_attrs.items()
            shown.user_attrs = {key: text for key, text in attributes if len(str(text)) <= LONGEST_ATTRIBUTE}
            studies.append(shown)
        return studies

    get_all_studies = shown_studies  # Optuna's name

    def _shown(self, trial: FrozenTrial, names: Sequence[str]) -> FrozenTrial:
        """A trial laid out, once it is finished and so stays as it is."""
        if not trial.state.is_finished():
            return trial
        known = self._laid_out.get(trial._trial_id)
        if known is None:
            known = self._laid_out[trial._trial_id] = laid_out(trial, names)
        return known


#: Attribute of a study with the names of its objectives, and the longest attribute that the dashboard shows.
NAMES, LONGEST_ATTRIBUTE = "study:metric_names", 80
#: Ending of an objective's name -> unit that the dashboard shows, and its size in SI units.
SHOWN_UNITS: Final = {
    "_bytes": ("GB", 1e9), "_usd": ("million $", 1e6), "_w": ("MW", 1e6), "_j": ("MJ", 1e6), "_kg": ("t", 1e3),
}  # fmt: skip


def shown_name(name: str) -> tuple[str, float]:
    """The name of an objective with the unit in which it is shown, and the size of that unit in SI units.

    >>> shown_name("peak_memory_bytes"), shown_name("step_time_s")
    (('peak_memory [GB]', 1000000000.0), ('step_time_s', 1.0))
    """
    matching = ((name.removesuffix(end), unit) for end, unit in SHOWN_UNITS.items() if name.endswith(end))
    return next(((f"{start} [{word}]", size) for start, (word, size) in matching), (name, 1.0))


def laid_out(trial: FrozenTrial, names: Sequence[str]) -> FrozenTrial:
    """A finished trial with each number of its tables as an attribute, pruned if it is infeasible.

    Its values are those of the objectives `names`, in the units of `SHOWN_UNITS`.
    """
    shown = copy(trial)
    if trial.values and len(names) == len(trial.values):
        shown.values = [value / shown_name(name)[1] for name, value in zip(names, trial.values, strict=True)]
    shown.user_attrs = {}
    for name, value in trial.user_attrs.items():
        if isinstance(value, Mapping):
            prefix = "margin_" if name == "margins" else ""
            shown.user_attrs |= {f"{prefix}{key}": number for key, number in value.items()}
        elif isinstance(value, int | float | str):
            shown.user_attrs[name] = value
    if trial.state == TrialState.COMPLETE and any(value > 0 for value in trial.constraints.values()):
        shown.state = TrialState.PRUNED
    return shown


def dashboard(url: str) -> Any:
    """The WSGI application of optuna-dashboard for a database of studies.

    Raises `DseError` if it is not installed, or there is no such database.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise DseError(f"needs optuna-dashboard: {installation('dashboard')}") from None
    with Store(url, "read"):  # a clear message where there is none
        pass
    return wsgi(DashboardStorage(url))


#: Name of the cookie that carries the token, and of the argument of the first request.
TOKEN = "dse_token"


def private(application: Any, token: str, *, changes: bool = False) -> Any:
    """A WSGI application that requires a token, and only reads unless `changes`.

    The first request, ``/?dse_token=...``, gets a cookie. Requests to another host name, as of a page that rebinds
    its name, and requests that other pages send, are refused. The application answers one request at a time.
    """
    turn = Lock()

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        host, port = environment.get("HTTP_HOST", ""), environment["SERVER_PORT"]
        origin, method = environment.get("HTTP_ORIGIN"), environment["REQUEST_METHOD"]
        [given] = parse_qs(environment.get("QUERY_STRING", "")).get(TOKEN, [""])[:1]
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}") or origin not in (None, f"http://{host}"):
            return refused(start, "this address does not belong to the dashboard; use the URL that dse printed")
        if hmac.compare_digest(given.encode(), token.encode()):
            cookie = f"{TOKEN}={token}; Path=/; HttpOnly; SameSite=Strict"
            start("303 See Other", [("Location", "/dashboard/"), ("Set-Cookie", cookie)])
            return [b""]
        if not hmac.compare_digest(cookie_token(environment).encode(), token.encode()):
            return refused(start, "use the URL with the token that dse printed")
        if method not in ("GET", "HEAD", "OPTIONS") and not changes:
            return refused(start, "read-only; start it with dse studies --dashboard --allow-changes")
        environment.setdefault("HTTP_ACCEPT_ENCODING", "")  # optuna-dashboard needs one for its files
        with turn:  # answers on a large study together would take too much memory
            answered: Iterable[bytes] = application(environment, start)
        return answered

    return answer


def cookie_token(environment: Mapping[str, Any]) -> str:
    """The token in the cookies of a request; "" without one."""
    try:
        cookies = SimpleCookie(environment.get("HTTP_COOKIE", ""))
    except CookieError:
        return ""
    return cookies[TOKEN].value if TOKEN in cookies else ""


def refused(start: Any, reason: str) -> list[bytes]:
    """The answer to a request that is refused: its reason as JSON, as the dashboard's page shows it."""
    start("403 Forbidden", [("Content-Type", "application/json")])
    return [json.dumps({"reason": reason}).encode()]
