"""Which columns a job is made of. The views of live jobs and of the history have them, in this order."""

from __future__ import annotations

from collections.abc import Mapping

from stowhand.protocols.searching import TITLE_LIMIT

COLUMNS = (
    *("id", "task", "payload", "state", "queue", "priority", "run_at", "attempts", "max_attempts", "resets"),
    *("max_resets", "key", "flags", "last_error", "revision", "created_at", "updated_at", "started_at", "finished_at"),
    *("worker", "cancel_requested", "result", "last_worker", "progress", "progress_text"),
)


def select(instead: Mapping[str, str]) -> str:
    """The columns as a SELECT names them. ``instead``: expressions for some of them."""
    return ", ".join(f"{instead[name]} AS {name}" if name in instead else name for name in COLUMNS)


JOB = select({})
HEAD = select({"payload": "''", "result": "NULL", "last_error": f"substr(last_error, 1, {TITLE_LIMIT})"})
"""As searches and overviews show a job: without payload and result, and of the last error its first characters."""
