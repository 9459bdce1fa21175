"""What settling and claiming in one call means."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, MIN_SUSPECT_RESETS, Settlement
from stowhand.protocols.store import Claim, ClaimRequest, Reply
from tests.model.engine import leasing
from tests.model.engine.rows import IN_TURN, Row, Rows
from tests.model.engine.store import ModelStore, claimed


def settle_and_claim(
    store: ModelStore, batch: Sequence[tuple[Lease, Settlement]], request: ClaimRequest
) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
    """As a capability of PostgreSQL's store."""
    with store.transaction() as rows:
        serials = [row.serial for lease, _ in batch if (row := rows.held(lease)) is not None]
        replies = [leasing.settle(rows, lease, what, repeat=False) for lease, what in batch]
        if any(what is not COMPLETED for _, what in batch) or request.token in rows.abandoned:
            return replies, []
        heads = [
            head for serial in serials if serial is not None and (head := _head(rows, serial, request)) is not None
        ]
        for head in heads[: request.limit]:
            leasing.start(head, request, rows.now)
        return replies, [claimed(head) for head in heads[: request.limit]]


def _head(rows: Rows, serial: str, request: ClaimRequest) -> Row | None:
    """The first of a serial key that the request may take, unless something more urgent is due."""
    if serial in rows.running_serials():
        return None
    due = [
        row for row in rows.live.values() if row.waits() and row.run_at <= rows.now and row.resets < MIN_SUSPECT_RESETS
    ]
    mine = [row for row in due if row.serial == serial and leasing.claimable(row, request, rows.now)]
    head = min((row for row in mine if not rows.is_paused(row)), key=IN_TURN, default=None)
    return None if head is None or any(row.priority < head.priority for row in due) else head
