"""``stowhand migrate``: install or upgrade the store's schema, or show what that would do."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import unopened
from stowhand.errors import ConfigurationError, SchemaTooNew
from stowhand.queue_store import SchemaStatus
from stowhand.service.settings import StoreSettings


@click.command()
@click.option("--plan", is_flag=True, help="Only print the statements that would be run.")
@click.option("--roles", is_flag=True, help="PostgreSQL: also make the roles of least privilege, with their rights.")
@store_options
def command(plan: bool, roles: bool, **typed: Any) -> None:
    """Install the store's schema, or bring it up to this version. Does nothing when it is."""
    store = settings_of(typed).store
    if plan:
        _print_plan(asyncio.run(read_plan(store, roles=roles)))
    else:
        click.echo(asyncio.run(migrate(store, roles=roles)))


async def migrate(settings: StoreSettings, *, roles: bool = False) -> str:
    """Bring the schema up to this version; what was done, in a sentence. Raises SchemaTooNew."""
    _refuse_lent(settings)
    async with unopened(settings) as store:
        before = await store.status()
        refuse_breaking(before)
        current = before.installed is not None and before.installed >= before.expected
        if current and not roles:
            return f"Nothing to do: the schema has number {before.installed}."
        after = await store.install(roles=roles)
    if before.installed is None:
        done = f"Installed the schema, number {after.installed}."
    elif current:
        done = f"The schema has number {before.installed}."
    else:
        done = f"Upgraded the schema from number {before.installed} to {after.installed}."
    return f"{done}\n{_roles_made(settings.schema)}" if roles else done


def _roles_made(schema: str) -> str:
    from stowhand.stores.postgres.roles import role_names

    names = role_names(schema)
    return f"Its roles have their rights. Grant them to your logins: {', '.join(names.values())}."


def _refuse_lent(settings: StoreSettings) -> None:
    if settings.connection.is_lent:
        raise ConfigurationError(
            f"{settings.connection.url} only lends its jobs: its schema is made not over HTTP, but where"
            " 'stowhand serve' runs"
        )


async def read_plan(settings: StoreSettings, *, roles: bool = False) -> str:
    """The statements, without running them."""
    _refuse_lent(settings)
    async with unopened(settings) as store:
        refuse_breaking(await store.status())
        return await store.plan(roles=roles)


def refuse_breaking(status: SchemaStatus) -> None:
    """A newer schema that this version cannot work with is left alone."""
    if status.breaking:
        raise SchemaTooNew(
            f"the schema has number {status.installed}; this version of stowhand knows {status.expected}"
            " and cannot work with it: upgrade stowhand"
        )


def _print_plan(plan: str) -> None:
    if plan.strip():
        click.echo(plan.rstrip())
    else:
        click.echo("Nothing to do.", err=True)
