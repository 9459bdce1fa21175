"""``stowhand table list / show / retry / cancel``: records of a table of your own, and what people do with them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from stowhand.cli.job_views import answer_json, answer_line
from stowhand.cli.moments import say
from stowhand.cli.options import completing, connection_options, json_option
from stowhand.cli.screen import output_width
from stowhand.cli.table_target import named_options, of_key, target_options, with_table
from stowhand.cli.text_table import table
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.observe.safe_text import escape, escape_lines, telling_line
from stowhand.protocols.queue_store import Answer, Done
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.stores.table import TableStore
from stowhand.stores.table.record_view import LIVE, MOST, PAGE, ShownRecord

HEADINGS = ("ID", "STATE", "FAILURES", "RESETS", "DUE", "STARTED", "WORKER", "LAST ERROR")
TO_THE_RIGHT = ("ID", "FAILURES", "RESETS")
UNLIMITED = 200
"""Width where the output is no terminal."""

words_argument = click.argument("words", metavar="ID... [MODULE:NAME]", nargs=-1, required=True)


@click.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    metavar="STATE",
    help=f"{', '.join(State)}; may be repeated.  [default: {', '.join(LIVE)}]",
    shell_complete=completing(State),
)
@click.option("--after", metavar="ID", help="Only ids above this one.")
@click.option("--limit", type=click.IntRange(1, MOST), default=PAGE, show_default=True, help="How many at most.")
@target_options
@json_option
@connection_options
def list_records(states: tuple[str, ...], after: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """List records in the order of their ids: live and failed ones, unless --state says otherwise."""

    async def read(store: TableStore[Any]) -> list[ShownRecord]:
        await store.open()
        if after is None:
            return await store.records(*states, limit=limit)
        return await of_key(after, lambda key: store.records(*states, after=key, limit=limit))

    found = with_table(given, read)
    if as_json:
        for record in found:
            click.echo(record_json(record))
        return
    if not found:
        click.echo("No records.", err=True)
        return
    width = output_width() or UNLIMITED
    for line in table(HEADINGS, map(_cells, found), right=TO_THE_RIGHT, squeezed=("ID", "WORKER"), width=width):
        click.echo(line)
    if len(found) == limit:
        click.echo(f"There may be more: --after {escape(str(found[-1].id))}", err=True)


@click.command("show")
@click.argument("key", metavar="ID")
@target_options
@json_option
@connection_options
def show_record(key: str, as_json: bool, **given: Any) -> int:
    """Show one record as the table has it. Its log: stowhand table logs."""

    async def read(store: TableStore[Any]) -> ShownRecord | None:
        await store.open()
        return await of_key(key, store.look_up)

    record = with_table(given, read)
    if record is None:
        click.echo(f"error: there is no record {escape(key)}", err=True)
        return FAILURE
    click.echo(record_json(record) if as_json else _page(record))
    return OK


@click.command("retry")
@words_argument
@named_options
@json_option
@connection_options
def retry_records(words: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Make records due now, as if they had never been tried. Not while they run, and not when they are completed."""
    return _act(given, words, lambda store: store.retry_record, as_json=as_json)


@click.command("cancel")
@words_argument
@named_options
@json_option
@connection_options
def cancel_records(words: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Cancel records: waiting ones at once, running ones are asked to stop (by the column cancel)."""
    return _act(given, words, lambda store: store.cancel_record, as_json=as_json)


COMMANDS = (list_records, show_record, retry_records, cancel_records)


def record_json(record: ShownRecord) -> str:
    """One line. ASCII only, so that it may be looked at in a terminal as well."""
    return json.dumps(msgspec.to_builtins(record))


def _act(
    given: dict[str, Any],
    words: Sequence[str],
    verb: Callable[[TableStore[Any]], Callable[[JobId], Awaitable[Answer]]],
    *,
    as_json: bool,
) -> int:
    """Print each answer as it comes; 1 if any was refused or is missing. Without --table the last word is the table."""
    target, keys = (None, words) if given["table"] is not None else (words[-1], words[:-1])
    if not keys:
        raise click.UsageError("name the records, and the table: ID... MODULE:NAME, or ID... --table NAME")

    async def all_of_them(store: TableStore[Any]) -> int:
        code = OK
        await store.open()
        for key in keys:
            answer = await of_key(key, verb(store))
            click.echo(answer_json(answer) if as_json else answer_line(answer))
            if answer.done in (Done.REFUSED, Done.MISSING):
                code = FAILURE
        return code

    return with_table(given | {"target": target}, all_of_them)


def _cells(record: ShownRecord) -> tuple[str, ...]:
    return (
        str(record.id),
        record.state + " (cancel asked)" * (record.cancel and record.state == State.PROCESSING),
        str(record.num_failures),
        str(record.num_resets),
        _say(record.process_after) if record.state in (State.QUEUED, State.ERRORED) else "-",
        _say(record.started_at),
        record.worker or "-",
        telling_line(record.failure_message) if record.failure_message else "-",
    )


def _page(record: ShownRecord) -> str:
    """Every field on a line of its own; the message whole."""
    lines = []
    for name, value in msgspec.structs.asdict(record).items():
        text = escape_lines(value) if name == "failure_message" and value else escape(_say(value))
        lines.append(f"{name.replace('_', ' '):<20}{text}".rstrip())
    return "\n".join(lines)


def _say(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case datetime():
            return say(value)
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
