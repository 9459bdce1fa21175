"""``stowhand tokens``: make, list and revoke the tokens of workers that work over HTTP, and of the dashboard."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import click
import msgspec

from stowhand.app.settings.resolver import read_setting
from stowhand.app.settings.settings import SETTINGS
from stowhand.cli.columns import Column
from stowhand.cli.groups import Group
from stowhand.cli.input import ParsedText
from stowhand.cli.options import json_option
from stowhand.cli.replies import show_all
from stowhand.clock import wall_clock
from stowhand.errors import ConfigurationError, suggest
from stowhand.jobs import limits
from stowhand.jobs.durations import format_time, parse_duration
from stowhand.observe.safe_text import escape
from stowhand.remote.server.tokens import DEFAULT_FILE, TokenFile, TokenRecord, check_limits, new_token
from stowhand.remote.wire import Scope
from stowhand.service.exit_codes import FAILURE, OK

MAX_NAME_LENGTH = 128
MAX_COLUMN_NAME_LENGTH = 255


def _file(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[Path, bool]:
    del ctx, param
    named: str | None = read_setting("tokens", value)
    return Path(named or DEFAULT_FILE), bool(named)


tokens_option = click.option(
    "--tokens",
    callback=_file,
    metavar="FILE",
    help=f"The file of worker tokens.  [default: {DEFAULT_FILE}]  [env: {SETTINGS['tokens'].variables[0]}]",
)
"""Option for the file. Its value also says whether an option or a setting named the file."""
trust_from_option = click.option(
    "--trust-from",
    multiple=True,
    metavar="NETWORK",
    help="Network of a proxy whose X-Forwarded-For is trusted (127.0.0.1, 10.0.0.0/8); may be repeated.",
)


@click.group(cls=Group, name="tokens")
def command() -> None:
    """Make, list and revoke tokens of remote workers."""


def _scopes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    del ctx, param
    ids_or_names = [word.strip() for text in value for word in text.split(",") if word.strip()]
    unknown = [word for word in ids_or_names if word not in tuple(Scope)]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}{suggest(unknown[0], Scope)}")
    return tuple(scope.value for scope in Scope if scope in ids_or_names)


def _read_expiry(text: str) -> datetime | None:
    if text == "never":
        return None
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be longer than 0; or never")
    return wall_clock() + timedelta(seconds=seconds)


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    """Split names at commas, as ``stowhand worker --queue`` does."""
    return tuple(name.strip() for value in values for name in value.split(","))


@command.command("make")
@click.option("--name", required=True, help="Name of the holder, for the list and the audit.")
@click.option("--scope", multiple=True, default=("claim",), callback=_scopes, help=f"{', '.join(Scope)}.  [claim]")
@click.option("--task", multiple=True, help="Only this task (of a table: the store's name); repeat it or use commas.")
@click.option("--queue", multiple=True, help="Only this queue; repeat it or use commas.")
@click.option("--serial", multiple=True, help="Only this serial key, for enqueue and read; may be repeated.")
@click.option("--condition", multiple=True, metavar="COLUMN", help="A column that claims may compare; may be repeated.")
@click.option(
    "--expires",
    default="90d",
    show_default=True,
    type=ParsedText(_read_expiry),
    help="Time until it expires, or never.",
)
@tokens_option
def make(
    name: str,
    scope: tuple[str, ...],
    task: tuple[str, ...],
    queue: tuple[str, ...],
    serial: tuple[str, ...],
    condition: tuple[str, ...],
    expires: datetime | None,
    tokens: tuple[Path, bool],
) -> None:
    """Make a token and print it once: only its hash is stored."""
    limits.check_name("name", name, MAX_NAME_LENGTH)
    task, queue = _names(task), _names(queue)
    for option, names, limit in (
        ("--task", task, limits.MAX_TASK_CHARACTERS),
        ("--queue", queue, limits.MAX_QUEUE_CHARACTERS),
        ("--serial", serial, limits.MAX_SERIAL_CHARACTERS),
        ("--condition", condition, MAX_COLUMN_NAME_LENGTH),
    ):
        for limited_name in names:
            limits.check_name(option, limited_name, limit)
    if not scope:
        raise ConfigurationError(f"--scope: no scope given; available: {', '.join(Scope)}")
    token, token_id, sha256 = new_token()
    record = TokenRecord(
        id=token_id,
        name=name,
        sha256=sha256,
        scopes=scope,
        tasks=task or None,
        queues=queue or None,
        serials=serial or None,
        conditions=condition,
        made=wall_clock(),
        expires=expires,
    )
    check_limits(record)
    TokenFile(tokens[0]).change(lambda known: (*known, record))
    click.echo(token)
    until = f"until {format_time(record.expires)}" if record.expires is not None else "without an expiry"
    click.echo(f"Token {token_id} ({escape(name)}) for {', '.join(scope)}, {until}. It is not shown again.", err=True)


@command.command("list")
@json_option
@tokens_option
def list_tokens(as_json: bool, tokens: tuple[Path, bool]) -> None:
    """List all tokens, including expired and revoked ones."""
    show_all(TokenFile(tokens[0]).read(), f"No tokens in {tokens[0]}.", token_columns(wall_clock()), as_json=as_json)


def token_columns(now: datetime) -> list[Column[TokenRecord]]:
    """Return the columns of tokens, without their hashes."""
    return [
        Column("id", "ID"),
        Column("name", "NAME"),
        Column("standing", "STANDING", lambda token: token.standing(now)),
        Column(
            "expires", "EXPIRES", text=lambda token: "never" if token.expires is None else format_time(token.expires)
        ),
        Column("scopes", "SCOPES"),
        Column(heading="LIMITS", text=_limits),
        *map(Column, ("tasks", "queues", "serials", "conditions", "made", "revoked")),
    ]


def _limits(record: TokenRecord) -> str:
    kinds = (
        *(("task", record.tasks), ("queue", record.queues)),
        *(("serial", record.serials), ("condition", record.conditions)),
    )
    return ", ".join(f"{kind} {name}" for kind, names in kinds for name in names or ())


@command.command("revoke")
@click.argument("ids_or_names", metavar="ID|NAME...", nargs=-1, required=True)
@tokens_option
def revoke(ids_or_names: tuple[str, ...], tokens: tuple[Path, bool]) -> int:
    """Revoke tokens by id, or all of one name.

    A running server refuses them at once.
    """
    found_names: set[str] = set()

    def revoke_if_named(record: TokenRecord) -> TokenRecord:
        matches = {record.id, record.name} & set(ids_or_names)
        found_names.update(matches)
        return msgspec.structs.replace(record, revoked=wall_clock()) if matches and record.revoked is None else record

    TokenFile(tokens[0]).change(lambda known: tuple(map(revoke_if_named, known)))
    for word in ids_or_names:
        if word in found_names:
            click.echo(f"Revoked {escape(word)}")
        else:
            click.echo(f"error: there is no token {escape(word)}; stowhand tokens list shows all", err=True)
    return OK if found_names >= set(ids_or_names) else FAILURE
