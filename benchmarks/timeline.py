"""Timeline of one job, from the enqueue call to its handler: python benchmarks/timeline.py --help

One idle worker in another process, one job after another. What goes over each connection is libpq's own trace
(PQtrace), with its time; call, return and the first line of the handler are read from the same clock. The trace costs a
few microseconds a message. Milliseconds, p10, p50 and p99 of each gap: p10 is hardly touched by what else the machine
does. Without fsync only the processors' part is left.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import psycopg

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from benchmarks.report import by_column, save  # noqa: E402
from stowhand import App  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

FOLDER = Path(os.environ.get("TIMELINE_FOLDER", "."))
STARTED_FILE = FOLDER / "begun"
WARM_UP_JOBS = 20
"""Jobs before those that count: statements are prepared, caches are warm."""
GAPS = (
    "call -> insert sent",
    "insert sent -> commit answered",
    "commit answered -> call returns",
    "insert sent -> notification read",
    "notification read -> claim sent",
    "claim sent -> claim answered",
    "claim answered -> first line",
    "call -> first line",
)


class Message(NamedTuple):
    """Message of the protocol, as a client saw it."""

    at: float
    connection: str
    sent: bool
    kind: str


def trace_connections(whose: str) -> None:
    """Trace every connection of this process from now on. The files are lines, flushed one by one."""
    connect = psycopg.AsyncConnection.connect.__func__  # type: ignore[attr-defined]

    async def traced(cls: type[psycopg.AsyncConnection[Any]], *given: Any, **options: Any) -> Any:
        connection = await connect(cls, *given, **options)
        name = f"{whose}.{options.get('application_name', '')}.{connection.pgconn.backend_pid}".replace("/", "_")
        connection.pgconn.trace(os.open(FOLDER / f"{name}.trace", os.O_CREAT | os.O_WRONLY, 0o600))
        return connection

    psycopg.AsyncConnection.connect = classmethod(traced)  # type: ignore[assignment, method-assign]


def messages(whose: str) -> list[Message]:
    """Return the messages of all connections of that process, in order."""
    found = []
    for file in FOLDER.glob(f"{whose}.*.trace"):
        for line in file.read_text(errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) >= 4 and fields[1] in "FB":
                at = datetime.fromisoformat(fields[0]).timestamp()
                found.append(Message(at, file.stem, fields[1] == "F", fields[3].strip()))
    return sorted(found)


app = App()


@app.task(name="mark")
async def mark(number: int) -> None:
    """Task whose first line ends the timeline."""
    at = time.time()
    with STARTED_FILE.open("a") as file:
        file.write(f"{number} {at!r}\n")


if os.environ.get("TIMELINE_ROLE") == "worker":
    trace_connections("worker")


async def enqueue(url: str, jobs: int) -> list[tuple[float, float]]:
    """Enqueue each job after the previous one has started and a pause. Return when each call began and ended."""
    trace_connections("caller")
    calls = []
    async with App(url) as caller:
        for number in range(-WARM_UP_JOBS, jobs):
            called = time.time()
            await caller.add_job("mark", {"number": number})
            calls.append((called, time.time()))
            await _begun(number)
            await asyncio.sleep(0.02 + 0.03 * (number * 0.6180339887 % 1))
    return calls[WARM_UP_JOBS:]


async def _begun(number: int) -> None:
    deadline = time.monotonic() + 30
    while f"{number} " not in STARTED_FILE.read_text()[-40:]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {number} did not begin within 30 s")
        await asyncio.sleep(0.002)


def gaps(calls: list[tuple[float, float]]) -> Iterator[tuple[tuple[float, ...], list[str]]]:
    """Return the gaps of each job in the order of GAPS, and what the worker sent between notification and claim."""
    begun = dict(line.split() for line in STARTED_FILE.read_text().splitlines())
    caller, worker = messages("caller"), messages("worker")
    for number, (called, returned) in enumerate(calls):
        first = float(begun[str(number)])
        mine = [m for m in caller if called <= m.at <= returned]
        sent = next(m.at for m in mine if m.sent)
        committed = max(m.at for m in mine if not m.sent)
        theirs = [m for m in worker if called <= m.at <= first]
        heard = next((m.at for m in theirs if m.kind == "NotificationResponse"), None)
        answered = max((m for m in theirs if not m.sent and m.kind == "DataRow"), default=None)
        if heard is None or answered is None:
            continue  # a poll came first
        of_claim = [m for m in theirs if m.connection == answered.connection and m.sent and m.at < answered.at]
        asked = max(m.at for m in of_claim if m.kind in ("Bind", "Query", "Parse"))
        others = [f"{m.connection.split('.')[1]}: {m.kind}" for m in theirs if m.sent and m.at < asked]
        yield (
            (
                sent - called,
                committed - sent,
                returned - committed,
                heard - sent,
                asked - heard,
                answered.at - asked,
                first - answered.at,
                first - called,
            ),
            others,
        )


@click.command()
@click.option("--jobs", default=1000, show_default=True)
@click.option("--slots", default=24, show_default=True, help="Jobs at once of the worker: --jobs of its own.")
@click.option("--fsync/--no-fsync", default=True, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(jobs: int, slots: int, *, fsync: bool, file: Path | None) -> None:
    """Print the table."""
    with PostgresServer(find_postgres()[0], durable=fsync, shared_buffers="256MB") as server:
        url = server.create_database()
        environment = {**os.environ, "STOWHAND_CONNECTION": url, "TIMELINE_ROLE": "worker"}
        program = [sys.executable, "-m", "stowhand.cli"]
        root = Path(__file__).parents[1]
        subprocess.run([*program, "migrate"], env=environment, check=True, capture_output=True)
        command = [*program, "worker", "--app", "benchmarks.timeline:app", "--jobs", str(slots), "--log-level", "error"]
        STARTED_FILE.touch()
        worker = subprocess.Popen(command, env=environment, cwd=root)
        try:
            calls = asyncio.run(enqueue(url, jobs))
        finally:
            worker.terminate()
            worker.wait()
    found = list(gaps(calls))
    click.echo(
        f"{len(found)} of {jobs} jobs came by a notification; milliseconds\n{'':<36}{'p10':>8}{'p50':>8}{'p99':>8}"
    )
    rows: dict[str, list[list[float]]] = {}
    for place, name in enumerate(GAPS):
        each = sorted(1000 * one[place] for one, _ in found)
        low, middle, high = each[len(each) // 10], statistics.median(each), each[int(len(each) * 0.99)]
        click.echo(f"{name:<36}{low:>8.2f}{middle:>8.2f}{high:>8.2f}")
        rows[name] = [[low, middle, high]]
    save(by_column("timeline", ("p10, ms", "p50, ms", "p99, ms"), rows), file)
    ahead = Counter(tuple(others) for _, others in found)
    click.echo("\nwhat the worker sends between the call and its claim:")
    for others, count in ahead.most_common(5):
        click.echo(f"{count:>6}  {', '.join(others) or 'nothing'}")


if __name__ == "__main__":
    if "TIMELINE_FOLDER" in os.environ:
        main()
    else:
        with tempfile.TemporaryDirectory(prefix="stowhand-timeline-") as folder:
            again = subprocess.run(
                [sys.executable, *sys.argv], env={**os.environ, "TIMELINE_FOLDER": folder}, check=False
            )
        sys.exit(again.returncode)
