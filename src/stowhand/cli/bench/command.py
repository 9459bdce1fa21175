"""``stowhand bench``: how fast is the store here?"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.resolver import resolve_store_url
from stowhand.app.settings.settings import StoreSettings
from stowhand.cli.bench.measure import Bench
from stowhand.cli.bench.plan import MEASURES, Plan, Row
from stowhand.cli.help import Command
from stowhand.cli.input import Choice
from stowhand.cli.session import remove_file
from stowhand.errors import ConfigurationError
from stowhand.observe.logs import configure_logging
from stowhand.observe.safe_text import scrub
from stowhand.protocols.store import StoreOptions

SCHEMA = "stowhand_bench"
WIDTH = 48
COUNT = click.IntRange(min=1)
DEFAULT = Plan()


@click.command("bench", cls=Command)
@click.option("-c", "--connection", metavar="STORE", help="As for every command; measured beside what is in use.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of a table.")
@click.option("--quick", is_flag=True, help="Rough figures in some seconds.")
@click.option("--only", "measures", multiple=True, type=Choice(MEASURES), help="These measurements. Repeatable.")
@click.option("--jobs", type=COUNT, help=f"The backlog to drain.  [default: {DEFAULT.jobs}]")
@click.option("--runs", type=COUNT, help=f"Repetitions; the median counts.  [default: {DEFAULT.runs}]")
@click.option("--concurrency", type=COUNT, help=f"Jobs at once in a process.  [default: {DEFAULT.concurrency}]")
def command(connection: str | None, as_json: bool, quick: bool, **chosen: Any) -> None:
    """Measure how fast the store is on this machine.

    It measures enqueueing, draining and starting.

    Works in a schema of its own (stowhand_bench), or in a file of its own beside the SQLite file, and removes it.
    """
    configure_logging("error", "text")
    plan = DEFAULT.quick() if quick else DEFAULT
    plan = msgspec.structs.replace(plan, **{name: value for name, value in chosen.items() if value})
    named = resolve_store_url(connection)
    if named.is_lent:
        raise ConfigurationError(
            f"{named.url} only lends its jobs: bench needs the store itself, by its own URL (postgresql://… or sqlite:///…)"
        )
    if not as_json:
        click.echo(_heading(named, plan))
    with _own_store(named) as store:
        asyncio.run(_measure(Bench(store, plan), as_json))


@contextmanager
def _own_store(named: ResolvedStore) -> Iterator[StoreSettings]:
    """A schema of its own in that database, or a file of its own in the folder of that file, removed afterwards."""
    options = StoreOptions(schema=SCHEMA, history=None)
    if named.scheme != "sqlite":
        yield StoreSettings(connection=named, options=options)
        return
    file = Path(named.url.removeprefix("sqlite:///").partition("?")[0]).absolute().with_name(f"{SCHEMA}.db")
    connection = ResolvedStore(f"sqlite:///{file}", named.source)
    try:
        yield StoreSettings(connection=connection, options=options)
    finally:
        remove_file(file)


async def _measure(bench: Bench, as_json: bool) -> None:
    async for row in bench.rows():
        click.echo(msgspec.json.encode(row).decode() if as_json else _line(row))


def _heading(named: ResolvedStore, plan: Plan) -> str:
    return (
        f"{scrub(named.url)} ({named.source})\n"
        f"Python {platform.python_version()}, {os.cpu_count()} cores; {plan.concurrency} jobs at once;"
        f" no history; medians of {plan.runs}\n"
    )


def _line(row: Row) -> str:
    runs = f"  ({', '.join(f'{run:,.0f}' for run in row.runs)})" if len(row.runs) > 1 else ""
    return f"{row.measure:<{WIDTH}}{row.value:>10,.6g} {row.unit}{runs}"
