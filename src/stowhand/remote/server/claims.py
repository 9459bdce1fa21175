"""Claims, which are answered at once, and polls of idle workers, which wait for a wake-up.

A poll ends early when the server stops, when its client disconnects, and when its token is revoked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from stowhand.errors import InvalidJob, SchemaError, StoreError, StoreUnreachable
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease, Unreadable
from stowhand.jobs.limits import read_forbidden
from stowhand.jobs.strict_json import refuse_nan
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.server.shared_store import QUEUE, SharedStore
from stowhand.remote.server.tokens import Grant
from stowhand.remote.server.wake_broadcast import WakeBroadcast
from stowhand.remote.wire import ClaimedRecord, DueReply, DueRequest, ErrorKind, RemoteClaimRequest
from stowhand.worker.heartbeat_thread import HeartbeatThread

MAX_RECORDS_PER_REPLY = 500
INITIAL_MAX_RECORDS = 100
"""Limit of the first replies, until the size of records is known. Records that do not fit are released again."""
MAX_REPLY_BYTES = 4 * 1024 * 1024
"""Maximum size of a reply, which must arrive within the client's timeout. The first record is always sent."""
MAX_POLLS_PER_TOKEN = 256
"""Maximum number of waiting polls of a token."""
MAX_USED_TOKENS = 50_000
"""Number of claim tokens that are remembered. A proxy repeats a request within seconds."""

WaitForDisconnect = Callable[[], Coroutine[Any, Any, None]]
"""Returns when the client has disconnected."""


class EncodedClaim(msgspec.Struct, frozen=True):
    """One claimed record, encoded for the reply."""

    lease: Lease
    """Lease with the store's token."""
    body: bytes
    """Encoded ``wire.ClaimedRecord``."""


