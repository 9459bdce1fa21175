"""Settlements in batches: each batch is one script, and a settlement that cannot be written fails alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, InvalidJob, UndecodablePayload
from stowhand.flows.redis.address import Address
from stowhand.flows.redis.dialing import Client, Dialer
from stowhand.flows.redis.ending import NewChild, StepEnd, decode_end
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.queues import QueueAt, bases_of
from stowhand.flows.redis.scripts import SCRIPTS, run
from stowhand.flows.redis.trouble import NoReply, repeated
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement, turned
from stowhand.jobs.text import clean
from stowhand.protocols.flow_shape import FlowQueue
from stowhand.protocols.store import Reply, Verdict

Entry = tuple[Lease, Settlement]
Pair = tuple[str, str]
Ended = tuple[Pair, Settlement]

BATCH = 200
SIZE = 1024 * 1024
"""Characters of a batch; one settlement that is larger goes alone."""
MARKED = 100.0
"""Seconds that the mark of a call is surely there after it was sent (its life is 120 s)."""

_SETTLE = SCRIPTS["settle"]


class Targets:
    """The queues that the jobs of one batch go on to, each named once."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._places: dict[str, int] = {}
        self._queues: list[tuple[str, list[str]]] = []

    def place(self, queue: str | None) -> int:
        """From 1; 0: nowhere. Raises InvalidJob for what is no queue of the flow."""
        if queue is None:
            return 0
        if queue not in self._places:
            self._queues.append((queue, bases_of(self._keys, self._target(queue))))
            self._places[queue] = len(self._queues)
        return self._places[queue]

    def _target(self, name: str) -> FlowQueue:
        try:
            queue = self._keys.shape.find_queue(name)
        except ConfigurationError as error:
            raise InvalidJob(f"it goes on to {name!r}, but {error}") from None
        if queue.parent is not None:
            raise InvalidJob(f"it goes on to {name!r}, which is a child of queue {queue.parent!r}")
        return queue

    @property
    def text(self) -> str:
        """As the script reads it."""
        return msgspec.json.encode(self._queues).decode()


