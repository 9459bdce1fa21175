"""One attempt, from its start in a slot to its settlement, in order.

start           a slot has taken the job: create the attempt, with hooks and handler (hooks.py); a suspect gets a child
                process
on_first_wait   the handler waits for the first time: from now on its time is limited
on_end          decide the settlement (policy.py) and pass it to the settler, or return or forget the job
answered        the store has answered: call post_handle, then free the slot
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from stowhand.errors import StoreError
from stowhand.events import JobLeft, JobLogged, JobLost, JobStarted
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt, AttemptLogger, Stop, Transaction, control_of, known_control_of
from stowhand.protocols.store import Claim
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks
from stowhand.worker.leases import HeldJob, Leases
from stowhand.worker.limits import Limits
from stowhand.worker.policy import HandlerEnd, HandlerPolicies
from stowhand.worker.settler import Settler
from stowhand.worker.state import WorkerState


class Executor:
    """Steps of an attempt, called in order by the slots of a worker (slots.py)."""

    def __init__(
        self,
        hooks: Hooks,
        policies: HandlerPolicies,
        leases: Leases,
        settler: Settler,
        heartbeater: Heartbeater,
        limits: Limits,
        state: WorkerState,
    ) -> None:
        self._hooks = hooks
        self._policies = policies
        self._leases = leases
        self._settler = settler
        self._heartbeater = heartbeater
        self._limits = limits
        self._state = state
        self._supervisor = state.supervisor
        self._events = state.events
        self._wanted_events = state.events.types_with_listener
        self._clock = state.clock
        self._worker = state.worker
        self._new_logger = self._logger
        self._report = None if heartbeater.progress is None else heartbeater.progress.note
        self.unfinished: list[Lease] = []
        """Leases of handlers that did not stop. Release them only as the last write of the process."""

    def start(self, job: HeldJob) -> Coroutine[Any, Any, object]:
        """Return the coroutine of the handler with its hooks. Called when a slot has taken the job."""
        claim = job.claim
        attempt = job.attempt = Attempt(claim, self._clock.monotonic(), self._new_logger, self._report)
        if self._hooks.on_enqueue is not None:
            control_of(attempt).on_enqueue = self._hooks.on_enqueue
        if JobStarted in self._wanted_events:
            waited = _waited(claim.record)
            self._events.emit(JobStarted(self._worker, claim.lease.job_id, claim.task, claim.attempts, waited))
        if job.is_suspect and self._hooks.isolated is not None:
            return self._hooks.isolated(attempt)
        return self._hooks.handle(attempt, claim.record)

    def on_first_wait(self, job: HeldJob) -> None:
        """Limit the handler's time. Called at its first wait. Raises what the handler's policy raises."""
        timeout = self._policies.timeout(job.claim)
        if timeout is not None:
            assert job.attempt is not None
            spent = self._clock.monotonic() - job.attempt.started
            job.timeout = timeout
            remaining = max(timeout - spent, 0)
            job.timer = self._clock.call_later(remaining, lambda: self._leases.stop(job, Stop.TIMEOUT))

    def end_of(self, error: BaseException, job: HeldJob) -> HandlerEnd:
        """Return how a handler ended that raised this error."""
        return self._policies.end_of(error, job)

    def on_end(self, job: HeldJob, end: HandlerEnd) -> None:
        """Settle, return or forget the job. Called when no slot runs the handler any more."""
        attempt = job.attempt
        assert attempt is not None
        if job.timer is not None:
            job.timer.cancel()
        if JobLeft in self._wanted_events:
            self._events.emit(JobLeft(self._worker, job.claim.lease.job_id, job.claim.task))
        if self._supervisor.is_closed:
            return  # The handler ignored its cancellation, and ended long after the worker.
        self._leases.end(job)
        control, transaction = known_control_of(attempt), None
        if control is not None:
            control.ended = True
            if control.abandoned_thread is not None:
                self._limits.add_thread(job, control.abandoned_thread)
            transaction = control.transaction
            if control.hooked is not None or transaction is not None:
                self._state.occupying_attempts.add(attempt)
        if job.stop_reason is Stop.LOST:
            end = Stop.LOST  # even if the handler succeeded
        if isinstance(end, Stop):
            self._leave_unrecorded(job, attempt, end)
        else:
            job.settlement = self._policies.settle(attempt, end)
            job.on_answered = (
                self._answered if control is not None and attempt in self._state.occupying_attempts else None
            )
            self._settler.add(job)
        if job.is_suspect:
            self._state.wake()  # the claimer may claim again
        self._state.ask_pre_claim_again()

    def _leave_unrecorded(self, job: HeldJob, attempt: Attempt[Any], reason: Stop) -> None:
        """Roll back the attempt's transaction first, so that the record is returned as it was claimed."""
        control = control_of(attempt)
        transaction, control.transaction = control.transaction, None
        if transaction is None:
            self._leave(job, attempt, reason)
        else:
            self._supervisor.start(self._roll_back(transaction, job, attempt, reason))

    async def _roll_back(self, transaction: Transaction, job: HeldJob, attempt: Attempt[Any], reason: Stop) -> None:
        try:
            await transaction.rollback()
        except StoreError:
            pass  # the connection is lost, and the transaction with it
        finally:
            self._leave(job, attempt, reason)

    def _leave(self, job: HeldJob, attempt: Attempt[Any], reason: Stop) -> None:
        """Record no settlement: the job was lost or returned, or its child process died or did not start."""
        lease = job.claim.lease
        if reason is Stop.RETURNED and control_of(attempt).abandoned_thread is not None:
            self.unfinished.append(lease)  # its thread still runs: keep the lease until the process ends
            return
        self._leases.drop([job])
        match reason:
            case Stop.LOST:
                message = "its lease expired before its handler ended"
                self._events.emit(JobLost(self._worker, lease.job_id, job.claim.task, message))
            case Stop.CRASHED:
                self._heartbeater.report_child_crash(lease)
            case Stop.UNABLE:
                self._heartbeater.return_jobs([job], "its child process could not start")
            case _:
                self._heartbeater.return_jobs([job], "the worker stopped before its handler had ended")
        self._answered(attempt)

    def _answered(self, attempt: Attempt[Any]) -> None:
        """Call post_handle, then free the slot: the store has answered, or there is nothing to record."""
        control = control_of(attempt)
        context, control.hooked = control.hooked, None
        if context is not None and self._hooks.has_post:
            self._supervisor.start(self._post(attempt), context)
        else:
            self._vacate(attempt)

    async def _post(self, attempt: Attempt[Any]) -> None:
        try:
            await self._hooks.post(attempt)
        finally:
            self._vacate(attempt)

    def _vacate(self, attempt: Attempt[Any]) -> None:
        if attempt in self._state.occupying_attempts:
            self._state.occupying_attempts.discard(attempt)
            self._state.notify_change()
            self._state.ask_pre_claim_again()

    def _logger(self, claim: Claim[Any]) -> AttemptLogger:
        if self._events.wants(JobLogged):
            return AttemptLogger(self._events.emit, self._worker, claim.task, claim.lease.job_id)
        return AttemptLogger.mute()


def _waited(record: object) -> float | None:
    if not isinstance(record, Job) or record.started_at is None:
        return None
    return max((record.started_at - record.run_at).total_seconds(), 0.0)
