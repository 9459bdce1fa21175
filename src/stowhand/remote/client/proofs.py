"""The authorization that the server returned with each lease, sent again in every later call about it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

from stowhand.jobs.lease import Lease, Pair
from stowhand.remote.wire import Lent, Proof

HELD = 100_000
"""Far more than a worker holds. Leases lost while the server was away are never reported, and must not pile up."""
ENDED = 10_000
"""Ended leases whose proofs are kept: a repeated call must get the same answer."""


class HeldProofs:
    """Used by the loop and by the heartbeat's thread."""

    def __init__(self) -> None:
        self._held: dict[Pair, str] = {}
        self._ended: OrderedDict[Pair, str] = OrderedDict()
        self._lock = Lock()

    def keep(self, lent: Sequence[Lent]) -> None:
        """The proofs of the records that a claim returned."""
        with self._lock:
            for one in lent:
                self._held[one.lease.pair] = one.authorization
            while len(self._held) > HELD:
                del self._held[next(iter(self._held))]

    def of(self, lease: Lease) -> Proof:
        """The proof of a lease; empty for one that was never ours, which the server reports as lost."""
        pair = lease.pair
        return Proof(lease=lease, authorization=self._held.get(pair) or self._ended.get(pair, ""))

    def end(self, pairs: Iterable[Pair]) -> None:
        """These are settled, handed back, or lost."""
        with self._lock:
            for pair in pairs:
                authorization = self._held.pop(pair, None)
                if authorization is not None:
                    self._ended[pair] = authorization
            while len(self._ended) > ENDED:
                self._ended.popitem(last=False)

    def end_token(self, token: str) -> None:
        """Every lease of this claim token has ended."""
        self.end([pair for pair in tuple(self._held) if pair[1] == token])

    def __len__(self) -> int:
        return len(self._held)
