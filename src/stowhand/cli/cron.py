"""``stowhand cron``: check a crontab, list the recurring items of a store, and run one item now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.columns import Column, json_line
from stowhand.cli.groups import Group
from stowhand.cli.input import ParsedText
from stowhand.cli.options import crontab_options, json_option, otel_option, settings_of, store_options
from stowhand.cli.replies import show_all
from stowhand.cli.session import with_store
from stowhand.clock import wall_clock
from stowhand.cron.agenda import this_minute
from stowhand.cron.crontab import refuse_duplicates
from stowhand.cron.item import ParsedItem
from stowhand.cron.known_items import item_of_spec, missed_tick
from stowhand.cron.sources import declared, read_crontab
from stowhand.cron.zones import find_zone
from stowhand.errors import hint, suggest
from stowhand.jobs.durations import format_time, parse_run_time
from stowhand.jobs.job import Job
from stowhand.observe.safe_text import escape
from stowhand.protocols.operator import BUILT_IN_TASKS
from stowhand.protocols.queue_store import KnownItem, QueueStore
from stowhand.tasks.registry import Registry

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

MAX_RUNS_PER_ITEM = 5
"""Runs of each item that ``check`` shows."""


def _read_time(text: str) -> datetime:
    run_at = parse_run_time(text).run_at
    if run_at is None:
        raise ValueError(f"{text!r} is not a time; write for example 2030-01-31T09:00:00Z")
    return run_at


@click.group(cls=Group, name="cron")
def command() -> None:
    """Check a crontab; list and run recurring items."""


@command.command("list")
@json_option
@store_options
def list_items(as_json: bool, **option_values: Any) -> None:
    """List the recurring items that the store knows.

    Every worker registers its items. The list shows the scheduler, last tick and next run of each.

    An item that was deleted from its crontab stays known. Within three minutes it has no scheduler and no next run.
    To remove it from the store: ``stowhand cron remove``.
    """
    settings = settings_of(option_values)
    known, now = with_store(settings.store, _read_items)
    show_all(known, "No recurring tasks.", item_columns(now), as_json=as_json)


@command.command("run")
@click.argument("name")
@crontab_options
@otel_option
@store_options
def run_item(name: str, **option_values: Any) -> None:
    """Enqueue the job of the item NAME now, and print its id. The schedule does not change.

    NAME is an item's identifier. It is searched where a worker reads items (--crontab, the file crontab beside the
    folder of tasks, --app), and then among the items that the store knows. Its _cron.ts is the current minute.
    """
    settings = settings_of(option_values)
    items, tasks, traces = _declared_items(settings)

    async def run(store: QueueStore) -> Job:
        item = items.get(name)
        if item is None:
            (item,) = declared([_stored_item(name, await store.timetable.known_items(), items)], tasks)
        job = tasks.apply_on_enqueue(item.job(this_minute(await store.timetable.now()), backfilled=False))
        return await (store.admin.add_built_in(job) if job.task in BUILT_IN_TASKS else store.jobs.enqueue(job))

    click.echo(with_store(settings.store, run, traces).id)


@command.command("remove")
@click.argument("name")
@store_options
def remove_item(name: str, **option_values: Any) -> None:
    """Remove the item NAME from the store.

    Delete it from every crontab first. Its jobs are kept.

    The command is refused while a scheduler has the item. If the item is added again, it is new: ``fill`` does not
    reach back before that time.
    """

    async def forget(store: QueueStore) -> tuple[bool, Sequence[KnownItem]]:
        is_forgotten = await store.timetable.forget_item(name)
        return is_forgotten, await store.timetable.known_items()

    is_forgotten, known = with_store(settings_of(option_values).store, forget)
    if is_forgotten:
        click.echo(f"{escape(name)}: removed")
        return
    for item in known:
        if item.identifier == name:
            raise click.ClickException(
                f"{name!r} is scheduled by {item.scheduled_by}: delete it from that crontab and reload the worker;"
                " the item can be removed three minutes later"
            )
    raise _no_item(name, (item.identifier for item in known))


@command.command("check")
@click.argument("file", default="crontab")
@click.option(
    "start",
    "--from",
    metavar="WHEN",
    type=ParsedText(_read_time),
    default=wall_clock,
    help="Show runs after this time: 2030-01-31T09:00:00Z.  [default: now]",
)
@json_option
def check(file: str, start: datetime, as_json: bool) -> None:
    """Check the crontab FILE, and show the next runs of each item. Nothing is scheduled.

    All errors are reported at once, line by line, with exit code 2.
    """
    items = read_crontab(Path(file))
    if not items:
        click.echo(f"No items in {escape(file)}.", err=True)
    for item in items:
        runs = list(islice(_runs(item, start), MAX_RUNS_PER_ITEM))
        if as_json:
            subject = {name: getattr(item, name) for name in ("identifier", "task", "tz", "fill", "spec")}
            click.echo(json_line(subject | {"runs": runs}))
            continue
        click.echo(f"{escape(item.position)}: {escape(item.spec)}")
        if item.options.queue_name is not None:
            click.echo(f"  serial key {escape(item.options.queue_name)}: its jobs run one at a time")
        for run in runs:
            local_time = run.astimezone(find_zone(item.tz).info)
            click.echo(f"  {format_time(run)}  {local_time:%a %H:%M} {item.tz}")


def _runs(item: ParsedItem, start: datetime) -> Iterator[datetime]:
    """Yield the runs after ``start``, until the years end."""
    run = item.next_after(start)
    while run is not None:
        yield run
        run = item.next_after(run)


def item_columns(now: datetime) -> list[Column[KnownItem]]:
    """Return the columns of items. ``now`` is the store's time."""

    def next_run(item: KnownItem) -> datetime | None:
        parsed = item_of_spec(item.spec) if item.is_scheduled(now) else None
        return None if parsed is None else parsed.next_after(now)

    def scheduler(item: KnownItem) -> str:
        if item.is_scheduled(now):
            return str(item.scheduled_by)
        return "none" if item.scheduled_at is None else f"none since {format_time(item.scheduled_at)}"

    return [
        Column("identifier", "ITEM"),
        Column("scheduled_by", "SCHEDULED BY", text=scheduler),
        Column("last_tick", "LAST TICK"),
        Column("next_run", "NEXT RUN", next_run),
        Column("spec", "CRONTAB"),
        Column("is_scheduled", value=lambda item: item.is_scheduled(now)),
        Column("scheduled_at"),
        Column("known_since"),
        Column("missed_tick", value=lambda item: missed_tick(item, now)),
    ]


