"""``stowhand demo [PATH]``: enqueue, work, kill, finish, check.

One job per file; two worker processes; three files fail the first time, one job is poison, one is scheduled a second
ahead; when two fifths are done one worker gets a kill -9. In the end the report is compared with a direct walk.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from stowhand.app.own_store import UNNAMED, ResolvedStore
from stowhand.app.settings.resolver import resolve_store_url
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.cli.demo.files import describe, name_of, walk
from stowhand.cli.demo.report import KindTotal, Report
from stowhand.cli.session import remove_file
from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import StoreError
from stowhand.events import ChildDied, Events, JobsReset
from stowhand.jobs.job import Job, NewJob, State
from stowhand.observe.safe_text import escape, fit, telling_line
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.service import exit_codes
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
BAR = 32
"""Characters."""
LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED)


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
    remove_file(file)
    return ResolvedStore(f"sqlite:///{file}", source)


class Progress(msgspec.Struct):
    """What a progress bar shows."""

    total: int
    done: int = 0
    note: str = ""


class DemoResult(msgspec.Struct, frozen=True):
    """What the demo found, for the table and the exit code."""

    totals: list[KindTotal]
    files: int
    completed: int
    retried: int
    waited: float | None
    """Seconds from adding the scheduled job to its start."""
    killed: str
    came_back: int
    repeats: int
    failed: list[Job]
    seconds: float
    problems: list[str]
    """Empty when nothing was lost and nothing doubled."""


class Demo:
    """One run. ``show`` is called with the progress now and then."""

    def __init__(self, folder: Path, store: ResolvedStore, state: Path, show: Callable[[Progress], None]) -> None:
        self._folder = folder
        self._show = show
        self._report = Report(state / "report.db")
        self._clock = SystemClock()
        self._events = Events()
        self._killed = ""
        self._came_back = 0
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
            await store.jobs.enqueue_many(self._jobs(files))
            await self._work(store, len(files))
            return await self._result(store, files, began)
        finally:
            await store.close()

    def _jobs(self, files: list[Path]) -> list[NewJob]:
        pause = min(0.3, TAKES_ABOUT * AT_ONCE / max(len(files), 1))
        report = str(self._report.path)
        jobs = []
        for number, path in enumerate(files):
            payload = {"path": name_of(path), "report": report, "pause": pause, "fail_first": number < FAIL_FIRST}
            delay = AHEAD if number == len(files) - 1 else None
            jobs.append(NewJob(task="describe_file", payload=msgspec.json.encode(payload).decode(), delay=delay))
        ghost = {"path": name_of(self._folder / "no-such-file"), "report": report}
        jobs.insert(len(jobs) // 2, NewJob(task="describe_file", payload=msgspec.json.encode(ghost).decode()))
        return jobs

    # -- work ------------------------------------------------------------------------------------

    async def _work(self, store: QueueStore, files: int) -> None:
        """Two workers, until nothing is live any more; one of them dies on the way and is replaced."""
        self._events.on(ChildDied, self._child_died)
        self._events.on(JobsReset, self._jobs_reset)
        supervisor = Supervisor(self._settings, store.heartbeats, self._events)
        handle_signals(supervisor.request_stop)
        working = asyncio.create_task(supervisor.run())
        try:
            await self._watch(store, supervisor, working, files)
        finally:
            supervisor.request_stop()
            await working

    async def _watch(self, store: QueueStore, supervisor: Supervisor, working: asyncio.Task[int], files: int) -> None:
        progress = Progress(total=files + 1)
        deadline = stopwatch() + GIVE_UP
        killed = False
        while stopwatch() < deadline and not working.done():
            counts = await store.inspect.counts()
            live = sum(counts[state] for state in LIVE)
            if progress.total - live > progress.done:
                deadline = stopwatch() + GIVE_UP
            progress.done, progress.note = progress.total - live, self._killed
            self._show(progress)
            if not killed and progress.done >= KILL_AT * progress.total:
                killed = self._kill(supervisor)
            if not live and killed:
                return
            await self._clock.sleep(0.05)
        raise StoreError(
            f"the demo gave up: no job ended for {GIVE_UP:g} s; jobs by state: {await store.inspect.counts()}"
        )

    def _kill(self, supervisor: Supervisor) -> bool:
        slot = supervisor.children.slots[0]
        if slot.child is None or not slot.is_running:
            return False
        slot.child.kill()
        return True

    def _child_died(self, event: ChildDied) -> None:
        self._killed = f"process {event.pid} {event.how}"

    def _jobs_reset(self, event: JobsReset) -> None:
        self._came_back += len(event.jobs)

    # -- check -----------------------------------------------------------------------------------

    async def _result(self, store: QueueStore, files: list[Path], began: float) -> DemoResult:
        counts = await store.inspect.counts()
        failed = list(await store.inspect.list(JobFilter(states=(State.FAILED,))))
        completed = list(await store.inspect.list(JobFilter(states=(State.COMPLETED,), limit=len(files) + 10)))
        return DemoResult(
            totals=self._report.totals(),
            files=len(files),
            completed=counts[State.COMPLETED],
            retried=retried(completed),
            waited=waited(completed),
            killed=self._killed,
            came_back=self._came_back,
            repeats=self._report.repeats(),
            failed=failed,
            seconds=stopwatch() - began,
            problems=self._problems(counts, failed, completed, files),
        )

    def _problems(
        self, counts: dict[State, int], failed: list[Job], completed: list[Job], files: list[Path]
    ) -> list[str]:
        """Compare the queue and the report with a direct walk that had nothing to do with either."""
        walked = {name_of(path): _digest(path) for path in files}
        entered = self._report.digests()
        problems = [f"lost: {path} is not in the report" for path in walked.keys() - entered.keys()]
        problems += [f"invented: {path} is in the report" for path in entered.keys() - walked.keys()]
        problems += [f"wrong: {path}" for path in walked.keys() & entered.keys() if walked[path] != entered[path]]
        ids = [job.id for job in completed]
        if len(ids) != len(set(ids)) or counts[State.COMPLETED] != len(files):
            problems.append(f"{len(files)} files, but {counts[State.COMPLETED]} jobs completed")
        if len(failed) != 1 or "no such file" not in (failed[0].last_error or ""):
            problems.append(f"one poison job was to fail; {len(failed)} did")
        if retried(completed) != min(FAIL_FIRST, len(files)):
            problems.append(f"{min(FAIL_FIRST, len(files))} jobs were to fail first; {retried(completed)} were retried")
        if (wait := waited(completed)) is not None and wait < AHEAD:
            problems.append(f"a job scheduled {AHEAD} s ahead was started after {wait:.3f} s")
        if not self._killed:
            problems.append("no worker was killed")
        return problems


def retried(completed: list[Job]) -> int:
    """Jobs that failed once. A job whose worker was killed got its attempt back, so it does not count."""
    return sum(1 for job in completed if job.attempts > 1)


def waited(completed: list[Job]) -> float | None:
    """How long after it was added the scheduled job, the last one, was started."""
    last = max(completed, key=lambda job: job.id, default=None)
    if last is None or last.started_at is None:
        return None
    return (last.started_at - last.created_at).total_seconds()


def _digest(path: Path) -> str:
    """What a direct walk finds; of a file that went away while the demo ran, nothing."""
    try:
        return describe(path).digest
    except OSError as error:
        return f"unreadable: {error}"


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
