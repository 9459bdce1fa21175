"""``ctx.store`` of a record of a lent table: its execution log, and requeueing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from stowhand.clock import wall_clock
from stowhand.errors import ConfigurationError, InvalidJob, LogRefused
from stowhand.jobs.durations import Duration
from stowhand.jobs.execution_log import ExecutionLogEntry, bounded
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Snooze
from stowhand.jobs.limits import read_delay
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.remote.client.claims import HeldProofs
from stowhand.remote.client.http_caller import CallRefused, HttpCaller
from stowhand.remote.wire import LOGS_VERB, ErrorKind, LogRequest

_LOG_REFUSAL_KINDS = (
    ErrorKind.LOG_REFUSED,
    ErrorKind.LEASE_LOST,
    ErrorKind.UNKNOWN,
    ErrorKind.TOO_LARGE,
    ErrorKind.MALFORMED,
)


class RemoteAttempt:
    """``ctx.store`` of a handler. The attempt's lease guards every change."""

    def __init__(self, http: HttpCaller, proofs: HeldProofs, attempt: Attempt[Any]) -> None:
        self._http = http
        self._proofs = proofs
        self._attempt = attempt

    @property
    def _lease(self) -> Lease:
        return self._attempt.lease

    async def requeue(self, record: object, after: datetime | Duration | None = None) -> Answer:
        """Return the attempt's own record to ``queued`` if the handler returns without raising; no attempt is counted.

        ``after``: an aware datetime by this machine's clock, seconds from now, or ``None`` for now. The settlement
        contains it. Raises InvalidJob for an invalid time, and ConfigurationError for another record.
        """
        job_id = self._attempt.lease.job_id
        if record is not self._attempt.record and _key(record) != job_id:
            raise ConfigurationError(
                f"requeue: not the record of this attempt ({job_id}); over HTTP a handler requeues only its own record."
                " Use TableStore.requeue on a machine that reaches the database"
            )
        control_of(self._attempt).decide(Snooze(_delay(after)))
        return Answer(job_id, ActionResult.DONE)

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        """Append an entry to the record's execution log, and return its number: 1, 2, …

        Long texts are cut (``out`` keeps its end). If the reply is lost (StoreUnreachable), the entry may have been
        written; it is not sent again. Raises LogRefused if the lease is lost.
        """
        (number,) = await self._change(LogRequest(proof=self._proofs.of(self._lease), add=(bounded(entry),)))
        return number

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        """Replace entry ``number``. Raises LogRefused, StoreUnreachable."""
        await self._change(LogRequest(proof=self._proofs.of(self._lease), update=((number, bounded(entry)),)))

    async def _change(self, change: LogRequest) -> tuple[int, ...]:
        try:
            return (await self._http.post(LOGS_VERB, change)).numbers
        except CallRefused as refused:
            if refused.kind in _LOG_REFUSAL_KINDS:
                raise LogRefused(str(refused)) from None
            raise


def _key(record: object) -> object:
    if isinstance(record, Mapping):
        record = record.get("id")
    elif not isinstance(record, str | int | UUID):
        record = getattr(record, "id", None)
    return str(record) if isinstance(record, UUID) else record


def _delay(after: datetime | Duration | None) -> float:
    if after is None:
        return 0.0
    if not isinstance(after, datetime):
        return read_delay(after)
    if after.utcoffset() is None:
        raise InvalidJob(f"after: {after} has no time zone; use an aware datetime, or seconds from now")
    return read_delay(max((after - wall_clock()).total_seconds(), 0.0))
