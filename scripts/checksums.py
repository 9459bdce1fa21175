"""Program of ``scripts/demo [PATH]``: enqueue, work, kill, finish, check.

One job per file; two worker processes; three jobs fail the first time, one job is poison, one is scheduled a second
ahead; when two fifths are done one worker gets a kill -9. Finally the results are compared with directly computed ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from stowhand.app.app import App
from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.resolver import resolve_store_url
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.cli.session import remove_file
from stowhand.clock import SystemClock, sleep_blocking, stopwatch
from stowhand.errors import Poison, StoreError
from stowhand.events import ChildDied, Events, JobsReset
from stowhand.jobs.job import Job, State
from stowhand.observe.safe_text import escape, scrub
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.retry import constant
from stowhand.service.signals import handle_signals
from stowhand.service.supervisor import Supervisor
from stowhand.stores.url import open_store
from stowhand.tasks.context import Context

FIRST_FAILING_JOBS = 3
AHEAD_SECONDS = 1.0
KILL_SHARE = 0.4
WORK_SECONDS = 4.0
"""Minimum duration of the work, so that a worker can be killed during it."""
WORKER_CONCURRENCY = 4
GIVE_UP_SECONDS = 90.0
"""Maximum time without a finished job. The whole run may take longer."""
LIVE_STATES = (State.QUEUED, State.PROCESSING, State.ERRORED)
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "dist", "build"})
"""Folders of generated files, which are skipped like names that start with a dot."""

app = App()


@app.task(name="checksum", backoff=constant(0.5), timeout=60.0)
def checksum(context: Context, path: str, pause: float = 0.0, fail_first: bool = False) -> str:
    """Return the checksum of a file. Plain synchronous code: it runs in a thread of the worker."""
    if fail_first and context.attempt == 1:
        raise OSError(f"{path}: fails on the first attempt to demonstrate a retry")
    if not Path(path).is_file():
        raise Poison(f"{path}: the file does not exist, so a retry cannot succeed")
    sleep_blocking(pause)
    return checksum_of(Path(path))


def checksum_of(path: Path) -> str:
    """SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    """Every regular file below ``folder`` that may be read, in a fixed order; no links, and no names that cannot be
    printed."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if str(path).isprintable() and path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield path


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path())
@click.option("-c", "--connection", metavar="STORE", help="A PostgreSQL database, instead of a file in --state.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".state/demo"),
    show_default=True,
    help="Where the demo keeps its queue.",
)
def main(path: Path, connection: str | None, state: Path) -> None:
    """Show a queue at work, with nothing to set up.

    One job computes the checksum of each file below PATH (here). Of its two workers one is killed.

    A few files fail first and are retried, one job is poison, one is scheduled a second ahead. The checksums are
    compared with a direct walk: nothing lost, nothing doubled.
    """
    began = stopwatch()
    named = resolve_store_url(connection)
    if named.scheme == "sqlite":  # the demo empties its store, and a file that was named may hold a queue in use
        state.mkdir(parents=True, exist_ok=True)
        file = state.resolve() / "queue.db"
        remove_file(file)
        named = ResolvedStore(f"sqlite:///{file}", "the demo's own file")
    click.echo(f"store: {scrub(named.url)} ({named.source})   folder: {path.resolve()}")
    problems = asyncio.run(_Demo(path.resolve(), named).run())
    for problem in problems:
        click.echo(f"WRONG: {escape(problem)}")
    if problems:
        sys.exit(1)
    click.echo(f"checked against a direct walk: nothing lost, nothing doubled ({stopwatch() - began:.1f} s)")


class _Demo:
    def __init__(self, folder: Path, store: ResolvedStore) -> None:
        self._folder = folder
        self._events = Events()
        self._killed = ""
        self._reset = 0
        self._settings = WorkerSettings(
            store=StoreSettings(connection=store, options=StoreOptions(schema="stowhand_demo")),
            app="checksums:app",
            worker=WorkerOptions(concurrency=WORKER_CONCURRENCY, lease=2.0, grace=5.0),
            processes=2,
            log_level="error",
        )

    async def run(self) -> list[str]:
        """Return what went wrong. Raises StowhandError when the store cannot be used."""
        files = list(walk(self._folder))
        store = open_store(self._settings.store.url, self._settings.store.options)
        try:
            await store.schema.uninstall()
            await store.schema.install()
            await store.open()
            pause = min(0.3, WORK_SECONDS * 2 * WORKER_CONCURRENCY / max(len(files), 1))
            jobs = [
                checksum.new_job(str(path), pause=pause, fail_first=number < FIRST_FAILING_JOBS)
                for number, path in enumerate(files)
            ]
            jobs.insert(len(jobs) // 2, checksum.new_job(str(self._folder / "no-such-file")))
            jobs[-1] = msgspec.structs.replace(jobs[-1], delay=AHEAD_SECONDS)
            await store.jobs.enqueue_many(jobs)
            await self._work(store, len(jobs))
            failed = await store.inspect.list(JobFilter(states=(State.FAILED,)))
            completed = await store.inspect.list(JobFilter(states=(State.COMPLETED,), limit=len(jobs)))
        finally:
            await store.close()
        return self._judge(files, completed, failed)

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
        deadline = stopwatch() + GIVE_UP_SECONDS
        is_killed = False
        with click.progressbar(length=jobs, file=sys.stderr, show_eta=False, show_pos=True) as bar:
            while stopwatch() < deadline and not working.done():
                counts = await store.inspect.counts()
                live = sum(counts[state] for state in LIVE_STATES)
                if jobs - live > bar.pos:
                    bar.update(jobs - live - bar.pos)
                    deadline = stopwatch() + GIVE_UP_SECONDS
                slot = supervisor.children.slots[0]
                if not is_killed and bar.pos >= KILL_SHARE * jobs and slot.child is not None and slot.is_running:
                    slot.child.kill()
                    is_killed = True
                if not live and is_killed:
                    return
                await SystemClock().sleep(0.05)
        raise StoreError(
            f"the demo gave up: no job ended for {GIVE_UP_SECONDS:g} s; jobs by state: {await store.inspect.counts()}"
        )

    def _child_died(self, event: ChildDied) -> None:
        self._killed = f"process {event.pid} {event.cause}"

    def _jobs_reset(self, event: JobsReset) -> None:
        self._reset += len(event.jobs)

    def _judge(self, files: Sequence[Path], completed: Sequence[Job], failed: Sequence[Job]) -> list[str]:
        """Print what happened. Return the differences from what was to happen, and from a direct walk."""
        # A job whose worker was killed got its attempt back, so it does not count as retried.
        retried, last = sum(job.attempts > 1 for job in completed), max(completed, key=lambda job: job.id)
        waited = (last.started_at - last.created_at).total_seconds() if last.started_at is not None else 0.0
        click.echo(
            f"\njobs completed              {len(completed)} of {len(files)} files\n"
            f"failed first, then retried  {retried}\n"
            f"scheduled a second ahead    started {waited:.2f} s after it was added\n"
            f"permanently failed          {', '.join(f'job {job.id} (poison)' for job in failed)}\n"
            f"worker killed               {self._killed}; {self._reset} jobs reset at once\n"
        )
        walked = {str(path): checksum_of(path) for path in files}
        results = {job.payload["path"]: job.result for job in completed}
        problems = [f"lost: {path}" for path in walked.keys() - results.keys()]
        problems += [f"wrong: {path}" for path, result in results.items() if walked.get(path) != result]
        if len(completed) != len(files):
            problems.append(f"{len(files)} files, but {len(completed)} jobs completed")
        if len(failed) != 1 or "does not exist" not in (failed[0].last_error or ""):
            problems.append(f"one poison job was to fail; {len(failed)} did")
        if retried != min(FIRST_FAILING_JOBS, len(files)):
            problems.append(f"{min(FIRST_FAILING_JOBS, len(files))} jobs were to fail first; {retried} were retried")
        if waited < AHEAD_SECONDS:
            problems.append(f"a job scheduled {AHEAD_SECONDS} s ahead was started after {waited:.3f} s")
        if not self._killed:
            problems.append("no worker was killed")
        return problems


if __name__ == "__main__":
    main()
