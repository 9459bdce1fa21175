"""``stowhand queues``: list queues with their jobs and workers; pause and resume them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click

from stowhand.cli.columns import Column
from stowhand.cli.groups import Group
from stowhand.cli.input import with_options
from stowhand.cli.options import json_option, settings_of, store_options
from stowhand.cli.replies import show_all, show_answer
from stowhand.cli.session import with_store
from stowhand.protocols.operator import BacklogRow, Operator, QueueChange, read_queue
from stowhand.protocols.queue_store import QueueStore

change_options = with_options(
    click.argument("names", metavar="QUEUE...", nargs=-1, required=True), json_option, store_options
)


@click.group(cls=Group, name="queues")
def command() -> None:
    """List, pause and resume queues."""


@command.command("list")
@json_option
@store_options
def list_queues(as_json: bool, **option_values: Any) -> None:
    """List the queues of jobs, tasks, workers and pauses, by name."""
    rows = with_store(settings_of(option_values).store, lambda store: store.inspect.queues())
    show_all(rows, "", QUEUE_COLUMNS, as_json=as_json)


@command.command("pause")
@change_options
def pause(names: tuple[str, ...], as_json: bool, **option_values: Any) -> None:
    """Pause queues: their jobs do not start until resumed. Running jobs continue; jobs can be added.

    Workers stop starting jobs within a second. A queue without jobs can be paused, too.
    """
    _change(option_values, names, lambda operator: operator.pause_queue, "paused", as_json=as_json)


@command.command("resume")
@change_options
def resume(names: tuple[str, ...], as_json: bool, **option_values: Any) -> None:
    """Resume queues: their jobs can start again at once."""
    _change(option_values, names, lambda operator: operator.resume_queue, "resumed", as_json=as_json)


QueueAction = Callable[[Operator], Callable[[str], Awaitable[QueueChange]]]


def _change(
    option_values: dict[str, Any], names: tuple[str, ...], action: QueueAction, outcome: str, *, as_json: bool
) -> None:
    queues = [read_queue(name) for name in dict.fromkeys(names)]

    async def change_all(store: QueueStore) -> None:
        for name in queues:
            change = await action(store.operate)(name)
            show_change(name, {"queue": name}, outcome, has_changed=change.changed, as_json=as_json)

    with_store(settings_of(option_values).store, change_all)


def show_change(name: str, subject: dict[str, Any], outcome: str, *, has_changed: bool, as_json: bool) -> None:
    """Print the answer to a pause or a resume. ``outcome`` is ``paused`` or ``resumed``."""
    already = {"paused": "it is already paused", "resumed": "it is not paused"}
    answer = (outcome, "") if has_changed else ("unchanged", already[outcome])
    show_answer(name, subject, *answer, as_json=as_json)


def _state(row: BacklogRow) -> str:
    if row.paused_since is not None:
        return "paused"
    return "no worker" if row.is_unserved else "open"


QUEUE_COLUMNS: list[Column[BacklogRow]] = [
    Column("name", "QUEUE"),
    Column(heading="STATE", text=_state),
    Column("waiting", "WAITING", is_right_aligned=True),
    Column("due", "DUE", is_right_aligned=True),
    Column("running", "RUNNING", is_right_aligned=True),
    Column("failed", "FAILED", is_right_aligned=True),
    Column("serving", "WORKERS", is_right_aligned=True),
    Column("paused_since", "SINCE"),
    Column("workers"),
]
