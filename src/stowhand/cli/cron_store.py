"""``stowhand cron list`` and ``stowhand cron run``: what recurs in a store, and one item at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.moments import iso
from stowhand.cli.options import crontab_options, json_option, otel_option, settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.cli.text_table import table
from stowhand.cron.agenda import this_minute
from stowhand.cron.crontab import parse_crontab, refuse_duplicates
from stowhand.cron.item import ParsedItem
from stowhand.cron.sources import declared
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job
from stowhand.protocols.operating import BUILT_IN
from stowhand.protocols.queue_store import KnownItem, QueueStore
from stowhand.tasks.registry import Registry

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

HEADINGS = ("ITEM", "KNOWN SINCE", "LAST TICK", "NEXT RUN", "CRONTAB")


@click.command("list")
@json_option
@store_options
def list_items(as_json: bool, **typed: Any) -> None:
    """List the items that any worker has made known to the store, with their last tick and their next run.

    An item stays known when it is taken out of its crontab: no worker schedules it any more then.
    """
    settings = settings_of(typed)
    known, now = with_store(settings.store, _look)
    if as_json:
        for item in known:
            about = {"identifier": item.identifier, "known_since": iso(item.known_since)}
            times = {"last_tick": iso(item.last_tick), "next_run": iso(_next_run(item, now))}
            click.echo(json.dumps({**about, **times, "spec": item.spec}))
    elif known:
        rows = [
            (item.identifier, _say(item.known_since), _say(item.last_tick), _say(_next_run(item, now)), item.spec)
            for item in known
        ]
        click.echo("\n".join(table(HEADINGS, rows)))
    else:
        click.echo("No recurring tasks.", err=True)


@click.command("run")
@click.argument("name")
@crontab_options
@otel_option
@store_options
def run_item(name: str, **typed: Any) -> None:
    """Enqueue the job of the item NAME now, once; prints its id. The schedule goes on as if nothing had happened.

    NAME is an item's identifier. It is looked for where a worker would read it (--crontab, the file crontab beside
    the folder of tasks, --app), and then among the items that the store knows. Its _cron.ts is the minute that is
    running.
    """
    settings = settings_of(typed)
    items, tasks, traces = _written(settings)

    async def run(store: QueueStore) -> Job:
        item = items.get(name)
        if item is None:
            (item,) = declared([_remembered(name, await store.timetable.known_items(), items)], tasks)
        job = item.job(this_minute(await store.timetable.now()), backfilled=False)
        return await (store.admin.add_built_in(job) if job.task in BUILT_IN else store.jobs.enqueue(job))

    click.echo(with_store(settings.store, run, traces).id)


async def _look(store: QueueStore) -> tuple[Sequence[KnownItem], datetime]:
    return await store.timetable.known_items(), await store.timetable.now()


def _written(settings: WorkerSettings) -> tuple[dict[str, ParsedItem], Registry, Traces | None]:
    """What a worker with these settings would schedule, the tasks of its App, and what would make spans of it."""
    from stowhand.service.loading import load_tasks, wanted_traces
    from stowhand.service.recurring import items_in_file

    app = load_tasks(settings) if settings.app is not None else None
    if app is None:
        found, tasks, traces = items_in_file(settings), Registry(), wanted_traces(settings)
    else:
        found, tasks, traces = (*app.cron, *declared(items_in_file(settings), app.registry)), app.registry, app.traces
    return {item.identifier: item for item in refuse_duplicates(found)}, tasks, traces


def _remembered(name: str, known: Sequence[KnownItem], items: dict[str, ParsedItem]) -> ParsedItem:
    """The item as the store knows it."""
    specs = {item.identifier: item.spec for item in known}
    if name not in specs:
        names = sorted({*items, *specs})
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"
        raise click.UsageError(f"nothing recurs under the name {name!r}; {hint}")
    item = _parsed(specs[name])
    if item is None:
        raise click.UsageError(
            f"{name!r} was written in Python, not in a crontab; name the application that has it: --app MODULE:NAME"
        )
    return item


def _next_run(item: KnownItem, now: datetime) -> datetime | None:
    parsed = _parsed(item.spec)
    return None if parsed is None else parsed.next_after(now)


def _parsed(spec: str) -> ParsedItem | None:
    """``None``: no crontab could say it (a function, a task with a space), or another version has written it."""
    try:
        (item,) = parse_crontab(spec)
    except (ConfigurationError, ValueError):
        return None
    return item


def _say(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}Z"
