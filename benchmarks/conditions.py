"""Cost of conditions, each compared with the plain case in one run: python benchmarks/conditions.py --help

The cases of a condition have a database each on one durable PostgreSQL and take turns, so that whatever else the
machine does falls on all. What counts is the ratio. Everything is started here, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.report import save  # noqa: E402
from benchmarks.sites import PostgresSite, Site, SqliteSite, install  # noqa: E402
from benchmarks.trials import (  # noqa: E402
    Sizes,
    Table,
    WorkerRuns,
    bare_naps,
    commit,
    cost_of_claims,
    hold_queue,
    start_and_stop,
)
from tests.support.binaries import PostgresBinaries, find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

NAMES = (
    "history",
    "analyzed",
    "waiting",
    "finished",
    "snapshot",
    "not_due",
    "foreign",
    "busy_queue",
    "queues",
    "committers",
    "start",
    "naps",
    "sqlite_waiting",
    "sqlite_naps",
)
GOAL_PREFIX = "first tier: measured; later "


class Conditions:
    """Conditions to measure: one for each method named in NAMES."""

    def __init__(self, server: PostgresServer, folder: Path, workers: WorkerRuns, table: Table, sizes: Sizes) -> None:
        self._server, self._folder = server, folder
        self._workers, self._table, self._sizes = workers, table, sizes

    async def history(self) -> None:
        """Keep completed jobs."""
        cases: dict[str, Site] = {"not kept": await self._postgres(), "kept": await self._postgres(history=True)}
        await self._drains("history", cases, GOAL_PREFIX + ">= 0.6x")

    async def analyzed(self) -> None:
        """Analyze the table while it is empty, so that the planner believes it is empty."""
        never, empty = await self._postgres(), await self._postgres()
        for _ in range(self._sizes.runs):
            for case, site in (("as just vacuumed", never), ("believed to be empty", empty)):
                if site is empty:
                    site.look_empty(self._sizes.serial)
                first = site.fill(self._sizes.serial, vacuum=site is never)
                await self._drain("analyzed", case, site, self._sizes.serial, first, "first tier: the same")

    async def waiting(self) -> None:
        """Let a million jobs wait, and drain the usual number of them."""
        few, many = await self._postgres(), await self._postgres()
        many.fill(self._sizes.million)
        await self._drains(
            "waiting", {"the backlog alone": few, "1M more": many}, GOAL_PREFIX + ">= 0.85x", until_gone=False
        )

    async def finished(self) -> None:
        """Fill the history with ten million rows. Both cases keep a history."""
        none, full = await self._postgres(history=True), await self._postgres(history=True)
        made = full.fill_history(self._sizes.finished, self._sizes.filling)
        cases: dict[str, Site] = {"empty history": none, f"{made / 1e6:g}M finished rows": full}
        await self._drains("finished", cases, GOAL_PREFIX + ">= 0.85x")

    async def snapshot(self) -> None:
        """Keep an old snapshot open, so that dead rows cannot be removed."""
        for case in ("no snapshot", "snapshot held"):
            site = await self._postgres()
            condition = nullcontext() if case == "no snapshot" else site.snapshot()
            found = await self._workers.sustain(site, self._sizes.jobs, self._sizes.held, condition)
            for number, (rate, cpu) in enumerate(found):
                since, until = (round(self._sizes.held * (number + more) / 6, 1) for more in (0, 1))
                when = f"snapshot: second {since:g} to {until:g}"
                self._table.add(
                    f"{when}, jobs/s", case, rate, GOAL_PREFIX + ">= 0.6x" if number == len(found) - 1 else ""
                )
                self._table.add(f"{when}, processor time, us a job", case, cpu)

    async def not_due(self) -> None:
        """Add a million more urgent jobs that are due tomorrow."""
        site = await self._postgres()
        site.fill(self._sizes.million, priority=-10, due_in=86_400)
        await self._obstructed("not_due", "1M not due", site)

    async def foreign(self) -> None:
        """Add a million earlier jobs of a task that this worker lacks."""
        site = await self._postgres()
        site.fill(self._sizes.million, task="somebody else's", due_in=-60)
        await self._obstructed("foreign", "1M of another task", site)

    async def busy_queue(self) -> None:
        """Add a million earlier jobs with one serial key, of which one runs."""
        site = await self._postgres()
        site.fill(self._sizes.million, serials=1, serial="busy", due_in=-60)
        await hold_queue(site)
        await self._obstructed("busy_queue", "1M behind a busy queue", site)

    async def serials(self) -> None:
        """Spread the jobs over ten thousand serial keys, or over ten, so that at most ten run at once."""
        ten, many = await self._postgres(), await self._postgres()
        names = max(self._sizes.serial // 2, 10)
        for _ in range(self._sizes.runs):
            for case, site, serials in (("10 queues", ten, 10), (f"{names} queues", many, names)):
                first = site.fill(self._sizes.serial, serials=serials)
                await self._drain("queues", case, site, self._sizes.serial, first, GOAL_PREFIX + ">= 0.5x")

    async def committers(self) -> None:
        """Enqueue from eight connections at once, each job in its own transaction."""
        site, measure = await self._postgres(), "committers: enqueue by 8 at once, jobs/s"
        bound = GOAL_PREFIX + ">= 0.8x"
        for _ in range(self._sizes.runs):
            rate = await commit(site, self._sizes.enqueued, notify=False)
            self._table.add(measure, "without notifications", rate, bound)
            self._table.add(measure, "notifying, nobody listens", await commit(site, self._sizes.enqueued))
            async with self._workers.idle(site):
                await asyncio.sleep(1.0)
                rate = await commit(site, self._sizes.enqueued)
                self._table.add(measure, "notifying a worker, idle", rate)
                rate = await commit(site, self._sizes.enqueued, delay=None)
                self._table.add(measure, "notifying a worker that does them", rate)

    async def start(self) -> None:
        """Start a worker, wait until it is ready, and stop it."""
        site = await self._postgres()
        for _ in range(self._sizes.runs * 3):
            bare, ready, ended = start_and_stop(site)
            self._table.add("start: ms", "bare Python, start to end", bare)
            self._table.add("start: ms", "start to ready", ready, GOAL_PREFIX + "<= 70 ms and Python's own")
            self._table.add("start: ms", "start to ready, less bare Python", ready - bare)
            self._table.add("start: ms", "told to end, to the end", ended)

    async def naps(self) -> None:
        """Run handlers of 10 ms, 100 at once: at most 10,000 a second are possible."""
        await self._naps("naps", await self._postgres(), self._sizes.jobs)

    async def sqlite_waiting(self) -> None:
        """Let ten times as many jobs wait, on SQLite with FULL."""
        few, many = await self._sqlite("few"), await self._sqlite("many")
        many.fill(9 * self._sizes.sqlite)
        cases: dict[str, Site] = {f"{self._sizes.sqlite} wait": few, f"{10 * self._sizes.sqlite} wait": many}
        await self._drains("sqlite_waiting", cases, "", jobs=self._sizes.sqlite, until_gone=False)

    async def sqlite_naps(self) -> None:
        """Run handlers of 10 ms, 100 at once, on SQLite with FULL."""
        await self._naps("sqlite_naps", await self._sqlite("naps"), self._sizes.jobs // 2)

    # -- courses that several conditions share ---------------------------------------------------

    async def _obstructed(self, name: str, case: str, site: PostgresSite) -> None:
        """Measure drains, and claims one by one."""
        plain = await self._postgres()
        await self._drains(name, {"nothing else": plain, case: site}, GOAL_PREFIX + "> 0.5x")
        for label, place in (("nothing else", plain), (case, site)):
            cost = await cost_of_claims(place, self._sizes.claims)
            self._table.add(f"{name}: the first claim of 100, ms", label, cost.first)
            self._table.add(f"{name}: a later claim of 100, ms", label, cost.later, GOAL_PREFIX + "< 2x")
            self._table.add(f"{name}: the slowest later claim of 100, ms", label, cost.slowest)
            self._table.add(f"{name}: a claim that finds nothing, ms", label, cost.empty)
            self._table.add(f"{name}: a claim that finds one job, ms", label, cost.single)
            self._table.add(f"{name}: next_due, ms", label, cost.next_due)

    async def _drains(
        self, name: str, cases: Mapping[str, Site], bound: str, *, jobs: int = 0, until_gone: bool = True
    ) -> None:
        jobs = jobs or self._sizes.jobs
        for _ in range(self._sizes.runs):
            for case, site in cases.items():
                first = site.fill(jobs)
                await self._drain(name, case, site, jobs, first if until_gone else None, bound)

    async def _drain(self, name: str, case: str, site: Site, jobs: int, first: int | None, bound: str) -> None:
        rate, cpu = await self._workers.drain(site, jobs, first)
        self._table.add(f"{name}: drain, jobs/s", case, rate, bound)
        self._table.add(f"{name}: processor time, us a job", case, cpu)

    async def _naps(self, name: str, site: Site, jobs: int) -> None:
        measure = f"{name}: 10 ms handlers, 100 at once, jobs/s"
        for _ in range(self._sizes.runs):
            self._table.add(measure, "all that there can be", 10_000, "first tier: >= 0.95x; later >= 0.98x")
            self._table.add(measure, "the event loop alone", await bare_naps(jobs // 3))
            site.fill(jobs, task="nap")
            rate, _ = await self._workers.drain(site, jobs, None, app="benchmarks.sites:app", slots=100)
            self._table.add(measure, "a worker", rate)
            self._table.add(
                f"{name}: slots busy (rate x real length / slots)", "a worker", rate * self._workers.lasted / 100
            )

    async def _postgres(self, *, history: bool = False) -> PostgresSite:
        site = PostgresSite(self._server.create_database(), history=history)
        await install(site)
        return site

    async def _sqlite(self, name: str) -> SqliteSite:
        site = SqliteSite(self._folder / f"{name}.db")
        await install(site)
        return site


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="One of the conditions; may be repeated.")
@click.option("--quick", is_flag=True, help="A twentieth of everything, once: whether it works, not how fast it is.")
@click.option("--postgres", type=int, metavar="MAJOR", help="That version, if it is installed, instead of 18.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(only: tuple[str, ...], quick: bool, postgres: int | None, file: Path | None) -> None:
    """Measure the cost of conditions."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])  # for the worker processes
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a worker starts as it does anywhere
    state = ROOT / ".state" / "conditions"
    state.mkdir(parents=True, exist_ok=True)
    table, sizes = Table(), Sizes().quick() if quick else Sizes()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=state)))
        server = PostgresServer(_programs(postgres), durable=True, shared_buffers="256MB")
        stack.enter_context(server)
        probes = folder / "probes"
        probes.mkdir()
        conditions = Conditions(server, folder, WorkerRuns(probes), table, sizes)
        print(f"Python {platform.python_version()}; PostgreSQL {server.version}, fsync on; {_load()}", file=sys.stderr)
        asyncio.run(_measure(conditions, only or NAMES))
    click.echo("\n".join(table.lines()))
    save(table.runs, file)


async def _measure(conditions: Conditions, names: tuple[str, ...]) -> None:
    for name in names:
        await getattr(conditions, name)()
        print(f"{'':>4}{_load()}", file=sys.stderr)


def _programs(major: int | None) -> PostgresBinaries:
    found = [one for one in find_postgres() if major in (None, one.version)]
    if not found:
        raise click.UsageError(f"no PostgreSQL {major or ''} here; there is {[one.version for one in find_postgres()]}")
    return found[0]


def _load() -> str:
    return "load " + " ".join(f"{one:.1f}" for one in os.getloadavg()) + f" on {os.cpu_count()} processors"


if __name__ == "__main__":
    main()
