"""``stowhand cron``: check a crontab, and see what recurs."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

import click

from stowhand.cli.add import read_when
from stowhand.cli.cron_store import list_items, run_item
from stowhand.cli.groups import Group
from stowhand.cli.options import json_option
from stowhand.cli.text_table import table
from stowhand.clock import wall_clock
from stowhand.cron.item import ParsedItem
from stowhand.cron.sources import read_crontab
from stowhand.cron.zones import find_zone
from stowhand.observe.safe_text import escape

RUNS = 5
"""How many runs of each item ``check`` shows."""
MOST = 10_000


def _from(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime:
    del ctx, param
    if value is None:
        return wall_clock()
    try:
        when = read_when(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if when.run_at is None:
        raise click.BadParameter(f"{value!r} is no moment; write for example 2030-01-31T09:00:00Z")
    return when.run_at


from_option = click.option(
    "start", "--from", metavar="WHEN", callback=_from, help="Runs after 2030-01-31T09:00:00Z, say.  [default: now]"
)


@click.group(cls=Group, name="cron")
def command() -> None:
    """Check a crontab; see and run what recurs."""


command.add_command(list_items)
command.add_command(run_item)


@command.command("check")
@click.argument("file", default="crontab")
@from_option
@json_option
def check(file: str, start: datetime, as_json: bool) -> None:
    """Check the crontab FILE, and show the next five runs of each item. Nothing is scheduled.

    All errors are reported at once, line by line, with exit code 2.
    """
    items = _items(file)
    if as_json:
        for item in items:
            runs = [_iso(run) for run in islice(_runs(item, start), RUNS)]
            about = {"identifier": item.identifier, "task": item.task, "tz": item.tz, "fill": item.fill}
            click.echo(json.dumps({**about, "spec": item.spec, "runs": runs}))
        return
    for item in items:
        click.echo(f"{escape(item.place)}: {escape(item.spec)}")
        for run in islice(_runs(item, start), RUNS):
            click.echo(f"  {_utc(run)}  {_there(item, run)}")


@command.command("next")
@click.argument("file", default="crontab")
@click.option("-n", "--number", type=click.IntRange(1, MOST), default=10, show_default=True, help="How many runs.")
@from_option
@json_option
def show_next(file: str, number: int, start: datetime, as_json: bool) -> None:
    """Show the next runs of all items of the crontab FILE, merged."""
    merged = heapq.merge(*(_placed(item, start, place) for place, item in enumerate(_items(file))))
    runs = [(item, run) for run, _, item in islice(merged, number)]
    if as_json:
        for item, run in runs:
            click.echo(json.dumps({"identifier": item.identifier, "task": item.task, "run_at": _iso(run)}))
    elif runs:
        rows = [(item.identifier, item.task, _utc(run), _there(item, run)) for item, run in runs]
        click.echo("\n".join(table(("ITEM", "TASK", "UTC", "IN ITS ZONE"), rows)))


def _items(file: str) -> tuple[ParsedItem, ...]:
    items = read_crontab(Path(file))
    if not items:
        click.echo(f"No items in {escape(file)}.", err=True)
    return items


def _runs(item: ParsedItem, start: datetime) -> Iterator[datetime]:
    """All of them after ``start``; at last the years end."""
    run = item.next_after(start)
    while run is not None:
        yield run
        run = item.next_after(run)


def _placed(item: ParsedItem, start: datetime, place: int) -> Iterator[tuple[datetime, int, ParsedItem]]:
    """Its runs, so that those of several items can be merged: of one minute, in the order of the file."""
    return ((run, place, item) for run in _runs(item, start))


def _iso(run: datetime) -> str:
    return f"{run:%Y-%m-%dT%H:%M:%SZ}"


def _utc(run: datetime) -> str:
    return f"{run:%Y-%m-%d %H:%M:%SZ}"


def _there(item: ParsedItem, run: datetime) -> str:
    """``Mon 09:00 Europe/Berlin``"""
    return f"{run.astimezone(find_zone(item.tz).info):%a %H:%M} {item.tz}"
