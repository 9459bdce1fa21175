"""``stowhand migrate``: install or upgrade the store's schema, or show what that would do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from stowhand.app.settings.settings import StoreSettings
from stowhand.cli.help import Command
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import unopened
from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.observe.safe_text import escape, scrub
from stowhand.protocols.queue_store import require_part
from stowhand.protocols.validation import NO_DEFAULT_ATTEMPTS
from stowhand.service.exit_codes import FAILURE, OK

if TYPE_CHECKING:
    from stowhand.stores.postgres.queue.from_graphile import GraphileContents


@click.command(cls=Command)
@click.option("--plan", is_flag=True, help="Only print the statements that would be run.")
@click.option("--roles", is_flag=True, help="PostgreSQL: also create roles with least privilege.")
@click.option(
    "--default-attempts",
    type=int,
    metavar="N",
    help="PostgreSQL: default number of attempts of new jobs, also in SQL.  [new schema: 25]",
)
@click.option(
    "--from-graphile",
    metavar="SCHEMA",
    help="PostgreSQL: print what would be moved from this schema of graphile-worker; --yes moves it.",
)
@click.option("-y", "--yes", is_flag=True, help="With --from-graphile: move the jobs.")
@store_options
def command(
    plan: bool, roles: bool, default_attempts: int | None, from_graphile: str | None, yes: bool, **option_values: Any
) -> int:
    """Install or upgrade the store's schema.

    Nothing is changed if the schema has this version.

    Changes that other programs made to the schema's functions are reverted.
    """
    store = settings_of(option_values).store
    click.echo(f"Store: {scrub(store.connection.absolute_url)} ({store.connection.source})", err=True)
    if from_graphile is not None:
        if plan or default_attempts is not None:
            raise click.UsageError("--from-graphile goes with --roles and --yes alone")
        return asyncio.run(move_from_graphile(store, from_graphile, roles=roles, is_confirmed=yes))
    if yes:
        raise click.UsageError("--yes goes with --from-graphile")
    if plan:
        if default_attempts is not None:
            raise click.UsageError("--default-attempts changes a setting; --plan changes nothing")
        _print_plan(asyncio.run(read_plan(store, roles=roles)))
        return OK
    if default_attempts is not None:
        _check_attempts(store, default_attempts)
    click.echo(asyncio.run(migrate(store, roles=roles)))
    if default_attempts is not None:
        click.echo(asyncio.run(_set_attempts(store, default_attempts)))
    return OK


async def move_from_graphile(settings: StoreSettings, source_schema: str, *, roles: bool, is_confirmed: bool) -> int:
    """Move the jobs of a graphile-worker schema, or print what would be moved. Raise SchemaError."""
    if settings.connection.scheme != "postgresql":
        raise ConfigurationError(
            "--from-graphile moves jobs within one PostgreSQL database: name it (-c postgresql://…)"
        )
    from stowhand.stores.postgres.queue.store import PostgresStore

    async with unopened(settings) as store:
        assert isinstance(store, PostgresStore)
        move = store.from_graphile(source_schema)
        contents = await (move.move(roles=roles) if is_confirmed else move.look())
    own_schema, archived_schema = settings.options.schema, move.kept
    verb = "Moved" if is_confirmed else "Would move"
    click.echo(f"{verb} from schema {escape(source_schema)} to schema {escape(own_schema)}:")
    for line in _contents(contents):
        click.echo(f"  {line}")
    click.echo(f"The old schema {'is now called' if is_confirmed else 'would be called'} {escape(archived_schema)}.")
    for problem in contents.problems:
        click.echo(f"{escape(problem)}.", err=True)
    if not is_confirmed:
        click.echo(
            "Nothing was changed." if contents.problems else "Nothing was changed. Add --yes to do it.", err=True
        )
    return FAILURE if contents.problems else OK


def _contents(contents: GraphileContents) -> Iterator[str]:
    waiting = contents.jobs - contents.failed
    yield (
        f"{contents.jobs:,} jobs: {waiting:,} waiting ({contents.retried:,} of them were attempted),"
        f" {contents.failed:,} permanently failed;"
        f" {'with their ids' if contents.keeps_ids else 'with new ids, in their order'}"
    )
    yield f"{contents.keys:,} job keys, {contents.flagged:,} jobs with flags"
    yield f"{contents.queued:,} jobs of {contents.queues:,} named queues"
    yield f"{contents.items:,} crontab items, with their last ticks"


def _check_attempts(settings: StoreSettings, attempts: int) -> None:
    """Refuse an invalid number before anything is written."""
    limits.check_max_attempts(attempts)
    _refuse_remote(settings)
    if settings.connection.scheme != "postgresql" and settings.connection.app is None:
        raise ConfigurationError(NO_DEFAULT_ATTEMPTS)


async def _set_attempts(settings: StoreSettings, attempts: int) -> str:
    async with unopened(settings) as store:
        before = await store.schema.default_max_attempts()
        await require_part(store, "settings", store.settings).set_default_max_attempts(attempts)
    return f"A job enqueued without a number of attempts has {attempts} from now on (before: {before})."


async def migrate(settings: StoreSettings, *, roles: bool = False) -> str:
    """Upgrade the schema to this version. Return a sentence about what was done. Raise SchemaTooNew."""
    _refuse_remote(settings)
    async with unopened(settings) as store:
        before = await store.schema.status()
        is_current = before.installed is not None and before.installed >= before.expected and not before.breaking
        changes = await store.schema.foreign_changes() if is_current else []
        if is_current and not roles and not changes:
            return f"Nothing to do: the schema has number {before.installed}."
        after = await store.schema.install(roles=roles)
        unfixed = await store.schema.foreign_changes() if changes else []
    if changes:
        return "\n".join(_fixed_lines(changes, unfixed))
    if before.installed is None:
        text = f"Installed the schema, number {after.installed}."
    elif is_current:
        text = f"The schema has number {before.installed}."
    else:
        text = f"Upgraded the schema from number {before.installed} to {after.installed}."
    return f"{text}\n{_roles_text(settings.options.schema)}" if roles else text


def _fixed_lines(changes: Sequence[str], unfixed: Sequence[str]) -> Iterator[str]:
    yield (
        "The schema differed from this version: it was changed by hand or by another program, or an upgrade was"
        " interrupted."
    )
    for change in changes:
        yield f"  {change}: {'cannot be fixed here' if change in unfixed else 'fixed'}"


def _roles_text(schema: str) -> str:
    from stowhand.stores.postgres.queue.context import role_names

    names = role_names(schema)
    return f"Created the roles. Grant them to your logins: {', '.join(names.values())}."


def _refuse_remote(settings: StoreSettings) -> None:
    if settings.connection.is_lent:
        raise ConfigurationError(
            f"{settings.connection.url} only lends its jobs: its schema cannot be installed from here. Run this on a"
            " machine that reaches the store itself, with that store's own URL (postgresql://… or sqlite:///…)"
        )


async def read_plan(settings: StoreSettings, *, roles: bool = False) -> str:
    """Return the statements without running them."""
    _refuse_remote(settings)
    async with unopened(settings) as store:
        return await store.schema.plan(roles=roles)


def _print_plan(plan: str) -> None:
    if plan.strip():
        click.echo(plan.rstrip())
    else:
        click.echo("Nothing to do.", err=True)
