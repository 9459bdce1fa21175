"""Cost and start latency of a job on a store lent over HTTP: python benchmarks/lent.py --help

PostgreSQL, `stowhand serve` and one worker process on this machine, without tokens. Beside rates: processor time of the
worker and of the server in between. `--beside` names another checkout, with its own `.venv`: both take turns.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psutil
import psycopg

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "src")]
sys.path = [
    place for place in sys.path if Path(place or ".").resolve() != HERE.parent
]  # its peers/ would hide a module

from benchmarks.probe import FOLDER, look  # noqa: E402
from benchmarks.report import by_column, save  # noqa: E402
from stowhand import App  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

COLUMNS = ("drain jobs/s", "worker us", "server us", "p50 ms", "p99 ms")


@click.command()
@click.option("--jobs", default=20_000, show_default=True, help="Of the drain.")
@click.option("--samples", default=200, show_default=True, help="Jobs one by one, from enqueue to start.")
@click.option("--slots", default=24, show_default=True, help="Jobs at once.")
@click.option("--runs", default=5, show_default=True, help="Rounds; the figures are medians.")
@click.option("--beside", type=click.Path(exists=True, path_type=Path), help="Another checkout, in turn with this one.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(jobs: int, samples: int, slots: int, runs: int, beside: Path | None, file: Path | None) -> None:
    """Measure each checkout. Print a line for each."""
    checkouts = {"stowhand": HERE.parents[1]} | ({"beside": beside.resolve()} if beside else {})
    found: dict[str, list[list[float]]] = {name: [] for name in checkouts}
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB") as server:
        urls = {name: server.create_database() for name in checkouts}
        for run in range(runs):
            for name in list(checkouts)[:: -1 if run % 2 else 1]:
                found[name].append(asyncio.run(_measure(checkouts[name], urls[name], jobs, samples, slots)))
    click.echo(f"{'':<10}" + "".join(f"{column:>14}" for column in COLUMNS))
    for name, rows in found.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        click.echo(f"{name:<10}" + "".join(f"{figure:>14,.4g}" for figure in medians))
    save(by_column("lent", COLUMNS, found), file)


async def _measure(checkout: Path, url: str, jobs: int, samples: int, slots: int) -> list[float]:
    app = App(url, history=None)

    @app.task(name="noop")
    async def noop(number: int = 0, sent: float = 0.0) -> None: ...

    await app.open(install=True)
    with tempfile.TemporaryDirectory() as folder, psycopg.connect(url, autocommit=True) as connection:
        probes = Path(folder, "probes")
        os.mkdir(probes)  # noqa: PTH102 - the loop has nothing else to do
        with _lent(checkout, url, slots, Path(folder, "log"), probes) as processes:
            await noop.enqueue()
            await _until(lambda: not _any(connection))
            for place in range(samples):
                await asyncio.sleep(0.004 + 0.02 * (place % 10) / 10)
                await noop.enqueue(place, time.monotonic())
            await _until(lambda: not _any(connection))
            before = [_cpu(one) for one in processes]
            await app.enqueue_many(noop.new_job(number) for number in range(jobs))
            began = time.monotonic()
            await _until(lambda: not _any(connection))
            seconds = time.monotonic() - began
            spent = [1e6 * (_cpu(one) - earlier) / jobs for one, earlier in zip(processes, before, strict=True)]
        delays = sorted(1000 * delay for delay in look(probes).delays[5:])
    await app.close()
    return [jobs / seconds, *spent[::-1], statistics.median(delays), delays[int(len(delays) * 0.99)]]


@contextmanager
def _lent(
    checkout: Path, url: str, slots: int, log: Path, probes: Path
) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """Run the server and a worker of it during the block."""
    python = checkout / ".venv" / "bin" / "python"
    program = [str(python if python.exists() else sys.executable), "-m", "stowhand.cli"]
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{HERE.parents[1]}", FOLDER: str(probes)}
    with log.open("wb") as output:
        serve = subprocess.Popen(
            [*program, "serve", "-c", url, "--port", "0"], env=environment, cwd=log.parent, stdout=output, stderr=output
        )
        worker = None
        try:
            address = _address(log, serve)
            working = ["worker", "--app", "benchmarks.noop:app", "-c", address, "--jobs", str(slots)]
            worker = subprocess.Popen(
                [*program, *working, "--log-level", "error"], env=environment, stdout=output, stderr=output
            )
            yield psutil.Process(serve.pid), psutil.Process(worker.pid)
        finally:
            for process in (worker, serve):
                if process is not None:
                    process.terminate()
                    process.wait(30)


def _address(log: Path, serve: subprocess.Popen[bytes]) -> str:
    """Return the address that the server prints."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and serve.poll() is None:
        if found := re.search(r"http://[\d.]+:\d+", log.read_text(errors="replace")):
            return found[0]
        time.sleep(0.02)
    raise click.ClickException(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _any(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    row = connection.execute("select exists (select from stowhand.live)").fetchone()
    return row is None or bool(row[0])


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        if time.monotonic() > deadline:
            raise click.ClickException("not done within 300 s")
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    main()
