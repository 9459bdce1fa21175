"""Makes claims of the jobs that the claim script returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.flows.redis.queues import FIRST_FIELDS, QueueAt
from stowhand.flows.redis.values import readable
from stowhand.jobs.lease import Lease
from stowhand.protocols.propagation import CORRELATION, TRACE_PARENT
from stowhand.protocols.store import Claim

_FIRST = 2 + len(FIRST_FIELDS)


class FlowRecord(msgspec.Struct):
    """A job of a flow as it was claimed."""

    id: str
    """As it is written in the lists."""
    queue: str
    flow: str
    """The flow that it belongs to: queues may be shared."""
    priority: int
    values: dict[str, str | None]
    """JSON text by attribute: the requested ones (``None``: the job lacks it), or all of the hash."""
    retries: int = 0
    correlation_id: str | None = None
    """JSON text."""

    def carried_along(self) -> dict[str, str]:
        """The trace context and correlation id, where they are texts: other applications may have written any value."""
        known = {TRACE_PARENT: self.values.get(TRACE_PARENT), CORRELATION: self.correlation_id}
        values = {name: readable(text) for name, text in known.items()}
        return {name: value for name, value in values.items() if isinstance(value, str)}


def claims_of(queue: QueueAt, token: str, epoch: int, rows: Sequence[list[Any]]) -> list[Claim[FlowRecord]]:
    """The answer of ``claim.lua``. ``epoch``: the moment of the claim, in microseconds.

    Each job gets an epoch of its own, so that jobs that are handed back keep their order. The script takes longer than
    a microsecond for each job, so the epochs of a later claim are greater.
    """
    return [_claim(queue, token, epoch + place, row) for place, row in enumerate(rows)]


def _claim(queue: QueueAt, token: str, epoch: int, row: list[Any]) -> Claim[FlowRecord]:
    rank, job_id = row.pop(), row.pop()
    if queue.wanted is None:
        values: dict[str, str | None] = dict(zip(row[::2], row[1::2], strict=True))
        facts = [values.get(name) for name in queue.first]
    else:
        facts = row[:_FIRST]
        values = dict(zip(queue.wanted, row[len(row) - len(queue.wanted) :], strict=True))
    retries, resets, priority, flow, correlation_id, _ = facts
    attempts, most = _count(retries) + 1, queue.flow_queue.max_attempts
    return Claim(
        lease=Lease(job_id, token, epoch),
        record=FlowRecord(
            id=job_id,
            queue=queue.name,
            flow=queue.flow_of(flow),
            priority=_count(priority) or rank,
            values=values,
            retries=attempts - 1,
            correlation_id=correlation_id,
        ),
        task=queue.name,
        attempts=min(attempts, most),
        max_attempts=most,
        resets=_count(resets),
    )


def _count(text: str | None) -> int:
    """0 for what is not a number of up to nine digits: other applications may have written any value."""
    return int(text) if text is not None and len(text) < 10 and text.isascii() and text.isdigit() else 0
