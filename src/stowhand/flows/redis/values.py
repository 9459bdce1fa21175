"""What stands in a job's hash: JSON text by name. Other applications may have written any value."""

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
"""Fields for our scripts: what ends with a job (``lua/_life.lua``), its state (``lua/_queue.lua``), its key, and the
request to cancel it."""
COMPLETED_QUEUE_FIELD = "completed-queue"
_STAGES = {stage.value for stage in Stage}
_decode = msgspec.json.Decoder().decode


def decoded(raw: Mapping[str, str]) -> dict[str, Any]:
    """For people: every field but notes of the store's own, ``None`` where its text is no JSON."""
    return {name: readable(text) for name, text in raw.items() if name not in NOTE_FIELDS}


def readable(text: str | None) -> Any:
    """The value; ``None`` where there is none, or its text is no JSON."""
    try:
        return None if text is None else strict_json.decode(text)
    except UndecodablePayload:
        return None


class StoredJob(msgspec.Struct, frozen=True):
    """A job's hash, and where the lists of its queue have it."""

    raw: dict[str, str]
    queue: str
    """The queue whose lists have it; empty: none has it."""
    state: str
    ready_at: float | None
    """When it may start, if it is delayed: epoch seconds."""


def state_of(shape: FlowShape, stored: StoredJob) -> tuple[Stage, str | None]:
    """The state of a job and its queue, as our scripts have written them.

    A job that no list has is never taken for completed, unless the original has moved it on (``classic``) and its queue
    is declared to be the last one.
    """
    raw = stored.raw
    written, _, queue = (_text(raw, STATE_FIELD) or "").partition(":")
    written = written if written in _STAGES else ""
    if has_failed(raw):
        canceled = readable(raw.get("canceled")) is True
        return Stage.CANCELED if canceled else Stage.FAILED, _text(raw, "failedQueue")
    if stored.queue:
        return Stage(stored.state), stored.queue
    completed = _text(raw, COMPLETED_QUEUE_FIELD)
    if not written or (shape.layout is Layout.CLASSIC and completed != _text(raw, PASSED_FIELD)):
        return _moved_by_others(shape, completed)
    declared = {each.name for each in shape.all_queues()}
    if written == Stage.COMPLETED or queue not in declared:
        return Stage(written), queue
    return Stage.LOST, queue


def _moved_by_others(shape: FlowShape, completed: str | None) -> tuple[Stage, str | None]:
    """No list has it."""
    if completed is None:
        return Stage.LOST, shape.entry.name
    queue = next((each for each in shape.all_queues() if each.name == completed), None)
    following = None if queue is None else queue.declared.next_for(shape.name)
    if queue is None or following is not None:
        return Stage.LOST, following
    return Stage.COMPLETED, completed


def view_of(shape: FlowShape, job_id: str, stored: StoredJob) -> FlowJobView:
    """The job as its creator sees it."""
    stage, queue = state_of(shape, stored)
    known = decoded(stored.raw)
    ended = known.get(ENDED_AT_FIELD)
    failure = None
    if stage in (Stage.FAILED, Stage.CANCELED):
        failure = str(known.get("failedErrorMsg"))
    elif stage is Stage.LOST:
        failure = "no list of its queue has it: the list was deleted, or Redis has lost it; retry puts the job back"
    return FlowJobView(
        id=job_id,
        state=stage,
        queue=queue,
        attributes={name: value for name, value in known.items() if name != "id"},
        failure=failure,
        created_at=created_at(job_id),
        ready_at=None if stored.ready_at is None else datetime.fromtimestamp(stored.ready_at, UTC),
        ended_at=datetime.fromtimestamp(ended / 1000, UTC) if stage.has_ended and type(ended) is int else None,
    )


def _text(raw: Mapping[str, str], name: str) -> str | None:
    value = readable(raw.get(name))
    return value if isinstance(value, str) else None


def requested_values(raw: Mapping[str, str | None]) -> dict[str, Any]:
    """For a worker function: ``None`` for what is missing. Raises UndecodablePayload, which names the attribute.

    What cannot be stored elsewhere (a NUL, a number too large for PostgreSQL) can be read here.
    """
    try:
        return {name: None if text is None else _decode(text) for name, text in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {name: None if text is None else _attribute(name, text) for name, text in raw.items()}


def _attribute(name: str, text: str) -> Any:
    """Slowly, since one of them is no JSON."""
    try:
        return strict_json.decode(text)
    except UndecodablePayload as error:
        raise UndecodablePayload(f"attribute {name!r}: {error}") from None


def has_ended(raw: Mapping[str, str]) -> bool:
    """Of a child's hash. Early versions of the original wrote ``"true"`` with quotes; a hash that is gone has ended."""
    return not raw or raw.get("done") in ("true", '"true"')


def has_failed(raw: Mapping[str, str]) -> bool:
    """Of any hash, as above."""
    return raw.get("failed") in ("true", '"true"')


def children_again(queue: FlowQueue) -> str:
    """The field that makes a retried parent make its failed children anew."""
    return f"children:{queue.name}:again"
