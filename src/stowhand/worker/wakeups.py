"""Wakes the claimer when the store has work, and the heartbeater, for a running job may have been canceled.

Wake-ups are hints: losing them all costs a poll interval, or for a cancellation a heartbeat interval.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.errors import StoreError
from stowhand.events import StoreRecovered, StoreTrouble
from stowhand.protocols.options import OUTAGE
from stowhand.protocols.store import Store
from stowhand.worker.basis import Basis
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.liveness import Call


class Wakeups:
    """One waiting call at a time, for as long as the worker lives."""

    def __init__(
        self,
        store: Store[Any],
        heartbeater: Heartbeater,
        basis: Basis,
        *,
        polls: bool,
    ) -> None:
        self._store = store
        self._heartbeater = heartbeater
        self._options = basis.options
        self._events = basis.events
        self._clock = basis.clock
        self._worker = basis.worker
        self._changes = basis.changes
        self._polls = polls
        self._failures = 0
        self.call = Call(basis.clock)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                with self.call:
                    woken = await self._store.wait(self._options.poll(is_listening=self._store.is_listening))
            except StoreError as error:
                await self._pause(error)
                continue
            if not self._polls:
                self._check_listening()
            if woken:
                self._changes.wake()
                self._heartbeater.find_canceled_soon()
                await asyncio.sleep(0)  # the claim is sent first, and the next wait begins while it is on its way

    def _check_listening(self) -> None:
        """A store that hears no wake-ups (no LISTEN in a pooler, a wrong address) is polled; this is reported once."""
        if self._store.is_listening:
            if self._failures:
                self._events.emit(StoreRecovered(self._worker, "listen", self._failures))
            self._failures = 0
        elif self._failures == 0:
            self._failures = 1
            poll = self._options.poll(is_listening=False)
            self._events.emit(StoreTrouble(self._worker, "listen", "no wake-ups are heard: polling instead", poll))

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        pause = OUTAGE(self._failures)
        if self._failures == 1:
            self._events.emit(StoreTrouble(self._worker, "listen", str(error), pause))
        await self._clock.sleep(pause)
