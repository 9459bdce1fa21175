"""Settlements in batches. Each batch is one script; a settlement that cannot be written fails only its own job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.flows.redis.error_translation import NoReply
from stowhand.flows.redis.layout import QueueLocation
from stowhand.flows.redis.server import Server
from stowhand.jobs import strict_json
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement, with_state
from stowhand.jobs.text import clean
from stowhand.observe.propagation import TRACE_PARENT, current_traceparent
from stowhand.protocols.store import Reply, Verdict

Entry = tuple[Lease, Settlement]
Pair = tuple[str, str]
Ended = tuple[Pair, Settlement]

MAX_BATCH = 200
MAX_BATCH_CHARS = 1024 * 1024
"""Characters of a batch; a larger settlement is a batch of its own."""
MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Bytes of one step's result: a parent may have thousands of children, each with its own parameters."""
MAX_CACHED_CHARS = 80
"""Characters of a result whose decoded form is cached."""
MARK_LIFE_SECONDS = 100.0
"""Seconds after sending a call for which its mark certainly exists (its time to live is 120 s)."""


class NewChild(msgspec.Struct, frozen=True):
    """A child to be created."""

    queue: str
    """Full name of its queue, ``parent:child``."""
    id: str
    """Id in the lists of that queue."""
    fields: dict[str, msgspec.Raw]


class StepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a successful step; as JSON it is the result of the settlement."""

    fields: dict[str, msgspec.Raw] = {}
    """Attributes to keep, each any JSON value."""
    next: str | None = None
    """The next queue of the job; ``None``: the job is complete."""
    children: list[NewChild] | None = None
    """Children to create. With a list, even an empty one, the job is a parent that waits for its children."""


_end_decoder = msgspec.json.Decoder(StepResult)


def with_trace_context(end: StepResult) -> StepResult:
    """Add the attempt's trace context for the next step and the children. A context set by the user stays."""
    context = current_traceparent()
    if context is None or not (end.next or end.children):
        return end
    carried = {TRACE_PARENT: msgspec.Raw(msgspec.json.encode(context))}
    children = [msgspec.structs.replace(child, fields=carried | child.fields) for child in end.children or ()]
    return msgspec.structs.replace(end, fields=carried | end.fields, children=children or end.children)


def encode_end(end: StepResult) -> str:
    """Encode a result whose fields have been checked. Raise InvalidJob if it is too large."""
    text = msgspec.json.encode(end)
    if len(text) > MAX_RESULT_BYTES:
        raise InvalidJob(f"the step's end: {len(text)} bytes, the limit is {MAX_RESULT_BYTES}")
    return text.decode()


def decode_end(text: str) -> StepResult:
    """Decode the result of a settlement. Raise UndecodablePayload."""
    return _decoded_once(text) if len(text) < MAX_CACHED_CHARS else _decoded(text)


def _decoded(text: str) -> StepResult:
    end: StepResult = strict_json.decode_with(_end_decoder, text, limit=MAX_RESULT_BYTES)
    return end


_decoded_once = lru_cache(maxsize=256)(_decoded)
"""Short results are mostly equal, so their decoded form is cached."""


