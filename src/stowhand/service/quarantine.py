"""A job under which workers died runs in a process of its own, so that it cannot take a worker with it.

The worker keeps the lease and beats for it; the child gets the job on its standard input and answers through a pipe,
where it says how far it is too.
If the child dies before it has answered, the job is reset once more, until its budget of resets is used up. A child
that could not even begin (the store refuses connections, the tasks cannot be loaded) answers so, and the job goes back.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.jobs.durations import seconds
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Snooze
from stowhand.jobs.outcomes import from_returned, hopeless
from stowhand.protocols import correlation
from stowhand.protocols.handler import Attempt, Handler, control_of, report_of
from stowhand.protocols.isolation import ChildCrashed, ChildUnable
from stowhand.protocols.policy import Policy, outcome_of
from stowhand.protocols.progress import Report
from stowhand.protocols.propagation import handed_on
from stowhand.protocols.store import Claim
from stowhand.service.child_progress import read_answer

ANSWER_LIMIT = 4 * 1024 * 1024
LAST_WORDS = 1.0
"""Seconds between a child's answer and its death, whichever comes first."""


class Assignment(msgspec.Struct, frozen=True):
    """What the child is given."""

    settings: msgspec.Raw
    """Of ``WorkerSettings.to_json``."""
    worker: str
    job: Job
    lease: Lease
    answer_fd: int
    traceparent: str | None = None
    """Of the attempt's span, where there is one."""
    correlation_id: str | None = None
    keeps_progress: bool | None = None
    """Of the store; ``None``: a worker of the version before, which would take a line of progress for the answer."""


class ChildAnswer(msgspec.Struct, frozen=True):
    """What the child gives back."""

    kind: str
    """``complete``, ``retry``, ``fail``, ``poison``, ``snooze``, ``cancel``; or ``unable``."""
    text: str = ""
    seconds: float | None = None
    result: str | None = None
    payload: str | None = None
    """JSON text that takes the job's payload's place."""
    then: tuple[NewJob, ...] = ()
    error_class: str | None = None

    def outcome(self) -> Outcome:
        """The outcome that the child's handler had. A result is JSON text already."""
        match self.kind:
            case "complete":
                return Complete(None if self.result is None else msgspec.Raw(self.result.encode()))
            case "retry":
                return Retry(self.text, self.seconds, self.payload, self.error_class)
            case "snooze":
                return Snooze(self.seconds or 0.0)
            case "cancel":
                return Cancel(self.text)
            case kind:
                return Fail(self.text, kind == "poison", self.payload, self.error_class)


class Quarantine:
    """Runs one attempt in a child. ``run`` is the ``isolate`` of the worker's host; ``handler`` is the worker's own.

    ``is_program``: does the task run in a process of its own already?
    """

    def __init__(
        self, settings: WorkerSettings, worker: str, is_program: Callable[[str], bool], handler: Handler[Job]
    ) -> None:
        self._settings = settings.to_json()
        self._worker = worker
        self._is_program = is_program
        self._handler = handler

    async def run(self, attempt: Attempt[Any]) -> object:
        """Raises ChildCrashed, ChildUnable. Cancelling kills the child: a process, unlike a thread, can be killed."""
        if self._is_program(attempt.claim.task):
            # It has a process of its own already; killing a child in between would not end the program.
            return await self._handler.handle(attempt, attempt.record)
        answer, reading, writing = await _open_pipe()
        try:
            origin = (handed_on(), correlation.current(), report_of(attempt) is not None)
            assignment = Assignment(self._settings, self._worker, attempt.record, attempt.lease, writing, *origin)
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "stowhand.service.quarantine_child",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
            )
        except BaseException:
            reading.close()
            raise
        finally:
            os.close(writing)
        try:
            await _hand_over(child, assignment)
            line = await _until_answered(read_answer(answer, attempt.lease, report_of(attempt)), child)
        finally:
            reading.close()
            if child.returncode is None:
                child.kill()
                await child.wait()
        if not line.endswith(b"\n"):
            raise ChildCrashed(f"the child process ended with {child.returncode} and no answer")
        decoded = msgspec.json.decode(line, type=ChildAnswer)
        if decoded.kind == "unable":
            raise ChildUnable(decoded.text)
        attempt.then.extend(decoded.then)
        return decoded.outcome()


async def _hand_over(child: asyncio.subprocess.Process, assignment: Assignment) -> None:
    assert child.stdin is not None
    try:
        # Not closed: its end is how the child learns that this process is gone.
        child.stdin.write(msgspec.json.encode(assignment) + b"\n")
        await child.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return  # it died at once: there will be no answer


async def _open_pipe() -> tuple[asyncio.StreamReader, asyncio.ReadTransport, int]:
    """Its stream, its reading end, and the descriptor to write to."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=ANSWER_LIMIT)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )
    return stream, transport, writing


async def _until_answered(answer: Coroutine[Any, Any, bytes], child: asyncio.subprocess.Process) -> bytes:
    """One line, or less when the child has died. Its own children may hold the pipe open for ever."""
    line, death = asyncio.ensure_future(answer), asyncio.ensure_future(child.wait())
    try:
        await asyncio.wait((line, death), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((line, death), timeout=LAST_WORDS)
        return line.result() if line.done() else b""
    finally:
        line.cancel()
        death.cancel()


def answer_of(outcome: Outcome, result: str | None, then: tuple[NewJob, ...]) -> ChildAnswer:
    """An outcome, ready to be sent to the parent."""
    match outcome:
        case Complete():
            return ChildAnswer("complete", result=result, then=then)
        case Retry(error, after, payload, kind):
            later = None if after is None else seconds(after)
            return ChildAnswer("retry", error, later, payload=payload, error_class=kind)
        case Snooze(delay):
            return ChildAnswer("snooze", seconds=seconds(delay))
        case Cancel(reason):
            return ChildAnswer("cancel", reason)
        case Fail(error, poison, payload, kind):
            return ChildAnswer("poison" if poison else "fail", error, payload=payload, error_class=kind)


async def attempt_in_child(handler: Handler[Job], assignment: Assignment, report: Report | None = None) -> ChildAnswer:
    """The child's side: run the handler once. Its hooks run beside the worker; but for what judges and encodes."""
    job = assignment.job
    claim: Claim[Job] = Claim(assignment.lease, job, job.task, job.attempts, job.max_attempts, job.queue)
    attempt: Attempt[Job] = Attempt(claim, 0.0, report=report)
    control_of(attempt).on_enqueue = getattr(handler, "on_enqueue", None)
    encode: Callable[[object], str] | None = getattr(handler, "encode", None)
    policy: Callable[[Claim[Any]], Policy] = getattr(handler, "policy", lambda claim: Policy())
    retryable: Callable[[BaseException], bool] | None = getattr(handler, "retryable", None)
    result = None
    try:
        outcome = from_returned(await handler.handle(attempt, attempt.record))
        if isinstance(outcome, Complete) and outcome.result is not None and encode is not None:
            result = encode(outcome.result)
    except BaseException as error:  # noqa: BLE001 - boundary: whatever it raises is an outcome; this process ends with it
        final = isinstance(error, Exception) and retryable is not None and not retryable(error)
        outcome = hopeless(error) if final else outcome_of(error, claim, policy)
    return answer_of(outcome, result, tuple(attempt.then))
