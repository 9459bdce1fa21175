"""The child of quarantine.py: ``python -m stowhand.service.quarantine_child``, an Assignment on its standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stowhand.app.embedding import traced
from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import sleep_blocking
from stowhand.jobs.job import Job
from stowhand.jobs.outcomes import describe
from stowhand.observe.about import About, bind
from stowhand.observe.job_logger import core_logger
from stowhand.observe.logs import configure_logging
from stowhand.observe.safe_text import telling_line
from stowhand.observe.traces import Traces
from stowhand.protocols.correlation import bound
from stowhand.protocols.inside import inside_a_worker
from stowhand.protocols.progress import Report
from stowhand.service import exit_codes
from stowhand.service.child_progress import ProgressPipe
from stowhand.service.loading import load_tasks, make_handler
from stowhand.service.opening import store_of
from stowhand.service.process import hand_over_at_the_end, hard_exit
from stowhand.service.quarantine import Assignment, ChildAnswer, attempt_in_child

CLOSING = 1.0
"""Seconds that each resource has to close: the worker waits for the answer."""


def main() -> None:
    """Run one job, answer, and exit without waiting for threads."""
    assignment = msgspec.json.decode(sys.stdin.buffer.readline(), type=Assignment)
    # What stops a whole service reaches this process too. The worker decides; a function, because programs that a task
    # starts would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_die_with_the_worker, name="stowhand parent", daemon=True).start()
    settings = WorkerSettings.from_json(assignment.settings)
    configure_logging(settings.log_level, settings.log_format)
    answers: list[ChildAnswer] = []
    progress = ProgressPipe(assignment.answer_fd)
    report = {True: progress.note, False: None, None: lambda said: None}[assignment.keeps_progress]
    try:
        asyncio.run(_attempt(assignment, settings, answers, report))
    except BaseException as error:  # noqa: BLE001 - boundary: this process ends with it
        if not answers:  # else it came after the job, or was what something of the job's left behind
            answers.append(_unable(assignment.job, settings.timings.unable, error))
    progress.close()
    with os.fdopen(assignment.answer_fd, "wb") as pipe:
        pipe.write(msgspec.json.encode(answers[0]) + b"\n")
    hard_exit(0)


def _unable(job: Job, pause: float, error: BaseException) -> ChildAnswer:
    """The answer of a child that could not begin. After a pause, for the job may come back at once."""
    why = telling_line(describe(error))
    core_logger().error(f"Task {job.id} ({job.task}) goes back: the process of its own could not begin: {why}")
    sleep_blocking(pause)
    return ChildAnswer("unable", why)


def _die_with_the_worker() -> None:
    """Its job is taken back when the worker dies: nothing may run it here any more."""
    while sys.stdin.buffer.readline():
        pass
    hard_exit(exit_codes.FAILURE)


async def _attempt(
    assignment: Assignment, settings: WorkerSettings, answers: list[ChildAnswer], report: Report | None = None
) -> None:
    loaded = load_tasks(settings)
    store = traced(store_of(settings.store), loaded.traces)
    hand_over_at_the_end(loaded.traces)
    try:
        handler = make_handler(loaded, settings, store, assignment.worker)
        await store.open()
        resources = handler.resources
        try:
            if resources is not None:
                await resources.open((assignment.job.task,), lambda error: None)
            with _traced_on(assignment, loaded.traces), inside_a_worker():
                answers.append(await attempt_in_child(loaded.registry.around.handler(handler), assignment, report))
        finally:
            if resources is not None:
                await resources.close(lambda: CLOSING)
    finally:
        await store.close()


@contextmanager
def _traced_on(assignment: Assignment, traces: Traces | None) -> Iterator[None]:
    """Within the attempt's span, which is the worker's; log lines name the job."""
    if traces is None:
        yield
        return
    job = assignment.job
    bind(About(assignment.worker, job.task, job.id, job.attempts))
    with traces.within(assignment.traceparent), bound(assignment.correlation_id):
        yield


if __name__ == "__main__":
    main()
