"""Values of a job's hash: JSON text by name. Other applications may write any value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from stowhand.errors import UndecodablePayload
from stowhand.flows.job import FlowJobView, Stage, created_at
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import FlowQueue, FlowShape, Layout

ENDED_AT_FIELD = "endedAtTimestamp"
STATE_FIELD, PASSED_FIELD, KEY_FIELD = "flow:state", "flow:passed", "flow:key"
NOTE_FIELDS = ("lookups:lists", "children:queues", STATE_FIELD, PASSED_FIELD, KEY_FIELD, "flow:cancel")
"""Fields that only the scripts use: keys to expire with a job (``lua/_life.lua``), its state (``lua/_queue.lua``), its
key, and the request to cancel it."""
COMPLETED_QUEUE_FIELD = "completed-queue"
_STAGE_NAMES = {stage.value for stage in Stage}
_decode = msgspec.json.Decoder().decode


def decoded(raw: Mapping[str, str]) -> dict[str, Any]:
    """Decode every field except the scripts' own; ``None`` for a text that is not JSON."""
    return {name: readable(text) for name, text in raw.items() if name not in NOTE_FIELDS}


def readable(text: str | None) -> Any:
    """Decode a value; ``None`` if it is missing or its text is not JSON."""
    try:
        return None if text is None else strict_json.decode(text)
    except UndecodablePayload:
        return None


class StoredJob(msgspec.Struct, frozen=True):
    """A job's hash, and its position in the lists."""

    raw: dict[str, str]
    queue: str
    """The queue whose lists contain the job; empty if none does."""
    state: str
    ready_at: float | None
    """Time at which a delayed job is ready, in epoch seconds."""


def state_of(shape: FlowShape, stored: StoredJob) -> tuple[Stage, str | None]:
    """Return the state of a job and its queue, as the scripts have recorded them.

    A job that no list contains does not count as completed without such a record. The exception is a job that the
    original implementation has moved on (classic layout) and whose queue is declared to be the last one.
    """
    raw = stored.raw
    written, _, queue = (_text(raw, STATE_FIELD) or "").partition(":")
    written = written if written in _STAGE_NAMES else ""
    if has_failed(raw):
        canceled = readable(raw.get("canceled")) is True
        return Stage.CANCELED if canceled else Stage.FAILED, _text(raw, "failedQueue")
    if stored.queue:
        return Stage(stored.state), stored.queue
    completed = _text(raw, COMPLETED_QUEUE_FIELD)
    if not written or (shape.layout is Layout.CLASSIC and completed != _text(raw, PASSED_FIELD)):
        return _moved_by_others(shape, completed)
    declared = {flow_queue.name for flow_queue in shape.all_queues()}
    if written == Stage.COMPLETED or queue not in declared:
        return Stage(written), queue
    return Stage.LOST, queue


def _moved_by_others(shape: FlowShape, completed: str | None) -> tuple[Stage, str | None]:
    """Return the state and queue of a job that no list contains, from the last queue that it completed."""
    if completed is None:
        return Stage.LOST, shape.entry.name
    queue = next((known for known in shape.all_queues() if known.name == completed), None)
    following = None if queue is None else queue.declared.next_for(shape.name)
    if queue is None or following is not None:
        return Stage.LOST, following
    return Stage.COMPLETED, completed


def view_of(shape: FlowShape, job_id: str, stored: StoredJob) -> FlowJobView:
    """Return the public view of a job."""
    stage, queue = state_of(shape, stored)
    known = decoded(stored.raw)
    ended_at = known.get(ENDED_AT_FIELD)
    failure = None
    if stage in (Stage.FAILED, Stage.CANCELED):
        failure = str(known.get("failedErrorMsg"))
    elif stage is Stage.LOST:
        failure = "no list of its queue contains it: the list was deleted or lost; retry puts the job back"
    return FlowJobView(
        id=job_id,
        state=stage,
        queue=queue,
        attributes={name: value for name, value in known.items() if name != "id"},
        failure=failure,
        created_at=created_at(job_id),
        ready_at=None if stored.ready_at is None else datetime.fromtimestamp(stored.ready_at, UTC),
        ended_at=datetime.fromtimestamp(ended_at / 1000, UTC) if stage.has_ended and type(ended_at) is int else None,
    )


def _text(raw: Mapping[str, str], name: str) -> str | None:
    value = readable(raw.get(name))
    return value if isinstance(value, str) else None


def requested_values(raw: Mapping[str, str | None]) -> dict[str, Any]:
    """Decode attributes for a worker function; ``None`` if missing. Raise UndecodablePayload with the attribute's name.

    Values that other stores refuse (a NUL, a number too large for PostgreSQL) are valid here.
    """
    try:
        return {name: None if text is None else _decode(text) for name, text in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {name: None if text is None else _attribute(name, text) for name, text in raw.items()}


def _attribute(name: str, text: str) -> Any:
    """Decode one attribute. This is slower, and only used to find the one that is not JSON."""
    try:
        return strict_json.decode(text)
    except UndecodablePayload as error:
        raise UndecodablePayload(f"attribute {name!r}: {error}") from None


def has_ended(raw: Mapping[str, str]) -> bool:
    """Return whether a child has ended; a child without a hash has.

    Early versions of the original implementation wrote ``"true"`` with quotes.
    """
    return not raw or raw.get("done") in ("true", '"true"')


def has_failed(raw: Mapping[str, str]) -> bool:
    """Return whether a job has failed. The value may have quotes, as in ``has_ended``."""
    return raw.get("failed") in ("true", '"true"')


def children_again(queue: FlowQueue) -> str:
    """Return the field that makes a retried parent create its failed children again."""
    return f"children:{queue.name}:again"
