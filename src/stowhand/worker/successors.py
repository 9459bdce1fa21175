"""Settlements that claim: along with the end of a serial key's job its next one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stowhand.events import Claimed, Claiming
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.store import Claim, ClaimRequest, Reply, SettleAndClaim
from stowhand.worker.claims import Claims
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.host import Call
from stowhand.worker.leases import Leases
from stowhand.worker.state import WorkerState

if TYPE_CHECKING:
    from stowhand.worker.claimer import Claimer

Entries = Sequence[tuple[Lease, Settlement]]
MAX_CHAINED = 16
"""Settlements in one call beyond which claims are worth a call of their own."""
MAX_JOBS_IN_ROW = 50
"""Jobs of a serial key that settlements claim before an ordinary claim has its turn."""
MAX_ROW_SECONDS = 0.1


class Successors:
    """Settling claims: along with the end of a serial key's job its next one, in one transaction of the store.

    The jobs of a serial key follow each other one commit apart, instead of a settlement, a wake-up and a claim.
    Otherwise it is a claim like others: under a token made before the call, which is abandoned when the reply is lost,
    and only of what the claimer would claim too. What it would not claim any more when the reply comes goes back.

    In a row at most so many jobs, or so many seconds: then a claim has its turn, which takes what comes first in the
    order of all.
    """

    def __init__(
        self,
        settle_and_claim: SettleAndClaim,
        claimer: Claimer,
        claims: Claims,
        leases: Leases,
        heartbeater: Heartbeater,
        state: WorkerState,
    ) -> None:
        self._settle_and_claim = settle_and_claim
        self._claimer = claimer
        self._claims = claims
        self._leases = leases
        self._heartbeater = heartbeater
        self._state = state
        flags = state.options.forbidden_flags
        self._flags = () if callable(flags) else flags
        self._claims_seen = 0
        """How many claims had been answered when the row of jobs began."""
        self._began = 0.0
        self._row = 0
        """Jobs claimed in a row without a claim in between."""

    def request(self, entries: Entries, queued: int) -> ClaimRequest | None:
        """What may be claimed along with these settlements, of which so many are of serial keys; ``None``: nothing."""
        if len(entries) > MAX_CHAINED or any(settlement is not COMPLETED for _, settlement in entries):
            return None
        state = self._state
        limit = min(queued, self._claimer.limit_along(state.tasks), self._left_in_row())
        if limit < 1:
            return None
        return ClaimRequest(
            worker=state.worker,
            token=str(uuid.uuid4()),
            limit=limit,
            lease=state.options.lease,
            tasks=state.tasks,
            forbidden_flags=self._flags,
            queues=state.queues,
        )

    async def settle(self, entries: Entries, request: ClaimRequest, call: Call) -> tuple[Sequence[Reply], set[str]]:
        """The replies, and the serial keys that go on. Raises StoreError; then the request is to be abandoned."""
        state, events = self._state, self._state.events
        if events.wants(Claiming):
            events.emit(Claiming(state.worker, request.limit))
        sent = state.clock.monotonic()  # a lease may begin at any moment from here on
        try:
            with call:
                replies, claims = await self._settle_and_claim(entries, request)
        except asyncio.CancelledError:
            self._heartbeater.abandon(request.token)
            raise
        if events.wants(Claimed):
            events.emit(Claimed(state.worker, len(claims), call.seconds))
        if claims:
            self._take(claims, request, sent)
        return replies, {claim.serial for claim in claims if claim.serial is not None}

    def abandon(self, request: ClaimRequest) -> asyncio.Event:
        """The reply was lost. The event: what it may have claimed is given back, or locked, and it claims no more."""
        is_dead = asyncio.Event()
        self._heartbeater.abandon(request.token, is_dead.set)
        self._state.clock.call_later(request.lease, is_dead.set)  # if the store is away: its lease is over then
        return is_dead

    def _take(self, claims: Sequence[Claim[Any]], request: ClaimRequest, sent: float) -> None:
        held = self._leases.take(claims, sent=sent, since=self._state.clock.monotonic())
        if self._claimer.start_along(held, request.tasks):
            self._row += len(held)
        else:
            self._leases.drop(held)
            self._heartbeater.give_back(held, "claimed with a settlement, and the worker claims nothing now")
            self._heartbeater.hurry()

    def _left_in_row(self) -> int:
        now = self._state.clock.monotonic()
        if self._claims.ordinary != self._claims_seen or self._row == 0:
            self._claims_seen = self._claims.ordinary
            self._began = now
            self._row = 0
        return MAX_JOBS_IN_ROW - self._row if now - self._began <= MAX_ROW_SECONDS else 0
