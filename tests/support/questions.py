"""Every question that the pages of a dashboard ask of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.search import Search

QUESTIONS: dict[str, Callable[[QueueStore], Awaitable[object]]] = {
    "list": lambda store: store.inspect.list(JobFilter(states=tuple(State))),
    "search": lambda store: store.inspect.search(Search(limit=3, budget=30.0)),
    "search failed": lambda store: store.inspect.search(Search(states=(State.FAILED,), limit=1, error="broken")),
    "search running": lambda store: store.inspect.search(Search(states=(State.PROCESSING,))),
    "failures": lambda store: store.inspect.failures(),
    "counts": lambda store: store.inspect.counts(),
    "amounts": lambda store: store.inspect.amounts(),
    "oldest due": lambda store: store.inspect.oldest_due(),
    "overdue": lambda store: store.inspect.overdue(None),
    "figures": lambda store: store.inspect.figures(),
    "serials": lambda store: store.inspect.serials(),
    "pauses": lambda store: store.inspect.pauses(),
    "workers": lambda store: store.inspect.workers(),
    "held": lambda store: store.inspect.held(),
    "app versions": lambda store: store.inspect.app_versions(),
    "tasks": lambda store: store.inspect.tasks(),
    "explain": lambda store: store.inspect.explain(1),
    "get": lambda store: store.jobs.get(2),
    "tries": lambda store: store.jobs.tries(5),
    "items": lambda store: store.timetable.known_items(),
    "status": lambda store: store.schema.status(),
}
"""By name; of jobs with the ids 1, 2 and 5. Beside them ``throughput``, which takes a span of time."""
