"""What stands in a job's hash: JSON text by name. Other applications may have written any value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from stowhand.errors import UndecodablePayload
from stowhand.flows.view import FlowJobView, Stage, created_at
from stowhand.jobs import strict_json

ENDED_AT = "endedAtTimestamp"
NOTES = ("lookups:lists", "children:queues")
"""What ends with a job (``lua/_life.lua``)."""
_decode = msgspec.json.Decoder().decode


def decoded(raw: Mapping[str, str]) -> dict[str, Any]:
    """For people: every field but notes of the store's own, ``None`` where its text is no JSON."""
    return {name: readable(text) for name, text in raw.items() if name not in NOTES}


def readable(text: str | None) -> Any:
    """The value; ``None`` where there is none, or its text is no JSON."""
    try:
        return None if text is None else strict_json.decode(text)
    except UndecodablePayload:
        return None


def view_of(known: Mapping[str, Any], queue: str | None, how: str, ready: float | None) -> FlowJobView:
    """``queue``: where it stands, ``None``: nowhere, so it has ended. ``ready``: epoch seconds."""
    job_id = str(known["id"])
    failed = known.get("failed") in (True, "true")
    if failed:
        stage, queue = Stage.CANCELED if known.get("canceled") is True else Stage.FAILED, _text(known, "failedQueue")
    elif queue is None:
        stage, queue = Stage.COMPLETED, _text(known, "completed-queue")
    else:
        stage = Stage(how)
    ended = known.get(ENDED_AT)
    return FlowJobView(
        id=job_id,
        state=stage,
        queue=queue,
        attributes={name: value for name, value in known.items() if name != "id"},
        failure=str(known.get("failedErrorMsg")) if failed else None,
        created_at=created_at(job_id),
        ready_at=None if ready is None else datetime.fromtimestamp(ready, UTC),
        ended_at=datetime.fromtimestamp(ended / 1000, UTC) if stage.has_ended and type(ended) is int else None,
    )


def _text(known: Mapping[str, Any], name: str) -> str | None:
    value = known.get(name)
    return value if isinstance(value, str) else None


def wanted(raw: Mapping[str, str | None]) -> dict[str, Any]:
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


def key_list(text: str | None) -> list[str] | None:
    """The keys in ``children:<queue>:jobs``; ``None``: there are none yet."""
    keys = readable(text)
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else None
