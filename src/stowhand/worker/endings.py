"""What happens when a handler begins and ends: it is judged, settled, given back or dropped; then its hook runs."""

from __future__ import annotations

from collections.abc import Callable

from stowhand.events import Events, JobLeft, JobLost, JobStarted, ThreadAbandoned
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Outcome
from stowhand.protocols.handler import control_of
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks
from stowhand.worker.judge import Judge
from stowhand.worker.leases import Held, Leases
from stowhand.worker.settler import Ended, Settler
from stowhand.worker.slot import Stop


class Endings:
    """Called by the executor (``slot.Ending``)."""

    def __init__(self, leases: Leases, judge: Judge, hooks: Hooks, events: Events, worker: str) -> None:
        self._leases = leases
        self._judge = judge
        self._hooks = hooks
        self._events = events
        self._worker = worker
        self.settler: Settler
        self.heartbeater: Heartbeater
        self.on_suspect_ended: Callable[[], None] = lambda: None
        self.on_ended: Callable[[], None] = lambda: None
        """Called after each: a stopping worker may be waiting for it."""
        self.unfinished: list[Lease] = []
        """Leases of handlers that could not be ended. To be released only as the last write."""

    def started(self, held: Held) -> None:
        """A handler is about to run."""
        if self._events.wants(JobStarted):
            claim = held.claim
            waited = _waited(claim.record)
            self._events.emit(JobStarted(self._worker, claim.lease.job_id, claim.task, claim.attempts, waited))

    def slot_freed(self, held: Held) -> None:
        """A handler has ended; maybe long after the worker has stopped, if it ignored its cancellation."""
        if self._events.wants(JobLeft):
            self._events.emit(JobLeft(self._worker, held.claim.lease.job_id, held.claim.task))

    def ended(self, held: Held, outcome: Outcome | None, stop: Stop | None) -> None:
        """A handler ended: judge it, and put the settlement on the pile."""
        attempt = held.attempt
        assert attempt is not None
        if held.suspect:
            self.on_suspect_ended()
        if control_of(attempt).detached:
            self._events.emit(ThreadAbandoned(self._worker, held.claim.lease.job_id, held.claim.task))
        holds_slot = not self._hooks.bare and self._hooks.handler_ended(attempt)
        if outcome is None:
            self._hooks.undo(attempt, lambda: self._unrecorded(held, stop))
        else:
            on_answered = self._hooks.record_answered if holds_slot else None
            self.settler.add(Ended(held, self._judge.settle(attempt, outcome), on_answered))
        self.on_ended()

    def _unrecorded(self, held: Held, stop: Stop | None) -> None:
        """No outcome to record: lost, returned by a stopping worker, or its child process died or never started it."""
        assert held.attempt is not None
        lease = held.claim.lease
        if stop is Stop.RETURNED and control_of(held.attempt).detached:
            self.unfinished.append(lease)  # a thread still runs for it: its lease is kept until the last moment
            return
        self._leases.drop([held])
        if stop is Stop.LOST:
            why = "its lease ended before its handler"
            self._events.emit(JobLost(self._worker, lease.job_id, held.claim.task, why))
        elif stop is Stop.CRASHED:
            self.heartbeater.child_crashed(lease)
        elif stop is Stop.UNABLE:
            self.heartbeater.give_back([held], "its child process could not begin")
        else:
            self.heartbeater.give_back([held], "the worker stopped before its handler had ended")
        self._hooks.record_answered(held.attempt)


def _waited(record: object) -> float | None:
    if not isinstance(record, Job) or record.started_at is None:
        return None
    return max((record.started_at - record.run_at).total_seconds(), 0.0)
