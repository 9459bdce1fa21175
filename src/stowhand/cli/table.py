"""``stowhand table``: a table of your own as a queue: check it, print one, look at records and act on them."""

from __future__ import annotations

from typing import Any

import click

from stowhand.cli import table_records
from stowhand.cli.groups import Group
from stowhand.cli.options import connection_options, json_option, settings_of, table_run_options
from stowhand.cli.table_target import columns_option, of_key, target_options, with_table
from stowhand.cli.table_views import entry_json, finding_json, log_page, mapping_text, script
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.observe.safe_text import escape
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.stores.table import Finding, TableOptions, TableStore
from stowhand.stores.table.ddl import DIALECTS, KEYS, Plan, full_ddl
from stowhand.stores.table.names import COLUMNS, TOKEN, read_shape


@click.group(cls=Group, name="table")
def command() -> None:
    """Serve a table of your own: check it, print one, look at its records."""


@command.command("check")
@target_options
@click.option("--sql", "only_sql", is_flag=True, help="Print the statements alone.")
@json_option
@connection_options
def check_table(only_sql: bool, as_json: bool, **given: Any) -> int:
    """Compare a table and its view with what a worker needs. Touches no row.

    MODULE:NAME is a TableStore or a TableOptions of your program; or give --table. All problems are reported at once,
    each with the statement that mends it: the output is SQL, for the table's owner to read and then run. Your columns
    keep what they hold: where one cannot serve a worker, the worker gets a new one, which the last line maps.

    Exit code: 0 a worker can serve it (there may be advice), 1 it cannot, 3 the database cannot be reached.
    """
    found, columns, locks = with_table(given, _examine)
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
    notified = (channel or f"{shape.table.name}_queued") if notify else None
    plan = Plan(shape=shape, dialect=dialect, key=key, channel=notified, if_not_exists=if_not_exists)
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
        return await of_key(record_id, store.logs)

    entries = with_table(given, read)
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


@command.command("run")
@click.argument("target", metavar="MODULE:NAME")
@table_run_options
def run_workers(target: str, **given: Any) -> int:
    """Run a worker of a table of your own until it is stopped.

    MODULE:NAME is a Worker of your program, a list of workers and resetters, or a function without arguments that gives
    either (the name may be left out: worker). With --processes each process imports the module itself, one that dies is
    replaced, and the first Ctrl-C or SIGTERM lets running records end, a second one hands them back.
    """
    from stowhand.service.table_run import TableRunOptions, run_table

    settings = settings_of(given)
    logged = (settings.log_level, settings.log_format)
    return run_table(TableRunOptions(target, settings.processes, settings.http, logged=logged))


for records_command in table_records.COMMANDS:
    command.add_command(records_command)
