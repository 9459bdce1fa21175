"""The question of a claim about foreign leases, and its answer until it has been read.

The question travels with a claim, so that it costs nothing where the claim finds something; the answer is read
together with ``next_due``, so that it costs no call of its own where the claim finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import slack
from stowhand.protocols.store import ClaimRequest, Foreign


class Question(msgspec.Struct, frozen=True):
    """When do leases other than these end?"""

    ours: Sequence[Lease]
    slack: float


class ForeignLeases:
    """Of one store, used by one worker's loop."""

    def __init__(self) -> None:
        self._question: Question | None = None
        self._seen: Foreign | None = None

    def ask(self, request: ClaimRequest) -> None:
        """A claim is made."""
        if request.ours is not None:
            self._question = Question(request.ours, slack(request.lease))

    def take(self) -> Question | None:
        """What is to be answered now, if anything."""
        question, self._question = self._question, None
        return question

    def see(self, ends_in: float | None, *, none_late: bool = False) -> None:
        """The answer: seconds until the first foreign lease has been over for the slack; ``None``: there is none."""
        self._seen = Foreign(ends_in=ends_in, none_late=none_late)

    def take_answer(self) -> Foreign | None:
        """The answer, once."""
        seen, self._seen = self._seen, None
        return seen
