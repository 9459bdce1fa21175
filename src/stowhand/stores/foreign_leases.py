"""A claim's question about foreign leases, and the answer until it is read.

A claim contains the question, which is answered only if the claim finds no jobs: the following ``next_due`` reads the
answer in the same call, so that it costs no call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import slack
from stowhand.protocols.store import ClaimRequest, Foreign


class ForeignLeaseQuestion(msgspec.Struct, frozen=True):
    """The question when the first lease that is not among ``own_leases`` expires."""

    own_leases: Sequence[Lease]
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

    def take_question(self) -> ForeignLeaseQuestion | None:
        """Return the open question, and remove it."""
        question, self._question = self._question, None
        return question

    def set_answer(self, expires_in: float | None, *, none_expired: bool = False) -> None:
        """Record the answer.

        Args:
            expires_in: Seconds until the first foreign lease has been expired for the slack; ``None`` without one.
            none_expired: No foreign lease has been expired for that long.

        """
        self._answer = Foreign(expires_in=expires_in, none_expired=none_expired)

    def take_answer(self) -> Foreign | None:
        """Return the answer, and remove it."""
        answer, self._answer = self._answer, None
        return answer
