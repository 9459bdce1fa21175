"""Serial keys, with their waiting, running and failed jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.limits import KEY_SEPARATOR
from stowhand.protocols.operator import SerialRow
from stowhand.protocols.queue_store import MAX_EXAMINED_FAILURES
from stowhand.stores.kernel.counts import NEWEST_FAILED_COUNTS, list_paused
from stowhand.stores.kernel.question import Engine, Query, Question

_WAITING_COUNTS = """
SELECT serial, count(*), count(*) FILTER (WHERE run_at <= :now), min(run_at) FILTER (WHERE run_at <= :now)
FROM {%s} AND serial IS NOT NULL%s GROUP BY serial
"""
_RUNNING_COUNTS = "SELECT serial, count(*), max(id) FROM {running} AND serial IS NOT NULL GROUP BY serial"


def list_serials(engine: Engine, *, is_paused: bool) -> Question[Sequence[SerialRow]]:
    """Return the serial keys, ordered by name. ``is_paused``: read and return only paused keys."""
    paused = yield from list_paused(engine)
    if is_paused and not paused:
        return []
    serials = {
        name: SerialRow(name, since, None, 0, 0, 0, 0) for name, since in paused.items() if KEY_SEPARATOR not in name
    }

    def change(name: str, **numbers: object) -> None:
        if KEY_SEPARATOR not in name and (name in serials or not is_paused):
            row = serials.get(name) or SerialRow(name, None, None, 0, 0, 0, 0)
            serials[name] = msgspec.structs.replace(row, **numbers)

    serial_condition = " AND serial IN :serials" if is_paused else ""
    for index in ("serial", "suspects"):
        for name, waiting, due, since in (
            yield Query(_WAITING_COUNTS % (index, serial_condition), {"serials": [*paused]})
        ):
            before = serials.get(name)
            due_times = [] if since is None else [engine.read_moment(since)]
            if before is not None:
                waiting, due = waiting + before.waiting, due + before.due
                due_times += [] if before.due_since is None else [before.due_since]
            change(name, waiting=waiting, due=due, due_since=min(due_times, default=None))
    for name, running, held_by in (yield Query(_RUNNING_COUNTS)):
        change(name, running=running, held_by=held_by)
    for name, failed in (yield Query(NEWEST_FAILED_COUNTS, {"max_rows": MAX_EXAMINED_FAILURES})):
        if name is not None:
            change(name, failed=failed)
    return [serials[name] for name in sorted(serials)]