async def _read_items(store: QueueStore) -> tuple[Sequence[KnownItem], datetime]:
    return await store.timetable.known_items(), await store.timetable.now()


def _declared_items(settings: WorkerSettings) -> tuple[dict[str, ParsedItem], Registry, Traces | None]:
    """Return the items that a worker with these settings schedules, the tasks of its App, and its traces."""
    from stowhand.service.recurring_items import items_in_file
    from stowhand.service.task_loader import load_tasks, requested_traces

    app = load_tasks(settings) if settings.app is not None else None
    if app is None:
        file_items, tasks, traces = items_in_file(settings), Registry(), requested_traces(settings)
    else:
        file_items, tasks, traces = (
            (*app.cron, *declared(items_in_file(settings), app.registry)),
            app.registry,
            app.traces,
        )
    return {item.identifier: item for item in refuse_duplicates(file_items)}, tasks, traces


def _stored_item(name: str, known: Sequence[KnownItem], items: dict[str, ParsedItem]) -> ParsedItem:
    """Return the item as the store knows it. Raise UsageError if there is none."""
    specs = {item.identifier: item.spec for item in known}
    if name not in specs:
        raise _no_item(name, {*items, *specs})
    item = item_of_spec(specs[name])
    if item is None:
        raise click.UsageError(f"{name!r} was declared in Python, not in a crontab; name its App: --app MODULE:NAME")
    return item


def _no_item(name: str, names: Iterable[str]) -> click.UsageError:
    known = sorted(names)
    return click.UsageError(f"no recurring item {name!r}{hint(name, known) or suggest(name, known)}")
