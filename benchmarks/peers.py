"""Stowhand and its peers, side by side, in one run: python benchmarks/peers.py --help

Every measurement goes round the contenders (A B C, A B C, …), so that what else the machine does falls on all of them.
Ratios are what counts: absolute figures move with the machine.
"""

from __future__ import annotations

import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import click

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.contenders import POSTGRES, SQLITE, STATE, Contender, install  # noqa: E402
from benchmarks.course import Course, Finding, go_round  # noqa: E402
from benchmarks.grounds import FileGround, Ground, PostgresGround  # noqa: E402
from benchmarks.report import ON_SQLITE, QUEUES, Report, save  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

MEASURES = ("one", "many", "drain", "latency", "idle", "start", "costs")
FAMILIES = ("graphile", "graphile-13", "pgqueuer", "procrastinate", "huey")


@click.command()
@click.option("--sqlite", is_flag=True, help="On SQLite files, against huey, instead of on a PostgreSQL server.")
@click.option("--only", default=",".join(MEASURES), show_default=True, help="Measurements, separated by commas.")
@click.option(
    "--peers", default="graphile,graphile-13,pgqueuer,huey", show_default=True, help=f"Of: {', '.join(FAMILIES)}"
)
@click.option("--runs", default=3, show_default=True)
@click.option("--jobs", default=60_000, show_default=True, help="The backlog that is drained.")
@click.option("--many", default=100_000, show_default=True, help="Jobs enqueued in bulk.")
@click.option("--one", default=2_000, show_default=True, help="Jobs enqueued one by one.")
@click.option("--samples", default=200, show_default=True, help="Jobs sent to an idle worker.")
@click.option("--counted", default=20_000, show_default=True, help="Jobs whose costs are counted.")
@click.option("--window", default=30.0, show_default=True, help="Seconds of idleness that are watched.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(sqlite: bool, only: str, peers: str, runs: int, file: Path | None, **sizes: float) -> None:
    """Measure Stowhand and its peers, and hold the ratios against the targets."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    wanted, families = _chosen(only, MEASURES), {"stowhand", *_chosen(peers, FAMILIES)}
    among = [one for one in (SQLITE if sqlite else POSTGRES) if one.family in families]
    there = install({one.family for one in among})
    contenders = [one for one in among if one.family in there]
    with ExitStack() as stack:
        courses = list(_courses(contenders, stack, sqlite=sqlite))
        report = Report(ON_SQLITE if sqlite else QUEUES)
        for name, measure in _measurements(wanted, sizes):
            go_round(name, measure, [one for one in courses if name in one.contender.measures], runs, report)
    click.echo("\n".join(report.lines()))
    save(report.runs, file)


def _measurements(
    wanted: list[str], sizes: dict[str, float]
) -> Iterator[tuple[str, Callable[[Course], Iterator[Finding]]]]:
    for name in wanted:
        match name:
            case "one":
                yield name, lambda course: course.one(int(sizes["one"]))
            case "many":
                yield name, lambda course: course.many(int(sizes["many"]))
            case "drain":
                yield name, lambda course: course.drain(1, int(sizes["jobs"]))
                yield name, lambda course: course.drain(2, int(sizes["jobs"]))
            case "latency":
                yield name, lambda course: course.latency(int(sizes["samples"]))
            case "idle":
                yield name, lambda course: course.idle(sizes["window"])
            case "start":
                yield name, lambda course: course.start()
            case "costs":
                yield name, lambda course: course.costs(int(sizes["counted"]))


def _courses(contenders: list[Contender], stack: ExitStack, *, sqlite: bool) -> Iterator[Course]:
    """Return a course for each contender on its own ground. All are removed with the exit stack."""
    STATE.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=STATE))
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    server = None if sqlite else stack.enter_context(_server())
    click.echo(_heading(server), err=True)
    for number, contender in enumerate(contenders):
        ground: Ground = (
            FileGround(scratch / f"{number}.db") if server is None else PostgresGround(server.create_database(), server)
        )
        probes = Path(tempfile.mkdtemp(prefix="stowhand-bench-"))
        stack.callback(shutil.rmtree, probes, ignore_errors=True)
        yield Course(contender, ground, probes)


def _server() -> PostgresServer:
    """Start one durable server for all, with default settings except a cache large enough for the data."""
    return PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB")


def _heading(server: PostgresServer | None) -> str:
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    where = "SQLite" if server is None else f"PostgreSQL {server.version}, fsync on, one server for all"
    return f"Python {platform.python_version()}, Node {done.stdout.strip()}; {where}\n"


def _chosen(text: str, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if strange := [name for name in names if name not in known]:
        raise click.UsageError(f"there is no {', '.join(strange)}; there are: {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
