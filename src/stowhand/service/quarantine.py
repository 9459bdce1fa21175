"""A job that workers died under runs in a process of its own, so that it can take nobody with it.

The worker keeps the lease and beats for it; the child gets the job on its standard input and answers through a pipe.
If the child dies before it has answered, the job is reset once more, until its budget of resets is used up.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec

from stowhand.handler import Attempt
from stowhand.job import Job, NewJob
from stowhand.lanes import ChildCrashed
from stowhand.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Snooze, seconds
from stowhand.outcomes import from_error, from_returned
from stowhand.service.settings import WorkerSettings
from stowhand.store import Claim, Lease
from stowhand.tasks.dispatch import TaskHandler

ANSWER_LIMIT = 4 * 1024 * 1024


class Assignment(msgspec.Struct, frozen=True):
    """What the child is given."""

    settings: WorkerSettings
    worker: str
    job: Job
    lease: Lease
    answer_fd: int


class ChildAnswer(msgspec.Struct, frozen=True):
    """What the child gives back."""

    kind: str
    """``complete``, ``retry``, ``fail``, ``poison``, ``snooze``, ``cancel``."""
    text: str = ""
    seconds: float | None = None
    result: str | None = None
    then: tuple[NewJob, ...] = ()

    def outcome(self) -> Outcome:
        """The outcome that the child's handler had. A result is JSON text already."""
        match self.kind:
            case "complete":
                return Complete(None if self.result is None else msgspec.Raw(self.result.encode()))
            case "retry":
                return Retry(self.text, self.seconds)
            case "snooze":
                return Snooze(self.seconds or 0.0)
            case "cancel":
                return Cancel(self.text)
            case kind:
                return Fail(self.text, poison=kind == "poison")


class Quarantine:
    """Runs one attempt in a child. ``run`` is the worker's ``isolate``."""

    def __init__(self, settings: WorkerSettings, worker: str) -> None:
        self._settings, self._worker = settings, worker

    async def run(self, attempt: Attempt[Any]) -> object:
        """Raises ChildCrashed. Cancelling it kills the child: a process, unlike a thread, can be killed."""
        reading, writing = os.pipe()
        try:
            assignment = Assignment(self._settings, self._worker, attempt.record, attempt.lease, writing)
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "stowhand.service.quarantined",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            answer, _ = await asyncio.gather(asyncio.to_thread(_read_all, reading), _hand_over(child, assignment))
            code = await child.wait()
        except BaseException:
            if child.returncode is None:
                child.kill()
                await child.wait()
            raise
        if not answer:
            raise ChildCrashed(f"the child process ended with {code} and no answer")
        decoded = msgspec.json.decode(answer, type=ChildAnswer)
        attempt.then.extend(decoded.then)
        return decoded.outcome()


async def _hand_over(child: asyncio.subprocess.Process, assignment: Assignment) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(msgspec.json.encode(assignment))
        await child.stdin.drain()
        child.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        return  # it died at once; that there is no answer says so


def _read_all(descriptor: int) -> bytes:
    """Until every writer has gone: at the latest, when the child has died."""
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read(ANSWER_LIMIT)


def answer_of(outcome: Outcome, result: str | None, then: tuple[NewJob, ...]) -> ChildAnswer:
    """An outcome, ready to be sent to the parent."""
    match outcome:
        case Complete():
            return ChildAnswer("complete", result=result, then=then)
        case Retry(error, after):
            return ChildAnswer("retry", error, None if after is None else seconds(after))
        case Snooze(delay):
            return ChildAnswer("snooze", seconds=seconds(delay))
        case Cancel(reason):
            return ChildAnswer("cancel", reason)
        case Fail(error, poison):
            return ChildAnswer("poison" if poison else "fail", error)


async def attempt_in_child(handler: TaskHandler, assignment: Assignment) -> ChildAnswer:
    """The child's side: run the handler once."""
    job = assignment.job
    claim: Claim[Job] = Claim(assignment.lease, job, job.task, job.attempts, job.max_attempts, job.queue)
    attempt: Attempt[Job] = Attempt(claim, 0.0)
    result = None
    try:
        outcome = from_returned(await handler.handle(attempt))
        if isinstance(outcome, Complete) and outcome.result is not None:
            result = handler.encode(outcome.result)
    except BaseException as error:  # noqa: BLE001 - boundary: whatever it raises is an outcome; this process ends with it
        outcome = from_error(error)
    return answer_of(outcome, result, tuple(attempt.then))
