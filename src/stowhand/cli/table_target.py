"""Which table a command is about, and a session with it: one thing is done, and its connections are let go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from stowhand.app.own_store import UNNAMED
from stowhand.cli.options import settings_of
from stowhand.cli.reading import with_options
from stowhand.errors import InvalidJob
from stowhand.jobs.lease import JobId
from stowhand.stores.table import TableOptions, TableStore
from stowhand.stores.table.names import TOKEN
from stowhand.tasks.loading import load_object

T = TypeVar("T")


def _pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    del ctx, param
    found: dict[str, str] = {}
    for pair in value:
        documented, equals, own = pair.partition("=")
        if not equals or not documented or not own:
            raise click.BadParameter(f"{pair!r}: write documented=own, as in state=status")
        if documented in found:
            raise click.BadParameter(f"{documented} is given twice")
        found[documented] = own
    return found


columns_option = click.option(
    "columns",
    "--column",
    multiple=True,
    callback=_pairs,
    metavar="DOCUMENTED=OWN",
    help=f"A column that has another name, as in state=status; may be repeated. {TOKEN}=NAME: one of its own for the"
    " claim's token.",
)


named_options = with_options(
    click.option("--table", metavar="NAME", help="The table: jobs, app.jobs, '\"Jobs\"'. Instead of MODULE:NAME."),
    click.option("--view", metavar="NAME", help="The view that records are read from."),
    columns_option,
    click.option(
        "--unique-ids",
        is_flag=True,
        help="No two rows have the same id, although no unique index says so: for a partitioned table.",
    ),
)
"""Which table, by options alone."""
target_options = with_options(click.argument("target", required=False, metavar="[MODULE:NAME]"), named_options)
"""Which table: TARGET, or options that say the same."""


def with_table(given: dict[str, Any], doing: Callable[[TableStore[Any]], Awaitable[T]]) -> T:
    """Find the table, do one thing, let its connections go."""

    async def session() -> T:
        store = table_of(given)
        try:
            return await doing(store)
        finally:
            await store.close()

    return asyncio.run(session())


def table_of(given: dict[str, Any]) -> TableStore[Any]:
    """Raises ConfigurationError, UsageError."""
    target, name, view, columns = given["target"], given["table"], given["view"], given["columns"]
    unique: bool = given["unique_ids"]
    settings = settings_of(given)
    connection = settings.store.connection
    if (target is None) == (name is None):
        raise click.UsageError("name the table: MODULE:NAME (a TableStore or TableOptions), or --table NAME")
    if target is not None and (view is not None or columns or unique):
        raise click.UsageError(f"{target} says which view and columns; leave --view and --column out")
    if target is None:
        options: Any = TableOptions(
            name=name, table_name=name, view_name=view, alternate_column_names=columns, unique_ids=unique
        )
    else:
        options = load_object(target, object, default="store")
    if isinstance(options, TableStore):
        if given["connection"] is not None:
            raise click.UsageError(f"{target} is a TableStore, which knows where its table is; leave -c out")
        return options
    if not isinstance(options, TableOptions):
        raise click.UsageError(f"{target!r}: a {type(options).__qualname__}, not a TableStore or TableOptions")
    if connection.source == UNNAMED:
        raise click.UsageError("name the database: -c postgresql://…, -c sqlite:///file, or DATABASE_URL")
    if connection.note:
        click.echo(f"note: {connection.note}", err=True)
    return TableStore(settings.store.url, options)


async def of_key(key: str, doing: Callable[[JobId], Awaitable[T]]) -> T:
    """Do it with a key as it was typed: a number, where the table's keys are numbers; a key of text may look like one.

    Raises InvalidJob for one that is no key of this table.
    """
    whole = key.removeprefix("-").isdecimal() and key.isascii()
    try:
        return await doing(int(key) if whole else key)
    except InvalidJob:
        if not whole:
            raise
        return await doing(key)