class Settlements:
    """Of the queues of one store."""

    def __init__(self, address: Address, dialer: Dialer, keys: Keys, queues: Sequence[QueueAt]) -> None:
        self._address = address
        self._dialer = dialer
        self._keys = keys
        self._queues, self._clock = queues, SystemClock()
        self._by_name = {queue.name: queue for queue in keys.shape.all_queues()}
        self._unanswered: dict[str, float] = {}
        """Digest of a call without a reply -> when it was first sent."""
        self.reasons: dict[Pair, str] = {}

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch. A lease that is named twice is settled as it was named first."""
        first: dict[Pair, Settlement] = {}
        for lease, settlement in batch:
            first.setdefault((lease.job_id, lease.token), settlement)
        known: dict[Pair, Reply] = {}
        for queue, entries in (await self._by_queue(list(first.items()))).items():
            for part in self._parts(entries):
                known |= await self._send(queue, part, repeat=repeat)
        return [known[lease.job_id, lease.token] for lease, _ in batch]

    async def _by_queue(self, entries: list[Ended]) -> dict[QueueAt, list[Ended]]:
        """Where more than one queue is served, the locks say where each job is; one without a lock is lost anyway."""
        if len(self._queues) == 1 or not entries:
            return {self._queues[0]: entries} if entries else {}
        names = [queue.keys.lock(queue.name, pair[0]) for pair, _ in entries for queue in self._queues]

        async def ask() -> Any:
            return await self._client.mget(names)

        locks = iter(await repeated(ask, self._address, self._clock, unanswered=True))
        found: dict[QueueAt, list[Ended]] = {}
        for pair, settlement in entries:
            held = [queue for queue in self._queues if (next(locks) or "").endswith(f":{pair[1]}")]
            found.setdefault(held[0] if held else self._queues[0], []).append((pair, settlement))
        return found

    def _parts(self, entries: list[Ended]) -> list[list[Ended]]:
        """Of bounded length, and always cut in the same places, so that a repeat is the same calls."""
        parts: list[list[Ended]] = []
        size = SIZE
        for pair, settlement in entries:
            own = len(settlement.result or "") + len(settlement.error or "")
            if not parts or size + own > SIZE or len(parts[-1]) == BATCH:
                parts.append([])
                size = 0
            parts[-1].append((pair, settlement))
            size += own
        return parts

    async def _send(self, queue: QueueAt, part: list[Ended], *, repeat: bool) -> dict[Pair, Reply]:
        targets = Targets(self._keys)
        going = [(pair, settlement, *self._encoded(queue, pair, settlement, targets)) for pair, settlement in part]
        entries = [(_packed(pair[0]), pair[1], *words) for pair, _, _, words in going]
        pairs = [pair for pair, _ in part]
        digest = digest_of(pairs)
        # One packed value: hundreds of arguments cost the driver more time than all the rest.
        before, marks = await self._ask(queue, digest, (queue.text, targets.text, msgspec.msgpack.encode(entries)))
        missing = self._missing(digest) if repeat else None
        for pair in pairs:
            self.reasons.pop(pair, None)
        return {
            pair: _reply(mark, asked, written, settled_before=bool(before), missing=missing)
            for (pair, asked, written, _), mark in zip(going, marks, strict=True)
        }

    async def _ask(self, queue: QueueAt, digest: str, args: Sequence[Any]) -> tuple[int, str]:
        sent = self._clock.monotonic()
        keys = (queue.root, self._keys.settled(digest))

        async def ask() -> Any:
            return await run(self._client, _SETTLE, keys, args)

        try:
            before, marks = await repeated(ask, self._address, self._clock)
        except NoReply:
            self._unanswered.setdefault(digest, sent)
            raise
        return before, marks

    def _missing(self, digest: str) -> bool:
        """Would the mark of an earlier call be there still?"""
        return self._clock.monotonic() - self._unanswered.pop(digest, self._clock.monotonic()) < MARKED

    def _encoded(
        self, queue: QueueAt, pair: Pair, settlement: Settlement, targets: Targets
    ) -> tuple[Settlement, Sequence[Any]]:
        """What is to be written, and in the words of the script; what it cannot say fails the job, with the reason."""
        try:
            return settlement, self._words(queue, pair, settlement, targets)
        except (InvalidJob, UndecodablePayload, UnicodeError) as error:
            why = clean(f"its end could not be written: {error}")
            failed = turned(msgspec.structs.replace(settlement, error=why, result=None), State.FAILED)
            return failed, ("fail", _quoted(why))

    def _words(self, queue: QueueAt, pair: Pair, settlement: Settlement, targets: Targets) -> Sequence[Any]:
        """One settlement in the words of the script. Raises InvalidJob for what it cannot say."""
        if settlement.then or settlement.payload is not None:
            raise InvalidJob("a job of a flow is followed by its next queue, and by nothing else")
        delay = max(round(settlement.delay * 1000), 0)
        match settlement.state:
            case State.COMPLETED:
                if settlement.result is None:
                    raise InvalidJob("what the step has left behind is missing")
                return self._ended(queue, decode_end(settlement.result), targets)
            case State.ERRORED:
                return "error", delay
            case State.QUEUED:
                return "snooze", delay, _quoted(self.reasons.get(pair, "asked to wait"))
            case State.CANCELED:
                return "cancel", _quoted(settlement.error or "canceled")
        return "fail", _quoted(settlement.error or "failed")

    def _ended(self, queue: QueueAt, end: StepEnd, targets: Targets) -> Sequence[Any]:
        fields = _flat(end.fields)
        if end.children is None:
            return "complete", targets.place(end.next), [*fields, "completed-queue", queue.quoted]
        return "park", fields, [self._child(queue, child) for child in end.children]

    def _child(self, queue: QueueAt, child: NewChild) -> Sequence[Any]:
        under = self._by_name.get(child.queue)
        if under is None or under.parent != queue.name:
            raise InvalidJob(f"{child.queue!r} is no child of queue {queue.name!r}")
        priority = child.fields.get("priority")
        rank = int(text) if priority is not None and (text := bytes(priority).decode()).isdigit() else 1
        base = self._keys.base(child.queue, max(1, min(rank, under.declared.priorities)))
        return child.id, f"{self._keys.hashes(under)}{child.id}", f"{base}:waiting", _flat(child.fields)

    @property
    def _client(self) -> Client:
        return self._dialer.calls()


def _reply(mark: str, asked: Settlement, written: Settlement, *, settled_before: bool, missing: bool | None) -> Reply:
    """``missing``: it is a repeat, and the mark of an earlier call would still be there."""
    match mark:
        case "S" if written is not asked:
            return written
        case "S":
            return Verdict.ALREADY_SETTLED if settled_before else Verdict.SETTLED
        case "F":
            return turned(asked, State.FAILED)
    if missing is None or (missing and mark == "L"):
        return Verdict.LOST
    return Verdict.UNKNOWN


def _packed(job_id: str) -> str | msgspec.Raw:
    """A foreign id may contain bytes that are not UTF-8: it is written to MessagePack as raw text."""
    if job_id.isascii():
        return job_id
    raw = job_id.encode(errors="surrogateescape")
    return msgspec.Raw(b"\xdb" + len(raw).to_bytes(4, "big") + raw)


def digest_of(pairs: Sequence[Pair]) -> str:
    """Of the leases that one call settles."""
    text = "\n".join(map(" ".join, pairs))
    return hashlib.sha1(text.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()


def _flat(fields: dict[str, msgspec.Raw]) -> list[str]:
    """Name, value, … as a hash is written; null is not kept. Raises UnicodeError."""
    flat: list[str] = []
    for name, raw in fields.items():
        name.encode()
        text = bytes(raw).decode()
        if text != "null":
            flat += (name, text)
    return flat


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
