"""This store's SQL: every statement is in ``sql/<moment>.sql`` under a line ``-- name: <name>``."""

from __future__ import annotations

from importlib.resources import files

from stowhand.stores.database.statements import load_statements

_ARCHIVED = (
    "id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,"
    " last_error, revision, created_at, updated_at, started_at, finished_at, cancel_requested, loses_retries, epoch,"
    " settled_token"
)
"""What the history keeps of every job."""


def load(moment: str) -> dict[str, str]:
    """The statements of one file by name."""
    file = files("stowhand.stores.sqlite.queue").joinpath("sql", f"{moment}.sql")
    return {name: text.decode() for name, text in load_statements(file, {"archived": _ARCHIVED}).items()}
