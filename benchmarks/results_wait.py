"""Cost and latency of waiting for results: python benchmarks/results_wait.py --help

latency    from the end of a job to the caller that waits for it, and from its enqueueing to its start: one worker
           process, one caller, one job after the other; the clock is the machine's. Then the same where worker and
           caller reach the store through `stowhand serve`
drain      jobs a second with nobody waiting, and while many processes wait for a thousand other jobs each
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from benchmarks.drain import HERE, _scratch, drain  # noqa: E402
from benchmarks.lent import _address  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

LATENCIES = 3
LATENCY = """\
import asyncio, sys, time
from stowhand import App, JobHandle

app = App()


@app.task
async def moments() -> tuple[float, float]:
    return time.time(), time.time()


async def ask(count):
    async with app:
        figures = [[], [], []]
        for number in range(count + 20):
            made = time.time()
            job = await app.handled.enqueue_awaited(moments.new_job())
            handle = JobHandle(job, app.handled, moments.definition.read_result)
            first, last = await handle.result()
            now = time.time()
            if number >= 20:
                for column, figure in zip(figures, (first - made, now - last, now - handle.finished_at.timestamp())):
                    column.append(figure)
            await asyncio.sleep(0.01)
        print(*(sorted(column)[count // 2] for column in figures))
"""
WAITERS = """\
import asyncio, sys
from stowhand import App, NewJob


async def fill(count):
    async with App() as app:
        await app.enqueue_many(NewJob(task="other", delay=3600) for _ in range(1000 * count))


async def wait(app, first):
    await app.open()
    poll = await app.handled.poll()
    ends = [asyncio.ensure_future(poll.end(job_id, 0)) for job_id in range(first, first + 1000)]
    await asyncio.sleep(1)
    return ends


async def main(first, count):
    apps = [App() for _ in range(count)]
    ends = [await wait(app, first + 1000 * number) for number, app in enumerate(apps)]
    print("ready", flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
"""


def latency(url: str, place: Path, jobs: int) -> list[float]:
    """Return median seconds: from enqueue to start, and to the caller from the handler's and from the recorded end."""
    (place / "moments_tasks.py").write_text(LATENCY)
    environment = {**os.environ, "STOWHAND_CONNECTION": url, "PYTHONPATH": f"{HERE}/src:{place}"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "stowhand.cli", "worker", "--app", "moments_tasks:app", "--log-level", "error"],
        env=environment,
    )
    try:
        ask = f"import asyncio, moments_tasks; asyncio.run(moments_tasks.ask({jobs}))"
        said = subprocess.run([sys.executable, "-c", ask], env=environment, check=True, capture_output=True, text=True)
    finally:
        worker.terminate()
        worker.wait()
    return [float(word) for word in said.stdout.split()]


@contextmanager
def lent(url: str, place: Path) -> Iterator[str]:
    """Provide the address of a server that lends the store, without tokens."""
    log = place / "serve.log"
    environment = {**os.environ, "PYTHONPATH": f"{HERE}/src"}
    with log.open("wb") as output:
        serving = subprocess.Popen(
            [sys.executable, "-m", "stowhand.cli", "serve", "-c", url, "--port", "0"],
            env=environment,
            cwd=place,
            stdout=output,
            stderr=output,
        )
        try:
            yield _address(log, serving)
        finally:
            serving.terminate()
            serving.wait()


class Waiters:
    """Listeners in several processes, each of which waits for a thousand jobs."""

    def __init__(self, url: str, place: Path, first: int, processes: int, each: int) -> None:
        """``first``: the id of the first of their jobs, which follow each other."""
        environment = {**os.environ, "STOWHAND_CONNECTION": url, "PYTHONPATH": f"{HERE}/src"}
        command = [sys.executable, str(place / "waiters.py")]
        self._processes = [
            subprocess.Popen(
                [*command, str(first + 1000 * each * number), str(each)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(processes)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def stop(self) -> None:
        """Stop the listeners. Their jobs stay."""
        for process in self._processes:
            process.kill()
            process.communicate()


@click.command()
@click.option("--jobs", default=40_000, show_default=True, help="Of a drain.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--listeners", default=50, show_default=True)
@click.option("--processes", default=50, show_default=True, help="That the listeners are divided among.")
def main(jobs: int, rounds: int, listeners: int, processes: int) -> None:
    """Print medians, and the ratio of each pair of drains."""
    with PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB") as server, _scratch("async") as place:
        url = server.create_database()
        migrate = [sys.executable, "-m", "stowhand.cli", "migrate"]
        subprocess.run(migrate, env={**os.environ, "STOWHAND_CONNECTION": url}, check=True, capture_output=True)
        with lent(url, place) as address:
            for where, how in [(url, "PostgreSQL"), (address, "HTTP")] * LATENCIES:
                begun, ended, recorded = (1e3 * figure for figure in latency(where, place, 300))
                click.echo(
                    f"{how:>10}, ms, medians of 300: enqueue to start {begun:.2f}; to the caller from the handler's end"
                    f" {ended:.2f}, from the recorded end {recorded:.2f}, {recorded / begun:.2f} of enqueue to start"
                )
        (place / "waiters.py").write_text(WAITERS)
        environment = {**os.environ, "STOWHAND_CONNECTION": url, "PYTHONPATH": f"{HERE}/src:{place}"}
        fill = f"import asyncio, waiters; asyncio.run(waiters.fill({listeners}))"
        subprocess.run([sys.executable, "-c", fill], env=environment, check=True)
        first = 2 * LATENCIES * 320 + 1  # after those of the latency
        ratios: list[tuple[float, float]] = []
        for number in range(rounds):
            figures: dict[bool, tuple[float, ...]] = {}
            for waits in (False, True) if number % 2 == 0 else (True, False):
                waiters = Waiters(url, place, first, processes, listeners // processes) if waits else None
                try:
                    figures[waits] = drain(HERE, url, place, jobs=jobs, processes=1, postmaster=server.pid)
                finally:
                    if waiters is not None:
                        waiters.stop()
            ratios.append((figures[True][0] / figures[False][0], sum(figures[False][1:]) / sum(figures[True][1:])))
            for waits, (rate, worker, side) in sorted(figures.items()):
                who = f"{listeners} wait" if waits else "nobody waits"
                click.echo(
                    f"{who:>14} {rate:>9,.0f}/s, {worker:.1f} us of the worker's a job, {side:.1f} of the server's"
                )
        rate, spent = (statistics.median(column) for column in zip(*ratios, strict=True))
        click.echo(f"medians of the ratios: rate {rate:.3f}, processor time {spent:.3f}")


if __name__ == "__main__":
    main()
