"""A lent store that refuses an end, or records another one: what clients hear, those that know of it and older ones."""

from __future__ import annotations

import json
from typing import Any

from stowhand.jobs.job import State
from stowhand.testing import MemoryStore
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Client, proof

ERRORED = {"state": "errored", "ended": "retry", "delay": 60.0, "error": "it failed"}


def settled(client: Client, claim: dict[str, Any], settlement: dict[str, Any], *, tells: bool) -> dict[str, Any]:
    body = json.dumps({"batch": [{"proof": proof(claim), "settlement": settlement}]}).encode()
    reply = client.ask("POST", "/v1/settle", body, **({"stowhand_tells": "1"} if tells else {}))
    assert reply.status == 200, reply.raw
    return dict(reply.body)


def test_a_client_that_knows_of_it_hears_what_was_recorded_and_what_was_not(lend: Lend) -> None:
    store = MemoryStore()
    lending = lend(store)
    canceled, refused = lending.add(), lending.add()
    client = lending.client()
    first, second = client.claim(2)
    lending.do(store.admin.cancel(canceled))
    told = settled(client, first, ERRORED, tells=True)["told"]
    assert [(one["place"], one["recorded"]["state"], one["recorded"]["ended"]) for one in told] == [
        (0, *["canceled"] * 2)
    ]
    store.refuse(lambda job_id, state: "a trigger says no" if state is State.COMPLETED else None)
    reply = settled(client, second, {"state": "completed", "ended": "ok"}, tells=True)
    assert reply["verdicts"] == ["unwritten"]
    assert reply["told"][0]["unwritten"] == "a trigger says no"
    assert lending.state(refused) == "processing"
    assert settled(client, second, ERRORED, tells=True) == {"verdicts": ["settled"]}


def test_an_older_client_hears_a_plain_verdict_and_a_refused_end_is_a_failure(lend: Lend) -> None:
    store = MemoryStore()
    lending = lend(store)
    canceled, refused, stuck = lending.add(), lending.add(), lending.add()
    client = lending.client()
    first, second, third = client.claim(3)
    lending.do(store.admin.cancel(canceled))
    assert settled(client, first, ERRORED, tells=False) == {"verdicts": ["settled"]}
    store.refuse(lambda job_id, state: "no" if state is State.COMPLETED or job_id == stuck else None)
    assert settled(client, second, {"state": "completed", "ended": "ok"}, tells=False) == {"verdicts": ["settled"]}
    assert (lending.state(canceled), lending.state(refused)) == ("canceled", "failed")
    assert settled(client, third, {"state": "completed", "ended": "ok"}, tells=False) == {"verdicts": ["lost"]}
