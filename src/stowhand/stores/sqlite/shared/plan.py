"""What differs between the queue and a user's table in an SQLite file: the work of one transaction.

A plan names statements, passes values and reads rows. It opens no connection and begins no transaction; which state
follows is decided by ``jobs/lifecycle.py`` and ``stores/verdicts.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.protocols.store import Foreign, Reply
from stowhand.stores.verdicts import Entry

X_contra = TypeVar("X_contra", contravariant=True)
"""What work on the file is passed: the connection in its transaction, with whatever the store adds."""


class Renewal(NamedTuple):
    """A lease that has been renewed."""

    pair: Pair
    cancel_requested: bool
    refusal: str = ""
    """Why it is lost all the same: a trigger of the application's made it another claim's."""


class SettlePlan(Protocol[X_contra]):
    """How settlements are written."""

    def settle(self, tx: X_contra, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch. Raises where the file refuses one; of no settlement: where it refuses
        all."""

    def reason(self, error: Exception) -> str:
        """Why a settlement cannot be written. ``error``: as a transaction raises it."""


class LeasePlan(Protocol[X_contra]):
    """How leases are renewed, released and reset. A lease that holds no row any more is left as it is."""

    def renew(self, tx: X_contra, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Those that hold their rows. Of no lease: raise where the file refuses all."""

    def release(self, tx: X_contra, lease: Lease) -> None:
        """Return the row to the queue without using an attempt."""

    def abandon(self, tx: X_contra, token: str) -> Sequence[Lease]:
        """Let the token claim nothing more; what it holds."""

    def find_foreign(self, tx: X_contra, ours: Sequence[Lease], slack: float) -> Foreign:
        """All leases but these."""

    def find_stalled(self, tx: X_contra, slack: float) -> Sequence[Lease]:
        """A page of leases that ended more than ``slack`` seconds ago."""

    def find_held_by(self, tx: X_contra, worker: str) -> Sequence[Lease]:
        """A page of leases of this worker."""

    def reset(self, tx: X_contra, lease: Lease) -> ResetJob | None:
        """Take the row back; ``None``: this lease does not hold it."""
