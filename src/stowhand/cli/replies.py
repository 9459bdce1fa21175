"""What a command replies: all that it found, the one thing that was asked for, and what became of each request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import click

from stowhand.observe.safe_text import escape
from stowhand.protocols.queue_store import Answer, Done
from stowhand.service.exit_codes import FAILURE, OK

T = TypeVar("T")


def show_all(
    found: Sequence[T],
    nothing: str,
    lines: Callable[[Sequence[T]], Iterable[str]],
    encode: Callable[[T], str],
    *,
    as_json: bool,
) -> None:
    """A line of JSON for each; else a table of them, or a word on stderr that there are none."""
    if as_json:
        for one in found:
            click.echo(encode(one))
    elif found:
        click.echo("\n".join(lines(found)))
    else:
        click.echo(nothing, err=True)


def show_one(found: T | None, name: str, show: Callable[[T], str]) -> int:
    """It, or an error that there is no such thing. Returns the exit code."""
    if found is None:
        click.echo(f"error: there is no {name}", err=True)
        return FAILURE
    click.echo(show(found))
    return OK


def show_answers(answers: Iterable[Answer], *, as_json: bool) -> int:
    """Each as it comes; 1 if any was refused or is missing."""
    code = OK
    for answer in answers:
        click.echo(answer_json(answer) if as_json else answer_line(answer))
        if answer.done in (Done.REFUSED, Done.MISSING):
            code = FAILURE
    return code


def answer_line(answer: Answer) -> str:
    """``5: refused (it is running; cancel it instead)``"""
    job = escape(str(answer.job_id)) if answer.job_id is not None else "-"
    return f"{job}: {answer.done.value}" + (f" ({escape(answer.why)})" if answer.why else "")


def answer_json(answer: Answer) -> str:
    """The same for programs."""
    return json.dumps({"id": answer.job_id, "done": answer.done.value, "why": answer.why})
