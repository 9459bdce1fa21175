"""What a worker elsewhere asks, and what it is answered."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.errors import StoreError, StoreUnreachable
from stowhand.events import RemoteCallAudited, StoreCallFailed
from stowhand.jobs.job import NewJob
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.attempt import Progress
from stowhand.protocols.store import ClaimRequest, Terms
from stowhand.remote.server.claims import UsedTokens
from stowhand.stores.sqlite.queue.heartbeats import SqliteHeartbeats
from stowhand.testing import FakeClock, MemoryStore
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import claiming, proof, token_of
from tests.support.memory_rows import rows_of


def test_a_job_is_claimed_renewed_and_settled(lend: Lend) -> None:
    lending = lend()
    job_id, client = lending.add(payload='{"n": 1}'), lending.client()
    (claim,) = client.claim()
    assert (claim["lease"]["job_id"], claim["kind"], claim["task"]) == (job_id, "job", "t")
    assert claim["record"]["payload"] == '{"n": 1}'
    beaten = client.post("heartbeat", leases=[proof(claim)], lease=30.0).body
    assert (beaten["lost"], beaten["canceled"], beaten["busy"]) == ([], [], [])
    until = datetime.fromisoformat(beaten["lease_until"])
    assert timedelta(seconds=20) < until - datetime.now(UTC) <= timedelta(seconds=30)
    assert client.settle(claim, result='{"ok": true}') == ["settled"]
    assert client.settle(claim, result='{"ok": true}', repeat=True) == ["already settled"]
    assert lending.state(job_id) == "completed"


class Strict(MemoryStore):
    """As a table: how long a lease lasts is laid down, whatever a worker asks for."""

    terms = Terms(lease=6.0)


def test_a_heartbeat_returns_the_deadline_of_the_lease(lend: Lend) -> None:
    lending = lend(Strict())
    lending.add()
    client = lending.client()
    (claim,) = client.claim()
    beaten = client.post("heartbeat", leases=[proof(claim)], lease=30.0).body
    until = datetime.fromisoformat(beaten["lease_until"])
    assert until - datetime.now(UTC) <= timedelta(seconds=6), "and not the thirty that were asked for"


@pytest.mark.parametrize("lease", [0.3, 1.5])
def test_the_job_of_a_dead_remote_worker_is_claimable_within_its_lease_and_two_seconds(
    lend: Lend, lease: float
) -> None:
    lending = lend()
    job_id = lending.add()
    began = time.monotonic()
    lending.client().claim(lease=lease)
    (claim,) = lending.client().claim_when_due()
    assert claim["lease"]["job_id"] == job_id
    assert lease <= time.monotonic() - began < lease + 2


def test_a_process_that_saw_a_worker_die_resets_its_jobs_with_the_same_token(lend: Lend, tokens: Path) -> None:
    mine, theirs = token_of(tokens), token_of(tokens, name="theirs")
    lending = lend()
    ids = [lending.add() for _ in range(3)]
    (first,) = lending.client(mine).claim(worker="dies")
    (second,) = lending.client(mine).claim(worker="lives")
    (third,) = lending.client(theirs).claim(worker="dies")
    assert [one["lease"]["job_id"] for one in (first, second, third)] == ids
    parent, token_id = lending.client(mine), mine.split("_")[1]
    assert [job["job_id"] for job in parent.post("reset", worker="dies").body["jobs"]] == [ids[0]]
    assert parent.post("reset", worker="dies").body == {"jobs": []}
    assert [lending.state(job_id) for job_id in ids] == ["queued", "processing", "processing"]
    assert parent.post("reset", leases=[proof(third)]).body == {"jobs": []}, "that was lent to others"
    (job,) = parent.post("reset", leases=[proof(second)]).body["jobs"]
    assert (job["job_id"], job["state"], job["worker"]) == (ids[1], "queued", f"lives@{token_id}")
    assert lending.client(mine).settle(first, second) == ["lost", "lost"]


def test_a_restarted_server_accepts_earlier_proofs(lend: Lend, tokens: Path) -> None:
    store, token = MemoryStore(), token_of(tokens)
    first = lend(store)
    job_id = first.add()
    first.client(token).claim(worker="dies")
    first.stop()
    second = lend(store)
    (job,) = second.client(token).post("reset", worker="dies").body["jobs"]
    assert (job["job_id"], second.state(job_id)) == (job_id, "queued")


def test_a_settled_job_has_no_holder(lend: Lend) -> None:
    lending = lend()
    lending.add()
    (claim,) = lending.client().claim(worker="w")
    assert lending.client().settle(claim) == ["settled"]
    assert lending.client().post("reset", worker="w").body == {"jobs": []}


def test_a_heartbeat_reports_canceled_and_lost_jobs(lend: Lend) -> None:
    store = MemoryStore()
    lending = lend(store)
    lending.add()
    lending.add()
    client = lending.client()
    first, second = client.claim(2)
    lending.do(store.admin.cancel(first["lease"]["job_id"]))
    beaten = client.post("heartbeat", leases=[proof(first), proof(second)], lease=30.0).body
    assert beaten["canceled"] == [[first["lease"]["job_id"], first["lease"]["token"]]]
    lending.do(store.admin.force_unlock_workers(["w"]))
    beaten = client.post("heartbeat", leases=[proof(second)], lease=30.0).body
    assert beaten["lost"] == [[second["lease"]["job_id"], second["lease"]["token"]]]
    assert client.settle(second) == ["lost"]


def test_a_released_lease_is_due_again_with_its_attempt(lend: Lend) -> None:
    lending = lend()
    lending.add()
    client = lending.client()
    (claim,) = client.claim()
    assert client.post("release", leases=[proof(claim)]).body == {"busy": [], "lost": [], "abandoned": True}
    (again,) = client.claim()
    assert (again["attempts"], again["lease"]["job_id"]) == (1, claim["lease"]["job_id"])
    assert client.settle(claim) == ["lost"]


def test_a_claim_token_that_was_used_is_refused(lend: Lend) -> None:
    lending = lend()
    for _ in range(3):
        lending.add()
    client, token = lending.client(), str(uuid.uuid4())
    (claim,) = client.claim(1, token)
    assert "used" in client.post("claim", **claiming(1, token)).refused(409, "used")
    assert client.settle(claim) == ["settled"]
    client.post("claim", **claiming(1, token)).refused(409, "used")
    assert len(client.claim(5)) == 2


def test_one_of_two_simultaneous_equal_claims_is_answered(lend: Lend) -> None:
    lending = lend()
    for _ in range(10):
        lending.add()
    body, replies = claiming(2), []
    clients = [lending.client() for _ in range(4)]
    threads = [
        threading.Thread(target=lambda client=client: replies.append(client.post("claim", **body)))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.status for reply in replies) == [200, 409, 409, 409]
    assert len(clients[0].claim(10)) == 8


def test_the_number_of_remembered_claim_tokens_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.remote.server.claims.MAX_USED_TOKENS", 2)
    used = UsedTokens()
    assert [used.add(token) for token in "abcbca"] == [True, True, True, False, False, True]


def test_a_released_token_claims_nothing_more(lend: Lend) -> None:
    lending = lend()
    job_id, client, token = lending.add(), lending.client(), str(uuid.uuid4())
    client.claim(1, token)
    assert client.post("release", token=token).body["abandoned"]
    assert client.claim(1, token) == []
    (claim,) = client.claim()
    assert claim["lease"]["job_id"] == job_id


def test_a_reply_has_at_most_500_records_once_their_size_is_known(lend: Lend) -> None:
    lending = lend()
    store: Any = lending.store
    lending.do(store.jobs.enqueue_many([NewJob(task="t")] * 601))
    client = lending.client()
    assert [len(client.claim(1000)) for _ in range(3)] == [100, 500, 1]


def test_large_records_are_claimed_in_numbers_that_fit_into_a_reply(
    lend: Lend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.remote.server.claims.MAX_REPLY_BYTES", 2 * 4096)
    lending = lend()
    for _ in range(8):
        lending.add(payload=json.dumps("x" * 3000))
    client, store = lending.client(), lending.store
    limits: list[int] = []
    claim = store.claim

    async def noted(request: ClaimRequest) -> Any:
        limits.append(request.limit)
        return await claim(request)

    monkeypatch.setattr(store, "claim", noted)
    assert [len(client.claim(8)) for _ in range(4)] == [2, 2, 2, 2]
    assert limits == [8, 2, 2, 2], "the first read six that it handed back; the others none"


def test_records_that_do_not_fit_into_a_reply_are_released_without_an_attempt(
    lend: Lend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.remote.server.claims.MAX_REPLY_BYTES", 2500)
    lending = lend()
    ids = [lending.add(payload=json.dumps("x" * size)) for size in (100, 100, 5000)]
    client = lending.client()
    assert [claim["lease"]["job_id"] for claim in client.claim(3)] == ids[:2]
    store: Any = lending.store
    left = lending.do(store.jobs.get(ids[2]))
    assert (left.state, left.attempts) == ("queued", 0)
    assert [claim["lease"]["job_id"] for claim in client.claim(3)] == ids[2:]  # alone, however large


def test_a_call_is_refused_while_too_many_wait_for_the_heartbeat_thread(
    lend: Lend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = lend()
    lending.add()
    client = lending.client()
    (claim,) = client.claim()
    monkeypatch.setattr("stowhand.worker.heartbeat_thread.MAX_WAITING_CALLS", 0)
    client.post("heartbeat", leases=[proof(claim)], lease=30.0).refused(503, "unreachable")


def test_suspects_flags_and_tasks_go_to_the_store(lend: Lend) -> None:
    lending = lend()
    lending.add("a")
    lending.add("b", flags=("slow",))
    client = lending.client()
    assert client.claim(5, tasks=["b"], forbidden_flags=["slow"]) == []
    assert client.claim(5, suspects=True) == []
    assert [claim["task"] for claim in client.claim(5, tasks=["a", "c"])] == ["a"]


def test_jobs_are_enqueued_and_a_keyed_repeat_is_the_same_row(lend: Lend) -> None:
    lending = lend()
    client = lending.client()
    jobs = [{"task": "t", "payload": "[1]", "key": "k"}, {"task": "t", "payload": "[2]"}]
    first = client.post("enqueue", jobs=jobs).body
    again = client.post("enqueue", jobs=jobs[:1], bare=True).body
    assert again == {"ids": first["ids"][:1], "jobs": []}
    assert client.get(f"/v1/jobs/{first['ids'][1]}").body["payload"] == "[2]"


def test_an_invalid_job_is_refused_with_its_field(lend: Lend) -> None:
    client = lend().client()
    reply = client.post("enqueue", jobs=[{"task": "t"}, {"task": "t", "max_attempts": 0}])
    assert "max_attempts" in reply.refused(400, "invalid job")
    assert client.claim() == []


def test_an_unknown_job_is_reported_as_unknown(lend: Lend) -> None:
    client = lend().client()
    for number in ("7", "0", "x", "9" * 30, "-1"):
        client.get(f"/v1/jobs/{number}").refused(404, "unknown")


def test_a_store_without_logs_says_so(lend: Lend) -> None:
    lending = lend()
    lending.add()
    client = lending.client()
    (claim,) = client.claim()
    entry = {"key": "k", "startTime": "2026-01-01T00:00:00Z"}
    assert "no execution logs" in client.post("logs", proof=proof(claim), add=[entry]).refused(404, "unknown")


@pytest.mark.parametrize(
    ("settlement", "where"),
    [
        ({"state": "processing", "ended": "ok"}, "processing"),
        ({"state": "completed", "ended": "retry"}, "retry"),
        ({"delay": -1.0, "state": "errored", "ended": "retry"}, "delay"),
        ({"delay": 1e300, "state": "errored", "ended": "retry"}, "delay"),
        ({"delay": 5.0}, "delay"),
        ({"refund": True}, "refund"),
        ({"state": "queued", "ended": "snoozed"}, "refund"),
    ],
)
def test_a_settlement_that_no_worker_would_send_is_refused(lend: Lend, settlement: object, where: str) -> None:
    lending = lend()
    job_id, client = lending.add(), lending.client()
    (claim,) = client.claim()
    what = {"state": "completed", "ended": "ok"} | dict(settlement)  # type: ignore[call-overload]
    reply = client.post("settle", batch=[{"proof": proof(claim), "settlement": what}])
    assert where in reply.refused(400, "malformed")
    assert lending.state(job_id) == "processing"


def test_an_invalid_result_refuses_only_its_settlement(lend: Lend) -> None:
    lending = lend()
    ids = [lending.add(), lending.add()]
    client = lending.client()
    first, second = client.claim(2)
    batch = [
        {"proof": proof(first), "settlement": {"state": "completed", "ended": "ok", "result": '"\\u0000"'}},
        {"proof": proof(second), "settlement": {"state": "completed", "ended": "ok"}},
    ]
    assert client.post("settle", batch=batch).body["verdicts"] == ["unwritten", "settled"]
    assert [lending.state(job_id) for job_id in ids] == ["processing", "completed"]


def test_fields_that_a_state_does_not_use_are_ignored(lend: Lend) -> None:
    store = MemoryStore()
    lending = lend(store)
    job_id, client = lending.add(payload="[1]"), lending.client()
    (claim,) = client.claim()
    assert client.settle(claim, state="queued", ended="snoozed", refund=True, payload="[2]", result="3") == ["settled"]
    job = lending.do(store.jobs.get(job_id))
    assert job is not None
    assert (job.payload_text, job.result_text) == ("[1]", None)


def test_an_error_text_is_cleaned_and_cut(lend: Lend) -> None:
    store = MemoryStore()
    lending = lend(store)
    job_id, client = lending.add(), lending.client()
    (claim,) = client.claim()
    client.settle(claim, state="failed", ended="failed", error="a\x00b" + "x" * 50_000)
    job = lending.do(store.jobs.get(job_id))
    assert job is not None
    assert job.last_error is not None
    assert len(job.last_error) <= 16 * 1024
    assert job.last_error.startswith("a�b")


def test_a_poll_is_answered_at_once_or_after_a_wake_up(lend: Lend) -> None:
    lending = lend()
    client = lending.client()
    due = client.post("due").body
    assert due["seconds"] is None
    lending.add(delay=500)
    assert 400 < client.post("due").body["seconds"] <= 500
    known = client.post("due").body["wake_count"]
    threading.Timer(0.1, lending.add).start()
    began = time.monotonic()
    woken = client.post("due", wait=30, wake_count=known).body
    # Another count than the known one is news at once.
    assert client.post("due", wait=30, wake_count=due["wake_count"]).body["wake_count"] == woken["wake_count"]
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("long_store_waits")
def test_a_wake_up_between_an_empty_claim_and_the_wait_is_not_lost(lend: Lend) -> None:
    lending = lend()
    client = lending.client()
    known = client.post("due").body["wake_count"]
    assert client.claim() == []
    lending.add()
    began = time.monotonic()
    assert client.post("due", wait=30, wake_count=known).body["wake_count"] != known
    assert time.monotonic() - began < 20
    assert len(client.claim()) == 1


def test_a_poll_without_a_wake_count_is_refused(lend: Lend) -> None:
    assert "wake_count" in lend().client().post("due", wait=30).refused(400, "malformed")


def test_a_claim_does_not_wait(lend: Lend) -> None:
    client = lend().client()
    assert client.claim() == []
    assert "wait" in client.post("claim", **claiming(wait=1)).refused(400, "malformed")


def test_waiting_polls_of_a_token_are_limited(lend: Lend, monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    monkeypatch.setattr("stowhand.remote.server.claims.MAX_POLLS_PER_TOKEN", 1)
    one, other = token_of(tokens), token_of(tokens)
    lending = lend()
    client, second = lending.client(one), lending.client(one)
    known = client.post("due").body["wake_count"]
    waiting = threading.Thread(target=lambda: second.post("due", wait=30, wake_count=known))
    waiting.start()
    lending.wait_until_polled()
    refused = client.post("due", wait=1, wake_count=known)
    refused.refused(429, "too many")
    assert refused.headers["retry-after"] == "1"
    assert client.post("due").status == 200  # it does not wait
    assert lending.client(other).post("due", wait=0.1, wake_count=known).status == 200
    lending.add()
    waiting.join()
    assert client.post("due", wait=0.1, wake_count=known).status == 200


def test_conditions_are_refused_by_a_store_without_them(lend: Lend) -> None:
    client = lend().client()
    request = claiming(conditions=[{"column": "size", "op": "<", "value": 3}])
    client.post("claim", **request).refused(400, "refused")
    request = claiming(conditions=[{"column": "size", "op": "; drop", "value": 3}])
    client.post("claim", **request).refused(400, "refused")


def test_every_change_is_audited_without_secrets(lend: Lend) -> None:
    lending = lend()
    job_id, client = lending.add(payload='"hush"'), lending.client()
    (claim,) = client.claim()
    client.settle(claim, result='"hush"')
    client.post("enqueue", jobs=[{"task": "t", "payload": '"hush"'}])
    message = lending.events_of(RemoteCallAudited)
    assert [(event.call, event.ids, event.verdicts) for event in message] == [
        ("claim", (str(job_id),), ()),
        ("settle", (str(job_id),), ("completed: settled",)),
        ("enqueue", (str(job_id + 1),), ()),
    ]
    words = repr(message)
    assert all(secret not in words for secret in ("hush", claim["authorization"], claim["lease"]["token"]))


def test_the_server_resets_the_jobs_of_lost_workers(lend: Lend) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    asyncio.run(store.jobs.enqueue(NewJob(task="t")))
    (claim,) = asyncio.run(store.claim(ClaimRequest(worker="gone", token=str(uuid.uuid4()), limit=1, lease=30.0)))
    asyncio.run(clock.advance(60))
    lending = lend(store)
    assert lending.reset.wait(30)
    assert lending.state(claim.lease.job_id) == "queued"


def test_the_server_reports_terms_and_health(lend: Lend) -> None:
    client = lend().client()
    terms = client.get("/v1/terms").body
    assert (terms["kind"], terms["logs"], terms["lease"]) == ("queue", False, None)
    assert client.get("/healthz").body["status"] == "ok"
    assert client.get("/readyz").body == {"status": "ready"}


def test_the_metrics_count_calls_records_and_verdicts(lend: Lend) -> None:
    lending = lend(counts=True)
    lending.add()
    client = lending.client()
    client.settle(*client.claim())
    client.post("nonsense")
    text = client.get("/metrics").raw.decode()
    assert 'stowhand_lending_requests_total{call="claim",status="200"} 1.0' in text
    assert 'stowhand_lending_requests_total{call="other",status="404"} 1.0' in text
    assert 'stowhand_lending_verdicts_total{verdict="settled"} 1.0' in text
    assert "stowhand_lending_records_total 1.0" in text


def test_a_server_without_the_client_of_prometheus_says_what_to_install(lend: Lend) -> None:
    assert "has no metrics" in lend().client().get("/metrics").refused(404, "unknown")


def test_progress_is_kept_under_the_lease_and_its_proof(lend: Lend, tokens: Path) -> None:
    store = MemoryStore()
    mine, other = token_of(tokens), token_of(tokens, name="theirs")
    lending = lend(store)
    ours, theirs = lending.add(), lending.add()
    client = lending.client(mine)
    (claim,), (foreign,) = client.claim(), lending.client(other).claim()
    long = {"proof": proof(claim), "done": 0.4, "text": "page 40\x00" + "b" * 500}
    reply = client.post("progress", notes=[long, {"proof": proof(foreign), "done": 0.9}])
    assert reply.body == {"lost": [[theirs, foreign["lease"]["token"]]]}
    rows = {row.id: row for row in rows_of(store)}
    assert (rows[ours].progress, len(str(rows[ours].progress_text)), rows[theirs].progress) == (0.4, 200, None)
    message = client.post("progress", notes=[{"proof": proof(claim), "done": 1.5}]).refused(400, "refused")
    assert "use a number from 0 to 1" in message
    ended = {"proof": proof(claim), "settlement": {"state": "completed", "ended": "ok"}}
    assert client.post("settle", batch=[ended]).body == {"verdicts": ["settled"]}
    assert client.post("progress", notes=[{"proof": proof(claim), "done": 0.5}]).body == {"lost": []}
    assert all(row.progress is None for row in rows_of(store))


class BusyHeart(SqliteHeartbeats):
    """Another transaction holds what progress would be written to."""

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        raise StoreUnreachable("no answer in time")


class BusyStore(MemoryStore):
    def heartbeats(self) -> SqliteHeartbeats:
        connection = self._connections.connect()
        return BusyHeart(connection, connection, None, self._options.history)


def test_progress_is_dropped_if_the_store_does_not_answer(lend: Lend) -> None:
    lending = lend(BusyStore())
    lending.add()
    client = lending.client()
    (claim,) = client.claim()
    assert client.post("progress", notes=[{"proof": proof(claim), "done": 0.5}]).body == {"lost": []}
    assert client.post("heartbeat", leases=[proof(claim)], lease=30.0).status == 200


@pytest.mark.parametrize("name", ["a\x00", "", "x" * 200, "a\nb"], ids=["NUL", "empty", "endless", "a line break"])
def test_invalid_task_names_are_refused_and_are_no_outage(lend: Lend, name: str) -> None:
    lending = lend()
    client = lending.client()
    for call, body in (("claim", claiming(tasks=[name])), ("due", {"tasks": [name]})):
        assert client.post(call, **body).refused(400, "invalid job").startswith("tasks: ")
    assert lending.events_of(StoreCallFailed) == []


class Broken(MemoryStore):
    """A store whose answers to polls are wrong: with an error of the store's own, and with a bug."""

    error: Exception = StoreError("no such function")

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        raise self.error


def test_an_error_that_is_not_the_stores_is_a_bug_and_no_outage(lend: Lend) -> None:
    store = Broken()
    lending = lend(store)
    assert "failed" in lending.client().post("due").refused(503, "unreachable")
    store.error = psycopg.InterfaceError("the cursor is closed")
    reply = lending.client().post("due")
    reply.refused(500, "broken")
    assert "retry-after" not in reply.headers
    assert len(lending.events_of(StoreCallFailed)) == 1
