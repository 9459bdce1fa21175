"""``stowhand demo [PATH]``: enqueue, work, kill, finish, check.

One job per file; two worker processes; three files fail the first time, one job is poison, one is scheduled a second
ahead; when two fifths are done one worker gets a kill -9. In the end the report is compared with a direct walk.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.resolver import resolve_store_url
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.cli.columns import Column, page
from stowhand.cli.demo.files import checksum_of, walk
from stowhand.cli.demo.report import Report
from stowhand.cli.help import Command
from stowhand.cli.session import remove_file
from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import StoreError
from stowhand.events import ChildDied, Events, JobsReset
from stowhand.jobs.job import Job, NewJob, State
from stowhand.observe.safe_text import escape, scrub
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.service.signals import handle_signals
from stowhand.service.supervisor import Supervisor
from stowhand.stores.url import open_store

FAIL_FIRST = 3
AHEAD = 1.0
"""Seconds ahead that one job is scheduled."""
KILL_AT = 0.4
TAKES_ABOUT = 4.0
"""Seconds that the work is stretched to, so that there is a middle."""
AT_ONCE = 8
GIVE_UP = 90.0
"""Seconds without any job ending; a big folder may take longer than that as a whole."""
LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED)


@click.command("demo", cls=Command)
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path())
@click.option("-c", "--connection", metavar="STORE", help="A PostgreSQL database, instead of a file in --state.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".state/demo"),
    show_default=True,
    help="Where the demo keeps its queue and its report.",
)
def command(path: Path, connection: str | None, state: Path) -> int:
    """Show a queue at work, with nothing to set up.

    One job computes the checksum of each file below PATH (here). Of its two workers one is killed.

    A few files fail first and are retried, one job is poison, one is scheduled a second ahead. The checksums are
    compared with a direct walk: nothing lost, nothing doubled.
    """
    state.mkdir(parents=True, exist_ok=True)
    store = _store(connection, state.resolve())
    click.echo(f"store: {scrub(store.url)} ({store.source})   folder: {path.resolve()}")
    result = asyncio.run(Demo(path.resolve(), store, Report(state.resolve() / "report.db")).run())
    click.echo(f"\n{page(RESULT, result)}\n")
    for problem in result.problems:
        click.echo(f"WRONG: {escape(problem)}")
    if result.problems:
        return FAILURE
    click.echo(f"checked against a direct walk: nothing lost, nothing doubled ({result.seconds:.1f} s)")
    return OK


def _store(connection: str | None, state: Path) -> ResolvedStore:
    """The database that was named (also by DATABASE_URL), in a schema of the demo's own; else a file of its own.

    The demo empties its store first, so an SQLite file that was named is never used: it may hold a queue in use.
    """
    named = resolve_store_url(connection)
    if named.scheme != "sqlite":
        return named
    file = state / "queue.db"
    remove_file(file)
    return ResolvedStore(f"sqlite:///{file}", "the demo's own file")


class DemoResult(msgspec.Struct, frozen=True):
    """The result of a run."""

    files: int
    completed: Sequence[Job]
    failed: Sequence[Job]
    killed: str
    reset: int
    repeats: int
    seconds: float
    problems: list[str]
    """Empty when nothing was lost and nothing doubled."""

    @property
    def retried(self) -> int:
        """Jobs that failed once. A job whose worker was killed got its attempt back, so it does not count."""
        return sum(1 for job in self.completed if job.attempts > 1)

    @property
    def waited(self) -> float:
        """Seconds from adding the scheduled job, the last one, to its start."""
        last = max(self.completed, key=lambda job: job.id)
        return (last.started_at - last.created_at).total_seconds() if last.started_at is not None else 0.0


RESULT: list[Column[DemoResult]] = [
    Column("jobs completed", text=lambda result: f"{len(result.completed)} of {result.files} files"),
    Column("failed first, then retried", text=lambda result: str(result.retried)),
    Column("scheduled a second ahead", text=lambda result: f"started {result.waited:.2f} s after it was added"),
    Column("permanently failed", text=lambda result: ", ".join(f"job {job.id} (poison)" for job in result.failed)),
    Column("worker killed", text=lambda result: f"{result.killed}; {result.reset} jobs reset at once"),
    Column("runs repeated by the kill", text=lambda result: f"{result.repeats} (each entered once)"),
]


class Demo:
    """One run."""

    def __init__(self, folder: Path, store: ResolvedStore, report: Report) -> None:
        self._folder = folder
        self._report = report
        self._clock = SystemClock()
        self._events = Events()
        self._killed = ""
        self._reset = 0
        self._settings = WorkerSettings(
            store=StoreSettings(connection=store, options=StoreOptions(schema="stowhand_demo")),
            app="stowhand.cli.demo.tasks:app",
            worker=WorkerOptions(concurrency=AT_ONCE // 2, lease=2.0, grace=5.0),
            processes=2,
            log_level="error",
        )

    async def run(self) -> DemoResult:
        """Raises StowhandError when the store cannot be used."""
        began = stopwatch()
        files = list(walk(self._folder))
        self._report.create()
        store = open_store(self._settings.store.url, self._settings.store.options)
        try:
            await store.schema.uninstall()
            await store.schema.install()
            await store.open()
            jobs = self._jobs(files)
            await store.jobs.enqueue_many(jobs)
            await self._work(store, len(jobs))
            failed = await store.inspect.list(JobFilter(states=(State.FAILED,)))
            completed = await store.inspect.list(JobFilter(states=(State.COMPLETED,), limit=len(jobs)))
        finally:
            await store.close()
        result = DemoResult(
            files=len(files),
            completed=completed,
            failed=failed,
            killed=self._killed,
            reset=self._reset,
            repeats=self._report.repeats(),
            seconds=stopwatch() - began,
            problems=[],
        )
        return msgspec.structs.replace(result, problems=self._problems(files, result))

    def _jobs(self, files: list[Path]) -> list[NewJob]:
        pause = min(0.3, TAKES_ABOUT * AT_ONCE / max(len(files), 1))
        jobs = [self._job(path, pause=pause, fail_first=number < FAIL_FIRST) for number, path in enumerate(files)]
        jobs.insert(len(jobs) // 2, self._job(self._folder / "no-such-file"))
        jobs[-1] = msgspec.structs.replace(jobs[-1], delay=AHEAD)
        return jobs

    def _job(self, path: Path, **details: object) -> NewJob:
        payload = {"path": str(path), "report": str(self._report.path), **details}
        return NewJob(task="checksum", payload=msgspec.json.encode(payload).decode())

    async def _work(self, store: QueueStore, jobs: int) -> None:
        """Two workers, until no job is live any more; one of them is killed on the way and is replaced."""
        self._events.on(ChildDied, self._child_died)
        self._events.on(JobsReset, self._jobs_reset)
        supervisor = Supervisor(self._settings, store.heartbeats, self._events)
        handle_signals(supervisor.request_stop)
        working = asyncio.create_task(supervisor.run())
        try:
            await self._watch(store, supervisor, working, jobs)
        finally:
            supervisor.request_stop()
            await working

    async def _watch(self, store: QueueStore, supervisor: Supervisor, working: asyncio.Task[int], jobs: int) -> None:
        deadline = stopwatch() + GIVE_UP
        is_killed = False
        with click.progressbar(length=jobs, file=sys.stderr, show_eta=False, show_pos=True) as bar:
            while stopwatch() < deadline and not working.done():
                counts = await store.inspect.counts()
                live = sum(counts[state] for state in LIVE)
                ended = jobs - live - bar.pos
                if ended > 0:
                    bar.update(ended)
                    deadline = stopwatch() + GIVE_UP
                if not is_killed and bar.pos >= KILL_AT * jobs:
                    is_killed = _kill(supervisor)
                if not live and is_killed:
                    return
                await self._clock.sleep(0.05)
        raise StoreError(
            f"the demo gave up: no job ended for {GIVE_UP:g} s; jobs by state: {await store.inspect.counts()}"
        )

    def _child_died(self, event: ChildDied) -> None:
        self._killed = f"process {event.pid} {event.how}"

    def _jobs_reset(self, event: JobsReset) -> None:
        self._reset += len(event.jobs)

    def _problems(self, files: list[Path], result: DemoResult) -> list[str]:
        """Compare the queue and the report with a direct walk that had nothing to do with either."""
        walked = {str(path): checksum_of(path) for path in files}
        entered = self._report.checksums()
        problems = [f"lost: {path} is not in the report" for path in walked.keys() - entered.keys()]
        problems += [f"invented: {path} is in the report" for path in entered.keys() - walked.keys()]
        problems += [f"wrong: {path}" for path in walked.keys() & entered.keys() if walked[path] != entered[path]]
        if len({job.id for job in result.completed}) != len(files):
            problems.append(f"{len(files)} files, but {len(result.completed)} jobs completed")
        if len(result.failed) != 1 or "no such file" not in (result.failed[0].last_error or ""):
            problems.append(f"one poison job was to fail; {len(result.failed)} did")
        if result.retried != min(FAIL_FIRST, len(files)):
            problems.append(f"{min(FAIL_FIRST, len(files))} jobs were to fail first; {result.retried} were retried")
        if result.waited < AHEAD:
            problems.append(f"a job scheduled {AHEAD} s ahead was started after {result.waited:.3f} s")
        if not self._killed:
            problems.append("no worker was killed")
        return problems


def _kill(supervisor: Supervisor) -> bool:
    slot = supervisor.children.slots[0]
    if slot.child is None or not slot.is_running:
        return False
    slot.child.kill()
    return True
