"""Input of commands: option decorators, value types, and confirmation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stowhand.errors import hint

F = TypeVar("F", bound=Callable[..., Any])


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Combine several options into one decorator. Help lists them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class ParsedText(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no generic one
    """Option type whose value ``read`` makes from text. A ValueError becomes a usage error."""

    name = "text"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert text. A default is already a value."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class WordChoice(click.Choice):  # type: ignore[type-arg]  # click 8.1 has no generic one
    """Option type with a fixed list of words. An error suggests the nearest word."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(error.message.removesuffix(".") + hint(value, self.choices), param, ctx)


def read_pair(text: str) -> tuple[str, str]:
    """Return the two sides of ``name=value``. Raise ValueError."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError(f"{text!r}: write it with =, as in name=value")
    return name, value


def confirm_change(verb: str, number: int, states: str, which: str) -> bool:
    """Ask for confirmation. Call it outside a session, so that no connection waits for the user."""
    jobs = "job" if number == 1 else "jobs"
    try:
        is_confirmed = click.confirm(f"{verb} {number} {states} {jobs}{which}?", err=True)
    except click.Abort:
        click.echo("", err=True)
        is_confirmed = False
    if not is_confirmed:
        click.echo("Nothing was changed.", err=True)
    return is_confirmed