class UsedTokens:
    """Used claim tokens, as the store knows them. The oldest are forgotten first.

    They are not kept in the store: that would be a write for each claim, and a user's table has no column for them.
    After a restart a repeated request may claim twice. The jobs of the first claim, which its client does not know,
    are then reset when their leases expire.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, None] = {}

    def add(self, token: str) -> bool:
        """Add a token. Return False if it was already used."""
        if token in self._tokens:
            return False
        self._tokens[token] = None
        if len(self._tokens) > MAX_USED_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return True

    def forget(self, token: str) -> None:
        """Forget an abandoned token: the store no longer accepts it."""
        self._tokens.pop(token, None)


class Claims:
    """Claims and polls of one server, on its event loop. ``on_claim`` is called with the claims of each reply."""

    def __init__(
        self,
        shared_store: SharedStore,
        wake_broadcast: WakeBroadcast,
        heartbeats: HeartbeatThread,
        proofs: Proofs,
        is_valid: Callable[[Grant], bool],
        on_claim: Callable[[Sequence[Claim[Any]]], None],
    ) -> None:
        self._shared_store = shared_store
        self._wake_broadcast = wake_broadcast
        self._heartbeats = heartbeats
        self._store = shared_store.store
        self._proofs = proofs
        self._used_tokens = UsedTokens()
        self._is_valid = is_valid
        self._on_claim = on_claim
        self._poll_counts: Counter[str] = Counter()
        self._max_records = INITIAL_MAX_RECORDS
        """Number of records that fit into one reply, estimated from the size of the latest records."""

    async def claim(self, grant: Grant, message: RemoteClaimRequest) -> list[EncodedClaim]:
        """Claim records. Raises Refused, also for a claim token that was already used."""
        request = self._request(grant, message)
        if not self._used_tokens.add(request.token):
            raise Refused(
                ErrorKind.USED,
                "this claim token was already used",
                "release it (POST /v1/release), and claim with a new one",
            )
        claims = await self._claim(request) if request.limit and request.tasks != () else []
        encoded_claims = [self._encode(grant, claim, message.token) for claim in claims]
        sizes = [len(encoded.body) for encoded in encoded_claims]
        if sizes:
            self._max_records = max(min(MAX_REPLY_BYTES * len(sizes) // sum(sizes), MAX_RECORDS_PER_REPLY), 1)
        count_that_fits = fitting_count(sizes)
        self._on_claim(claims[:count_that_fits])
        if count_that_fits < len(encoded_claims):
            await self._release([encoded.lease for encoded in encoded_claims[count_that_fits:]])
        return encoded_claims[:count_that_fits]

    async def abandon(self, grant: Grant, token: str) -> bool:
        """Return the jobs of a claim without a reply to the queue; its token can never claim. False: try again."""
        store_token = self._proofs.store_token(grant, token)
        is_abandoned = await self._heartbeats.call(lambda heartbeats: heartbeats.abandon(store_token))
        if is_abandoned:
            self._used_tokens.forget(store_token)
        return is_abandoned

    async def due(self, grant: Grant, message: DueRequest, until_disconnected: WaitForDisconnect) -> DueReply:
        """Return when a job is due; with ``wait``, wait for a wake-up."""
        tasks = grant.tasks_of_claim(message.tasks)
        count, seconds = self._wake_broadcast.count, None
        if not message.wait:
            seconds = await self._store.next_due(tasks, grant.queues_of_claim(message.queues))
        elif message.wake_count is None:
            raise malformed("wait: wake_count is missing", "send the wake_count of the reply before your claim")
        else:
            await self._poll(grant, message.wake_count, message.wait, until_disconnected)
            count = self._wake_broadcast.count
        return DueReply(seconds=seconds, wake_count=count, is_listening=self._store.is_listening)

    async def _poll(
        self, grant: Grant, wake_count: str, wait_seconds: float, until_disconnected: WaitForDisconnect
    ) -> None:
        """Return at once if the count differs from ``wake_count``, otherwise after a wake-up or ``wait_seconds``.

        Raises Refused if too many polls wait, and for a token that was revoked or has expired in the meantime.
        """
        if self._poll_counts[grant.id] >= MAX_POLLS_PER_TOKEN:
            raise Refused(
                ErrorKind.TOO_MANY, "too many waiting polls of this token", "poll once per worker", retry_after=1
            )
        self._poll_counts[grant.id] += 1
        try:
            await _first_of(self._wake_broadcast.until_changed(wake_count, wait_seconds), until_disconnected())
        finally:
            self._poll_counts -= Counter({grant.id: 1})
        if not self._is_valid(grant):
            raise Refused(
                ErrorKind.UNAUTHORIZED, "this token was revoked or has expired", "stowhand tokens make --name NAME"
            )

    def _request(self, grant: Grant, message: RemoteClaimRequest) -> ClaimRequest:
        grant.check_conditions(message.conditions)
        if message.conditions and self._shared_store.kind == QUEUE:
            raise Refused(
                ErrorKind.REFUSED,
                "a queue supports no conditions",
                "limit the claim by task; only a table supports conditions",
            )
        queues = grant.queues_of_claim(message.queues)
        if not (queues.are_all or self._store.capabilities.has_queues):
            raise Refused(
                ErrorKind.REFUSED,
                "a table has no queues",
                "omit queues, and make a token without --queue",
            )
        return ClaimRequest(
            worker=grant.worker_in_store(message.worker),
            token=self._proofs.store_token(grant, message.token),
            limit=min(message.limit, self._max_records),
            lease=message.lease,
            tasks=grant.tasks_of_claim(message.tasks),
            forbidden_flags=read_forbidden(message.forbidden_flags),
            queues=queues,
            suspects=message.suspects,
            conditions=message.conditions,
            free_slots=message.free_slots,
            task_rooms=message.task_rooms,
        )

    async def _claim(self, request: ClaimRequest) -> Sequence[Claim[Any]]:
        try:
            return await self._store.claim(request)
        except (StoreUnreachable, SchemaError):
            raise
        except (StoreError, InvalidJob) as error:
            if not request.conditions:
                raise
            # This is the client's mistake, which only the database can detect. It is not an outage, so it is not
            # retried.
            columns = ", ".join(dict.fromkeys(condition.column for condition in request.conditions))
            raise malformed(
                f"conditions: the lent store cannot make this comparison ({columns[:200]})",
                "compare existing columns with values of their type; see the server's log",
            ) from error

    def _encode(self, grant: Grant, claim: Claim[Any], token: str) -> EncodedClaim:
        """Encode a claim for the reply. ``token``: the client's claim token."""
        lease = Lease(claim.lease.job_id, token, claim.lease.epoch)
        kind, record = _encodable_record(claim.record)
        claimed = ClaimedRecord(
            lease=lease,
            authorization=self._proofs.authorization(grant, lease),
            record=cast("msgspec.Raw", record),
            kind=kind,
            task=claim.task,
            attempts=claim.attempts,
            max_attempts=claim.max_attempts,
            serial=claim.serial,
            resets=claim.resets,
        )
        return EncodedClaim(claim.lease, msgspec.json.encode(claimed))

    async def _release(self, leases: Sequence[Lease]) -> None:
        """Return jobs to the queue without using an attempt. Busy ones are reset when their leases expire."""
        with suppress(StoreError):
            await self._heartbeats.call(lambda heartbeats: heartbeats.release(leases))


def fitting_count(sizes: Iterable[int]) -> int:
    """Return how many items of these sizes, in bytes, fit into one reply: at least one."""
    total = number = 0
    for number, size in enumerate(sizes, 1):
        total += size
        if number > 1 and total > MAX_REPLY_BYTES:
            return number - 1
    return number


async def _first_of(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Wait until one coroutine has finished, and cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _encodable_record(record: object) -> tuple[str, object]:
    """Return the kind of a record, and the record in a form that can be encoded."""
    if isinstance(record, Job):
        return "job", record
    if isinstance(record, Unreadable):
        return "unreadable", record.error
    try:
        text = msgspec.json.encode(record, enc_hook=_convert_other)
        if b"null" in text:  # None, or NaN and infinity, which would silently become null
            refuse_nan(record, _convert_other)
        return "record", msgspec.Raw(text)
    except Exception as error:  # noqa: BLE001 - boundary: the type is the application's, and one bad record must not fail the claim
        reason = f"it cannot be encoded as JSON: {error}; select the value in another form with column_expressions"
        return "unreadable", clean(reason, 1024)


def _convert_other(value: Any) -> object:
    """Convert a value that msgspec cannot encode. Pydantic models convert themselves, without importing pydantic."""
    if hasattr(type(value), "__pydantic_validator__"):
        return value.model_dump(mode="json")
    if isinstance(value, memoryview):
        return bytes(value)
    return str(value)  # an address, a range, …: as a database would print it
