"""Limits at which a worker claims nothing more.

Threads cannot be stopped, so they may outlive their attempts. If they are as many as jobs may run at once, each new job
could add another. ``max_jobs``, ``max_age`` and ``max_memory`` limit the jobs, time and memory of the worker: after
that it ends as soon as no handler runs.
"""

from __future__ import annotations

import threading

from stowhand.events import ThreadAbandoned, ThreadEnded, ThreadsExhausted, WorkerRenewed
from stowhand.jobs.durations import format_duration
from stowhand.worker.host import Host
from stowhand.worker.leases import HeldJob
from stowhand.worker.state import WorkerState

MEMORY_CHECK_SECONDS = 1.0


class Limits:
    """Limits of one worker. Changed on its loop, and read from any thread."""

    def __init__(self, host: Host, state: WorkerState) -> None:
        """Raise ConfigurationError if ``max_memory`` is set and the system does not report memory."""
        self._host = host
        self._state = state
        self._options = state.options
        self._threads: list[tuple[HeldJob, threading.Event]] = []
        self._was_exhausted = False
        self._memory_check_due = 0.0
        self._is_reported = False
        if self._options.max_memory is not None:
            host.resident()

    def start(self) -> None:
        """Start to measure the worker's age."""
        if self._options.max_age is not None:
            age = format_duration(self._options.max_age)
            self._state.clock.call_later(
                self._options.max_age, lambda: self._state.reach_limit(f"max_age ({age}) reached")
            )

    def check(self) -> None:
        """Report ended threads and reached limits. Called several times a second."""
        self._report_ended_threads()
        self._check_memory()
        if not self._is_reported and not self._state.is_stopping and (reason := self.renewal_reason()) is not None:
            self._is_reported = True
            self._state.events.emit(WorkerRenewed(self._state.worker, reason, len(self._state.running)))

    def unready(self) -> str | None:
        """Return why nothing new is claimed, if a limit is reached. Callable from any thread."""
        if self.is_out_of_threads:
            count = self.abandoned_threads
            return f"threads: {count} outlived their timeouts and still run, as many as jobs may run at once"
        return self.renewal_reason()

    # -- threads ---------------------------------------------------------------------------------

    @property
    def abandoned_threads(self) -> int:
        """Number of threads that still run handlers of ended attempts."""
        return sum(not has_ended.is_set() for _, has_ended in self._threads)

    @property
    def is_out_of_threads(self) -> bool:
        """Whether too many threads have outlived their attempts."""
        return self.abandoned_threads >= self._options.concurrency

    def add_thread(self, job: HeldJob, end_event: threading.Event) -> None:
        """Add a thread that has outlived its attempt. ``end_event`` is set when the thread ends."""
        self._threads.append((job, end_event))
        events, worker = self._state.events, self._state.worker
        events.emit(ThreadAbandoned(worker, job.claim.lease.job_id, job.claim.task))
        if self.is_out_of_threads and not self._was_exhausted:
            self._was_exhausted = True
            events.emit(ThreadsExhausted(worker, self.abandoned_threads))
            self._host.on_threads_exhausted()

    def _report_ended_threads(self) -> None:
        ended_threads = [entry for entry in self._threads if entry[1].is_set()]
        if not ended_threads:
            return
        self._threads = [entry for entry in self._threads if entry not in ended_threads]
        self._was_exhausted = self.is_out_of_threads
        self._state.wake()
        for job, _ in ended_threads:
            ended = ThreadEnded(self._state.worker, job.claim.lease.job_id, job.claim.task, self.abandoned_threads)
            self._state.events.emit(ended)

    # -- jobs, time, memory ----------------------------------------------------------------------

    @property
    def jobs_left(self) -> float:
        """Number of jobs that the worker may still claim."""
        if self._options.max_jobs is None:
            return float("inf")
        state = self._state
        return max(self._options.max_jobs - state.handlers_ended - len(state.running) - len(state.ready), 0)

    @property
    def is_spent(self) -> bool:
        """Whether the worker has used all the jobs, time or memory that it may."""
        return self._state.is_limit_reached or not self.jobs_left

    def renewal_reason(self) -> str | None:
        """Return which of these limits was reached, if any. Callable from any thread."""
        if not self._state.is_limit_reached and not self.jobs_left:
            return f"max_jobs ({self._options.max_jobs}) reached"
        return self._state.limit_reason

    def _check_memory(self) -> None:
        now = self._state.clock.monotonic()
        # Checked after the first job: a limit that is too low must not prevent all work.
        if self._options.max_memory is None or now < self._memory_check_due or not self._state.handlers_ended:
            return
        self._memory_check_due = now + MEMORY_CHECK_SECONDS
        used = self._host.resident()
        if used > self._options.max_memory:
            self._state.reach_limit(f"max_memory ({_mib(self._options.max_memory)}) reached: {_mib(used)} used")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
