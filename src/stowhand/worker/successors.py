"""Settling claims: along with the end of a serial key's job its next one, in one transaction of the store.

The jobs of a serial key follow each other one commit apart, instead of a settlement, a wake-up and a claim. Otherwise
it is a claim like others: under a token made before the call, which is abandoned when the reply is lost, and only of
what the claimer would claim too. What it would not claim any more when the reply comes goes back unspent.

In a row at most RUN jobs, or RUN_SECONDS: then a claim has its turn, which takes what comes first in the order of all.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from stowhand.events import Claimed, Claiming
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.store import Claim, ClaimRequest, Reply, SettleAndClaim
from stowhand.worker.basis import Basis
from stowhand.worker.claim_size import ClaimSize
from stowhand.worker.claims import Claims
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.leases import Leases
from stowhand.worker.liveness import Call
from stowhand.worker.load import Load
from stowhand.worker.settler import FEW
from stowhand.worker.slots import Slots
from stowhand.worker.suspects import Suspects

RUN = 50
RUN_SECONDS = 0.1
Entries = Sequence[tuple[Lease, Settlement]]


class Successors:
    """Of one worker."""

    def __init__(
        self,
        settle_and_claim: SettleAndClaim | None,
        claims: Claims,
        claim_size: ClaimSize,
        suspects: Suspects,
        slots: Slots,
        load: Load,
        leases: Leases,
        heartbeater: Heartbeater,
        basis: Basis,
    ) -> None:
        """``settle_and_claim``: ``None`` where the store cannot, code of the application's decides on each claim, or
        tasks take turns."""
        self._settle_and_claim = settle_and_claim
        self._claims = claims
        self._claim_size = claim_size
        self._suspects = suspects
        self._slots = slots
        self._load = load
        self._leases = leases
        self._heartbeater = heartbeater
        self._duty = basis.duty
        self._options = basis.options
        self._events = basis.events
        self._clock = basis.clock
        self._worker = basis.worker
        flags = basis.options.forbidden_flags
        self._flags = () if callable(flags) else flags
        self._claims_seen = 0
        """How many claims had been answered when the row of jobs began."""
        self._began = 0.0
        self._row = 0
        """Jobs claimed in a row without a claim in between."""

    def request(self, entries: Entries, queued: int) -> ClaimRequest | None:
        """What may be claimed along with these settlements, of which so many are of serial keys; ``None``: nothing."""
        if len(entries) > FEW or any(settlement is not COMPLETED for _, settlement in entries):
            return None
        limit = min(queued, self._claim_size.limit(promised=True) - self._claims.asking, self._left_in_row())
        if limit < 1 or not self._consents(self._duty.tasks):
            return None
        return ClaimRequest(
            worker=self._worker,
            token=str(uuid.uuid4()),
            limit=limit,
            lease=self._options.lease,
            tasks=self._duty.tasks,
            forbidden_flags=self._flags,
        )

    async def settle(self, entries: Entries, request: ClaimRequest, call: Call) -> tuple[Sequence[Reply], set[str]]:
        """The replies, and the serial keys that go on. Raises StoreError; then the request is to be abandoned."""
        assert self._settle_and_claim is not None
        if self._events.wants(Claiming):
            self._events.emit(Claiming(self._worker, request.limit))
        sent = self._clock.monotonic()  # a lease may begin at any moment from here on
        try:
            with call:
                replies, claims = await self._settle_and_claim(entries, request)
        except asyncio.CancelledError:
            self._heartbeater.abandon(request.token)
            raise
        if self._events.wants(Claimed):
            self._events.emit(Claimed(self._worker, len(claims), call.seconds))
        if claims:
            self._take(claims, request, sent)
        return replies, {claim.serial for claim in claims if claim.serial is not None}

    def abandon(self, request: ClaimRequest) -> asyncio.Event:
        """The reply was lost. The event: what it may have claimed is given back, or locked, and it claims no more."""
        is_dead = asyncio.Event()
        self._heartbeater.abandon_now(request.token, is_dead.set)
        self._clock.call_later(self._options.lease, is_dead.set)  # if the store is away: its lease is over then
        return is_dead

    def _take(self, claims: Sequence[Claim[Any]], request: ClaimRequest, sent: float) -> None:
        held = self._leases.take(claims, sent=sent, since=self._clock.monotonic())
        if self._consents(request.tasks) and len(held) <= self._claim_size.left:
            self._row += len(held)
            self._claim_size.measure(held)
            self._slots.add(held)
        else:
            self._leases.drop(held)
            self._heartbeater.give_back(held, "claimed with a settlement, and the worker claims nothing now")
            self._heartbeater.hurry()

    def _consents(self, tasks: tuple[str, ...] | None) -> bool:
        """The claimer would claim jobs of these tasks now, in this order."""
        duty, suspects = self._duty, self._suspects
        if duty.is_stopping or duty.is_quiet or duty.is_over or duty.tasks != tasks:
            return False
        waits_for_claim = self._claims.fails or self._slots.on_hold or suspects.blocks_claims
        return not (waits_for_claim or self._load.is_backed_up or self._load.is_out_of_threads)

    def _left_in_row(self) -> int:
        now = self._clock.monotonic()
        if self._claims.ordinary != self._claims_seen or self._row == 0:
            self._claims_seen = self._claims.ordinary
            self._began = now
            self._row = 0
        return RUN - self._row if now - self._began <= RUN_SECONDS else 0
