"""``stowhand table``: your own table as a queue: check it, print one, list its records and change them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from stowhand.app.own_store import DEFAULT_STORE_SOURCE
from stowhand.cli.columns import Column, fields, json_line, page
from stowhand.cli.groups import Group
from stowhand.cli.input import ParsedText, WordChoice, read_pair, with_options
from stowhand.cli.options import (
    completing,
    connection_options,
    json_option,
    limit_option,
    settings_of,
    table_run_options,
)
from stowhand.cli.replies import show_all, show_answers, show_one
from stowhand.cli.table_views import entry_object, log_page, sql_lines
from stowhand.errors import InvalidJob, a_type
from stowhand.jobs.durations import format_time
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.observe.safe_text import escape
from stowhand.protocols.queue_store import Answer
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.stores.table.ddl import DIALECTS, KEY_TYPES, DdlOptions, full_ddl
from stowhand.stores.table.names import TOKEN_COLUMN, read_shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.records import LIVE_STATES, ShownRecord
from stowhand.stores.table.store import TableStore
from stowhand.tasks.loader import load_object

T = TypeVar("T")

ids_and_target_argument = click.argument("arguments", metavar="ID... [MODULE:NAME]", nargs=-1, required=True)


def _columns(ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    del ctx, param
    columns = dict(pairs)
    if len(columns) < len(pairs):
        raise click.BadParameter("the same column twice")
    return columns


columns_option = click.option(
    "columns",
    "--column",
    multiple=True,
    type=ParsedText(read_pair),
    callback=_columns,
    metavar="DOCUMENTED=OWN",
    help=f"A column with another name, such as state=status; may be repeated. {TOKEN_COLUMN}=NAME: a separate column"
    " for the claim's token.",
)


named_options = with_options(
    click.option("--table", metavar="NAME", help="The table: jobs, app.jobs, '\"Jobs\"'. Instead of MODULE:NAME."),
    click.option("--view", metavar="NAME", help="The view that records are read from."),
    columns_option,
    click.option(
        "--unique-ids",
        is_flag=True,
        help="The ids are unique although no unique index guarantees it, as in a partitioned table.",
    ),
)
"""Options that name a table."""
target_options = with_options(click.argument("target", required=False, metavar="[MODULE:NAME]"), named_options)
"""The table: TARGET, or options that name it."""


@click.group(cls=Group, name="table")
def command() -> None:
    """Serve a table of your own: check it, print one, read logs."""


@command.command("check")
@target_options
@click.option("--sql", "only_sql", is_flag=True, help="Print only the statements.")
@json_option
@connection_options
def check_table(only_sql: bool, as_json: bool, **option_values: Any) -> int:
    """Compare a table and its view with what a worker needs. No row is changed.

    MODULE:NAME is a TableStore or a TableOptions of your program; or give --table. It reports all problems, each with
    the statement that fixes it. The output is SQL for the table's owner to review and run. It keeps the values of
    your columns: where a column does not fit, map a new one and check again.

    Exit code: 0 a worker can serve it (there may be advice), 1 it cannot, 3 the database cannot be reached.
    """
    findings = with_table(option_values, lambda store: store.check(), must_be_valid=False)
    for line in map(json_line, findings) if as_json else sql_lines(findings, only_sql=only_sql):
        click.echo(line)
    fatal = any(finding.fatal for finding in findings)
    if not fatal and not as_json:
        click.echo("A worker can serve it. The rest is advice." if findings else "A worker can serve it.", err=True)
    return FAILURE if fatal else OK


@command.command("ddl")
@click.argument("name")
@click.option("--view", metavar="NAME", help="Also print a view, to which you can add joins.")
@columns_option
@click.option("--key", type=WordChoice(KEY_TYPES), default="bigint", show_default=True, help="The type of the id.")
@click.option("--dialect", type=WordChoice(DIALECTS), default="postgres", show_default=True)
@click.option("--notify", is_flag=True, help="PostgreSQL: also a trigger that wakes workers (notify_channel).")
@click.option("--channel", metavar="NAME", help="With --notify: the channel.  [default: the table's name + _queued]")
@click.option("--if-not-exists", is_flag=True, help="Leave existing tables and indexes alone.")
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
    """Print the SQL that creates the table NAME.

    It includes the indexes that keep claims fast. You can add columns.

    It opens no database: pipe it into psql or sqlite3.
    """
    # Check the names as a store does, with the same errors.
    TableOptions(name=name, table_name=name, view_name=view, alternate_column_names=columns)
    shape = read_shape(name, view, columns, folds=dialect == "postgres")
    if channel is not None and not notify:
        raise click.UsageError("--channel needs --notify: use it too")
    notified = (channel or f"{shape.table.name}_queued") if notify else None
    plan = DdlOptions(shape=shape, dialect=dialect, key=key, channel=notified, if_not_exists=if_not_exists)
    click.echo(full_ddl(plan).rstrip())


@command.command("logs")
@click.argument("record_id", metavar="ID")
@target_options
@json_option
@connection_options
def show_logs(record_id: str, as_json: bool, **option_values: Any) -> int:
    """Show the log of the latest attempt of the record ID.

    It lists each command with its outcome and output.
    """

    async def read(store: TableStore[Any]) -> list[ExecutionLogEntry] | None:
        return await of_key(record_id, store.logs)

    entries = with_table(option_values, read)
    if entries is None:
        return show_one(entries, f"record {escape(record_id)}", str)
    if as_json:
        for number, entry in enumerate(entries, 1):
            click.echo(json_line(entry_object(number, entry)))
    elif entries:
        click.echo(log_page(entries))
    else:
        click.echo("Nothing has been logged.", err=True)
    return OK


@command.command("run")
@click.argument("target", metavar="MODULE:NAME")
@table_run_options
def run_workers(target: str, **option_values: Any) -> int:
    """Run a worker of your own table until it is stopped.

    MODULE:NAME is a Worker of your program, a list of workers and resetters, or a function without arguments that
    returns either; the default name is worker. The first Ctrl-C or SIGTERM lets running records finish, the second
    returns them.
    """
    from stowhand.service.table_run import run_table

    return run_table(target, settings_of(option_values).http)


@command.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=WordChoice([state.value for state in State]),
    metavar="STATE",
    help=f"{', '.join(State)}; may be repeated.  [default: {', '.join(LIVE_STATES)}]",
    shell_complete=completing(State),
)
@click.option("--after", metavar="ID", help="Only ids above this one.")
@limit_option
@target_options
@json_option
@connection_options
def list_records(states: tuple[str, ...], after: str | None, limit: int, as_json: bool, **option_values: Any) -> None:
    """List records by id: live and failed ones, or those of --state."""

    async def read(store: TableStore[Any]) -> list[ShownRecord]:
        if after is None:
            return await store.records(*states, limit=limit)
        return await of_key(after, lambda key: store.records(*states, after=key, limit=limit))

    rows = with_table(option_values, read)
    show_all(rows, "No records.", RECORD_COLUMNS, as_json=as_json)
    if len(rows) == limit and not as_json:
        click.echo(f"There may be more: --after {escape(str(rows[-1].id))}", err=True)


@command.command("show")
@click.argument("key", metavar="ID")
@target_options
@json_option
@connection_options
def show_record(key: str, as_json: bool, **option_values: Any) -> int:
    """Show one record of the table. Its log: stowhand table logs."""

    async def read(store: TableStore[Any]) -> ShownRecord | None:
        return await of_key(key, store.look_up)

    def show(record: ShownRecord) -> str:
        return json_line(fields(RECORD_COLUMNS, record)) if as_json else page(RECORD_COLUMNS, record)

    return show_one(with_table(option_values, read), f"record {escape(key)}", show)


@command.command("retry")
@ids_and_target_argument
@named_options
@json_option
@connection_options
def retry_records(arguments: tuple[str, ...], as_json: bool, **option_values: Any) -> int:
    """Make records due now, with all their attempts. Running and completed records are refused."""
    return _act(option_values, arguments, TableStore.retry_record, as_json=as_json)


@command.command("cancel")
@ids_and_target_argument
@named_options
@json_option
@connection_options
def cancel_records(arguments: tuple[str, ...], as_json: bool, **option_values: Any) -> int:
    """Cancel records; running ones receive a request to stop.

    Workers read the request from the column cancel.
    """
    return _act(option_values, arguments, TableStore.cancel_record, as_json=as_json)


def _act(
    option_values: dict[str, Any],
    arguments: Sequence[str],
    action: Callable[[TableStore[Any], JobId], Awaitable[Answer]],
    *,
    as_json: bool,
) -> int:
    """Print each answer. Return 1 if a record was refused or is missing.

    Without --table the last argument names the table.
    """
    target, keys = (None, arguments) if option_values["table"] is not None else (arguments[-1], arguments[:-1])
    if not keys:
        raise click.UsageError("name the records, and the table: ID... MODULE:NAME, or ID... --table NAME")

    async def act_on_all(store: TableStore[Any]) -> int:
        code = OK
        for key in keys:
            code = max(code, show_answers([await of_key(key, partial(action, store))], as_json=as_json))
        return code

    return with_table(option_values | {"target": target}, act_on_all)


def _state(record: ShownRecord) -> str:
    return f"{record.state} (cancel requested)" if record.cancel and record.state == State.PROCESSING else record.state


def _due(record: ShownRecord) -> str:
    return format_time(record.process_after) if record.state in (State.QUEUED, State.ERRORED) else "-"


LIST_COLUMNS: list[Column[ShownRecord]] = [
    Column("id", "ID", is_right_aligned=True, can_shrink=True),
    Column("state", "STATE", text=_state),
    Column("num_failures", "FAILURES", is_right_aligned=True),
    Column("num_resets", "RESETS", is_right_aligned=True),
    Column(heading="DUE", text=_due),
    Column("started_at", "STARTED"),
    Column("worker", "WORKER", can_shrink=True),
    Column("failure_message", "LAST ERROR", is_multiline=True, can_shrink=True),
]
_OTHER_FIELDS = [name for name in ShownRecord.__struct_fields__ if name not in {column.key for column in LIST_COLUMNS}]
RECORD_COLUMNS: list[Column[ShownRecord]] = [*LIST_COLUMNS[:-1], *map(Column, _OTHER_FIELDS), LIST_COLUMNS[-1]]


def with_table(
    option_values: dict[str, Any], operation: Callable[[TableStore[Any]], Awaitable[T]], *, must_be_valid: bool = True
) -> T:
    """Open the table, run the operation, close it. ``must_be_valid`` refuses a table that no worker can serve."""

    async def session() -> T:
        store = table_of(option_values)
        try:
            if must_be_valid:
                await store.open()
            return await operation(store)
        finally:
            await store.close()

    return asyncio.run(session())


def table_of(option_values: dict[str, Any]) -> TableStore[Any]:
    """Return the table that the options name. Raise ConfigurationError or UsageError."""
    target, name, view, columns = (
        option_values["target"],
        option_values["table"],
        option_values["view"],
        option_values["columns"],
    )
    has_unique_ids: bool = option_values["unique_ids"]
    settings = settings_of(option_values)
    connection = settings.store.connection
    if (target is None) == (name is None):
        raise click.UsageError("name the table: MODULE:NAME (a TableStore or TableOptions), or --table NAME")
    if target is not None and (view is not None or columns or has_unique_ids):
        raise click.UsageError(f"{target} already names its view and columns; omit --view, --column and --unique-ids")
    if target is None:
        options: Any = TableOptions(
            name=name, table_name=name, view_name=view, alternate_column_names=columns, unique_ids=has_unique_ids
        )
    else:
        options = load_object(target, object, default="store")
    if isinstance(options, TableStore):
        if option_values["connection"] is not None:
            raise click.UsageError(f"{target} is a TableStore, which already names its database; omit -c")
        return options
    if not isinstance(options, TableOptions):
        raise click.UsageError(f"{target!r}: {a_type(options)}, not a TableStore or TableOptions")
    if connection.source == DEFAULT_STORE_SOURCE:
        raise click.UsageError("name the database: -c postgresql://…, -c sqlite:///file, or DATABASE_URL")
    if connection.note:
        click.echo(f"note: {connection.note}", err=True)
    return TableStore(settings.store.url, options)


async def of_key(key: str, operation: Callable[[JobId], Awaitable[T]]) -> T:
    """Run the operation with a key: as a number first, then as text, since a text key may look like a number.

    Raise InvalidJob if the table cannot have this key.
    """
    is_integer = key.removeprefix("-").isdecimal() and key.isascii()
    try:
        return await operation(int(key) if is_integer else key)
    except InvalidJob:
        if not is_integer:
            raise
        return await operation(key)
