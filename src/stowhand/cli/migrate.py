"""``stowhand migrate``: install or upgrade the store's schema, or show what that would do."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import unopened
from stowhand.errors import SchemaTooNew
from stowhand.service.settings import StoreSettings
from stowhand.store import SchemaStatus


@click.command()
@click.option("--plan", is_flag=True, help="Only print the statements that would be run.")
@store_options
def command(plan: bool, **typed: Any) -> None:
    """Install the store's schema, or bring it up to this version. Does nothing when it is."""
    store = settings_of(typed).store
    if plan:
        _print_plan(asyncio.run(read_plan(store)))
    else:
        click.echo(asyncio.run(migrate(store)))


async def migrate(settings: StoreSettings) -> str:
    """Bring the schema up to this version; what was done, in a sentence. Raises SchemaTooNew."""
    async with unopened(settings) as store:
        before = await store.status()
        refuse_breaking(before)
        if before.installed is not None and before.installed >= before.expected:
            return f"Nothing to do: the schema has number {before.installed}."
        after = await store.install()
    if before.installed is None:
        return f"Installed the schema, number {after.installed}."
    return f"Upgraded the schema from number {before.installed} to {after.installed}."


async def read_plan(settings: StoreSettings) -> str:
    """The statements, without running them."""
    async with unopened(settings) as store:
        refuse_breaking(await store.status())
        return await store.plan()


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
