"""The child of quarantine.py: ``python -m stowhand.service.quarantine_child``. It reads jobs from standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.app.start import traced
from stowhand.clock import sleep_blocking
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import (
    Cancel,
    Complete,
    Fail,
    Outcome,
    RaisableOutcome,
    RateLimited,
    Retry,
    Snooze,
    Waiting,
)
from stowhand.jobs.outcomes import as_failure, describe, from_raised, from_returned
from stowhand.observe.attempt_context import AttemptContext, bind_attempt
from stowhand.observe.job_logger import core_logger
from stowhand.observe.logs import configure_logging
from stowhand.observe.propagation import bound_correlation_id
from stowhand.observe.safe_text import summary_line
from stowhand.observe.traces import Traces
from stowhand.protocols.attempt import Attempt, Progress, Report, control_of
from stowhand.protocols.handler import Handler
from stowhand.protocols.store import Claim
from stowhand.protocols.workflows import ProofKeeper, proof_keeper
from stowhand.service import exit_codes
from stowhand.service.process import export_spans_at_exit, hard_exit
from stowhand.service.quarantine import PROGRESS_PREFIX, STARTED_LINE, Assignment, ChildAnswer, ChildSetup
from stowhand.service.store_opener import store_of
from stowhand.service.task_loader import load_tasks, make_handler
from stowhand.tasks.resources import WorkerResources
from stowhand.worker.host import inside_a_worker
from stowhand.worker.policy import Policy, outcome_of

CLOSE_TIMEOUT_SECONDS = 1.0
"""Seconds that each resource has to close, while the worker waits for the answer."""
PROGRESS_PAUSE_SECONDS = 0.25
"""Minimum seconds between two progress lines."""


def main() -> None:
    """Run jobs until the input ends, and exit without waiting for threads."""
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildSetup)
    # Signals to a whole service reach this process too, but the worker decides. The handler is a function, because
    # programs that a task starts would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    settings = WorkerSettings.from_json(setup.settings)
    configure_logging(settings.log_level, settings.log_format)
    runner = _JobRunner(setup, settings)
    try:
        asyncio.run(runner.run())
    except BaseException as error:  # noqa: BLE001 - boundary: this process ends with it
        runner.report_unable(error)
    hard_exit(0)


class _JobRunner:
    """Runner of one job after another."""

    def __init__(self, setup: ChildSetup, settings: WorkerSettings) -> None:
        self._setup = setup
        self._settings = settings
        self._pipe = AnswerPipe(setup.answer_fd)
        self._assignments: asyncio.Queue[Assignment] = asyncio.Queue()
        self._has_started = False
        """The current job has started, so a later error does not mean that the child was unable to start it."""

    async def run(self) -> None:
        """Run jobs. The process ends when the worker closes its standard input."""
        reader = threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True)
        reader.start()
        loaded = load_tasks(self._settings)
        store = traced(store_of(self._settings.store), loaded.traces)
        export_spans_at_exit(loaded.traces)
        handler = make_handler(loaded, self._settings, store, self._setup.worker)
        around = loaded.registry.middleware.wrap(handler)
        await store.open()
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # cancelled: something that a job started has stopped the loop
            assignment = await self._assignments.get()
            self._has_started = False
            with _proved(assignment, proof_keeper(store.workflows)):
                answer = await self._attempt(assignment, around, handler.resources, loaded.traces)
            self._pipe.answer(answer)

    def report_unable(self, error: BaseException) -> None:
        """Answer that the job could not start, unless it has started."""
        if self._has_started:
            return
        reason = summary_line(describe(error))
        core_logger().error(f"The process for suspects could not start: {reason}")
        self._pipe.answer(ChildAnswer("unable", reason))

    async def _attempt(
        self, assignment: Assignment, around: Handler[Job], resources: WorkerResources | None, traces: Traces | None
    ) -> ChildAnswer:
        report = self._pipe.note if assignment.keeps_progress else None
        try:
            if resources is not None:
                await resources.open((assignment.job.task,), lambda error: None)
            self._has_started = True
            self._pipe.start(assignment.lease)
            with _attempt_span(assignment, self._setup.worker, traces), inside_a_worker():
                return await attempt_in_child(around, assignment, report)
        finally:
            if resources is not None:
                await resources.close(lambda: CLOSE_TIMEOUT_SECONDS)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read jobs, and exit when the worker does: its jobs are reset, so this process must no longer run them."""
        for line in iter(sys.stdin.buffer.readline, b""):
            loop.call_soon_threadsafe(self._assignments.put_nowait, msgspec.json.decode(line, type=Assignment))
        hard_exit(exit_codes.FAILURE)


