"""Handle of a job for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from stowhand.jobs.durations import Duration
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import Answer
from stowhand.tasks.job_handle import JobFields, JobHandle

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class LoopThread(Protocol):
    """A thread with an event loop, in which coroutines of other threads run."""

    def run(self, start: Callable[[], Coroutine[Any, Any, T]], instead: str) -> T:
        """Run the coroutine there and wait for its result; ``instead``: what to write in an event loop."""


class SyncJobHandle(JobFields, Generic[R_co]):
    """As a ``JobHandle``, whose methods are called without an event loop."""

    __slots__ = ("_portal", "handle")

    def __init__(self, handle: JobHandle[R_co], portal: LoopThread) -> None:
        super().__init__(handle.last_read)
        self.handle, self._portal = handle, portal

    def result(self, timeout: Duration | None = None) -> R_co:
        """As ``JobHandle.result``."""
        return self._call(lambda: self.handle.result(timeout), "result")

    def wait(self, timeout: Duration | None = None) -> Self:
        """As ``JobHandle.wait``."""
        self._call(lambda: self.handle.wait(timeout), "wait")
        return self

    def refresh(self) -> Self:
        """As ``JobHandle.refresh``."""
        self._call(self.handle.refresh, "refresh")
        return self

    def cancel(self) -> Answer:
        """As ``JobHandle.cancel``."""
        return self._call(self.handle.cancel, "cancel")

    def watch(self) -> Iterator[Job]:
        """As ``JobHandle.watch``."""
        jobs = self.handle.watch()
        while (job := self._call(lambda: anext(jobs, None), "watch")) is not None:
            yield job

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
        try:
            return self._portal.run(call, f"await job.{name}(…) of Task.enqueue")
        finally:
            self.last_read = self.handle.last_read
