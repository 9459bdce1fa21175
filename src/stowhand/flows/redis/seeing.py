"""What is known of a job in Redis, told as its creator sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from stowhand.flows.view import FlowJobView, Stage, created_at

ENDED_AT = "endedAtTimestamp"


def seen(known: Mapping[str, Any], queue: str | None, how: str, ready: float | None) -> FlowJobView:
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
