"""Answers claims at once, and the polls of idle workers after a wake-up.

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
"""The limit of one reply."""
INITIAL_MAX_RECORDS = 100
"""The limit of the first replies, until the size of records is known: those that do not fit are released again."""
MAX_REPLY_BYTES = 4 * 1024 * 1024
"""The limit of one reply, which must arrive within the client's timeout. The first record is always sent."""
MAX_POLLS_PER_TOKEN = 256
"""Requests of a token that may wait at a time."""
MAX_USED_TOKENS = 50_000
"""Claim tokens that are remembered. A proxy repeats a request within seconds."""

WaitForDisconnect = Callable[[], Coroutine[Any, Any, None]]
"""Returns when the client has disconnected."""


class LentRecord(msgspec.Struct, frozen=True):
    """One record that is lent."""

    lease: Lease
    """The lease with the store's token."""
    body: bytes
    """An encoded ``wire.ClaimedRecord``."""


class UsedTokens:
    """Claim tokens, as the store knows them, that have claimed. The oldest are forgotten first.

    They are not kept in the store: that would be a write for each claim, and a user's table has no place for them.
    After a restart a request that is repeated may claim twice; what its client does not know of comes back when its
    lease ends.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, None] = {}

    def add(self, token: str) -> bool:
        """Add a token. Return False if it is known already."""
        if token in self._tokens:
            return False
        self._tokens[token] = None
        if len(self._tokens) > MAX_USED_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return True

    def forget(self, token: str) -> None:
        """Forget an abandoned token: the store gives it nothing any more."""
        self._tokens.pop(token, None)


class Claims:
    """Answers claims and polls, on the event loop."""

    def __init__(
        self,
        shared_store: SharedStore,
        wake_broadcast: WakeBroadcast,
        heartbeats: HeartbeatThread,
        proofs: Proofs,
        is_valid: Callable[[Grant], bool],
        on_lent: Callable[[Sequence[Claim[Any]]], None],
    ) -> None:
        self._shared_store = shared_store
        self._wake_broadcast = wake_broadcast
        self._heartbeats = heartbeats
        self._store = shared_store.store
        self._proofs = proofs
        self._used = UsedTokens()
        self._is_valid = is_valid
        self._on_lent = on_lent
        self._polls: Counter[str] = Counter()
        self._max_records = INITIAL_MAX_RECORDS
        """The number of records that fit into one reply, judged by the size of the last ones."""

    async def claim(self, grant: Grant, message: RemoteClaimRequest) -> list[LentRecord]:
        """Claim records. Raises Refused, also for a claim token that was used."""
        request = self._request(grant, message)
        if not self._used.add(request.token):
            raise Refused(
                ErrorKind.USED, "this claim token was used", "release it (POST /v1/release), and claim with a new one"
            )
        claims = await self._claim(request) if request.limit and request.tasks != () else []
        sent = [
            LentRecord(
                claim.lease,
                msgspec.json.encode(_lent(claim, message.token, lambda one: self._proofs.prove(grant, one))),
            )
            for claim in claims
        ]
        if sent:
            size = sum(len(one.body) for one in sent)
            self._max_records = max(min(MAX_REPLY_BYTES * len(sent) // size, MAX_RECORDS_PER_REPLY), 1)
        count_that_fits = fitting(len(one.body) for one in sent)
        self._on_lent(claims[:count_that_fits])
        if count_that_fits < len(sent):
            await self._hand_back([one.lease for one in sent[count_that_fits:]])
        return sent[:count_that_fits]

    async def abandon(self, grant: Grant, token: str) -> bool:
        """Return the jobs of a claim without a reply to the queue; its token can never claim. False: try again."""
        store_token = self._proofs.store_token(grant, token)
        is_abandoned = await self._heartbeats.call(lambda heartbeats: heartbeats.abandon(store_token))
        if is_abandoned:
            self._used.forget(store_token)
        return is_abandoned

    async def due(self, grant: Grant, message: DueRequest, client_left: WaitForDisconnect) -> DueReply:
        """Return when a job is due; with ``wait``, wait for a wake-up."""
        tasks = grant.tasks_of_claim(message.tasks)
        count, seconds = self._wake_broadcast.count, None
        if not message.wait:
            seconds = await self._store.next_due(tasks, grant.queues_of_claim(message.queues))
        elif message.wake_count is None:
            raise malformed("wait: given without wake_count", "send the wake_count of the answer before your claim")
        else:
            await self._until_news(grant, message.wake_count, message.wait, client_left)
            count = self._wake_broadcast.count
        return DueReply(seconds=seconds, wake_count=count, is_listening=self._store.is_listening)

    async def _until_news(self, grant: Grant, wake_count: str, wait: float, client_left: WaitForDisconnect) -> None:
        """Return at once when the count differs from ``wake_count``, else after a wake-up, or ``wait`` seconds.

        Raises Refused where too many requests wait, and for a token that was revoked, or expired, meanwhile.
        """
        if self._polls[grant.id] >= MAX_POLLS_PER_TOKEN:
            raise Refused(
                ErrorKind.TOO_MANY, "too many polls wait under this token", "poll once per worker", retry_after=1
            )
        self._polls[grant.id] += 1
        try:
            await _first(self._wake_broadcast.until_changed(wake_count, wait), client_left())
        finally:
            self._polls -= Counter({grant.id: 1})
        if not self._is_valid(grant):
            raise Refused(
                ErrorKind.UNAUTHORIZED, "this token is not valid any more", "stowhand tokens make --name NAME"
            )

    def _request(self, grant: Grant, message: RemoteClaimRequest) -> ClaimRequest:
        grant.check_conditions(message.conditions)
        if message.conditions and self._shared_store.kind == QUEUE:
            raise Refused(
                ErrorKind.REFUSED, "a queue supports no conditions", "limit the claim by task; a table supports them"
            )
        queues = grant.queues_of_claim(message.queues)
        if not (queues.are_all or self._store.capabilities.has_queues):
            raise Refused(
                ErrorKind.REFUSED,
                "records of a table are in no queue",
                "leave queues out, and make a token without --queue",
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
        )

    async def _claim(self, request: ClaimRequest) -> Sequence[Claim[Any]]:
        try:
            return await self._store.claim(request)
        except (StoreUnreachable, SchemaError):
            raise
        except (StoreError, InvalidJob) as error:
            if not request.conditions:
                raise
            # The client's mistake, which only the database can detect. It is no outage: not to be repeated.
            columns = ", ".join(dict.fromkeys(condition.column for condition in request.conditions))
            raise malformed(
                f"conditions: the lent store cannot compare so ({columns[:200]})",
                "compare columns that are there with values of their type; the server's log says more",
            ) from error

    async def _hand_back(self, leases: Sequence[Lease]) -> None:
        """Return jobs to the queue without using an attempt. Busy ones come back when their lease ends."""
        with suppress(StoreError):
            await self._heartbeats.call(lambda heartbeats: heartbeats.release(leases))


def fitting(sizes: Iterable[int]) -> int:
    """Return how many items of these sizes, in bytes, fit into one answer: at least one."""
    total = number = 0
    for number, size in enumerate(sizes, 1):
        total += size
        if number > 1 and total > MAX_REPLY_BYTES:
            return number - 1
    return number


async def _first(*ends: Coroutine[Any, Any, None]) -> None:
    """Wait until one coroutine has finished, and cancel the others."""
    tasks = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _lent(claim: Claim[Any], token: str, prove: Callable[[Lease], str]) -> ClaimedRecord:
    """Return the record of a claim. ``token``: the client's claim token. ``prove`` returns the authorization."""
    lease = Lease(claim.lease.job_id, token, claim.lease.epoch)
    kind, record = _read_record(claim.record)
    return ClaimedRecord(
        lease=lease,
        authorization=prove(lease),
        record=cast("msgspec.Raw", record),
        kind=kind,
        task=claim.task,
        attempts=claim.attempts,
        max_attempts=claim.max_attempts,
        serial=claim.serial,
        resets=claim.resets,
    )


def _read_record(record: object) -> tuple[str, object]:
    if isinstance(record, Job):
        return "job", record
    if isinstance(record, Unreadable):
        return "unreadable", record.error
    try:
        text = msgspec.json.encode(record, enc_hook=_write_other)
        if b"null" in text:  # None, or NaN and infinity, which would silently become null
            refuse_nan(record, _write_other)
        return "record", msgspec.Raw(text)
    except Exception as error:  # noqa: BLE001 - boundary: the type is the application's, and one bad record must not fail the claim
        reason = f"it cannot be written as JSON: {error}; select the value in another form by column_expressions"
        return "unreadable", clean(reason, 1024)


def _write_other(value: Any) -> object:
    """Convert a value that msgspec cannot encode. Pydantic models convert themselves, without importing pydantic."""
    if hasattr(type(value), "__pydantic_validator__"):
        return value.model_dump(mode="json")
    if isinstance(value, memoryview):
        return bytes(value)
    return str(value)  # an address, a range, …: as a database would print it
