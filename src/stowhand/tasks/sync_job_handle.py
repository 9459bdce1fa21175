"""Handle of a job for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from stowhand.errors import explain_foreign_attributes
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import Answer
from stowhand.tasks.job_handle import JobFields, JobHandle

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class LoopThread(Protocol):
    """A thread with an event loop, in which coroutines of other threads run."""

    def run(self, start: Callable[[], Coroutine[Any, Any, T]], replacement: str) -> T:
        """Run a coroutine in that thread and wait for its result.

        ``replacement``: the call to suggest in an event loop.
        """


@explain_foreign_attributes
class SyncJobHandle(JobFields, Generic[R_co]):
    """Handle of a job for code without an event loop. Each method waits for the method of a ``JobHandle``.

    handle = send.enqueue_sync("someone@example.com")
    result = handle.result(timeout="30s")
    """

    __slots__ = ("_portal", "handle")

    def __init__(self, handle: JobHandle[R_co], portal: LoopThread) -> None:
        super().__init__(handle.last_read)
        self.handle, self._portal = handle, portal

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job and return its result, like ``JobHandle.result``."""
        return self._call(lambda: self.handle.result(timeout), "result")

    def wait(self, timeout: Duration | None = None) -> Self:
        """Wait until the job has finished, like ``JobHandle.wait``."""
        self._call(lambda: self.handle.wait(timeout), "wait")
        return self

    def refresh(self) -> Self:
        """Read the current fields of the job, like ``JobHandle.refresh``."""
        self._call(self.handle.refresh, "refresh")
        return self

    def cancel(self) -> Answer:
        """Cancel the job, like ``JobHandle.cancel``."""
        return self._call(self.handle.cancel, "cancel")

    def send(self, event: str, payload: object = None) -> bool:
        """Emit an event for this job alone, like ``JobHandle.send``."""
        return self._call(lambda: self.handle.send(event, payload), "send")

    def watch(self) -> Iterator[Job]:
        """Yield the job now and after each change, like ``JobHandle.watch``."""
        jobs = self.handle.watch()
        while (job := self._call(lambda: anext(jobs, None), "watch")) is not None:
            yield job

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
        try:
            return self._portal.run(call, f"await job.{name}(…) of Task.enqueue")
        finally:
            self.last_read = self.handle.last_read
