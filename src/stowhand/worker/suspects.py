"""When a suspect runs, which is a job that workers died under, and when the other jobs run.

    in a child process   where one can be made: suspects are asked for every few seconds, before other work
    alone                elsewhere: while this worker is idle; or when the suspect has waited too long behind other
                         work. Then the worker claims it for a slot that has fallen free, claims nothing more, waits for
                         what runs, a lease at most, and runs it

Between two suspects for which it made way, other jobs get at least as long as the first one took.
"""

from __future__ import annotations

from stowhand.events import DrainEnded, DrainStarted
from stowhand.worker.basis import Basis
from stowhand.worker.changes import NEVER
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.leases import Held, Leases, Phase
from stowhand.worker.load import Load
from stowhand.worker.slots import Slots


class Suspects:
    """Of one worker. ``can_isolate``: there are child processes for them."""

    def __init__(
        self,
        slots: Slots,
        load: Load,
        leases: Leases,
        heartbeater: Heartbeater,
        basis: Basis,
        *,
        can_isolate: bool,
    ) -> None:
        self._slots = slots
        self._load = load
        self._leases = leases
        self._heartbeater = heartbeater
        self._duty = basis.duty
        self._changes = basis.changes
        self._options = basis.options
        self._events = basis.events
        self._clock = basis.clock
        self._worker = basis.worker
        self._every = basis.timings.suspects_every
        self.overdue_after = basis.timings.suspect_overdue
        self.can_isolate = can_isolate
        self._held: Held | None = None
        """The last one."""
        self._cleared_at: float | None = None
        """When the worker began to make way for it; ``None``: it did not."""
        self._asked_at = basis.clock.monotonic()
        self._others_until = float("-inf")
        """Until when other jobs have their turn, because of those before it."""

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
    def runs_alone(self) -> bool:
        """Nothing else may be claimed."""
        return self.is_held and not self.can_isolate

    @property
    def wait(self) -> float:
        """Seconds until suspects are to be claimed although there is other work: from 0 on the next slot is for one."""
        if self.is_held:
            return NEVER
        return max(self._asked_at + self._every, self._turn_of_others()) - self._clock.monotonic()

    def asked(self) -> None:
        """A claim of suspects has gone out."""
        self._asked_at = self._clock.monotonic()

    def taken(self, held: Held) -> None:
        """The worker holds this one now."""
        self._others_until = self._turn_of_others()
        self._held = held
        self._cleared_at = None

    async def make_way(self, held: Held) -> None:
        """For this one: nothing more is claimed. Returns when nothing else runs, or after a lease."""
        held.waits = True
        cleared_at = self._cleared_at = self._clock.monotonic()
        patience = self._options.lease
        claim, lease = held.claim, held.claim.lease
        running = self._slots.running
        self._events.emit(DrainStarted(self._worker, lease.job_id, claim.task, claim.resets, running, patience))
        ahead = self._leases.pull_ahead(NEVER)
        self._heartbeater.give_back(ahead, "claimed ahead, and a job in quarantine comes first")
        self._slots.resume()  # so that it drops them from its queue
        await self._changes.until(lambda: self._is_cleared(held), patience)
        held.since = self._clock.monotonic()  # first: it was claimed long ago, and a beat would give it back
        held.waits = False
        if held.phase is not Phase.GONE and not self._duty.is_stopping:
            took = self._clock.monotonic() - cleared_at
            self._events.emit(DrainEnded(self._worker, lease.job_id, claim.task, took, self._slots.running))

    def _is_cleared(self, held: Held) -> bool:
        return self._duty.is_stopping or held.phase is Phase.GONE or not self._load.is_at_work

    def _turn_of_others(self) -> float:
        """Until when other jobs have their turn: as long as making way for the last suspect took, its run included."""
        one = self._held
        if one is None or one.attempt is None or one.task is not None or self._cleared_at is None:
            return self._others_until
        ended = one.attempt.started + one.seconds
        return ended + (ended - self._cleared_at)
