"""``stowhand serials``: what the serial keys hold; and what is paused: serial keys and tasks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import click

from stowhand.cli.groups import Group
from stowhand.cli.options import json_option, settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.cli.text_table import table
from stowhand.jobs.moments import iso, say
from stowhand.observe.safe_text import escape
from stowhand.protocols.figures import Pauses
from stowhand.protocols.operating import Operator, SerialChange, SerialRow, TaskChange, read_serial, read_task
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.loading import load_app

HEADINGS = ("SERIAL", "STATE", "WAITING", "DUE", "FAILED", "SINCE")
NUMBERS = ("WAITING", "DUE", "FAILED")

names_argument = click.argument("names", metavar="[KEY...]", nargs=-1)
task_option = click.option(
    "tasks", "--task", metavar="NAME", multiple=True, help="A task, whatever its serial key; repeatable."
)


@click.group(cls=Group, name="serials")
def command() -> None:
    """Serial keys: what they hold; pause and resume them."""


@command.command("list")
@json_option
@store_options
def list_serials(as_json: bool, **typed: Any) -> None:
    """List the serial keys that have live jobs or are paused, by name; then what else is paused."""

    async def look(store: QueueStore) -> tuple[Sequence[SerialRow], Pauses]:
        return await store.inspect.serials(), await store.inspect.pauses()

    found, pauses = with_store(settings_of(typed).store, look)
    if as_json:
        for line in (*map(_json, found), *_pauses_json(pauses)):
            click.echo(line)
        return
    if found:
        click.echo("\n".join(table(HEADINGS, [_cells(row) for row in found], right=NUMBERS)))
    else:
        click.echo("No serial keys.", err=True)
    if pauses.tasks:
        cells = [(f"task {task}", say(since)) for task, since in pauses.tasks.items()]
        click.echo("\n".join(table(("ALSO PAUSED", "SINCE"), cells)))


@command.command("pause")
@names_argument
@task_option
@json_option
@store_options
def pause(names: tuple[str, ...], as_json: bool, **typed: Any) -> None:
    """Let no job of these serial keys or tasks begin. What runs goes on; jobs may still be added; it lasts until
    resumed.

    Workers obey within a second. A serial key or a task need not have any jobs yet.
    """
    _change(typed, names, lambda on: (on.pause_serial, on.pause_task), "paused", as_json=as_json)


@command.command("resume")
@names_argument
@task_option
@json_option
@store_options
def resume(names: tuple[str, ...], as_json: bool, **typed: Any) -> None:
    """Let the jobs of these serial keys or tasks begin again, at once."""
    _change(typed, names, lambda on: (on.resume_serial, on.resume_task), "resumed", as_json=as_json)


Verb = Callable[[Operator], tuple[Callable[[str], Awaitable[SerialChange]], Callable[[str], Awaitable[TaskChange]]]]
"""What is done to a serial key, and to a task."""


def _change(typed: dict[str, Any], names: tuple[str, ...], verb: Verb, done: str, *, as_json: bool) -> None:
    tasks = typed.pop("tasks")
    if not (names or tasks):
        raise click.UsageError("name a serial key, or give --task NAME")
    serials = [read_serial(name) for name in dict.fromkeys(names)]
    settings = settings_of(typed)
    tasks = [read_task(name) for name in dict.fromkeys(_with_second_names(settings.app, tasks))]

    async def one_by_one(store: QueueStore) -> None:
        of_serial, of_task = verb(store.operate)
        for name in serials:
            report((await of_serial(name)).changed, name, {"serial": name})
        for name in tasks:
            report((await of_task(name)).changed, f"task {name}", {"task": name})

    def report(changed: bool, name: str, about: dict[str, object]) -> None:
        word = done if changed else "unchanged"
        why = "" if changed else "it is paused already" if done == "paused" else "it is not paused"
        if as_json:
            click.echo(json.dumps(about | {"done": word, "why": why}))
        else:
            click.echo(f"{escape(name)}: {word}{f' ({why})' if why else ''}")

    with_store(settings.store, one_by_one)


def _with_second_names(app: str | None, tasks: tuple[str, ...]) -> Iterator[str]:
    """A task is paused for every queue of Django's that it may be enqueued for."""
    for task in tasks:
        yield task
        if app is not None:
            yield from load_app(app).registry.also_named(task)


def _cells(row: SerialRow) -> tuple[str, ...]:
    running = "free" if row.held_by is None else f"job {row.held_by}"
    state = running if row.paused_since is None else "paused" if row.held_by is None else f"paused, {running}"
    return (row.name, state, str(row.waiting), str(row.due), str(row.failed), say(row.paused_since))


def _json(row: SerialRow) -> str:
    about = {name: getattr(row, name) for name in row.__struct_fields__}
    return json.dumps(about | {"paused_since": iso(row.paused_since), "due_since": iso(row.due_since)})


def _pauses_json(pauses: Pauses) -> Iterator[str]:
    for task, since in pauses.tasks.items():
        yield json.dumps({"task": task, "paused_since": iso(since)})
