"""Settlements: plain completions of a batch are written together, all others one by one.

A settlement that cannot be written rolls back its transaction; ``sqlite/shared/settler.py`` then finds that settlement.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.limits import check_remaining_payload
from stowhand.protocols.store import Reply, Verdict
from stowhand.stores.database.sqlite_connection import check_written
from stowhand.stores.sqlite.queue import enqueue, finish
from stowhand.stores.sqlite.queue.children import NO_RESULT, End, record_ends
from stowhand.stores.sqlite.queue.rows import as_json, check_text
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.verdicts import recorded, recorded_before, untraced

Batch = Sequence[tuple[Lease, Settlement]]

RESULT_LIMIT = 1024 * 1024


def settle(tx: Transaction, batch: Batch, *, repeat: bool) -> list[Reply]:
    """Record the outcomes. Return the replies in the order of the batch."""
    settled = _complete_plain(tx, batch)
    return [
        Verdict.SETTLED if position in settled else settle_one(tx, lease, settlement, repeat=repeat)
        for position, (lease, settlement) in enumerate(batch)
    ]


def settle_one(tx: Transaction, lease: Lease, settlement: Settlement, *, repeat: bool) -> Reply:
    """Record the outcome of one attempt, and enqueue the jobs that follow it."""
    held = finish.find_held(tx, lease.job_id, lease.token)
    if held is None:
        return _trace(tx, lease, settlement, repeat=repeat)

    _check(settlement)
    state = finish.settle(tx, held, settlement)
    for job in settlement.then if state is settlement.state else ():
        enqueue.add(tx, job)
    return recorded(settlement, state)


def _complete_plain(tx: Transaction, batch: Batch) -> set[int]:
    """Write plain completions with two statements. Return their positions in the batch.

    An empty batch tests whether the file is writable. If an id occurs twice, settlements are written one by one.
    """
    plain = {lease.job_id: position for position, (lease, settlement) in enumerate(batch) if _is_plain(settlement)}
    if (batch and len(plain) < 2) or len({lease.job_id for lease, _ in batch}) < len(batch):
        return set()
    chosen = (batch[position] for position in plain.values())
    settled = as_json([(lease.job_id, lease.token, settlement.result) for lease, settlement in chosen])
    completed = tx.rows("complete" if tx.keeps_history else "held_jobs", settled=settled)
    completed_ids = [job_id for job_id, _ in completed]
    child_ids = [job_id for job_id, parent_id in completed if parent_id is not None]
    if child_ids:
        results = {job_id: batch[position][1].result for job_id, position in plain.items()}
        record_ends(tx, [End(job_id, value=results[job_id] or NO_RESULT) for job_id in child_ids])
    check_written(tx.run("delete", ids=as_json(completed_ids)), len(completed_ids))
    return {plain[job_id] for job_id in completed_ids}


def _is_plain(settlement: Settlement) -> bool:
    return (
        settlement.state is State.COMPLETED
        and not (settlement.then or settlement.refund or settlement.error)
        and (
            settlement.result is None
            or ("\x00" not in settlement.result and len(settlement.result) * 4 <= RESULT_LIMIT)
        )
    )


def _check(settlement: Settlement) -> None:
    for field, text in (("the error", settlement.error), ("the result", settlement.result)):
        if text is not None:
            check_text(field, text)
    check_remaining_payload(settlement)
    if settlement.result is not None and (size := len(settlement.result.encode())) > RESULT_LIMIT:
        raise ValueError(f"the result has {size} bytes; the limit is {RESULT_LIMIT} (1 MiB)")


def _trace(tx: Transaction, lease: Lease, settlement: Settlement, *, repeat: bool) -> Reply:
    """Return the reply for a lease that does not hold its job."""
    row = tx.row("trace", id=lease.job_id)
    if row is None:
        return untraced(repeat=repeat)
    return recorded_before(settlement, State(row[1])) if row[0] == lease.token else Verdict.LOST
