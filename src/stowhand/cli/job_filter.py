"""Filter of jobs: the options by which ``stowhand jobs`` lists and changes all jobs of a kind."""

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
from stowhand.protocols.options import one_of
from stowhand.protocols.queue_store import JobFilter, QueueStore


class TypedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter as it was typed."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    serial: str | None = None
    worker: str | None = None
    error: str | None = None
    since: PastTime | None = None
    until: PastTime | None = None

    async def filter(self, store: QueueStore, **more: Any) -> JobFilter:
        """Return the filter for a store, by its clock."""
        values = {name: getattr(self, name) for name in ("states", "task", "queue", "serial", "worker", "error")}
        for name in ("since", "until"):
            if (time := getattr(self, name)) is not None:
                values[name] = await time.by(store.timetable.now)
        return JobFilter(**values, **more)

    async def ids(self, store: QueueStore) -> list[int]:
        """Return the ids of all jobs that it describes."""
        return await ids_of(store, await self.filter(store))

    def describe(self) -> str:
        """Describe the filter for a question."""
        values = ((text, getattr(self, name)) for name, text in _PHRASES.items())
        return "".join(text.format(escape(str(value))) for text, value in values if value is not None)


_PHRASES = {
    "task": " of task {}",
    "queue": " of the queue {}",
    "serial": " of the serial key {}",
    "worker": " held by {}",
    "error": " with an error that says '{}'",
    "since": " since {}",
    "until": " until {}",
}


def take_filter(typed: dict[str, Any]) -> TypedFilter:
    """Take the filter out of the options of a command."""
    return TypedFilter(**{name: typed.pop(name) for name in TypedFilter.__struct_fields__})


filter_options = with_options(
    click.option(
        "states",
        "--state",
        multiple=True,
        type=ParsedText(lambda text: State(one_of(text, State))),
        metavar="STATE",
        help=f"{', '.join(State)}; may be repeated.",
        shell_complete=completing(State),
    ),
    click.option("--task", help="Only this task."),
    click.option("--queue", help="Only this queue."),
    click.option("--serial", help="Only this serial key."),
    click.option("--worker", help="Only what this worker holds."),
    click.option("--error", metavar="TEXT", help="Only those whose last error says this, in whatever case."),
    click.option(
        "--since",
        type=ParsedText(parse_past_time),
        metavar="WHEN",
        help="Only those that ended, or if they are not over were made, since then: 2h (ago), 2030-01-31T09:00:00Z.",
    ),
    click.option(
        "--until", type=ParsedText(parse_past_time), metavar="WHEN", help="Only those before that moment, likewise."
    ),
)
"""Options of the filter, which ``wanted_of`` reads."""
