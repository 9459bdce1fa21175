"""When suspects run: jobs that were reset twice or more, because workers died under them.

One slot of the worker serves them, one after another, while any is due.

    in a child process   where one can be made: beside other jobs; the slot is kept for the next suspect
    in this process      elsewhere: in the next free slot; nothing new is claimed while it runs

A worker of one slot, and one without a child process, claims other jobs between two suspects.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.worker.leases import Held, Phase
from stowhand.worker.state import NEVER, WorkerState


class Suspects:
    """Suspects of one worker. ``can_isolate``: there are child processes for them."""

    def __init__(self, state: WorkerState, *, can_isolate: bool) -> None:
        self._state = state
        self._takes_turns = not can_isolate or state.options.concurrency == 1
        self.can_isolate = can_isolate
        self._held: Held | None = None
        """The last one."""
        self._claimed_at = state.clock.monotonic()
        self.is_serving = False
        """The last claim brought one, so there may be more."""
        self._others_claimed = True
        """Other jobs were claimed since the last suspect."""

    @property
    def is_held(self) -> bool:
        """One waits or runs. One that was given back before it started does not count."""
        one = self._held
        if one is None:
            return False
        if one.attempt is None:
            return one.phase is not Phase.GONE
        return one.task is not None

    @property
    def blocks_claims(self) -> bool:
        """One runs in this process, so nothing else may be claimed."""
        return self.is_held and not self.can_isolate

    @property
    def wait(self) -> float:
        """Seconds until suspects are to be claimed although there is other work: from 0 on the next slot is for one."""
        if self.is_held or (self.is_serving and self._is_turn_of_others):
            return NEVER
        return (
            0.0
            if self.is_serving
            else self._claimed_at + self._state.timings.suspects_every - self._state.clock.monotonic()
        )

    def claimed(self, claimed: Sequence[Held]) -> None:
        """Note the answer to a claim of suspects, of one at most."""
        self._claimed_at = self._state.clock.monotonic()
        self.is_serving = bool(claimed)
        if claimed:
            self._held = claimed[0]
            self._others_claimed = False

    def others_claimed(self) -> None:
        """Note the answer to a claim of other jobs."""
        self._others_claimed = True

    @property
    def _is_turn_of_others(self) -> bool:
        """Other jobs come between two suspects: until they have been claimed, and those that were have started."""
        return self._takes_turns and not (self._others_claimed and not self._state.ready)
