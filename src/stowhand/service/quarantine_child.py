"""The child of quarantine.py: ``python -m stowhand.service.quarantine_child``. Its jobs come on its standard input."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.app.start import traced
from stowhand.jobs.job import Job
from stowhand.jobs.outcomes import describe
from stowhand.observe.about import About, bind
from stowhand.observe.job_logger import core_logger
from stowhand.observe.logs import configure_logging
from stowhand.observe.propagation import bound_correlation_id
from stowhand.observe.safe_text import telling_line
from stowhand.observe.traces import Traces
from stowhand.protocols.handler import Handler
from stowhand.service import exit_codes
from stowhand.service.child_pipe import AnswerPipe
from stowhand.service.loading import load_tasks, make_handler
from stowhand.service.opening import store_of
from stowhand.service.process import hand_over_at_the_end, hard_exit
from stowhand.service.quarantine import Assignment, ChildAnswer, Setup, attempt_in_child
from stowhand.tasks.resources import WorkerResources
from stowhand.worker.inside import inside_a_worker

CLOSING = 1.0
"""Seconds that each resource has to close: the worker waits for the answer."""


def main() -> None:
    """Run jobs until there are no more, and exit without waiting for threads."""
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setup)
    # What stops a whole service reaches this process too. The worker decides; a function, because programs that a task
    # starts would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    settings = WorkerSettings.from_json(setup.settings)
    configure_logging(settings.log_level, settings.log_format)
    server = _Server(setup, settings)
    try:
        asyncio.run(server.run())
    except BaseException as error:  # noqa: BLE001 - boundary: this process ends with it
        server.unable(error)
    hard_exit(0)


class _Server:
    """Runs one job after another."""

    def __init__(self, setup: Setup, settings: WorkerSettings) -> None:
        self._setup = setup
        self._settings = settings
        self._pipe = AnswerPipe(setup.answer_fd)
        self._assignments: asyncio.Queue[Assignment] = asyncio.Queue()
        self._has_begun = False
        """A job has, so a later error is no reason that this process could not begin."""

    async def run(self) -> None:
        """Until the worker closes the standard input, which ends the process."""
        reader = threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True)
        reader.start()
        loaded = load_tasks(self._settings)
        store = traced(store_of(self._settings.store), loaded.traces)
        hand_over_at_the_end(loaded.traces)
        handler = make_handler(loaded, self._settings, store, self._setup.worker)
        around = loaded.registry.around.handler(handler)
        await store.open()
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # else something that a job had started has ended the loop
            assignment = await self._assignments.get()
            self._has_begun = False
            answer = await self._attempt(assignment, around, handler.resources, loaded.traces)
            self._pipe.answer(answer)

    def unable(self, error: BaseException) -> None:
        """Answer that the job could not begin, unless it has."""
        if self._has_begun:
            return
        why = telling_line(describe(error))
        core_logger().error(f"The process for suspects could not begin: {why}")
        self._pipe.answer(ChildAnswer("unable", why))

    async def _attempt(
        self, assignment: Assignment, around: Handler[Job], resources: WorkerResources | None, traces: Traces | None
    ) -> ChildAnswer:
        report = self._pipe.note if assignment.keeps_progress else None
        try:
            if resources is not None:
                await resources.open((assignment.job.task,), lambda error: None)
            self._has_begun = True
            self._pipe.begin(assignment.lease)
            with _traced_on(assignment, self._setup.worker, traces), inside_a_worker():
                return await attempt_in_child(around, assignment, report)
        finally:
            if resources is not None:
                await resources.close(lambda: CLOSING)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Of a worker that has died the jobs are taken back: nothing may run them here any more."""
        for line in iter(sys.stdin.buffer.readline, b""):
            loop.call_soon_threadsafe(self._assignments.put_nowait, msgspec.json.decode(line, type=Assignment))
        hard_exit(exit_codes.FAILURE)


@contextmanager
def _traced_on(assignment: Assignment, worker: str, traces: Traces | None) -> Iterator[None]:
    """Within the attempt's span, which is the worker's; log lines name the job."""
    if traces is None:
        yield
        return
    job = assignment.job
    bind(About(worker, job.task, job.id, job.attempts))
    with traces.within(assignment.traceparent), bound_correlation_id(assignment.correlation_id):
        yield


if __name__ == "__main__":
    main()
