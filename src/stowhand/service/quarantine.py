"""Quarantine: a child process of ``stowhand worker`` runs suspects, so that they cannot kill the worker.

The child (quarantine_child.py) runs one suspect after another, until one kills it. The worker holds the leases and
sends their heartbeats. If the child dies before its answer, the running job is reset once more. If the child dies or
gives up before it has started a job, that job is released.

The child reads a ChildSetup and then jobs from its standard input. It answers through a pipe, one line each:

    begun            the handler starts: from now on a death of the child counts for the job
    progress [...]   the worker records it under its lease, like the progress of its own handlers
    {...}            the answer
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import Cancelable, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, TasksReloaded
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, RateLimited, Retry, Snooze, Wait, Waiting
from stowhand.observe.propagation import current_correlation_id, current_traceparent
from stowhand.protocols.attempt import Attempt, Report, read_progress, report_of
from stowhand.protocols.handler import ChildCrashed, ChildUnable, Handler
from stowhand.protocols.workflows import ProofKeeper
from stowhand.service.children import Child

STARTED_LINE = b"begun\n"
PROGRESS_PREFIX = b"progress "
"""Start of a progress line; an answer starts with a brace."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
CHILD_EXIT_SECONDS = 1.0
"""Seconds to wait for the answer of a dead child, and for the death of a dismissed child."""
MAX_IDLE_SECONDS = 30.0
"""Seconds for which a child without a job is kept: it holds memory and connections."""


class ChildSetup(msgspec.Struct, frozen=True):
    """The first line that a child reads."""

    settings: msgspec.Raw
    """JSON of ``WorkerSettings.to_json``."""
    worker: str
    answer_fd: int


class Assignment(msgspec.Struct, frozen=True):
    """One job for a child, sent as one line."""

    job: Job
    lease: Lease
    traceparent: str | None
    """The context of the attempt's span, if any."""
    correlation_id: str | None
    keeps_progress: bool
    proof: str | None = None
    """Proof of the lease, for a store that needs one to record steps."""


class ChildAnswer(msgspec.Struct, frozen=True):
    """The child's answer for one job."""

    kind: str
    """``complete``, ``retry``, ``fail``, ``poison``, ``rate_limited``, ``snooze``, ``waiting`` or ``cancel``; else
    ``unable``."""
    text: str = ""
    seconds: float | None = None
    result: str | None = None
    payload: str | None = None
    """JSON text that replaces the job's payload."""
    then: tuple[NewJob, ...] = ()
    wait: Wait | None = None
    error_class: str | None = None

    def outcome(self) -> Outcome:
        """Return the outcome of the child's handler. A result is JSON text already."""
        match self.kind:
            case "complete":
                return Complete(None if self.result is None else msgspec.Raw(self.result.encode()))
            case "retry":
                return Retry(self.text, self.seconds, self.payload, self.error_class)
            case "rate_limited":
                return RateLimited(self.seconds or 0.0)
            case "snooze":
                return Snooze(self.seconds or 0.0)
            case "cancel":
                return Cancel(self.text)
            case "waiting" if self.wait is not None:
                return Waiting(self.wait)
            case kind:
                return Fail(self.text, kind == "poison", self.payload, self.error_class)


class AttemptReply:
    """The lines that the worker has read for one attempt."""

    def __init__(self) -> None:
        self.has_started = False
        self.line: bytes | None = None
        """The answer; ``None`` if there is no complete one."""


