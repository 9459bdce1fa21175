"""Which jobs are meant: the options by which ``stowhand jobs`` lists them, and acts on all that there are of a kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click
import msgspec

from stowhand.app.settings.parsers import OneOf
from stowhand.cli.options import completing
from stowhand.jobs.durations import parse_duration
from stowhand.jobs.job import State
from stowhand.observe.safe_text import escape
from stowhand.protocols.queue_store import JobFilter, QueueStore

F = TypeVar("F", bound=Callable[..., Any])


class Moment(msgspec.Struct, frozen=True):
    """A moment, or so long before now by the store's clock."""

    at: datetime | None = None
    ago: float = 0.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    worker: str | None = None
    error: str | None = None
    since: Moment | None = None
    until: Moment | None = None

    async def filter(self, store: QueueStore, **more: Any) -> JobFilter:
        """The same for a store, by its clock."""
        asked = {name: getattr(self, name) for name in ("states", "task", "queue", "worker", "error")}
        for name in ("since", "until"):
            if (moment := getattr(self, name)) is not None:
                asked[name] = moment.at or await store.timetable.now() - timedelta(seconds=moment.ago)
        return JobFilter(**asked, **more)

    def say(self) -> str:
        """For a question: what has been narrowed down."""
        said = [f"of task {escape(self.task)}"] if self.task is not None else []
        said += [f"in queue {escape(self.queue)}"] if self.queue is not None else []
        said += [f"held by {escape(self.worker)}"] if self.worker is not None else []
        said += [f"with an error that says {escape(self.error)!r}"] if self.error is not None else []
        states = [f"{', '.join(self.states)} "] if self.states else [""]
        return f"{states[0]}jobs" + "".join(f" {one}" for one in said)


def agreed(question: str) -> bool:
    """Outside of any session: no connection waits for the user."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo("", err=True)
        return False


def filter_options(command: F) -> F:
    """``--state``, ``--task`` and so on: what a command is given as ``wanted``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def wanted_of(typed: dict[str, Any]) -> Wanted:
    """Takes these options out of what was typed."""
    return Wanted(**{name: typed.pop(name) for name in Wanted.__struct_fields__})


def _states(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[State, ...]:
    del ctx, param
    try:
        return tuple(State(OneOf(*State)(word)) for word in value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> Moment | None:
    del ctx, param
    if value is None:
        return None
    try:
        return Moment(ago=parse_duration(value))
    except ValueError as not_long_ago:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            raise click.BadParameter(f"{not_long_ago}; or a moment: 2030-01-31T09:00:00Z") from None
    return Moment(at=at if at.tzinfo is not None else at.replace(tzinfo=UTC))


_OPTIONS = (
    click.option(
        "states",
        "--state",
        multiple=True,
        callback=_states,
        metavar="STATE",
        help=f"{', '.join(State)}; may be repeated.",
        shell_complete=completing(State),
    ),
    click.option("--task", help="Only this task."),
    click.option("--queue", help="Only this queue."),
    click.option("--worker", help="Only what this worker holds."),
    click.option("--error", metavar="TEXT", help="Only those whose last error says this, in whatever case."),
    click.option(
        "--since",
        callback=_moment,
        metavar="WHEN",
        help="Only those that ended, or if they are not over were made, since then: 2h (ago), 2030-01-31T09:00:00Z.",
    ),
    click.option("--until", callback=_moment, metavar="WHEN", help="Only those before that moment, likewise."),
)
