"""The calls by which a worker claims, and what it learns from their answers and from their failures.

The reply to a call that failed is lost: its token is abandoned, so that what it may have claimed goes back. After an
outage the worker waits for a beat before it claims again, for its leases may be lost too.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from stowhand.errors import SchemaError, StoreError
from stowhand.events import Claimed, Claiming, StoreRecovered, StoreTrouble
from stowhand.jobs.lease import Lease
from stowhand.protocols.options import ONCE_PATIENCE, OUTAGE
from stowhand.protocols.store import ClaimRequest, Store
from stowhand.worker.admission import Permit
from stowhand.worker.basis import Basis
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.leases import Held, Leases
from stowhand.worker.liveness import Call
from stowhand.worker.load import Load

SCHEMA_PATIENCE = 6
"""Claims in a row, over some seconds, that may find no schema."""
FORESEE_EVERY = 1.0
"""Seconds between two requests for foreign leases: with ten thousand running jobs one takes three milliseconds."""
BEAT_LOOK = 0.05
"""Seconds between two looks whether the store has answered a beat."""


class Claims:
    """Of one worker, one at a time."""

    def __init__(
        self,
        store: Store[Any],
        leases: Leases,
        heartbeater: Heartbeater,
        load: Load,
        basis: Basis,
    ) -> None:
        self._store = store
        self._leases = leases
        self._heartbeater = heartbeater
        self._load = load
        self._duty = basis.duty
        self._changes = basis.changes
        self._options = basis.options
        self._events = basis.events
        self._clock = basis.clock
        self._worker = basis.worker
        self._failures = 0
        self._foresaw_at = float("-inf")
        """When a claim last asked for foreign leases."""
        self._limit = 0
        """Of the last claim."""
        self.ordinary = 0
        """Claims so far that were answered, those of suspects apart."""
        self.call = Call(basis.clock)

    async def claim(
        self,
        permit: Permit,
        tasks: tuple[str, ...] | None,
        *,
        limit: int,
        suspects: bool = False,
    ) -> list[Held]:
        """What one call brings, entered in ``Leases``: up to ``limit`` jobs of these tasks."""
        if self._duty.is_over or self._duty.is_stopping:
            return []
        request = ClaimRequest(
            worker=self._worker,
            token=str(uuid.uuid4()),
            limit=limit,
            lease=self._options.lease,
            tasks=tasks,
            forbidden_flags=permit.flags,
            suspects=suspects,
            conditions=permit.conditions,
            ours=None if suspects else self._own_leases(),
        )
        if self._events.wants(Claiming):
            self._events.emit(Claiming(self._worker, limit))
        sent = self._clock.monotonic()
        self._limit = limit
        try:
            with self.call:
                claims = await self._store.claim(request)
        except (StoreError, asyncio.CancelledError) as error:
            self._heartbeater.abandon(request.token)
            if not isinstance(error, StoreError):
                raise  # the worker stops and waits no longer for the reply
            await self._recover(error)
            return []
        self.ordinary += not suspects
        if self._events.wants(Claimed):
            self._events.emit(Claimed(self._worker, len(claims), self.call.seconds))
        if self._failures:
            self._events.emit(StoreRecovered(self._worker, "claim", self._failures))
            self._failures = 0
        since = self._clock.monotonic()
        return self._leases.take(claims, sent=sent, since=since, suspects=suspects) if claims else []

    def give_back_ahead(self, suspect: Held) -> None:
        """Return what was claimed ahead, except this suspect: if it kills the process, they are not implicated."""
        ahead = self._leases.pull_ahead(float("inf"), but=suspect)
        self._heartbeater.give_back(ahead, "claimed ahead, and a suspect runs now")

    @property
    def asking(self) -> int:
        """How many jobs the claim that is on its way may bring."""
        return 0 if self.call.since is None else self._limit

    @property
    def fails(self) -> bool:
        """The last claim did; the next one waits for a beat."""
        return self._failures > 0

    @property
    def rations(self) -> bool:
        """The store may give fewer than were asked for although there are more."""
        return self._store.capabilities.rations

    async def next_due(self) -> float | None:
        """Seconds until a job is due: 0 if one is due but was not claimed; ``None`` if none is known."""
        try:
            due = await self._store.next_due(self._duty.tasks)
        except StoreError:
            return None  # the next claim will report what is wrong
        if (seen := self._store.foreign()) is not None:
            self._heartbeater.foresee(seen)
        return due

    def poll_interval(self, *, leaves_due: bool) -> float:
        """Seconds until the next poll. It is not stretched while a due job cannot be claimed: nothing notifies of its
        release."""
        return self._options.poll(is_listening=self._store.is_listening and not leaves_due)

    def _own_leases(self) -> tuple[Lease, ...] | None:
        """``None``: this claim need not report foreign leases, a recent one did."""
        now = self._clock.monotonic()
        if now - self._foresaw_at < FORESEE_EVERY:
            return None
        self._foresaw_at = now
        return self._heartbeater.own_leases()

    async def _recover(self, error: StoreError) -> None:
        """Wait, and beat: then the store is asked again. Raises the error where that is no use."""
        self._failures += 1
        if isinstance(error, SchemaError) and self._failures > SCHEMA_PATIENCE:
            raise error  # the schema was removed: a worker that starts anew installs one, or says why it cannot
        if self._options.once and self._failures > ONCE_PATIENCE and not self._load.is_at_work:
            raise error  # a run that is to end by itself does not wait for the end of an outage
        pause = OUTAGE(self._failures)
        self._events.emit(StoreTrouble(self._worker, "claim", str(error), pause))
        beats = self._heartbeater.beats
        self._heartbeater.beat_soon()
        await self._changes.until(self._is_over, pause)
        while len(self._leases) and self._heartbeater.beats == beats and not self._is_over():
            await self._changes.until(self._is_over, BEAT_LOOK)
        self._changes.wake()

    def _is_over(self) -> bool:
        return self._duty.is_over or self._duty.is_stopping
