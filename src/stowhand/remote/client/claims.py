"""Claims and settlements over HTTP, and the proofs of the leases."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, StoreError
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import Job
from stowhand.jobs.lease import JobId, Lease, Pair, Unreadable
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim, ClaimRequest, RefusedSettlement, Reply, Verdict, batch_with_max_attempts
from stowhand.remote.client.http_caller import MAX_ITEM_BYTES, CallRefused, HttpCaller, NoReply, split_items
from stowhand.remote.client.options import HttpOptions
from stowhand.remote.wire import (
    CLAIM_VERB,
    SETTLE_VERB,
    ClaimedRecord,
    Difference,
    ErrorKind,
    Proof,
    ProvedSettlement,
    RemoteClaimRequest,
)

MAX_REASON_CHARACTERS = 2048
MAX_HELD_PROOFS = 100_000
"""Far more than a worker holds. Leases lost during an outage are never reported, so their proofs would accumulate."""
MAX_ENDED_PROOFS = 10_000
"""Ended leases whose proofs are kept: a repeated call must get the same reply."""
_SETTLEMENT_REFUSAL_KINDS = (ErrorKind.MALFORMED, ErrorKind.INVALID_JOB, ErrorKind.REFUSED, ErrorKind.TOO_LARGE)
"""Refusals that one settlement of a batch causes: each is then sent alone, so that the others are recorded."""
_CLAIM_REFUSAL_KINDS = (ErrorKind.REFUSED, ErrorKind.OUT_OF_SCOPE)
"""Permanent refusals of a claim: the lent store or the token does not support it."""


class HttpClaims:
    """Claims and settles for a worker's loop."""

    def __init__(self, http: HttpCaller, proofs: HeldProofs, options: HttpOptions) -> None:
        self._http = http
        self._proofs = proofs
        self._max_attempts = options.max_attempts
        self._make_record = _record_maker(options.record)

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Any]]:
        """Claim records, possibly fewer than the limit.

        A lost reply raises StoreUnreachable: ``HttpHeartbeats.abandon`` then releases the records of the claim.
        """
        if not all(isinstance(condition, Where) for condition in request.conditions):
            raise ConfigurationError(
                f"{self._http.base}: a lent store supports conditions only as Where(column, operator, value), not SQL"
            )
        message = RemoteClaimRequest(
            **{field: getattr(request, field) for field in RemoteClaimRequest.__struct_fields__}
        )
        try:
            records = (await self._http.post(CLAIM_VERB, message)).claims
        except CallRefused as refused:
            if refused.kind in _CLAIM_REFUSAL_KINDS:
                raise ConfigurationError(str(refused)) from None
            if refused.kind == ErrorKind.USED:
                raise NoReply(f"{refused}: the request arrived twice, and the first reply was lost") from None
            raise
        if any(record.lease.token != request.token for record in records):
            raise StoreError(f"{self._http.base} answered a claim with leases of another claim")
        self._proofs.keep(records)
        return [self._read_claim(record) for record in records]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Settle in requests of limited size. A repeat finds the settlements of earlier requests already settled.

        A lost reply raises StoreUnreachable: repeating the call with ``repeat=True`` is harmless.
        """
        batch = batch_with_max_attempts(batch, self._max_attempts)
        encoded_batch = [self._encode(lease, settlement) for lease, settlement in batch]
        replies: list[Reply] = [item if isinstance(item, RefusedSettlement) else Verdict.LOST for item in encoded_batch]
        items = [(index, item) for index, item in enumerate(encoded_batch) if not isinstance(item, RefusedSettlement)]
        for part in split_items([text for _, text in items]):
            part_replies = await self._settle([items[position][1] for position in part], repeat=repeat)
            for position, reply in zip(part, part_replies, strict=True):
                replies[items[position][0]] = reply
        self._proofs.end(
            lease.pair
            for (lease, _), reply in zip(batch, replies, strict=True)
            if reply is not Verdict.BUSY and not isinstance(reply, RefusedSettlement)
        )
        return replies

    async def _settle(self, batch: Sequence[bytes], *, repeat: bool) -> list[Reply]:
        # This is the encoding of a SettleRequest. Each settlement is already encoded, since its length was needed.
        body = b'{"batch":[' + b",".join(batch) + b'],"repeat":' + (b"true}" if repeat else b"false}")
        try:
            reply = await self._http.post(SETTLE_VERB, body)
        except CallRefused as refused:
            if refused.kind not in _SETTLEMENT_REFUSAL_KINDS:
                raise
            if len(batch) == 1:
                return [RefusedSettlement(_one_line(refused.server_message))]
            return [(await self._settle([settlement], repeat=repeat))[0] for settlement in batch]
        if len(reply.verdicts) != len(batch):
            raise StoreError(f"{self._http.base} answered {len(batch)} settlements with {len(reply.verdicts)} verdicts")
        differences_by_place = {difference.place: difference for difference in reply.differences}
        try:
            return [_reply(verdict, differences_by_place.get(place)) for place, verdict in enumerate(reply.verdicts)]
        except ValueError as error:
            raise StoreError(f"{self._http.base} answered a settlement with {error}") from None

    def _encode(self, lease: Lease, settlement: Settlement) -> bytes | RefusedSettlement:
        """Return a settlement encoded with its proof, or the reason why it cannot be encoded."""
        try:
            text = msgspec.json.encode(ProvedSettlement(proof=self._proofs.of(lease), settlement=settlement))
        except (UnicodeError, TypeError, ValueError) as error:
            return RefusedSettlement(_one_line(str(error)))
        if len(text) > MAX_ITEM_BYTES:
            return RefusedSettlement(f"it is {len(text)} bytes as a request, the limit is {MAX_ITEM_BYTES}")
        return text

    def _read_claim(self, claimed: ClaimedRecord) -> Claim[Any]:
        return Claim(
            lease=claimed.lease,
            record=self._read_record(claimed),
            task=claimed.task,
            attempts=claimed.attempts,
            max_attempts=claimed.max_attempts,
            serial=claimed.serial,
            resets=claimed.resets,
        )

    def _read_record(self, claimed: ClaimedRecord) -> Any:
        """Return the record for the handler. A record that cannot be read fails alone."""
        try:
            match claimed.kind:
                case "job":
                    return msgspec.json.decode(claimed.record, type=Job)
                case "record":
                    return self._make_record(msgspec.json.decode(claimed.record))
                case "unreadable":
                    return Unreadable(_one_line(str(msgspec.json.decode(claimed.record))))
                case kind:
                    return Unreadable(_one_line(f"unknown kind of record {kind!r}; upgrade this client"))
        except Exception as error:  # noqa: BLE001 - boundary: a model's validators are the user's
            return Unreadable(_one_line(f"{type(error).__name__}: {error}"))


class HeldProofs:
    """Proofs of leases, used by the loop and by the heartbeat thread."""

    def __init__(self) -> None:
        self._held: dict[Pair, str] = {}
        self._newest: dict[JobId, Lease] = {}
        """The held lease of each job."""
        self._ended: OrderedDict[Pair, str] = OrderedDict()
        self._lock = Lock()

    def keep(self, proofs: Iterable[ClaimedRecord | Proof]) -> None:
        """Keep the proofs of the records that a claim returned, or that another process has claimed."""
        with self._lock:
            for proof in proofs:
                self._held[proof.lease.pair] = proof.authorization
                self._newest[proof.lease.job_id] = proof.lease
            while len(self._held) > MAX_HELD_PROOFS:
                pair = next(iter(self._held))
                del self._held[pair]
                self._forget(pair)

    def of(self, lease: Lease) -> Proof:
        """Return the proof of a lease; an empty one for an unknown lease, which the server reports as lost."""
        pair = lease.pair
        return Proof(lease=lease, authorization=self._held.get(pair) or self._ended.get(pair, ""))

    def of_job(self, job_id: JobId) -> Proof | None:
        """Return the proof of the held lease of a job."""
        lease = self._newest.get(job_id)
        return None if lease is None else self.of(lease)

    def end(self, pairs: Iterable[Pair]) -> None:
        """Note that leases are settled, returned, or lost."""
        with self._lock:
            for pair in pairs:
                authorization = self._held.pop(pair, None)
                self._forget(pair)
                if authorization is not None:
                    self._ended[pair] = authorization
            while len(self._ended) > MAX_ENDED_PROOFS:
                self._ended.popitem(last=False)

    def end_token(self, token: str) -> None:
        """Note that every lease of this claim token has ended."""
        self.end([pair for pair in tuple(self._held) if pair[1] == token])

    def _forget(self, pair: Pair) -> None:
        lease = self._newest.get(pair[0])
        if lease is not None and lease.pair == pair:
            del self._newest[pair[0]]

    def __len__(self) -> int:
        return len(self._held)


def _record_maker(record: type[Any] | None) -> Callable[[Any], Any]:
    """Return the function that makes a record from decoded JSON, in which times are text."""
    if record is None:
        return lambda row: row
    validate: Callable[[Any], Any] | None = getattr(record, "model_validate", None)
    if validate is not None:
        return validate
    return lambda row: msgspec.convert(row, record, strict=False)


def _reply(verdict_text: str, difference: Difference | None) -> Reply:
    """Return the reply for a verdict. Raises ValueError for an unknown verdict."""
    if difference is not None and difference.recorded is not None:
        return difference.recorded
    verdict = Verdict(verdict_text)
    if verdict is Verdict.UNWRITTEN:
        unwritten_reason = None if difference is None else difference.unwritten
        return RefusedSettlement(_one_line(unwritten_reason or "the server gives no reason"))
    return verdict


def _one_line(text: str) -> str:
    return clean(" ".join(text.split()), MAX_REASON_CHARACTERS).replace("\n", " ")
