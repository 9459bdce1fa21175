"""Filter of jobs: the options with which ``stowhand jobs`` selects the jobs to list or change."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from stowhand.app.answers import ids_of
from stowhand.cli.input import ParsedText, with_options
from stowhand.cli.options import completing
from stowhand.jobs.durations import PastTime, parse_past_time
from stowhand.jobs.job import State
from stowhand.observe.safe_text import escape
from stowhand.protocols.options import parse_word
from stowhand.protocols.queue_store import JobFilter, QueueStore


class RequestedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter from the command line. Its times may be relative to now."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    serial: str | None = None
    worker: str | None = None
    error: str | None = None
    since: PastTime | None = None
    until: PastTime | None = None

    async def filter(self, store: QueueStore, **other_fields: Any) -> JobFilter:
        """Return the filter for a store. Times use the store's clock."""
        values = {name: getattr(self, name) for name in ("states", "task", "queue", "serial", "worker", "error")}
        for name in ("since", "until"):
            if (time := getattr(self, name)) is not None:
                values[name] = await time.by(store.timetable.now)
        return JobFilter(**values, **other_fields)

    async def ids(self, store: QueueStore) -> list[int]:
        """Return the ids of all matching jobs."""
        return await ids_of(store, await self.filter(store))

    def describe(self) -> str:
        """Return the end of a question, such as `` of task send``."""
        values = ((text, getattr(self, name)) for name, text in _FILTER_PHRASES.items())
        return "".join(text.format(escape(str(value))) for text, value in values if value is not None)


_FILTER_PHRASES = {
    "task": " of task {}",
    "queue": " of the queue {}",
    "serial": " of the serial key {}",
    "worker": " claimed by {}",
    "error": " with an error that contains '{}'",
    "since": " since {}",
    "until": " until {}",
}


def take_filter(option_values: dict[str, Any]) -> RequestedFilter:
    """Remove the filter's options from ``option_values`` and return the filter."""
    return RequestedFilter(**{name: option_values.pop(name) for name in RequestedFilter.__struct_fields__})


filter_options = with_options(
    click.option(
        "states",
        "--state",
        multiple=True,
        type=ParsedText(lambda text: State(parse_word(text, State))),
        metavar="STATE",
        help=f"{', '.join(State)}; may be repeated.",
        shell_complete=completing(State),
    ),
    click.option("--task", help="Only this task."),
    click.option("--queue", help="Only this queue."),
    click.option("--serial", help="Only this serial key."),
    click.option("--worker", help="Only jobs claimed by this worker."),
    click.option("--error", metavar="TEXT", help="Only jobs whose last error contains this text (case is ignored)."),
    click.option(
        "--since",
        type=ParsedText(parse_past_time),
        metavar="WHEN",
        help="Only jobs finished (unfinished jobs: created) since then: 2h (ago), 2030-01-31T09:00:00Z.",
    ),
    click.option(
        "--until",
        type=ParsedText(parse_past_time),
        metavar="WHEN",
        help="Only jobs finished (unfinished jobs: created) before then.",
    ),
)
"""Options of the filter, which ``take_filter`` reads."""
