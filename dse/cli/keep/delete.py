"""`dse delete`: take a study out of a database."""

from __future__ import annotations

import argparse
import sys

from costmodel.errors import DseError, printable
from dse.searching.study_attributes import SPACE_NAME
from dse.storage.database import storage_url
from dse.storage.deletion import count_trials, delete_study
from dse.storage.optuna_store import Store


def run(args: argparse.Namespace) -> int:
    """Delete the study; 1 when the answer is no."""
    with Store(storage_url(args.storage), "read") as store:
        study_id = store.study_id(args.study)
        of = of_space(store, study_id)
        what = f"study {args.study!r}: {count_trials(store, study_id):,} trials{of}, in {store.where}"
    if not args.yes:
        if not sys.stdin.isatty():
            raise DseError(f"{what}: not deleted, since nobody can be asked here; delete it with --yes")
        print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("dse: nothing is deleted", file=sys.stderr)
            return 1
    with Store(storage_url(args.storage), "write") as store:
        trials = delete_study(store, store.study_id(args.study))
    print(f"deleted study {args.study!r}: {trials:,} trials{of}")
    return 0


def of_space(store: Store, study_id: int) -> str:
    """Which space a study is of, in words; none where what it holds of that cannot be read."""
    try:
        space = store.user_attr(study_id, SPACE_NAME)
    except DseError:  # damaged: it can be deleted all the same
        return ""
    return f" of space {printable(space)}" if isinstance(space, str) else ""
