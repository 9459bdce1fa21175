"""Claims and settlements: what the lent store gives away under a lease, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, StoreError
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.text import clean
from stowhand.jobs.unreadable import Unreadable
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Unwritten, Verdict
from stowhand.remote.client.bodies import ROOM, parts
from stowhand.remote.client.http_caller import HttpCaller
from stowhand.remote.client.proofs import HeldProofs
from stowhand.remote.client.troubles import CallRefused
from stowhand.remote.wire import ClaimAsked, Claimed, Kind, Lent, Settlements, SettlementSent, Told, Verdicts

REASON_LIMIT = 2048
_ONES_FAULT = (Kind.MALFORMED, Kind.INVALID_JOB, Kind.REFUSED, Kind.TOO_LARGE)
"""Refusals of a batch for which one of its settlements is to blame: the others must not suffer."""


class Claiming:
    """The two calls of a worker's loop."""

    def __init__(self, http: HttpCaller, proofs: HeldProofs, record: type[Any] | None) -> None:
        self._http, self._proofs = http, proofs
        self._make = _maker(record)

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Any]]:
        """What the server gives; it may be less than was asked for."""
        if not all(isinstance(condition, Where) for condition in request.conditions):
            raise ConfigurationError(
                f"{self._http.base}: a lent store takes conditions as Where(column, operator, value) only: SQL does not"
                " go over the wire"
            )
        asked = ClaimAsked(
            worker=request.worker,
            token=request.token,
            limit=request.limit,
            lease=request.lease,
            tasks=request.tasks,
            forbidden_flags=request.forbidden_flags,
            suspects=request.suspects,
            overdue=request.overdue,
            conditions=request.conditions,
        )
        try:
            lent = (await self._http.post("/v1/claim", asked, Claimed)).claims
        except CallRefused as refused:
            if refused.kind == Kind.REFUSED:
                raise ConfigurationError(str(refused)) from None
            raise
        if any(one.lease.token != request.token for one in lent):
            raise StoreError(f"{self._http.base} answers a claim with leases of another one")
        self._proofs.keep(lent)
        return [self._read(one) for one in lent]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool) -> Sequence[Reply]:
        """In requests of bounded size. Those that were answered before one that was not are known at a repeat."""
        sealed = [self._sealed(lease, settlement) for lease, settlement in batch]
        replies: list[Reply] = [one if isinstance(one, Unwritten) else Verdict.LOST for one in sealed]
        sent = [(place, *one) for place, one in enumerate(sealed) if not isinstance(one, Unwritten)]
        for part in parts([size for _, _, size in sent]):
            said = await self._settle([sent[at][1] for at in part], repeat=repeat)
            for at, reply in zip(part, said, strict=True):
                replies[sent[at][0]] = reply
        self._proofs.end(
            (lease.job_id, lease.token)
            for (lease, _), reply in zip(batch, replies, strict=True)
            if reply is not Verdict.BUSY and not isinstance(reply, Unwritten)
        )
        return replies

    async def _settle(self, batch: Sequence[SettlementSent], *, repeat: bool) -> list[Reply]:
        try:
            said = await self._http.post("/v1/settle", Settlements(batch=tuple(batch), repeat=repeat), Verdicts)
        except CallRefused as refused:
            if refused.kind not in _ONES_FAULT:
                raise
            if len(batch) == 1:
                return [Unwritten(_one_line(refused.said))]
            return [(await self._settle([one], repeat=repeat))[0] for one in batch]
        if len(said.verdicts) != len(batch):
            raise StoreError(f"{self._http.base} answers {len(batch)} settlements with {len(said.verdicts)} verdicts")
        told = {one.place: one for one in said.told}
        try:
            return [_reply(verdict, told.get(place)) for place, verdict in enumerate(said.verdicts)]
        except ValueError as error:
            raise StoreError(f"{self._http.base} answers a settlement with {error}") from None

    def _sealed(self, lease: Lease, settlement: Settlement) -> tuple[SettlementSent, bytes] | Unwritten:
        """With its proof, and as it will be sent; or why it cannot be."""
        sent = SettlementSent(proof=self._proofs.of(lease), settlement=settlement)
        try:
            text = msgspec.json.encode(sent)
        except (UnicodeError, TypeError, ValueError) as error:
            return Unwritten(_one_line(str(error)))
        if len(text) > ROOM:
            return Unwritten(f"it is {len(text)} bytes as a request, the server takes at most {ROOM}")
        return sent, text

    def _read(self, lent: Lent) -> Claim[Any]:
        return Claim(
            lease=lent.lease,
            record=self._record(lent),
            task=lent.task,
            attempts=lent.attempts,
            max_attempts=lent.max_attempts,
            queue=lent.queue,
            resets=lent.resets,
        )

    def _record(self, lent: Lent) -> Any:
        """What the handler gets. One that cannot be read fails alone."""
        try:
            match lent.kind:
                case "job":
                    return msgspec.convert(lent.record, Job)
                case "record":
                    return self._make(lent.record)
                case "unreadable":
                    return Unreadable(_one_line(str(lent.record)))
                case kind:
                    return Unreadable(_one_line(f"the server lends a {kind}, which this version does not know"))
        except Exception as error:  # noqa: BLE001 - boundary: a model's validators are the user's
            return Unreadable(_one_line(f"{type(error).__name__}: {error}"))


def _maker(record: type[Any] | None) -> Callable[[Any], Any]:
    """Makes records of what came as JSON. Times are texts there; a type says that they are times."""
    if record is None:
        return lambda given: given
    validate: Callable[[Any], Any] | None = getattr(record, "model_validate", None)
    if validate is not None:
        return validate
    return lambda given: msgspec.convert(given, record, strict=False)


def _reply(verdict: str, told: Told | None) -> Reply:
    if told is not None and told.recorded is not None:
        return told.recorded
    if told is not None and told.unwritten is not None:
        return Unwritten(_one_line(told.unwritten))
    return Verdict(verdict)


def _one_line(text: str) -> str:
    return clean(" ".join(text.split()), REASON_LIMIT).replace("\n", " ")
