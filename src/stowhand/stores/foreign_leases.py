"""A claim's question about foreign leases, and the answer until it is read.

The question is sent with a claim, so it costs nothing where the claim finds jobs. The answer is read together with
``next_due``, so it costs no extra call where the claim finds none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import slack
from stowhand.protocols.store import ClaimRequest, Foreign


class ForeignLeaseQuestion(msgspec.Struct, frozen=True):
    """The question when leases other than these end."""

    ours: Sequence[Lease]
    slack: float


class ForeignLeases:
    """The question and answer of one store, used by one worker's loop."""

    def __init__(self) -> None:
        self._question: ForeignLeaseQuestion | None = None
        self._answer: Foreign | None = None

    def ask(self, request: ClaimRequest) -> None:
        """Record the question of a claim."""
        if request.own_leases is not None:
            self._question = ForeignLeaseQuestion(request.own_leases, slack(request.lease))

    def take(self) -> ForeignLeaseQuestion | None:
        """Return the open question, once."""
        question, self._question = self._question, None
        return question

    def see(self, ends_in: float | None, *, none_late: bool = False) -> None:
        """Record the answer.

        Args:
            ends_in: Seconds until the first foreign lease has been expired for the slack; ``None`` without one.
            none_late: No foreign lease has been expired for that long.

        """
        self._answer = Foreign(expires_in=ends_in, none_expired=none_late)

    def take_answer(self) -> Foreign | None:
        """Return the answer, once."""
        answer, self._answer = self._answer, None
        return answer
