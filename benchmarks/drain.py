"""Processor microseconds of a worker for each job: python benchmarks/drain.py --help

Processor time (user and system) of worker processes per job that does nothing, and of the server's, from one job early
in the drain to one near its end: neither the start nor the end of a process counts. ``--side`` names another checkout
with its own ``.venv``; sides take turns, and what counts is their ratio.

What a new thing costs where nobody uses it (middleware, progress, the rules of a task) is this drain, for its task
declares none of them: ``--side BEFORE --least 0.99`` fails where a job has become dearer than that.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psutil

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

HERE = Path(__file__).parents[1]
TASKS = """\
import os, resource, time
from stowhand import App

app = App()
FIRST, LAST, FILE = (int(os.environ["DRAIN_FIRST"]), int(os.environ["DRAIN_LAST"]), os.environ["DRAIN_FILE"])
seen = 0


def note():
    spent = resource.getrusage(resource.RUSAGE_SELF)
    with open(f"{FILE}.{os.getpid()}", "a") as file:
        file.write(f"{seen} {time.monotonic()} {spent.ru_utime} {spent.ru_stime}\\n")


HANDLER:
    global seen
    seen += 1
    if seen == FIRST or seen == LAST:
        note()


async def fill(count):
    async with app:
        await app.enqueue_many(noop.new_job(number=number) for number in range(count))
"""
KINDS = {
    "async": '@app.task(name="noop")\nasync def noop(number: int = 0)',
    "thread": '@app.task(name="noop")\ndef noop(number: int = 0)',
}


def drain(side: Path, url: str, place: Path, *, jobs: int, processes: int, postmaster: int) -> tuple[float, ...]:
    """Return jobs per second, and microseconds of the workers and of the server for each job."""
    share = jobs // processes
    environment = {
        **os.environ,
        "STOWHAND_CONNECTION": url,
        "PYTHONPATH": f"{side}/src:{place}",
        "DRAIN_FIRST": str(share // 20),
        "DRAIN_LAST": str(share - share // (20 if processes == 1 else 4)),
        "DRAIN_FILE": str(place / "noted"),
    }
    python = str(side / ".venv" / "bin" / "python")
    fill = [python, "-c", f"import asyncio, drain_tasks; asyncio.run(drain_tasks.fill({jobs}))"]
    subprocess.run(fill, env=environment, check=True)
    for file in place.glob("noted.*"):
        file.unlink()
    command = [python, "-m", "stowhand.cli", "worker", "--app", "drain_tasks:app", "--jobs", "24"]
    command += ["--history", "none", "--log-level", "error", "--once"]
    before, began = _spent(postmaster), time.monotonic()
    workers = [subprocess.Popen(command, env=environment) for _ in range(processes)]
    after = before
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.05)
        after = max(after, _spent(postmaster))
    assert not any(worker.returncode for worker in workers), time.monotonic() - began
    rates, micros = 0.0, []
    for file in place.glob("noted.*"):
        lines = [[float(word) for word in line.split()] for line in file.read_text().splitlines()]
        if len(lines) == 2:
            (n0, t0, u0, s0), (n1, t1, u1, s1) = lines
            rates += (n1 - n0) / (t1 - t0)
            micros.append(1e6 * (u1 - u0 + s1 - s0) / (n1 - n0))
    return rates, statistics.mean(micros), 1e6 * (after - before) / jobs


@contextmanager
def _scratch(kind: str) -> Iterator[Path]:
    """Provide a folder with the module of the task."""
    with tempfile.TemporaryDirectory(prefix="stowhand-drain-") as folder:
        (Path(folder) / "drain_tasks.py").write_text(TASKS.replace("HANDLER", KINDS[kind]))
        yield Path(folder)


def _spent(postmaster: int) -> float:
    """Return the processor seconds of the server. Ended processes count with their parent."""
    server = psutil.Process(postmaster)
    total = 0.0
    for one in (server, *server.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
        if one.pid == postmaster:
            total += times.children_user + times.children_system
    return total


@click.command()
@click.option("--side", "sides", multiple=True, type=click.Path(path_type=Path), help="Another checkout.")
@click.option("--jobs", default=60_000, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--least", type=float, help="Fail where this checkout drains less than so many times what the first does."
)
@click.option("--kind", type=click.Choice(list(KINDS)), default="async", show_default=True, help="Of handler.")
def main(sides: tuple[Path, ...], jobs: int, processes: int, rounds: int, least: float | None, kind: str) -> None:
    """Drain in turns. Print medians, and the ratio to the first side in each round."""
    everybody = [*(side.resolve() for side in sides), HERE]
    found: dict[Path, list[tuple[float, ...]]] = {side: [] for side in everybody}
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB") as server, _scratch(kind) as place:
        urls = {side: server.create_database() for side in everybody}
        for side, url in urls.items():
            environment = {**os.environ, "STOWHAND_CONNECTION": url, "PYTHONPATH": f"{side}/src"}
            migrate = [str(side / ".venv" / "bin" / "python"), "-m", "stowhand.cli", "migrate"]
            subprocess.run(migrate, env=environment, check=True, capture_output=True)
        for number in range(rounds):
            for side in everybody if number % 2 == 0 else reversed(everybody):
                figures = drain(side, urls[side], place, jobs=jobs, processes=processes, postmaster=server.pid)
                found[side].append(figures)
                click.echo(f"{side!s:<40}" + "".join(f"{figure:>12,.1f}" for figure in figures), err=True)
    click.echo(f"{'':<40}{'jobs/s':>12}{'worker us':>12}{'server us':>12}")
    for side, runs in found.items():
        click.echo(f"{side!s:<40}" + "".join(f"{statistics.median(each):>12,.1f}" for each in zip(*runs, strict=True)))
    for side in everybody[1:]:
        ratios = [
            statistics.median(b[i] / a[i] for a, b in zip(found[everybody[0]], found[side], strict=True))
            for i in range(3)
        ]
        click.echo(f"{f'{side.name} / {everybody[0].name}':<40}" + "".join(f"{ratio:>12.3f}" for ratio in ratios))
        if side == HERE and least is not None and 1 / ratios[1] < least:
            raise click.ClickException(f"{1 / ratios[1]:.3f} of the first side's, by the worker's time; {least} asked")


if __name__ == "__main__":
    main()
