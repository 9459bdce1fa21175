"""What a store's claims are asked about foreign leases, kept until it has been answered and passed on.

The question travels with a claim, so that it costs nothing where the claim finds something; the answer is read
together with ``next_due``, so that it costs no call of its own where the claim finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import slack
from stowhand.protocols.store import ClaimRequest, Foreign


class Asked(msgspec.Struct, frozen=True):
    """By a claim."""

    ours: Sequence[Lease]
    slack: float


class Outlook:
    """Of one store, used by one worker's loop."""

    def __init__(self) -> None:
        self._asked: Asked | None = None
        self._seen: Foreign | None = None

    def ask(self, request: ClaimRequest) -> None:
        """A claim is made."""
        if request.ours is not None:
            self._asked = Asked(request.ours, slack(request.lease))

    def take(self) -> Asked | None:
        """What is to be answered now, if anything."""
        asked, self._asked = self._asked, None
        return asked

    def see(self, ends_in: float | None) -> None:
        """The answer: seconds until the first foreign lease has been over for the slack; ``None``: there is none."""
        self._seen = Foreign(ends_in=ends_in)

    def told(self) -> Foreign | None:
        """The answer, once."""
        seen, self._seen = self._seen, None
        return seen
