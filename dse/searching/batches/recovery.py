"""The way of a finished batch that the database does not take: into a file, and from there when it does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from costmodel.errors import DseError
from dse.pricing.workers import uninterrupted
from dse.searching.batches.claims import Turns, packed_batch
from dse.searching.batches.history import Batch
from dse.storage.optuna_store import StudyDeleted
from dse.storage.recovery import RecoveryFiles

LOG = logging.getLogger(__name__)


@contextmanager
def kept_unless_stored(files: RecoveryFiles, batch: Batch) -> Iterator[None]:
    """Keep a finished batch in a file if the block, which is to store it, does not come to its end.

    Raises
    ------
    DseError
        What the block raised, which then says where the file is.
    """
    try:
        yield
    except StudyDeleted:
        raise
    except (DseError, KeyboardInterrupt) as error:
        with uninterrupted():
            path = files.keep(batch.number, packed_batch(batch))
        last = f"the last {len(batch.finished)} trials"
        kept = (
            f"{last} wait for the next run in {path}"
            if path
            else f"{last} could be kept nowhere; the next run evaluates them again"
        )
        if isinstance(error, DseError):
            raise DseError(f"{error}; {kept}") from error
        LOG.warning("dse: %s", kept)
        raise


def take_kept(files: RecoveryFiles, turns: Turns) -> None:
    """Hand the batches that wait in files to the study, once, and remove the files."""
    for kept in files.kept():
        if isinstance(kept, DseError):
            LOG.warning("dse: %s", kept)
            continue
        what = (
            f"{kept.trials} trials of an earlier run taken from {kept.path}"
            if turns.park(kept.number, kept.packed)
            else f"{kept.path}: its {kept.trials} trials are in the study already"
        )
        try:
            kept.path.unlink(missing_ok=True)  # another process may have been as fast
        except OSError as error:
            what += f"; it cannot be removed ({error.strerror})"
        LOG.warning("dse: %s", what)
