"""The queue's work on leases and settlements inside a transaction, for the code shared with users' tables."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Reply
from stowhand.stores.sqlite.queue import error_translation, finish, settle
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.sqlite.shared.leaser import MAX_LEASES_PER_PAGE
from stowhand.stores.sqlite.shared.plan import Renewal
from stowhand.stores.verdicts import Entry


class QueuePlan:
    """Plan of the queue. The pair (id, token) identifies a lease; the epoch is not needed here."""

    def settle(self, tx: Transaction, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        return settle.settle(tx, batch, repeat=repeat)

    def reason(self, error: Exception) -> str:
        return error_translation.reason(error)

    def renew(self, tx: Transaction, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        pairs = as_json([lease.pair for lease in leases])
        rows = tx.rows("renew", lease_until=tx.now.ticks + micros(seconds), leases=pairs)
        return [Renewal((job_id, token), bool(cancel_requested)) for job_id, token, cancel_requested in rows]

    def release(self, tx: Transaction, lease: Lease) -> None:
        held = finish.find_held(tx, lease.job_id, lease.token)
        if held is not None:
            finish.release(tx, held)

    def abandon(self, tx: Transaction, token: str) -> Sequence[Lease]:
        tx.run("abandon", token=token)
        return _leases(tx.rows("held_by_token", token=token))

    def find_foreign(self, tx: Transaction, own_leases: Sequence[Lease], slack: float) -> Foreign:
        """Return the state of all leases except these. Leases of another boot have expired."""
        now, own_ids = tx.now.ticks, as_json([lease.job_id for lease in own_leases])
        has_late_lease, first_end = tx.row("foreign_leases", late=now - micros(slack), own_ids=own_ids)
        expires_in = None if first_end is None else (first_end - now) / 1_000_000 + slack
        return Foreign(has_expired=bool(has_late_lease), expires_in=expires_in)

    def find_stalled(self, tx: Transaction, slack: float) -> Sequence[Lease]:
        """Return expired leases by the ticks of this boot. Leases of another boot have expired."""
        return _leases(tx.rows("stalled", late=tx.now.ticks - micros(slack), limit=MAX_LEASES_PER_PAGE))

    def find_held_by(self, tx: Transaction, worker: str) -> Sequence[Lease]:
        return _leases(tx.rows("held_by_worker", worker=worker, limit=MAX_LEASES_PER_PAGE))

    def reset(self, tx: Transaction, lease: Lease) -> ResetJob | None:
        held = finish.find_held(tx, lease.job_id, lease.token)
        return None if held is None else finish.reset(tx, held)


def _leases(rows: Sequence[tuple[int, str]]) -> list[Lease]:
    return [Lease(job_id, token, 0) for job_id, token in rows]
