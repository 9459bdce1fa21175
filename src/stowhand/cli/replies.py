"""Output of commands: lists, single records, and an answer for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from stowhand.cli.columns import Column, fields, json_line, table
from stowhand.observe.safe_text import escape
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.service.exit_codes import FAILURE, OK

T = TypeVar("T")


def show_all(
    rows: Sequence[T],
    empty_text: str,
    columns: Sequence[Column[T]],
    *,
    as_json: bool,
    encode: Callable[[T], Any] | None = None,
) -> None:
    """Print a line of JSON for each row, or a table. An empty table prints ``empty_text`` to stderr.

    ``encode`` returns the object of a row for JSON; by default the columns do.
    """
    if as_json:
        for row in rows:
            click.echo(json_line(fields(columns, row) if encode is None else encode(row)))
    elif rows:
        click.echo("\n".join(table(columns, rows)))
    else:
        click.echo(empty_text, err=True)


def show_one(record: T | None, name: str, show: Callable[[T], str]) -> int:
    """Print the record, or an error if there is none. Return the exit code."""
    if record is None:
        click.echo(f"error: there is no {name}", err=True)
        return FAILURE
    click.echo(show(record))
    return OK


def show_answers(answers: Iterable[Answer], *, as_json: bool) -> int:
    """Print each answer. Return 1 if a job was refused or is missing."""
    code = OK
    for answer in answers:
        name = "-" if answer.job_id is None else str(answer.job_id)
        show_answer(name, {"id": answer.job_id}, answer.result.value, answer.reason, as_json=as_json)
        if answer.result in (ActionResult.REFUSED, ActionResult.MISSING):
            code = FAILURE
    return code


def show_answer(name: str, subject: dict[str, Any], done: str, why: str, *, as_json: bool) -> None:
    """Print ``5: refused (it is running; cancel it instead)``, or the same as JSON.

    ``subject`` has the fields of the JSON object that identify the job, queue, task or serial key.
    """
    if as_json:
        click.echo(json_line({**subject, "done": done, "why": why}))
    else:
        click.echo(escape(f"{name}: {done} ({why})" if why else f"{name}: {done}"))