class Quarantine:
    """Runner of suspects in a child. ``run`` is the ``isolate`` of the worker's host.

    ``handler`` is the worker's handler. ``is_program`` returns whether a task already runs in a process of its own.
    ``proofs``: those of the worker's leases, if its store needs them to record steps.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        worker: str,
        is_program: Callable[[str], bool],
        handler: Handler[Job],
        events: Events,
        proofs: ProofKeeper | None = None,
    ) -> None:
        self._settings = settings.to_json()
        self._proofs = proofs
        self._worker = worker
        self._is_program = is_program
        self._handler = handler
        self._pause = settings.timings.failed_start_delay
        self._clock = SystemClock()
        self._child: SuspectChild | None = None
        """The kept child, which has no job."""
        self._dismissal: Cancelable | None = None
        self._load_count = 0
        """Number of reloads of the worker's tasks."""
        events.on(TasksReloaded, lambda _: self._on_reload())

    async def run(self, attempt: Attempt[Any]) -> object:
        """Run a suspect in a child. Cancellation kills the child: a process, unlike a thread, can be killed.

        Raises ChildCrashed, ChildUnable.
        """
        if self._is_program(attempt.claim.task):
            # The task has a process of its own already. Killing a child in between would not end the program.
            return await self._handler.handle(attempt, attempt.record)
        report, load_count = report_of(attempt), self._load_count
        assignment = Assignment(
            attempt.record,
            attempt.lease,
            current_traceparent(),
            current_correlation_id(),
            keeps_progress=report is not None,
            proof=None if self._proofs is None else self._proofs.proof_of(attempt.lease),
        )
        reply = None
        if (child := self._take()) is not None:
            reply = await child.attempt(assignment, report)
        if reply is None or (reply.line is None and not reply.has_started):  # the kept child had died earlier
            child = await SuspectChild.start(self._settings, self._worker)
            reply = await child.attempt(assignment, report)
        assert child is not None
        if reply.line is None:
            if not reply.has_started:
                await self._clock.sleep(self._pause)  # the job may be claimed again at once
                raise ChildUnable(f"the child process ended with {child.code} before it started the job")
            raise ChildCrashed(f"the child process ended with {child.code} and no answer")
        answer = msgspec.json.decode(reply.line, type=ChildAnswer)
        if answer.kind == "unable":
            await child.kill()
            await self._clock.sleep(self._pause)
            raise ChildUnable(answer.text)
        await self._keep(child, load_count)
        attempt.then.extend(answer.then)
        return answer.outcome()

    def _on_reload(self) -> None:
        """Dismiss the child: the next suspect needs one that has loaded the new tasks."""
        self._load_count += 1
        self._dismiss()

    async def close(self) -> None:
        """End the child. Harmless when repeated."""
        if (child := self._take()) is not None:
            await child.end()

    def _take(self) -> SuspectChild | None:
        child, self._child = self._child, None
        if self._dismissal is not None:
            self._dismissal.cancel()
            self._dismissal = None
        return child

    async def _keep(self, child: SuspectChild, load_count: int) -> None:
        if self._child is None and load_count == self._load_count:
            self._child = child
            self._dismissal = self._clock.call_later(MAX_IDLE_SECONDS, self._dismiss)
        else:
            await child.end()

    def _dismiss(self) -> None:
        if (child := self._take()) is not None:
            child.dismiss()


class SuspectChild:
    """A child that runs suspects, and the pipe of its answers."""

    def __init__(self, child: Child, stream: asyncio.StreamReader, reading: asyncio.ReadTransport) -> None:
        self._child = child
        self._stream = stream
        self._reading = reading

    @classmethod
    async def start(cls, settings: msgspec.Raw, worker: str) -> Self:
        """Start a child, which loads the tasks first."""
        stream, reading, writing = await _open_pipe()
        setup = msgspec.json.encode(ChildSetup(settings, worker, writing))
        try:
            child = await Child.start("stowhand.service.quarantine_child", order=setup, pass_fds=(writing,))
        except BaseException:
            reading.close()
            raise
        finally:
            os.close(writing)
        return cls(child, stream, reading)

    @property
    def code(self) -> int | None:
        """Exit code of the child; ``None`` while it runs."""
        return self._child.code

    async def attempt(self, assignment: Assignment, report: Report | None) -> AttemptReply:
        """Run one job in the child. Kill the child without a complete answer, or when this call is cancelled."""
        answer = AttemptReply()
        try:
            self._child.send(msgspec.json.encode(assignment))
            await self._until_answered(answer, assignment.lease, report)
        finally:
            if answer.line is None:
                await self.kill()
        return answer

    async def kill(self) -> None:
        """Kill the child and wait for its end."""
        self._reading.close()
        self._child.kill()
        await self._child.wait()

    def dismiss(self) -> None:
        """Let the child exit by itself, at the end of its standard input."""
        self._reading.close()
        self._child.dismiss()

    async def end(self) -> None:
        """Dismiss the child. Kill it if it does not exit."""
        self._reading.close()
        await self._child.end(CHILD_EXIT_SECONDS)

    async def _until_answered(self, answer: AttemptReply, lease: Lease, report: Report | None) -> None:
        """Wait for the answer or the child's death. The child's own children may hold the pipe open for ever."""
        line = asyncio.ensure_future(read_answer(self._stream, answer, lease, report))
        death = asyncio.ensure_future(self._child.wait())
        try:
            await asyncio.wait((line, death), return_when=asyncio.FIRST_COMPLETED)
            if answer.line is None:
                await asyncio.wait((line, death), timeout=CHILD_EXIT_SECONDS)
        finally:
            line.cancel()
            death.cancel()


async def _open_pipe() -> tuple[asyncio.StreamReader, asyncio.ReadTransport, int]:
    """Return the stream of a new pipe, its reading end, and the descriptor of its writing end."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=MAX_ANSWER_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )
    return stream, transport, writing


async def read_answer(stream: asyncio.StreamReader, answer: AttemptReply, lease: Lease, report: Report | None) -> None:
    """Read the pipe until the answer or the end of the pipe, and report progress on the way."""
    while (line := await stream.readline()).endswith(b"\n"):
        if line == STARTED_LINE:
            answer.has_started = True
        elif not line.startswith(PROGRESS_PREFIX):
            answer.line = line
            return
        elif report is not None:
            with suppress(msgspec.MsgspecError, ConfigurationError):
                done, text = msgspec.json.decode(line[len(PROGRESS_PREFIX) :], type=tuple[float, str | None])
                report(read_progress(lease, done, text))
