"""Settlements in batches: each batch is one script, and a settlement that cannot be written fails alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, UndecodablePayload
from stowhand.flows.redis.ending import NewChild, StepEnd, decode_end
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.queues import QueueAt, bases_of
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.trouble import NoReply
from stowhand.flows.redis.values import STATE
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
    """Of one queue. ``reasons``: why jobs wait, for which a settlement has no room; forgotten when that is recorded."""

    def __init__(self, server: Server, queue: QueueAt, reasons: dict[Pair, str]) -> None:
        self._server = server
        self._queue = queue
        self._keys = queue.keys
        self._by_name = {queue.name: queue for queue in queue.keys.shape.all_queues()}
        self._unanswered: dict[str, float] = {}
        """Digest of a call without a reply -> when it was first sent."""
        self._reasons = reasons

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Replies in the order of the batch. A lease that is named twice is settled as it was named first."""
        first: dict[Pair, Settlement] = {}
        for lease, settlement in batch:
            first.setdefault((lease.job_id, lease.token), settlement)
        known: dict[Pair, Reply] = {}
        for part in self._parts(list(first.items())):
            known |= await self._send(part, repeat=repeat)
        return [known[lease.job_id, lease.token] for lease, _ in batch]

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

    async def _send(self, part: list[Ended], *, repeat: bool) -> dict[Pair, Reply]:
        targets = Targets(self._keys)
        going = [(pair, settlement, *self._encoded(pair, settlement, targets)) for pair, settlement in part]
        entries = [(_packed(pair[0]), pair[1], *words) for pair, _, _, words in going]
        pairs = [pair for pair, _ in part]
        digest = digest_of(pairs)
        # One packed value: hundreds of arguments cost the driver more time than all the rest.
        before, marks = await self._ask(digest, targets.text, msgspec.msgpack.encode(entries))
        missing = self._missing(digest) if repeat else None
        for pair in pairs:
            self._reasons.pop(pair, None)
        return {
            pair: _reply(mark, asked, written, settled_before=bool(before), missing=missing)
            for (pair, asked, written, _), mark in zip(going, marks, strict=True)
        }

    async def _ask(self, digest: str, *args: str | bytes) -> tuple[int, str]:
        sent = self._server.clock.monotonic()
        keys = (self._queue.root, self._keys.settled(digest))
        try:
            before, marks = await self._server.run("settle", keys, self._queue.text, *args)
        except NoReply:
            self._unanswered.setdefault(digest, sent)
            raise
        return before, marks

    def _missing(self, digest: str) -> bool:
        """Would the mark of an earlier call be there still?"""
        now = self._server.clock.monotonic()
        return now - self._unanswered.pop(digest, now) < MARKED

    def _encoded(self, pair: Pair, settlement: Settlement, targets: Targets) -> tuple[Settlement, Sequence[Any]]:
        """What is to be written, and in the words of the script; what it cannot say fails the job, with the reason."""
        try:
            return settlement, self._words(pair, settlement, targets)
        except (InvalidJob, UndecodablePayload, UnicodeError) as error:
            why = clean(f"its end could not be written: {error}")
            failed = turned(msgspec.structs.replace(settlement, error=why, result=None), State.FAILED)
            return failed, ("fail", _quoted(why))

    def _words(self, pair: Pair, settlement: Settlement, targets: Targets) -> Sequence[Any]:
        """One settlement in the words of the script. Raises InvalidJob for what it cannot say."""
        if settlement.then or settlement.payload is not None:
            raise InvalidJob("a job of a flow is followed by its next queue, and by nothing else")
        delay = max(round(settlement.delay * 1000), 0)
        match settlement.state:
            case State.COMPLETED:
                if settlement.result is None:
                    raise InvalidJob("what the step has left behind is missing")
                return self._ended(decode_end(settlement.result), targets)
            case State.ERRORED:
                return "error", delay
            case State.QUEUED:
                return "snooze", delay, _quoted(self._reasons.get(pair, "asked to wait"))
            case State.CANCELED:
                return "cancel", _quoted(settlement.error or "canceled")
        return "fail", _quoted(settlement.error or "failed")

    def _ended(self, end: StepEnd, targets: Targets) -> Sequence[Any]:
        fields = _flat(end.fields)
        if end.children is None:
            return "complete", targets.place(end.next), [*fields, "completed-queue", self._queue.quoted]
        return "park", fields, [self._child(child) for child in end.children]

    def _child(self, child: NewChild) -> Sequence[Any]:
        under = self._by_name.get(child.queue)
        if under is None or under.parent != self._queue.name:
            raise InvalidJob(f"{child.queue!r} is no child of queue {self._queue.name!r}")
        priority = child.fields.get("priority")
        rank = int(text) if priority is not None and (text := bytes(priority).decode()).isdigit() else 1
        base = self._keys.base(child.queue, max(1, min(rank, under.declared.priorities)))
        fields = [*_flat(child.fields), STATE, _quoted(f"waiting:{child.queue}")]
        failed = f"{self._keys.root(child.queue)}:failed"
        return child.id, f"{self._keys.hashes(under)}{child.id}", f"{base}:waiting", fields, failed


def _reply(mark: str, asked: Settlement, written: Settlement, *, settled_before: bool, missing: bool | None) -> Reply:
    """``missing``: it is a repeat, and the mark of an earlier call would still be there."""
    match mark:
        case "S" if written is not asked:
            return written
        case "S":
            return Verdict.ALREADY_SETTLED if settled_before else Verdict.SETTLED
        case "C":
            return turned(asked, State.CANCELED)
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
