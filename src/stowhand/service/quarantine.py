"""Suspects of ``stowhand worker`` run in a child process, so that they cannot take a worker with them.

The child (quarantine_child.py) runs one suspect after another, until one kills it. The worker keeps the leases and
beats for them. If the child dies before it has answered, the job that it was running is reset once more. A child that
dies or gives up before it has begun a job is no death of that job: it is released.

The child gets a Setup and then jobs on its standard input. It answers through a pipe, a line each:

    begun            the handler starts: from now on the death of the child counts as a death of the job
    progress [...]   noted by the worker as it notes those of its own handlers, under its lease
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
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Snooze
from stowhand.observe.propagation import current_correlation_id, current_traceparent
from stowhand.protocols.attempt import Attempt, Report, read_progress, report_of
from stowhand.protocols.handler import ChildCrashed, ChildUnable, Handler
from stowhand.service.children import Child

STARTED_LINE = b"begun\n"
PROGRESS_PREFIX = b"progress "
"""Begins a line of progress; an answer begins with a brace."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
CHILD_EXIT_SECONDS = 1.0
"""Seconds between a child's answer and its death, whichever comes first; and between its dismissal and its death."""
MAX_IDLE_SECONDS = 30.0
"""For which a child without a job is kept: it holds memory and connections."""


class ChildSetup(msgspec.Struct, frozen=True):
    """The first line that a child is given."""

    settings: msgspec.Raw
    """Of ``WorkerSettings.to_json``."""
    worker: str
    answer_fd: int


class Assignment(msgspec.Struct, frozen=True):
    """One job for a child, a line."""

    job: Job
    lease: Lease
    traceparent: str | None
    """Of the attempt's span, where there is one."""
    correlation_id: str | None
    keeps_progress: bool


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


class AttemptReply:
    """What the worker has read of one attempt."""

    def __init__(self) -> None:
        self.has_started = False
        self.line: bytes | None = None
        """``None``: there is no whole answer."""


class Quarantine:
    """Runs suspects in a child. ``run`` is the ``isolate`` of the worker's host; ``handler`` is the worker's own.

    ``is_program``: does the task run in a process of its own already?
    """

    def __init__(
        self,
        settings: WorkerSettings,
        worker: str,
        is_program: Callable[[str], bool],
        handler: Handler[Job],
        events: Events,
    ) -> None:
        self._settings = settings.to_json()
        self._worker = worker
        self._is_program = is_program
        self._handler = handler
        self._pause = settings.timings.unable
        self._clock = SystemClock()
        self._child: SuspectChild | None = None
        """A kept child, which has no job."""
        self._dismissal: Cancelable | None = None
        self._load_count = 0
        """How often the worker has loaded its tasks anew."""
        events.on(TasksReloaded, lambda _: self._on_reload())

    async def run(self, attempt: Attempt[Any]) -> object:
        """Run a suspect in a child. Cancelling kills the child: a process, unlike a thread, can be killed.

        Raises ChildCrashed, ChildUnable.
        """
        if self._is_program(attempt.claim.task):
            # It has a process of its own already; killing a child in between would not end the program.
            return await self._handler.handle(attempt, attempt.record)
        report, load_count = report_of(attempt), self._load_count
        assignment = Assignment(
            attempt.record,
            attempt.lease,
            current_traceparent(),
            current_correlation_id(),
            keeps_progress=report is not None,
        )
        reply = None
        if (child := self._take()) is not None:
            reply = await child.attempt(assignment, report)
        if reply is None or (reply.line is None and not reply.has_started):  # the kept child had died before
            child = await SuspectChild.start(self._settings, self._worker)
            reply = await child.attempt(assignment, report)
        assert child is not None
        if reply.line is None:
            if not reply.has_started:
                await self._clock.sleep(self._pause)  # the job may come back at once
                raise ChildUnable(f"the child process ended with {child.code} before it had begun the job")
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
        """The worker has loaded its tasks anew: the next suspect gets a child that loads them, too."""
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
    """A child, and the pipe through which it answers."""

    def __init__(self, child: Child, stream: asyncio.StreamReader, reading: asyncio.ReadTransport) -> None:
        self._child = child
        self._stream = stream
        self._reading = reading

    @classmethod
    async def start(cls, settings: msgspec.Raw, worker: str) -> Self:
        """A new one. It loads the tasks first."""
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
        """How it ended."""
        return self._child.code

    async def attempt(self, assignment: Assignment, report: Report | None) -> AttemptReply:
        """Have it run one job. If it gives no whole answer it is killed, as it is when this is cancelled."""
        answer = AttemptReply()
        try:
            self._child.send(msgspec.json.encode(assignment))
            await self._until_answered(answer, assignment.lease, report)
        finally:
            if answer.line is None:
                await self.kill()
        return answer

    async def kill(self) -> None:
        """End it at once."""
        self._reading.close()
        self._child.kill()
        await self._child.wait()

    def dismiss(self) -> None:
        """Let it end by itself: it exits at the end of its standard input."""
        self._reading.close()
        self._child.dismiss()

    async def end(self) -> None:
        """Dismiss it, and kill it if it does not exit."""
        self._reading.close()
        await self._child.end(CHILD_EXIT_SECONDS)

    async def _until_answered(self, answer: AttemptReply, lease: Lease, report: Report | None) -> None:
        """Wait until there is a line, or the child has died. Its own children may hold the pipe open for ever."""
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
    """Return the stream of a new pipe, its reading end, and the descriptor to write to."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=MAX_ANSWER_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )
    return stream, transport, writing


async def read_answer(stream: asyncio.StreamReader, answer: AttemptReply, lease: Lease, report: Report | None) -> None:
    """The worker's end: read until there is an answer, or the pipe has ended. Progress is reported on the way."""
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
