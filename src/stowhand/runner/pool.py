"""What listeners are shown of a worker: a pool, and in it as many workers as it runs jobs at once."""

from __future__ import annotations

from collections.abc import Callable

from stowhand.jobs.job import Job


class PoolWorker:
    """One slot of a pool. It has no thread or connection of its own; it is who runs a job."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.active_job: Job | None = None
        """What it runs just now."""

    def __repr__(self) -> str:
        return f"<worker {self.worker_id}>"


class WorkerPool:
    """The workers of one run."""

    def __init__(self, worker_id: str, concurrency: int, stop: Callable[[str], None]) -> None:
        self.worker_id = worker_id
        """Who holds the jobs, as the store knows it (``job.worker``)."""
        self.workers = tuple(PoolWorker(f"{worker_id}.{number}") for number in range(1, concurrency + 1))
        self._free = list(reversed(self.workers))
        self._stop = stop

    def graceful_shutdown(self, message: str = "asked to stop") -> None:
        """Take nothing new, and let running jobs end within their grace. On the runner's loop."""
        self._stop(message)

    def release(self) -> None:
        """The same."""
        self._stop("released")

    def idle_worker(self) -> PoolWorker:
        """The one that would take the next job."""
        return self._free[-1] if self._free else self.workers[0]

    def begin(self, job: Job) -> PoolWorker:
        """A worker begins with a job."""
        worker = self._free.pop() if self._free else PoolWorker(f"{self.worker_id}.0")
        worker.active_job = job
        return worker

    def end(self, worker: PoolWorker) -> None:
        """It is free again."""
        worker.active_job = None
        if worker in self.workers:
            self._free.append(worker)
