"""``stowhand demo [PATH]``: real work on real files, with a worker killed in the middle."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from stowhand.app.own_store import UNNAMED, ResolvedStore
from stowhand.app.settings.settings import resolve_store_url
from stowhand.cli.demo.run import Demo, DemoResult, Progress
from stowhand.observe.safe_text import escape, fit, telling_line
from stowhand.service import exit_codes

BAR = 32


@click.command("demo")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path())
@click.option("-c", "--connection", metavar="STORE", help="Another store than a file in --state.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".state/demo"),
    show_default=True,
    help="Where the demo keeps its queue and its report.",
)
def command(path: Path, connection: str | None, state: Path) -> None:
    """Describe every file below PATH (here) with one job each, on two workers, one of which is killed.

    A few files fail first and are retried, one job is poison, one is scheduled a second ahead. The report is compared
    with a direct walk: nothing lost, nothing doubled.
    """
    state.mkdir(parents=True, exist_ok=True)
    store = _store(connection, state)
    click.echo(f"store: {store.scheme} ({store.source})   folder: {path.resolve()}")
    bar = _Bar()
    try:
        result = asyncio.run(Demo(path, store, state.resolve(), bar.show).run())
    finally:
        bar.end()
    _print(result)
    if result.problems:
        sys.exit(exit_codes.FAILURE)


def _store(connection: str | None, state: Path) -> ResolvedStore:
    """The database that was named (also by DATABASE_URL), in a schema of the demo's own; else a file of its own.

    The demo empties its store first, so an SQLite file that was named is never used itself: it may hold a queue in use.
    The demo's file is made beside it.
    """
    resolved = resolve_store_url(connection)
    if resolved.scheme != "sqlite":
        return resolved
    if resolved.source == UNNAMED:
        file, source = (state / "queue.db").resolve(), "the embedded default"
    else:
        named = Path(resolved.url.removeprefix("sqlite:///").partition("?")[0])
        file, source = named.absolute().with_name("stowhand_demo.db"), f"beside {named.name}: {resolved.source}"
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    return ResolvedStore(f"sqlite:///{file}", source)


class _Bar:
    """A progress bar on a terminal; elsewhere a line at each quarter."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._quarter = 0

    def show(self, progress: Progress) -> None:
        share = progress.done / max(progress.total, 1)
        if self._terminal:
            filled = int(BAR * share)
            bar = "█" * filled + "·" * (BAR - filled)
            print(
                f"\r\x1b[2K{bar} {progress.done}/{progress.total}  {progress.note}", end="", file=sys.stderr, flush=True
            )
        elif int(share * 4) > self._quarter:
            self._quarter = int(share * 4)
            print(f"{progress.done}/{progress.total} jobs ended  {progress.note}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


def _print(result: DemoResult) -> None:
    click.echo(f"\n{'kind':<24}{'files':>8}{'lines':>10}{'longest':>9}{'bytes':>12}")
    for total in result.totals:
        click.echo(
            f"{fit(escape(total.kind), 23):<24}{total.files:>8}{total.lines:>10}{total.longest:>9}{total.size:>12}"
        )
    lines, size = sum(total.lines for total in result.totals), sum(total.size for total in result.totals)
    files = sum(total.files for total in result.totals)
    click.echo(f"{'all':<24}{files:>8}{lines:>10}{'':>9}{size:>12}\n")
    click.echo(f"jobs completed            {result.completed} of {result.files} files")
    click.echo(f"failed first, retried     {result.retried}")
    if result.waited is not None:
        click.echo(f"scheduled a second ahead  started {result.waited:.2f} s after it was added")
    for job in result.failed:
        click.echo(f"poison, failed at once    job {job.id}: {escape(telling_line(job.last_error or ''))}")
    click.echo(f"worker killed             {result.killed}; {result.came_back} jobs came back at once")
    click.echo(f"runs repeated by the kill {result.repeats} (each entered once)")
    if result.problems:
        for problem in result.problems:
            click.echo(f"WRONG: {escape(problem)}")
    else:
        click.echo(f"\nchecked against a direct walk: nothing lost, nothing doubled ({result.seconds:.1f} s)")