class Settlements:
    """Settlements of one queue.

    ``reasons``: why jobs wait, since a settlement has no field for it. A reason is deleted when it is recorded.
    """

    def __init__(self, server: Server, queue: QueueLocation, reasons: dict[Pair, str]) -> None:
        self._server = server
        self._queue = queue
        self._by_name = {queue.name: queue for queue in queue.keys.shape.all_queues()}
        self._unanswered: dict[str, float] = {}
        """Time at which a call without a reply was first sent, by the digest of the call."""
        self._reasons = reasons

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Return the replies in the order of the batch. For a lease that occurs twice, the first settlement counts."""
        first: dict[Pair, Settlement] = {}
        for lease, settlement in batch:
            first.setdefault((lease.job_id, lease.token), settlement)
        replies: dict[Pair, Reply] = {}
        for part in _parts(list(first.items())):
            replies |= await self._send(part, repeat=repeat)
        return [replies[lease.job_id, lease.token] for lease, _ in batch]

    async def _send(self, part: list[Ended], *, repeat: bool) -> dict[Pair, Reply]:
        encoded = [(pair, settlement, *self._encoded(pair, settlement)) for pair, settlement in part]
        entries = [(_packed(pair[0]), pair[1], *words) for pair, _, _, words in encoded]
        digest = digest_of([pair for pair, _ in part])
        sent_at = self._server.clock.monotonic()
        keys = (self._queue.root, self._queue.keys.settled(digest))
        try:
            # One packed value: encoding hundreds of arguments would take the driver longer than the rest of the call.
            packed = msgspec.msgpack.encode(entries)
            before, marks = await self._server.run("settle", keys, self._queue.text, packed)
        except NoReply:
            self._unanswered.setdefault(digest, sent_at)
            raise
        missing = None
        if repeat:
            now = self._server.clock.monotonic()
            missing = now - self._unanswered.pop(digest, now) < MARK_LIFE_SECONDS
        for pair, _ in part:
            self._reasons.pop(pair, None)
        return {
            pair: _reply(mark, requested, written, settled_before=bool(before), missing=missing)
            for (pair, requested, written, _), mark in zip(encoded, marks, strict=True)
        }

    def _encoded(self, pair: Pair, settlement: Settlement) -> tuple[Settlement, Sequence[Any]]:
        """Return the settlement to write and the script's arguments; a failure if it cannot be encoded."""
        try:
            return settlement, self._words(pair, settlement)
        except (InvalidJob, UndecodablePayload, UnicodeError) as error:
            reason = clean(f"its end could not be written: {error}")
            failed = with_state(msgspec.structs.replace(settlement, error=reason, result=None), State.FAILED)
            return failed, ("fail", _quoted(reason))

    def _words(self, pair: Pair, settlement: Settlement) -> Sequence[Any]:
        """Return the script's arguments for a settlement. Raise InvalidJob for what the script does not support."""
        if settlement.then or settlement.payload is not None:
            raise InvalidJob("a job of a flow is followed by its next queue, and by nothing else")
        delay = max(round(settlement.delay * 1000), 0)
        match settlement.state:
            case State.COMPLETED:
                if settlement.result is None:
                    raise InvalidJob("the result of the step is missing")
                return self._ended(decode_end(settlement.result))
            case State.ERRORED:
                return "error", delay
            case State.QUEUED:
                return "snooze", delay, _quoted(self._reasons.get(pair, "asked to wait"))
            case State.CANCELED:
                return "cancel", _quoted(settlement.error or "canceled")
        return "fail", _quoted(settlement.error or "failed")

    def _ended(self, end: StepResult) -> Sequence[Any]:
        fields = _flat(end.fields)
        if end.children is None:
            return "complete", self._target(end.next), [*fields, "completed-queue", self._queue.quoted]
        return "park", fields, [self._child(child) for child in end.children]

    def _target(self, name: str | None) -> tuple[str, int] | bool:
        if name is None:
            return False
        queue = self._by_name.get(name)
        if queue is None:
            raise InvalidJob(f"its next queue is {name!r}, but {self._queue.keys.shape.unknown_queue_message(name)}")
        if queue.parent is not None:
            raise InvalidJob(f"its next queue is {name!r}, which is a child of queue {queue.parent!r}")
        return name, queue.declared.priorities

    def _child(self, child: NewChild) -> Sequence[Any]:
        queue = self._by_name.get(child.queue)
        if queue is None or queue.parent != self._queue.name:
            raise InvalidJob(f"{child.queue!r} is not a child of queue {self._queue.name!r}")
        priority = child.fields.get("priority")
        text = "" if priority is None else bytes(priority).decode()
        rank = int(text) if text.isdigit() else 1
        return child.id, child.queue, max(1, min(rank, queue.declared.priorities)), _flat(child.fields)


def _parts(entries: list[Ended]) -> list[list[Ended]]:
    """Split into parts of limited size. Equal batches have equal parts, so that a repeat makes the same calls."""
    parts: list[list[Ended]] = []
    size = MAX_BATCH_CHARS
    for pair, settlement in entries:
        entry_size = len(settlement.result or "") + len(settlement.error or "")
        if not parts or size + entry_size > MAX_BATCH_CHARS or len(parts[-1]) == MAX_BATCH:
            parts.append([])
            size = 0
        parts[-1].append((pair, settlement))
        size += entry_size
    return parts


def _reply(
    mark: str, requested: Settlement, written: Settlement, *, settled_before: bool, missing: bool | None
) -> Reply:
    """Translate a mark. ``missing``: ``None`` unless repeated; True if an earlier mark would still exist."""
    match mark:
        case "S" if written is not requested:
            return written
        case "S":
            return Verdict.ALREADY_SETTLED if settled_before else Verdict.SETTLED
        case "C":
            return with_state(requested, State.CANCELED)
        case "F":
            return with_state(requested, State.FAILED)
    if missing is None or (missing and mark == "L"):
        return Verdict.LOST
    return Verdict.UNKNOWN


def _packed(job_id: str) -> str | msgspec.Raw:
    """Return an id for MessagePack; as raw text if it is not ASCII, since a foreign id may not be UTF-8."""
    if job_id.isascii():
        return job_id
    raw = job_id.encode(errors="surrogateescape")
    return msgspec.Raw(b"\xdb" + len(raw).to_bytes(4, "big") + raw)


def digest_of(pairs: Sequence[Pair]) -> str:
    """Return the digest of the leases that one call settles."""
    text = "\n".join(map(" ".join, pairs))
    return hashlib.sha1(text.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()


def _flat(fields: dict[str, msgspec.Raw]) -> list[str]:
    """Return name, value, … as a hash is written, without null values. Raise UnicodeError."""
    flat: list[str] = []
    for name, raw in fields.items():
        name.encode()
        text = bytes(raw).decode()
        if text != "null":
            flat += (name, text)
    return flat


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
