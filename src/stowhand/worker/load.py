"""What a worker has in hand: what runs, waits for a slot, or is on its way to the store."""

from __future__ import annotations

from stowhand.worker.abandoned_threads import AbandonedThreads
from stowhand.worker.basis import Basis
from stowhand.worker.executor import Executor
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.settler import Settler
from stowhand.worker.slots import Slots

BACKLOG = 1000
"""Ended jobs not yet recorded, above which nothing new is claimed."""


class Load:
    """Of one worker. Everything but ``is_idle`` and ``returned`` is signalled in ``Changes``."""

    def __init__(
        self,
        slots: Slots,
        executor: Executor,
        settler: Settler,
        heartbeater: Heartbeater,
        abandoned: AbandonedThreads,
        basis: Basis,
    ) -> None:
        self._slots = slots
        self._executor = executor
        self._settler = settler
        self._supervisor = basis.supervisor
        self._heartbeater = heartbeater
        self._abandoned = abandoned

    @property
    def free(self) -> int:
        """Slots in which nothing runs, post_handle included."""
        return max(self._slots.free - len(self._executor.occupying), 0)

    @property
    def fills_slots(self) -> bool:
        """A handler runs, or its slot is not free yet."""
        return bool(self._slots.running or self._executor.occupying)

    @property
    def underway(self) -> int:
        """Ended, and about to be recorded: their slots become free together, soon."""
        return self._settler.underway

    @property
    def promised(self) -> int:
        """How many jobs the settlements that are under way may claim."""
        return self._settler.promised if self._settler.chains else 0

    @property
    def is_unrecorded(self) -> bool:
        """Something has ended, and its end is not recorded yet."""
        return bool(self._settler.backlog or self._supervisor.pending)

    @property
    def is_out_of_threads(self) -> bool:
        """Too many threads have outlived their attempts."""
        return self._abandoned.are_exhausted

    @property
    def is_backed_up(self) -> bool:
        """Too much waits to be recorded."""
        return self._settler.backlog > BACKLOG

    @property
    def is_at_work(self) -> bool:
        """Something runs, waits for a slot, or has ended and is not recorded."""
        waits = self._slots.running or self._slots.ready
        return bool(waits or self._settler.backlog or self._supervisor.pending)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do, not even for the heartbeater."""
        return not (self.is_at_work or self._heartbeater.errands)

    @property
    def returned(self) -> int:
        """How many jobs were given back so far."""
        return self._heartbeater.returned
