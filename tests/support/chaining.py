"""What settling and claiming in one call means, for a memory store: the specification as an example."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Verdict
from stowhand.stores.sqlite.queue import claim, finish, settle
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.testing import MemoryStore

DUE = """
SELECT id, task, serial, priority, coalesce(flags, '[]') FROM stowhand_jobs
WHERE state IN ('queued', 'errored') AND resets < 2 AND run_at <= ? ORDER BY priority, run_at, id"""
IS_HELD_UP = """
SELECT EXISTS (SELECT 1 FROM stowhand_jobs WHERE serial = :serial AND state = 'processing')
    OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = :serial)"""


def settle_and_claim(
    store: MemoryStore, batch: Sequence[tuple[Lease, Settlement]], request: ClaimRequest
) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
    """As a capability of PostgreSQL's store. Nobody is woken, unless nothing is taken."""
    connection = store._connections.connection  # type: ignore[attr-defined]

    def call(tx: Transaction) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
        held = [finish.find_held(tx, lease.job_id, lease.token) for lease, _ in batch]
        replies = settle.settle(tx, batch, repeat=False)
        hindrance = tx.row("claim_obstacle", token=request.token)
        if any(what is not COMPLETED for _, what in batch) or (hindrance and hindrance[0] == claim.TOKEN_IS_ABANDONED):
            return replies, []
        serials = [one.serial for one in held if one is not None and one.serial is not None]
        heads = [head for serial in serials if (head := _head(tx, serial, request)) is not None]
        if heads and Verdict.BUSY not in replies:
            connection._has_claimable_jobs.clear()
        rows, _ = claim._take(tx, request, heads[: request.limit])
        return replies, [claim._to_claim(row, request.token) for row in rows]

    return connection.write(call)  # type: ignore[no-any-return]


def _head(tx: Transaction, serial: str, request: ClaimRequest) -> int | None:
    """The first of a serial key that the request may take, unless something more urgent is due."""
    if tx.raw.execute(IS_HELD_UP, {"serial": serial}).fetchone() == (1,):
        return None
    paused = {task for task, _ in tx.run("pauses")}
    due = tx.raw.execute(DUE, (tx.now.wall,)).fetchall()
    for job_id, task, its_queue, priority, flags in due:
        fits = (request.tasks is None or task in request.tasks) and task not in paused
        if fits and its_queue == serial and not set(json.loads(flags)) & set(request.forbidden_flags):
            return None if due[0][3] < priority else int(job_id)
    return None
