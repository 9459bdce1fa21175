"""``stowhand limits``: list the limits of tasks with their use; override their values while workers run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from stowhand.cli.columns import Column
from stowhand.cli.groups import Group
from stowhand.cli.input import ParsedText, with_options
from stowhand.cli.options import json_option, settings_of, store_options
from stowhand.cli.queues import show_change
from stowhand.cli.replies import show_all, show_answer
from stowhand.cli.session import with_store
from stowhand.jobs.durations import format_time
from stowhand.jobs.task_limits import LimitValues, check_changes, parse_rate, stored_key
from stowhand.protocols.operator import LimitRow, Operator, SerialChange, read_limit, read_serial
from stowhand.protocols.queue_store import QueueStore


@click.group(cls=Group, name="limits")
def command() -> None:
    """List the limits of tasks, and override them."""


@command.command("list")
@json_option
@store_options
def list_limits(as_json: bool, **option_values: Any) -> None:
    """List the limits of tasks, with their use and waiting jobs."""
    rows = with_store(settings_of(option_values).store, lambda store: store.inspect.limits())
    show_all(rows, "No limits: workers declare them when they start.", LIMIT_COLUMNS, as_json=as_json)


RATE = ParsedText(parse_rate)
value_options = with_options(
    click.option("--concurrency", type=int, metavar="N", help="Jobs that run at the same time. 0: none starts."),
    click.option("--rate", type=RATE, metavar="N/PERIOD", help="Jobs that start in a period: 5/1s, 100/1m."),
    click.option("--burst", type=int, metavar="N", help="Jobs that may start at once after a pause."),
    click.option("--key-concurrency", type=int, metavar="N", help="As --concurrency, for each key."),
    click.option("--key-rate", type=RATE, metavar="N/PERIOD", help="As --rate, for each key."),
    click.option("--key-burst", type=int, metavar="N", help="As --burst, for each key."),
)


@command.command("set")
@click.argument("name", metavar="LIMIT")
@value_options
@json_option
@store_options
def set_limit(
    name: str,
    concurrency: int | None,
    rate: tuple[int, float] | None,
    burst: int | None,
    key_concurrency: int | None,
    key_rate: tuple[int, float] | None,
    key_burst: int | None,
    as_json: bool,
    **option_values: Any,
) -> None:
    """Override values of a limit for all workers, until reset.

    A start of a worker does not change them. Running jobs continue: above a lower concurrency, no job starts until
    fewer run.
    """
    changes = LimitValues(
        *(concurrency, *(rate or (None, None)), burst), *(key_concurrency, *(key_rate or (None, None)), key_burst)
    )
    if changes == LimitValues():
        raise click.UsageError("name a value: --concurrency N, --rate N/PERIOD or --burst N")
    check_changes(read_limit(name), changes)

    async def change(store: QueueStore) -> tuple[bool, LimitValues]:
        has_changed = (await store.operate.set_limit(name, changes)).changed
        return has_changed, await _read_values(store, name)

    has_changed, values = with_store(settings_of(option_values).store, change)
    answer = ("set", f"in effect: {values}") if has_changed else ("unchanged", "it is already set so")
    show_answer(name, {"limit": name}, *answer, as_json=as_json)


@command.command("reset")
@click.argument("name", metavar="LIMIT")
@json_option
@store_options
def reset_limit(name: str, as_json: bool, **option_values: Any) -> None:
    """Remove the override of a limit: the values of its tasks hold again. End its hold by RateLimited."""

    async def reset(store: QueueStore) -> tuple[bool, LimitValues]:
        has_changed = (await store.operate.reset_limit(name)).changed
        return has_changed, await _read_values(store, name)

    has_changed, values = with_store(settings_of(option_values).store, reset)
    answer = ("reset", f"in effect: {values}") if has_changed else ("unchanged", "it has no override and no hold")
    show_answer(name, {"limit": name}, *answer, as_json=as_json)


key_arguments = with_options(
    click.argument("name", metavar="LIMIT"), click.argument("key", metavar="KEY"), json_option, store_options
)


@command.command("pause")
@key_arguments
def pause(name: str, key: str, as_json: bool, **option_values: Any) -> None:
    """Pause one key of a limit: its jobs do not start until resumed. Running jobs continue."""
    _change_key(name, key, lambda operator: operator.pause_serial, "paused", option_values, as_json=as_json)


@command.command("resume")
@key_arguments
def resume(name: str, key: str, as_json: bool, **option_values: Any) -> None:
    """Resume one key of a limit."""
    _change_key(name, key, lambda operator: operator.resume_serial, "resumed", option_values, as_json=as_json)


def _change_key(
    name: str,
    key: str,
    action: Callable[[Operator], Callable[[str], Awaitable[SerialChange]]],
    outcome: str,
    option_values: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    stored = read_serial(stored_key(read_limit(name), key))
    change = with_store(settings_of(option_values).store, lambda store: action(store.operate)(stored))
    subject = {"limit": name, "key": key}
    show_change(f"{name}: {key}", subject, outcome, has_changed=change.changed, as_json=as_json)


async def _read_values(store: QueueStore, name: str) -> LimitValues:
    """Return the values in effect. A reset limit that no task declares is gone."""
    return next((row.values for row in await store.inspect.limits() if row.name == name), LimitValues())


def _state(row: LimitRow) -> str:
    states = []
    if row.held_until is not None:
        states.append(f"held until {format_time(row.held_until)}")
    if row.is_full:
        states.append("full")
    if row.next_start is not None:
        states.append(f"starts at {format_time(row.next_start)}")
    return ", ".join(states) or "open"


def _used(row: LimitRow) -> str:
    return "" if row.values.concurrency is None else str(row.used)


LIMIT_COLUMNS: list[Column[LimitRow]] = [
    Column("name", "LIMIT"),
    Column("values", "IN EFFECT", lambda row: msgspec.structs.asdict(row.values), lambda row: str(row.values)),
    Column(heading="STATE", text=_state),
    Column("used", "USED", text=_used, is_right_aligned=True),
    Column("waiting", "WAITING", is_right_aligned=True),
    Column("due", "DUE", is_right_aligned=True),
    Column(
        "declared",
        "DECLARED",
        lambda row: msgspec.structs.asdict(row.declared),
        lambda row: "" if row.override == LimitValues() else str(row.declared),
    ),
    Column("override", value=lambda row: msgspec.structs.asdict(row.override)),
    Column("tasks", "TASKS", can_shrink=True),
    Column("used_by"),
    Column("used_since"),
    Column("next_start"),
    Column("held_until"),
]
