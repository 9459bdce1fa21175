"""A lent store that refuses a settlement, or records another one: what is replied, audited and counted."""

from __future__ import annotations

from pathlib import Path

from stowhand.events import RemoteCallAudited
from stowhand.jobs.job import State
from stowhand.testing import MemoryStore
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Lending, proof, token_of
from tests.support.memory_rows import refuse

ERRORED = {"state": "errored", "ended": "retry", "delay": 60.0, "error": "it failed"}
COMPLETED = {"state": "completed", "ended": "ok"}


def audit(lending: Lending) -> list[str]:
    return [word for event in lending.events_of(RemoteCallAudited) if event.call == "settle" for word in event.verdicts]


def test_recorded_settlements_are_replied_audited_and_counted(lend: Lend) -> None:
    store = MemoryStore()
    lending = lend(store, counts=True)
    canceled, refused, lost = lending.add(), lending.add(), lending.add()
    client = lending.client()
    claims = client.claim(3)
    lending.do(store.admin.cancel(canceled))
    refuse(store, None, State.COMPLETED)
    claims[2]["lease"]["epoch"] += 1  # its proof does not fit any more
    batch = [
        {"proof": proof(one), "settlement": what}
        for one, what in zip(claims, (ERRORED, COMPLETED, COMPLETED), strict=True)
    ]
    reply = client.post("settle", batch=batch)
    assert reply.body["verdicts"] == ["settled", "unwritten", "lost"]
    first, second = reply.body["differences"]
    assert (first["place"], first["recorded"]["state"], first["recorded"]["error"]) == (0, "canceled", "it failed")
    assert second == {"place": 1, "unwritten": "the store cannot write it: a trigger says no"}
    assert [lending.state(one) for one in (canceled, refused, lost)] == ["canceled", "processing", "processing"]
    assert audit(lending) == ["canceled: settled", "unchanged: unwritten", "unchanged: lost"]
    text = client.get("/metrics").raw.decode()
    for verdict in reply.body["verdicts"]:
        assert f'stowhand_lending_verdicts_total{{verdict="{verdict}"}} 1.0' in text
    assert client.post("settle", batch=[{"proof": proof(claims[1]), "settlement": ERRORED}]).body == {
        "verdicts": ["settled"]
    }
    assert audit(lending)[-1] == "errored: settled"


def test_jobs_that_may_not_follow_are_refused_and_nothing_is_reported_as_recorded(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens, "w", "claim")
    lending = lend()
    job = lending.add()
    client = lending.client(token)
    (claim,) = client.claim()
    settlement = COMPLETED | {"then": [{"task": "next"}]}
    reply = client.post("settle", batch=[{"proof": proof(claim), "settlement": settlement}]).body
    assert reply["verdicts"] == ["unwritten"]
    assert "the scope enqueue" in reply["differences"][0]["unwritten"]
    assert lending.state(job) == "processing"
    assert client.settle(claim, state="failed", ended="failed", error="may not enqueue") == ["settled"]
    assert audit(lending) == ["unchanged: unwritten", "failed: settled"]


def test_a_lease_that_is_settled_twice_in_one_call_is_reported_as_it_was_settled(lend: Lend) -> None:
    lending = lend()
    lending.add()
    client = lending.client()
    (claim,) = client.claim()
    failed = {"state": "failed", "ended": "failed", "error": "no"}
    batch = [{"proof": proof(claim), "settlement": what} for what in (failed, COMPLETED)]
    assert client.post("settle", batch=batch).body["verdicts"] == ["settled", "settled"]
    assert audit(lending) == ["failed: settled", "failed: settled"]
