"""``stowhand table``: a table of your own as a queue: check it, print one, read what an attempt has logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from stowhand.cli.groups import Group
from stowhand.cli.options import connection_options, settings_of
from stowhand.cli.table_views import entry_json, finding_json, log_page, mapping_text, script
from stowhand.errors import InvalidJob
from stowhand.execution_log import ExecutionLogEntry
from stowhand.observe.safe_text import escape
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.service.own_store import NOBODY
from stowhand.stores.table import Finding, TableOptions, TableStore
from stowhand.stores.table.ddl import DIALECTS, KEYS, Plan, full_ddl
from stowhand.stores.table.names import COLUMNS, TOKEN, read_shape
from stowhand.tasks.loading import load_object

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per line.")


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


def target_options(command: F) -> F:
    """Which table: TARGET, or options that say the same."""
    for decorate in reversed(
        (
            click.argument("target", required=False, metavar="[MODULE:NAME]"),
            click.option(
                "--table", metavar="NAME", help="The table: jobs, app.jobs, '\"Jobs\"'. Instead of MODULE:NAME."
            ),
            click.option("--view", metavar="NAME", help="The view that records are read from."),
            columns_option,
            click.option(
                "--unique-ids",
                is_flag=True,
                help="No two rows have the same id, although no unique index says so: for a partitioned table.",
            ),
        )
    ):
        command = decorate(command)
    return command


@click.group(cls=Group, name="table")
def command() -> None:
    """Serve a table of your own: check it, print one, read logs."""


@command.command("check")
@target_options
@click.option("--sql", "only_sql", is_flag=True, help="Print the statements alone.")
@json_option
@connection_options
def check_table(only_sql: bool, as_json: bool, **given: Any) -> int:
    """Compare a table and its view with what a worker needs. Touches no row.

    MODULE:NAME is a TableStore or a TableOptions of your program; or give --table. All troubles are told at once, each
    with the statement that mends it: what is printed is SQL, to be read and then run by the table's owner. What your
    columns hold stays: where one cannot serve a worker, the worker gets a new one, which the last line maps.

    Exit code: 0 a worker can serve it (there may be advice), 1 it cannot, 3 the database cannot be reached.
    """
    found, columns, locks = _with_table(given, _examine)
    for line in map(finding_json, found) if as_json else script(found, only_sql=only_sql, locks=locks):
        click.echo(line)
    if columns and not as_json:
        click.echo(("" if only_sql else "-- ") + mapping_text(columns), err=only_sql)
    fatal = any(finding.fatal for finding in found)
    if not fatal and not as_json:
        click.echo("A worker can serve it." + (" The rest is advice." if found else ""), err=True)
    return FAILURE if fatal else OK


async def _examine(store: TableStore[Any]) -> tuple[list[Finding], dict[str, str], bool]:
    """The findings, the columns as they will have to be mapped, and whether its statements wait for others."""
    found = await store.check()
    new = {documented: own for finding in reversed(found) for documented, own in finding.columns.items()}
    mapped = {**store.options.alternate_column_names, **new} if new else {}
    mapped = {documented: mapped[documented] for documented in (*COLUMNS, TOKEN) if documented in mapped}
    return found, mapped, not store.description.startswith("sqlite:")


@command.command("ddl")
@click.argument("name")
@click.option("--view", metavar="NAME", help="Also a view, for you to join to.")
@columns_option
@click.option("--key", type=click.Choice(KEYS), default="bigint", show_default=True, help="The type of the id.")
@click.option("--dialect", type=click.Choice(DIALECTS), default="postgres", show_default=True)
@click.option("--notify", is_flag=True, help="PostgreSQL: also a trigger that wakes workers (notify_channel).")
@click.option("--channel", metavar="NAME", help="With --notify: the channel.  [default: the table's name + _queued]")
@click.option("--if-not-exists", is_flag=True, help="Leave alone what there is.")
def print_ddl(
    name: str,
    view: str | None,
    columns: dict[str, str],
    key: str,
    dialect: str,
    notify: bool,
    channel: str | None,
    if_not_exists: bool,
) -> None:
    """Print the SQL that makes the table NAME, with the indexes that keep claims fast. Add columns of your own to it.

    Opens no database: pipe it into psql or sqlite3.
    """
    # Checked as for a store: the same names, the same complaints.
    TableOptions(name=name, table_name=name, view_name=view, alternate_column_names=columns)
    shape = read_shape(name, view, columns, folds=dialect == "postgres")
    if channel is not None and not notify:
        raise click.UsageError("--channel says where to notify: give --notify too")
    told = (channel or f"{shape.table.name}_queued") if notify else None
    plan = Plan(shape=shape, dialect=dialect, key=key, channel=told, if_not_exists=if_not_exists)
    click.echo(full_ddl(plan).rstrip())


@command.command("logs")
@click.argument("record_id", metavar="ID")
@target_options
@json_option
@connection_options
def show_logs(record_id: str, as_json: bool, **given: Any) -> int:
    """Show what the latest attempt of the record ID has logged: each command, how it ended, and what it said."""

    async def read(store: TableStore[Any]) -> list[ExecutionLogEntry] | None:
        await store.open()
        try:
            return await store.logs(int(record_id) if _is_whole(record_id) else record_id)
        except InvalidJob:
            if not _is_whole(record_id):
                raise
            return await store.logs(record_id)  # a key of text may look like a number

    entries = _with_table(given, read)
    if entries is None:
        click.echo(f"error: there is no record {escape(record_id)}", err=True)
        return FAILURE
    if as_json:
        for number, entry in enumerate(entries, 1):
            click.echo(entry_json(number, entry))
    elif entries:
        click.echo(log_page(entries))
    else:
        click.echo("Nothing has been logged.", err=True)
    return OK


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()


def _with_table(given: dict[str, Any], doing: Callable[[TableStore[Any]], Awaitable[T]]) -> T:
    """Find the table, do one thing, let its connections go."""

    async def session() -> T:
        store = _table(given)
        try:
            return await doing(store)
        finally:
            await store.close()

    return asyncio.run(session())


def _table(given: dict[str, Any]) -> TableStore[Any]:
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
    if connection.source == NOBODY:
        raise click.UsageError("name the database: -c postgresql://…, -c sqlite:///file, or DATABASE_URL")
    if connection.note:
        click.echo(f"note: {connection.note}", err=True)
    return TableStore(settings.store.url, options)
