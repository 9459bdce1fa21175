"""A job's payload and result are values; the texts of the store stay beside them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from stowhand.errors import UndecodablePayload
from stowhand.jobs.job import Job, State

NOW = datetime(2031, 1, 1, tzinfo=UTC)


def job(payload: str, result: str | None = None) -> Job:
    return Job(
        id=1, task="t", payload_text=payload, result_text=result, state=State.QUEUED, serial=None, priority=0,
        run_at=NOW, attempts=0, max_attempts=25, created_at=NOW,
    )  # fmt: skip


def test_payload_and_result_are_decoded_once_at_the_first_access() -> None:
    done = job('{"b": 1.50, "a": [null]}', '"sent 5"')
    assert done.payload == {"b": 1.5, "a": [None]}
    assert done.payload is done.payload
    assert done.payload_text == '{"b": 1.50, "a": [null]}'
    assert (done.result, done.result_text) == ("sent 5", '"sent 5"')
    assert job("{}").result is None


def test_an_undecodable_payload_raises_at_its_access_only() -> None:
    unreadable = job('{"a": NaN}')
    assert unreadable == job('{"a": NaN}')
    with pytest.raises(UndecodablePayload):
        _ = unreadable.payload


def test_over_the_wire_they_bear_the_names_they_always_had() -> None:
    sent = msgspec.json.decode(msgspec.json.encode(job("{}", "1")))
    assert (sent["payload"], sent["result"]) == ("{}", "1")
    assert msgspec.json.decode(msgspec.json.encode(job("{}", "1")), type=Job) == job("{}", "1")
