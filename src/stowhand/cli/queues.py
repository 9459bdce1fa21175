"""``stowhand queues``: what the named queues hold, and which of them are paused."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import click

from stowhand.cli.groups import Group
from stowhand.cli.moments import iso, say
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.cli.tables import table
from stowhand.observe.safe_text import escape
from stowhand.operating import QueueChange, QueueRow, read_queue
from stowhand.queue_store import QueueStore

HEADINGS = ("QUEUE", "STATE", "WAITING", "DUE", "FAILED", "SINCE")
NUMBERS = ("WAITING", "DUE", "FAILED")

json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per line.")
names_argument = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@click.group(cls=Group, name="queues")
def command() -> None:
    """Named queues: what they hold; pause and resume them."""


@command.command("list")
@json_option
@store_options
def list_queues(as_json: bool, **typed: Any) -> None:
    """List the queues that have live jobs or are paused, by name."""
    found = with_store(settings_of(typed).store, lambda store: store.queues())
    if as_json:
        for row in found:
            click.echo(_json(row))
    elif found:
        click.echo("\n".join(table(HEADINGS, [_cells(row) for row in found], right=NUMBERS)))
    else:
        click.echo("No queues.", err=True)


@command.command("pause")
@names_argument
@json_option
@store_options
def pause(names: tuple[str, ...], as_json: bool, **typed: Any) -> None:
    """Let no job of these queues begin. A running one goes on; jobs may still be added; it lasts until resumed.

    Workers obey within a second. A queue need not have any jobs yet.
    """
    _change(typed, names, lambda store: store.pause_queue, "paused", as_json=as_json)


@command.command("resume")
@names_argument
@json_option
@store_options
def resume(names: tuple[str, ...], as_json: bool, **typed: Any) -> None:
    """Let the jobs of these queues begin again, at once."""
    _change(typed, names, lambda store: store.resume_queue, "resumed", as_json=as_json)


Verb = Callable[[QueueStore], Callable[[str], Awaitable[QueueChange]]]


def _change(typed: dict[str, Any], names: tuple[str, ...], verb: Verb, done: str, *, as_json: bool) -> None:
    wanted = [read_queue(name) for name in dict.fromkeys(names)]

    async def one_by_one(store: QueueStore) -> None:
        for name in wanted:
            change = await verb(store)(name)
            word = done if change.changed else "unchanged"
            why = "" if change.changed else "it is paused already" if done == "paused" else "it is not paused"
            if as_json:
                click.echo(json.dumps({"queue": change.queue, "done": word, "why": why}))
            else:
                click.echo(f"{escape(change.queue)}: {word}{f' ({why})' if why else ''}")

    with_store(settings_of(typed).store, one_by_one)


def _cells(row: QueueRow) -> tuple[str, ...]:
    running = "free" if row.held_by is None else f"job {row.held_by}"
    state = running if row.paused_since is None else "paused" if row.held_by is None else f"paused, {running}"
    return (row.name, state, str(row.waiting), str(row.due), str(row.failed), say(row.paused_since))


def _json(row: QueueRow) -> str:
    about = {name: getattr(row, name) for name in row.__struct_fields__}
    return json.dumps(about | {"paused_since": iso(row.paused_since)})
