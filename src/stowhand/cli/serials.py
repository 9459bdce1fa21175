"""``stowhand serials``: list serial keys with their jobs; pause and resume serial keys and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import click

from stowhand.cli.columns import Column
from stowhand.cli.groups import Group
from stowhand.cli.input import with_options
from stowhand.cli.options import json_option, settings_of, store_options
from stowhand.cli.queues import show_change
from stowhand.cli.replies import show_all
from stowhand.cli.session import with_store
from stowhand.protocols.counts import Pauses
from stowhand.protocols.operator import Operator, SerialChange, SerialRow, TaskChange, read_serial, read_task
from stowhand.protocols.queue_store import QueueStore

change_options = with_options(
    click.argument("names", metavar="[KEY...]", nargs=-1),
    click.option(
        "tasks", "--task", metavar="NAME", multiple=True, help="A task, with any serial key; may be repeated."
    ),
    json_option,
    store_options,
)


@click.group(cls=Group, name="serials")
def command() -> None:
    """List, pause and resume serial keys."""


@command.command("list")
@json_option
@store_options
def list_serials(as_json: bool, **option_values: Any) -> None:
    """List the serial keys that have live jobs or are paused.

    They are ordered by name. Paused tasks come last.
    """

    async def read_rows(store: QueueStore) -> tuple[Sequence[SerialRow], Pauses]:
        return await store.inspect.serials(), await store.inspect.pauses()

    rows, pauses = with_store(settings_of(option_values).store, read_rows)
    show_all(rows, "No serial keys.", SERIAL_COLUMNS, as_json=as_json)
    if pauses.tasks:
        show_all([*pauses.tasks.items()], "", PAUSED_TASK_COLUMNS, as_json=as_json)


@command.command("pause")
@change_options
def pause(names: tuple[str, ...], as_json: bool, **option_values: Any) -> None:
    """Pause serial keys or tasks: their jobs do not start until resumed. Running jobs continue; jobs can be added.

    Workers stop starting jobs within a second. A serial key or task without jobs can be paused, too.
    """
    _change(
        option_values, names, lambda operator: (operator.pause_serial, operator.pause_task), "paused", as_json=as_json
    )


@command.command("resume")
@change_options
def resume(names: tuple[str, ...], as_json: bool, **option_values: Any) -> None:
    """Resume serial keys or tasks: their jobs can start again at once."""
    _change(
        option_values,
        names,
        lambda operator: (operator.resume_serial, operator.resume_task),
        "resumed",
        as_json=as_json,
    )


PauseActions = Callable[
    [Operator], tuple[Callable[[str], Awaitable[SerialChange]], Callable[[str], Awaitable[TaskChange]]]
]
"""The actions on a serial key and on a task."""


def _change(
    option_values: dict[str, Any], names: tuple[str, ...], actions: PauseActions, outcome: str, *, as_json: bool
) -> None:
    tasks = option_values.pop("tasks")
    if not (names or tasks):
        raise click.UsageError("name a serial key, or use --task NAME")
    serials = [read_serial(name) for name in dict.fromkeys(names)]
    settings = settings_of(option_values)
    tasks = [read_task(name) for name in dict.fromkeys(tasks)]

    async def change_all(store: QueueStore) -> None:
        change_serial, change_task = actions(store.operate)
        for name in serials:
            report(name, {"serial": name}, await change_serial(name))
        for name in tasks:
            report(f"task {name}", {"task": name}, await change_task(name))

    def report(name: str, subject: dict[str, Any], change: SerialChange | TaskChange) -> None:
        show_change(name, subject, outcome, has_changed=change.changed, as_json=as_json)

    with_store(settings.store, change_all)


def _state(row: SerialRow) -> str:
    states = []
    if row.paused_since is not None:
        states.append("paused")
    if row.held_by is not None:
        states.append(f"job {row.held_by}")
    return ", ".join(states) or "free"


SERIAL_COLUMNS: list[Column[SerialRow]] = [
    Column("name", "SERIAL"),
    Column(heading="STATE", text=_state),
    Column("waiting", "WAITING", is_right_aligned=True),
    Column("due", "DUE", is_right_aligned=True),
    Column("failed", "FAILED", is_right_aligned=True),
    Column("paused_since", "SINCE"),
    Column("held_by"),
    Column("running"),
    Column("due_since"),
]
PAUSED_TASK_COLUMNS: list[Column[tuple[str, datetime]]] = [
    Column("task", "ALSO PAUSED", lambda pause: pause[0], lambda pause: f"task {pause[0]}"),
    Column("paused_since", "SINCE", lambda pause: pause[1]),
]
