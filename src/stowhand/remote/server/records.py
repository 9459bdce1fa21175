"""A claim as it is sent: a ``Job``, or a record of the application's type, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.strict_json import refuse_nan
from stowhand.jobs.text import clean
from stowhand.jobs.unreadable import Unreadable
from stowhand.protocols.store import Claim
from stowhand.remote.wire import Lent


class Sent(msgspec.Struct, frozen=True):
    """One record that is lent."""

    lease: Lease
    """As the store knows it."""
    body: bytes
    """An encoded ``wire.Lent``."""


def lent(claim: Claim[Any], token: str, prove: Callable[[Lease], str]) -> Lent:
    """``token``: the client's claim token. ``prove`` makes the authorization of the lease."""
    lease = Lease(claim.lease.job_id, token, claim.lease.epoch)
    kind, record = _read(claim.record)
    return Lent(
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


def _read(record: object) -> tuple[str, object]:
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
        why = f"it cannot be written as JSON: {error}; select the value in another form by column_expressions"
        return "unreadable", clean(why, 1024)


def _write_other(value: Any) -> object:
    """Values that msgspec cannot encode. Pydantic models encode themselves; pydantic is never imported here."""
    if hasattr(type(value), "__pydantic_validator__"):
        return value.model_dump(mode="json")
    if isinstance(value, memoryview):
        return bytes(value)
    return str(value)  # an address, a range, …: as a database would print it