class AnswerPipe:
    """The child's end of the pipe. Any thread may call its methods."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lease: Lease | None = None
        """Lease of the running job."""
        self._newest: Progress | None = None
        self._has_progress = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, lease: Lease) -> None:
        """Report that the handler of this job starts."""
        with self._writing:
            self._lease = lease
            self._write(STARTED_LINE)

    def answer(self, answer: msgspec.Struct) -> None:
        """Send the answer for the job, and drop unsent progress."""
        with self._writing:
            self._lease = self._newest = None
            self._write(msgspec.json.encode(answer) + b"\n")

    def note(self, progress: Progress) -> None:
        """Send progress at once, or a quarter of a second after the previous line.

        Of several calls in that time only the newest is sent. If the pipe is full, the progress is dropped.
        """
        if progress.lease != self._lease:
            return  # progress of a finished job
        self._newest = progress
        self._has_progress.set()
        if self._thread is None:
            with self._writing:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send, name="stowhand progress", daemon=True)
                    self._thread.start()

    def _write(self, line: bytes) -> None:
        os.set_blocking(self._descriptor, True)
        remaining = memoryview(line)
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]

    def _send(self) -> None:
        while True:
            self._has_progress.wait()
            self._has_progress.clear()
            with self._writing:
                newest = self._newest
                if newest is not None and newest.lease == self._lease:
                    # A line is shorter than PIPE_BUF: written whole or not at all.
                    os.set_blocking(self._descriptor, False)
                    with suppress(OSError):
                        os.write(
                            self._descriptor, PROGRESS_PREFIX + msgspec.json.encode((newest.done, newest.text)) + b"\n"
                        )
            sleep_blocking(PROGRESS_PAUSE_SECONDS)


def answer_of(outcome: Outcome, result: str | None, then: tuple[NewJob, ...]) -> ChildAnswer:
    """Return the answer for an outcome, ready to be sent to the worker."""
    match outcome:
        case Complete():
            return ChildAnswer("complete", result=result, then=then)
        case Retry(error, delay, payload, error_class):
            return ChildAnswer("retry", error, delay, payload=payload, error_class=error_class)
        case RateLimited(delay):
            return ChildAnswer("rate_limited", seconds=delay)
        case Snooze(delay):
            return ChildAnswer("snooze", seconds=delay)
        case Cancel(reason):
            return ChildAnswer("cancel", reason)
        case Waiting(wait):
            return ChildAnswer("waiting", wait=wait)
        case Fail(error, is_poison, payload, error_class):
            return ChildAnswer("poison" if is_poison else "fail", error, payload=payload, error_class=error_class)


async def attempt_in_child(handler: Handler[Job], assignment: Assignment, report: Report | None = None) -> ChildAnswer:
    """Run the handler once. Its hooks for jobs, policy and encoding run here; others run in the worker."""
    job = assignment.job
    claim: Claim[Job] = Claim(assignment.lease, job, job.task, job.attempts, job.max_attempts, job.serial)
    attempt: Attempt[Job] = Attempt(claim, 0.0, report=report)
    control_of(attempt).on_enqueue = getattr(handler, "on_enqueue", None)
    encode: Callable[[object], str] | None = getattr(handler, "encode", None)
    policy: Callable[[Claim[Any]], Policy] = getattr(handler, "policy", lambda claim: Policy())
    is_retryable: Callable[[BaseException], bool] | None = getattr(handler, "retryable", None)
    result = None
    try:
        outcome = from_returned(await handler.handle(attempt, attempt.record))
        if isinstance(outcome, Complete) and outcome.result is not None and encode is not None:
            result = encode(outcome.result)
    except RaisableOutcome as raised:
        outcome = from_raised(raised)
    except BaseException as error:  # noqa: BLE001 - boundary: every error becomes an outcome
        is_final = isinstance(error, Exception) and is_retryable is not None and not is_retryable(error)
        outcome = as_failure(error) if is_final else outcome_of(error, claim, policy)
    return answer_of(outcome, result, tuple(attempt.then))


@contextmanager
def _proved(assignment: Assignment, proofs: ProofKeeper | None) -> Iterator[None]:
    """Let the job record steps in a store that needs a proof of the lease."""
    if assignment.proof is None or proofs is None:
        yield
        return
    proofs.keep_proof(assignment.lease, assignment.proof)
    try:
        yield
    finally:
        proofs.drop_proof(assignment.lease)


@contextmanager
def _attempt_span(assignment: Assignment, worker: str, traces: Traces | None) -> Iterator[None]:
    """Enter the attempt's span, which the worker made, and let log lines name the job."""
    if traces is None:
        yield
        return
    job = assignment.job
    bind_attempt(AttemptContext(worker, job.task, job.id, job.attempts))
    with traces.within(assignment.traceparent), bound_correlation_id(assignment.correlation_id):
        yield


if __name__ == "__main__":
    main()
