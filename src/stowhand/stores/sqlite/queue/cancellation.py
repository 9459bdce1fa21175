"""How a job is canceled that waits."""

from __future__ import annotations

from stowhand.stores.sqlite.queue.transaction import Transaction


def cancel_waiting(tx: Transaction, job_id: int, why: str | None = None) -> None:
    """At once: no worker runs it."""
    if tx.keeps:
        nothing = dict.fromkeys(("attempts", "resets", "settled_token", "result", "payload"))
        tx.run("archive", **nothing, id=job_id, state="canceled", error=why, epochs=0)
    tx.run("delete_one", id=job_id)
