"""The parts that differ between the queue and a user's table in an SQLite file: the work of one transaction.

A plan names statements, passes values and reads rows. It opens no connection and starts no transaction. The next state
of a job is decided by ``jobs/lifecycle.py`` and ``stores/verdicts.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.protocols.store import Foreign, Reply
from stowhand.stores.verdicts import Entry

X_contra = TypeVar("X_contra", contravariant=True)
"""The argument of a unit of work: the connection in its transaction, with whatever the store adds."""


class Renewal(NamedTuple):
    """A renewed lease."""

    pair: Pair
    cancel_requested: bool
    refusal: str = ""
    """Why it is lost nevertheless: an application's trigger has changed its mark."""


class SettlePlan(Protocol[X_contra]):
    """The writes of settlements."""

    def settle(self, tx: X_contra, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Settle a batch, and reply in its order.

        Raises if the file refuses one. An empty batch raises if the file refuses all.
        """

    def reason(self, error: Exception) -> str:
        """Return why a settlement cannot be written. ``error``: as a transaction raises it."""


class LeasePlan(Protocol[X_contra]):
    """The writes that renew, release and reset leases. A lease without a row changes nothing."""

    def renew(self, tx: X_contra, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Renew leases, and return those that hold their rows. Without leases, raise if the file refuses all."""

    def release(self, tx: X_contra, lease: Lease) -> None:
        """Return the row to the queue without using an attempt."""

    def abandon(self, tx: X_contra, token: str) -> Sequence[Lease]:
        """Let the token claim nothing more, and return its leases."""

    def find_foreign(self, tx: X_contra, own_leases: Sequence[Lease], slack: float) -> Foreign:
        """Look for foreign leases."""

    def find_stalled(self, tx: X_contra, slack: float) -> Sequence[Lease]:
        """Return a page of leases that expired more than ``slack`` seconds ago."""

    def find_held_by(self, tx: X_contra, worker: str) -> Sequence[Lease]:
        """Return a page of leases of this worker."""

    def reset(self, tx: X_contra, lease: Lease) -> ResetJob | None:
        """Reset the row; ``None`` if this lease does not hold it."""
