"""Tasks of the processes of long tests, which are forked from one that has imported all, to start at once."""

import multiprocessing
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from wsgiref.util import setup_testing_defaults

import optuna
from sqlalchemy.pool import NullPool

from dse.api.study import Study
from dse.cli import main
from dse.searching.study import studies
from dse.searching.trials.trial_table import BREAKDOWN
from dse.storage.dashboard import dashboard
from dse.storage.database import optuna_url
from dse.storage.optuna_store import Store

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def started(function, *arguments):
    """A process that does something."""
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def kill(process):
    """End a process in the middle of whatever it does."""
    process.kill()
    process.join()


def search(url, name, budget):
    """Run a study to its budget; Ctrl-C ends that in order."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Study.load(name, storage=url).run(budget)
    except KeyboardInterrupt:
        sys.exit(130)


def command(folder, *arguments):
    """Run a command in a folder."""
    os.chdir(folder)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    sys.exit(main(arguments))


def read(url, name):
    """Read a study again and again, each time as it is at one moment."""
    last = 0
    while True:
        study = Study.load(name, storage=url)
        actual = len(study.trials())
        front = study.pareto_front()
        assert actual >= last
        assert set(front["trial"]) <= set(study.trials()["trial"])
        assert studies(url)
        last = actual


def foreign(url, name, values):
    """A loop of Optuna's own on a study."""
    storage = optuna.storages.RDBStorage(optuna_url(url), engine_kwargs={"poolclass": NullPool})
    study = optuna.load_study(study_name=name, storage=storage)
    while True:
        study.tell(study.ask(), values)


def look(url):
    """Requests of a browser to optuna-dashboard, again and again."""
    application = dashboard(url)

    def answer(path):
        said, environment = [], {"PATH_INFO": path, "REQUEST_METHOD": "GET"}
        setup_testing_defaults(environment)
        body = application(environment, lambda status, headers, *_: said.append(status))
        b"".join(body)
        assert said == ["200 OK"], said

    while True:
        answer("/api/studies")
        answer("/api/studies/1")


def told(url, name):
    """Our trials of a study, without their numbers and times of day; and how many of each state there are."""
    with closing(Store(url, "read")) as store:
        stored = store.study(name)
        trials = store.trials(stored.study_id)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    ours = [(t.state, t.params, t.values, t.constraints, t.user_attrs) for t in trials if BREAKDOWN in t.user_attrs]
    theirs = [trial.state.name for trial in trials if BREAKDOWN not in trial.user_attrs]
    return ours, theirs


def left_over(folder: Path):
    """Files that writers left in a folder."""
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]
