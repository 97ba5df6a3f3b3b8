"""Takes a study out of a database."""

from __future__ import annotations

from typing import Final

from dse.storage.optuna_store import Store

#: Tables with rows of single trials, and of studies, those that others refer to last.
OF_TRIALS: Final = (
    *("trial_heartbeats", "trial_intermediate_values", "trial_values", "trial_params"),
    *("trial_system_attributes", "trial_user_attributes"),
)
OF_STUDIES: Final = (*("trials", "study_system_attributes", "study_user_attributes", "study_directions", "studies"),)


def delete_study(store: Store, study_id: int) -> int:
    """Delete a study with all of its trials in one transaction; the number of trials. [-]

    A `DseError` if the database cannot be written; then nothing is deleted.
    """
    named = {"study_id": study_id}
    with store.database.transaction(writes=True):
        trials = count_trials(store, study_id)
        for table in OF_TRIALS:
            store.database.change(
                f"DELETE FROM {table} WHERE trial_id IN (SELECT trial_id FROM trials WHERE study_id = :study_id)",
                **named,
            )
        for table in OF_STUDIES:
            store.database.change(f"DELETE FROM {table} WHERE study_id = :study_id", **named)
    return trials


def count_trials(store: Store, study_id: int) -> int:
    """Number of trials of a study, in any state. [-]"""
    with store.database.transaction():
        query = "SELECT count(*) FROM trials WHERE study_id = :study_id"
        [(trials,)] = store.database.rows(query, study_id=study_id)
    return int(trials)
