"""Steps, waits and events over HTTP: what a worker token may record, read, emit and create, and what is refused."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, Context
from stowhand.errors import ConfigurationError, InvalidJob, LeaseLost
from stowhand.events import RemoteCallAudited
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement, Wait
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import ClaimRequest, Verdict
from stowhand.protocols.workflows import NewStep
from stowhand.remote import HttpOptions, HttpStore
from stowhand.remote.server import claims as server_claims
from stowhand.remote.server import waits
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Client, Lending, proof, token_of

MAX_NAME = waits.MAX_WIRE_STEP_NAME_CHARACTERS
AT_MOST = 60.0
TOKEN = str(uuid.uuid4())


def step(claim: Any, name: str = "charge", value: str | None = "1", **fields: Any) -> dict[str, Any]:
    return {"proof": proof(claim), "step": {"name": name, "value": value} | fields}


def waiting(**wait: Any) -> dict[str, Any]:
    return {"state": "queued", "ended": "waiting", "refund": True, "wait": {"step": "pause"} | wait}


def settle(client: Client, claim: Any, settlement: dict[str, Any]) -> Any:
    return client.post("settle", batch=[{"proof": proof(claim), "settlement": settlement}])


def unwritten(client: Client, claim: Any, settlement: dict[str, Any]) -> str:
    """Assert that the lent store keeps the job running, and return the reason."""
    reply = settle(client, claim, settlement).body
    assert reply["verdicts"] == ["unwritten"]
    return str(reply["differences"][0]["unwritten"])


def running(lending: Lending, token: str = "", task: str = "t") -> tuple[Client, Any]:
    """A client that runs a new job."""
    lending.add(task)
    client = lending.client(token)
    (claim,) = client.claim(tasks=[task])
    return client, claim


def audit(lending: Lending, call: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(event.ids, event.verdicts) for event in lending.events_of(RemoteCallAudited) if event.call == call]


# -- steps --------------------------------------------------------------------------------------------------


def test_a_worker_records_and_reads_the_steps_of_a_job_that_it_runs(lend: Lend, tokens: Path) -> None:
    lending = lend()
    client, claim = running(lending, token_of(tokens, "w", "claim"))
    steps = [step(claim, "charge", '{"paid": true}'), step(claim, "event", None, error="timed\x00 out")]
    assert client.post("record", steps=steps).body == {"is_held": [True, True]}
    reply = client.post("steps", proof=proof(claim)).body
    assert reply["total"] == 2
    assert [(one["name"], one["value"]) for one in reply["steps"]] == [("charge", '{"paid": true}'), ("event", None)]
    assert "timed" in reply["steps"][1]["error"]
    assert "\x00" not in reply["steps"][1]["error"]
    job_id = str(claim["lease"]["job_id"])
    assert audit(lending, "record") == [((job_id, job_id), ("recorded", "recorded"))]


@pytest.mark.parametrize("how", ["settle", "release", "reset"])
def test_a_stale_lease_records_and_reads_no_steps(lend: Lend, tokens: Path, how: str) -> None:
    first_token, second_token = token_of(tokens, "first", "claim"), token_of(tokens, "second", "claim")
    lending = lend()
    first, stale = running(lending, first_token)
    assert first.post("record", steps=[step(stale, "charge", '"secret"')]).body == {"is_held": [True]}
    match how:
        case "settle":
            assert first.settle(stale, state="errored", ended="retry", error="no") == ["settled"]
        case "release":
            assert first.post("release", leases=[proof(stale)]).body["lost"] == []
        case "reset":
            assert first.post("reset", leases=[proof(stale)]).body["jobs"]
    assert first.post("record", steps=[step(stale, "mail")]).body == {"is_held": [False]}
    assert "no worker of this token" in first.post("steps", proof=proof(stale)).refused(409, "lease lost")
    second = lending.client(second_token)
    (held,) = second.claim_when_due()
    assert first.post("record", steps=[step(stale, "mail")]).body == {"is_held": [False]}
    assert "no worker of this token" in first.post("steps", proof=proof(stale)).refused(409, "lease lost")
    assert audit(lending, "record")[-1][1] == ("unchanged: lost",)
    (recorded,) = second.post("steps", proof=proof(held)).body["steps"]
    assert (recorded["name"], recorded["value"]) == ("charge", '"secret"')


def test_a_worker_reads_and_records_no_steps_of_a_foreign_job(lend: Lend, tokens: Path) -> None:
    own, thief_token = token_of(tokens, "own", "claim"), token_of(tokens, "thief", "claim", "enqueue", "read")
    lending = lend()
    owner, claim = running(lending, own)
    assert owner.post("record", steps=[step(claim, "charge", '"secret"')]).body == {"is_held": [True]}
    thief, other = running(lending, thief_token, "u")
    guesses = [
        proof(claim),  # stolen from the wire
        proof(claim) | {"authorization": other["authorization"]},
        {"lease": other["lease"] | {"job_id": claim["lease"]["job_id"]}, "authorization": other["authorization"]},
    ]
    for guess in guesses:
        reply = thief.post("steps", proof=guess)
        assert "does not hold the lease" in reply.refused(409, "lease lost")
        assert b"secret" not in reply.raw
        forged = {"proof": guess, "step": {"name": "forged", "value": "1"}}
        assert thief.post("record", steps=[forged, step(other)]).body == {"is_held": [False, True]}
    assert [one["name"] for one in owner.post("steps", proof=proof(claim)).body["steps"]] == ["charge"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": ""}, "name: 0 characters"),
        ({"name": "x" * (MAX_NAME + 1)}, f"use 1 to {MAX_NAME}"),
        ({"name": "a\x00b"}, "NUL"),
        ({"value": "NaN"}, "value"),
        ({"value": '"\\u0000"'}, "value"),
        ({"value": "[1"}, "value"),
        ({"value": "[" * 100 + "]" * 100}, "value"),
        ({"value": None}, "either a value or an error"),
        ({"error": "no"}, "either a value or an error"),
    ],
)
def test_an_invalid_step_is_refused_with_its_field(lend: Lend, fields: dict[str, Any], reason: str) -> None:
    client, claim = running(lend())
    steps = [step(claim), step(claim, **{"name": "bad", "value": "1"} | fields)]
    message = client.post("record", steps=steps).refused(400, "invalid job")
    assert message.startswith("steps[1].step")
    assert reason in message
    assert client.post("steps", proof=proof(claim)).body["total"] == 0, "all steps of a call are recorded, or none"


def test_an_oversized_value_is_refused_before_it_is_sent_and_by_the_server(
    lend: Lend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = lend()
    client, claim = running(lending)
    client.post("record", steps=[step(claim, value='"' + "x" * 2**20 + '"')]).refused(413, "too large")
    monkeypatch.setattr(waits, "MAX_VALUE_BYTES", 100)
    assert "the limit is 100" in client.post("record", steps=[step(claim, value='"' + "x" * 99 + '"')]).refused(
        400, "invalid job"
    )
    assert "the limit is 100" in client.post("emit", event="e", payload='"' + "x" * 99 + '"').refused(
        400, "invalid job"
    )
    assert "the limit is 100" in unwritten(client, claim, waiting(value='"' + "x" * 99 + '"'))

    async def send() -> None:
        async with HttpStore(lending.url) as remote:
            (held,) = await remote.claim(ClaimRequest(worker="w", token=TOKEN, limit=1, lease=30.0))
            with pytest.raises(InvalidJob, match=r"step 'big': .* bytes as a request, the limit of a lent store"):
                await remote.workflows.record([(held.lease, NewStep("big", '"' + "x" * 2**20 + '"'))])
            with pytest.raises(InvalidJob, match="bytes as a request"):
                await remote.workflows.emit("e", '"' + "x" * 2**20 + '"')
            with pytest.raises(InvalidJob, match="the limit is 100"):
                await remote.workflows.record([(held.lease, NewStep("big", '"' + "x" * 99 + '"'))])

    lending.add()
    run(send())


def test_unknown_fields_of_a_step_a_wait_and_a_child_are_refused(lend: Lend) -> None:
    client, claim = running(lend())
    for name, reply in (
        ("valeu", client.post("record", steps=[step(claim, valeu="1")])),
        ("plase", client.post("record", steps=[step(claim) | {"plase": 1}])),
        ("offest", client.post("steps", proof=proof(claim), offest=1)),
        ("paylaod", client.post("emit", event="e", paylaod="1")),
        ("evnet", client.post("emitted", event="e", evnet="e")),
        ("untill", settle(client, claim, waiting(untill="2030-01-01T00:00:00Z"))),
        ("taks", settle(client, claim, waiting(value="{}", places=[0], children=[{"task": "t", "taks": "u"}]))),
    ):
        assert f"'{name}'" in reply.refused(400, "malformed")


def test_many_steps_are_read_in_several_replies(lend: Lend, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_claims, "MAX_REPLY_BYTES", 100_000)
    lending = lend()
    lending.add()

    async def read() -> None:
        async with HttpStore(lending.url) as remote:
            (held,) = await remote.claim(ClaimRequest(worker="w", token=TOKEN, limit=1, lease=30.0))
            steps = [(held.lease, NewStep(f"step {number}", str(number))) for number in range(1100)]
            assert await remote.workflows.record(steps) == [True] * 1100
            recorded = await remote.workflows.read(held.lease.job_id)
            assert [one.name for one in recorded] == [step.name for _, step in steps]
            await remote.settle([(held.lease, Settlement(State.COMPLETED, AttemptOutcome.OK))])
            with pytest.raises(LeaseLost, match="only to the worker that runs it"):
                await remote.workflows.read(held.lease.job_id)

    run(read())


# -- waits --------------------------------------------------------------------------------------------------


def test_a_job_waits_for_a_time_an_event_and_its_children(lend: Lend, tokens: Path) -> None:
    lending = lend()
    client, claim = running(lending, token_of(tokens, "w", "claim", "enqueue"))
    job_id = claim["lease"]["job_id"]
    assert settle(client, claim, waiting(step="event:paid#2", event="paid", delay=60.0)).body["verdicts"] == ["settled"]
    assert lending.state(job_id) == "queued"
    assert client.claim() == []
    assert client.post("emit", event="paid", payload='{"amount": 3}').body == {"is_first": True}
    (claim,) = client.claim()
    (recorded,) = client.post("steps", proof=proof(claim)).body["steps"]
    assert (recorded["name"], recorded["value"]) == ("event:paid#2", '{"amount": 3}')
    children = [{"task": "child"}, {"task": "child", "delay": 0}]
    settlement = waiting(step="pack", value='{"size": 2}', children=children, places=[0, 1])
    assert settle(client, claim, settlement).body == {"verdicts": ["settled"]}
    assert audit(lending, "settle")[-1] == ((str(job_id),), ("queued: settled, 2 enqueued",))
    assert client.settle(*client.claim(2, tasks=["child"]), result="7") == ["settled", "settled"]
    (claim,) = client.claim()
    assert claim["lease"]["job_id"] == job_id
    steps = client.post("steps", proof=proof(claim)).body["steps"]
    values = {(one["name"], one["place"]): one["value"] for one in steps}
    assert (values["pack", 0], values["pack", 1]) == ("7", "7")


def test_a_canceled_job_does_not_wait_and_the_reply_says_so(lend: Lend) -> None:
    lending = lend()
    client, claim = running(lending)
    store: Any = lending.store
    lending.do(store.admin.cancel(claim["lease"]["job_id"]))
    settlement = waiting(step="pack", value="{}", children=[{"task": "child"}], places=[0])
    (difference,) = settle(client, claim, settlement).body["differences"]
    assert (difference["recorded"]["state"], difference["recorded"]["wait"]) == ("canceled", None)
    assert client.claim(tasks=["child"]) == []


@pytest.mark.parametrize(
    ("settlement", "place"),
    [
        (waiting(delay=1.0) | {"ended": "snoozed"}, "wait"),
        ({"state": "queued", "ended": "waiting", "refund": True}, "wait"),
        (waiting(delay=1.0) | {"state": "completed", "ended": "waiting"}, "completed"),
        (waiting(delay=1.0) | {"refund": False}, "refund"),
        (waiting(delay=1.0) | {"delay": 1.0}, "delay"),
        (waiting(delay=1.0) | {"holds_limits": True}, "limits"),
        (waiting(), "wait: it has either"),
        (waiting(delay=-1.0), "wait.delay"),
        (waiting(delay=1e300), "wait.delay"),
        (waiting(delay=1.0, until="2030-01-01T00:00:00Z"), "wait: a wait has a delay, or until"),
        (waiting(until="2030-01-01T00:00:00"), "wait.until"),
        (waiting(until="9999-12-31T23:59:59-12:00"), "wait.until"),
        (waiting(delay=1.0, attempts=-1), "wait.attempts"),
        (waiting(delay=1.0, attempts=2**31), "wait.attempts"),
        (waiting(event="e", value="{}"), "wait: it has either"),
        (waiting(event="e"), "wait.step"),
        (waiting(step="event:e2", event="e"), "wait.step"),
        (waiting(step="event:e#", event="e"), "wait.step"),
        (waiting(event="e", children=[{"task": "t"}], places=[0]), "wait.step"),
        (waiting(step="event:e", event="e", children=[{"task": "t"}], places=[0]), "wait.value"),
        (waiting(value="{}", children=[{"task": "t"}]), "wait.places"),
        (waiting(value="{}", places=[0]), "wait.places"),
        (waiting(value="{}", children=[{"task": "t"}, {"task": "t"}], places=[1, 1]), "wait.places"),
        (waiting(value="{}", children=[{"task": "t"}], places=[-1]), "wait.places"),
        (waiting(value="{}", children=[{"task": "t"}], places=[2**31]), "wait.places"),
    ],
)
def test_a_wait_that_no_worker_would_send_is_refused(lend: Lend, settlement: dict[str, Any], place: str) -> None:
    lending = lend()
    client, claim = running(lending)
    assert place in settle(client, claim, settlement).refused(400, "malformed")
    assert lending.state(claim["lease"]["job_id"]) == "processing"


@pytest.mark.parametrize(
    ("wait", "reason"),
    [
        ({"step": "", "delay": 1.0}, "wait.step"),
        ({"step": "x" * (MAX_NAME + 1), "delay": 1.0}, "wait.step"),
        ({"step": "a\x00", "delay": 1.0}, "wait.step"),
        ({"step": "event:", "event": ""}, "wait.event"),
        ({"step": "event:" + "x" * 201, "event": "x" * 201}, "wait."),
        ({"value": "NaN"}, "wait.value"),
        ({"value": "{}", "places": [0], "children": [{"task": "t", "key": "k"}]}, "a child has no key"),
        ({"value": "{}", "places": [0], "children": [{"task": "t", "payload": "NaN"}]}, "payload"),
        ({"value": "{}", "places": [0], "children": [{"task": ""}]}, "task"),
        ({"value": "{}", "places": [0], "children": [{"task": "jobs:purge_completed"}]}, "built in"),
    ],
)
def test_an_invalid_value_of_a_wait_refuses_only_its_settlement(lend: Lend, wait: dict[str, Any], reason: str) -> None:
    lending = lend()
    client, claim = running(lending)
    lending.add("other")
    (other,) = client.claim()
    batch = [
        {"proof": proof(claim), "settlement": waiting(**wait)},
        {"proof": proof(other), "settlement": {"state": "completed", "ended": "ok"}},
    ]
    reply = client.post("settle", batch=batch).body
    assert reply["verdicts"] == ["unwritten", "settled"]
    assert reason in reply["differences"][0]["unwritten"]
    assert lending.state(claim["lease"]["job_id"]) == "processing"


def test_the_number_of_children_is_limited(lend: Lend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_CHILDREN", 3)
    client, claim = running(lend())
    for number in (4, 3):
        wait = waiting(value="{}", children=[{"task": "child"}] * number, places=list(range(number)))
        if number == 4:
            assert "4 jobs, the limit is 3" in unwritten(client, claim, wait)
        else:
            assert settle(client, claim, wait).body == {"verdicts": ["settled"]}


def test_a_token_creates_only_children_that_it_may_enqueue(lend: Lend, tokens: Path) -> None:
    def wait(**child: Any) -> dict[str, Any]:
        return waiting(value="{}", children=[{"task": "t"}, {"task": "t"} | child], places=[0, 1])

    limited = token_of(tokens, "limited", "claim", "enqueue", tasks=("t",))
    queued = token_of(tokens, "queued", "claim", "enqueue", tasks=("t",), queues=("default",))
    worker = token_of(tokens, "worker", "claim", tasks=("t",))
    lending = lend()
    client, claim = running(lending, limited)
    assert "not for the task 'u'" in unwritten(client, claim, wait(task="u"))
    assert "'u'" in unwritten(client, claim, wait(on_failure={"task": "u"}))
    assert settle(client, claim, wait()).body == {"verdicts": ["settled"]}
    for _ in range(2):
        (child,) = client.claim()
        assert client.settle(child) == ["settled"]
    client, claim = running(lending, queued)
    assert "queue" in unwritten(client, claim, wait(queue="other"))
    assert client.settle(claim) == ["settled"]
    assert client.settle(*client.claim()) == ["settled"], "the parent, whose children have ended"
    client, claim = running(lending, worker)
    assert "the scope enqueue" in unwritten(client, claim, wait())
    assert settle(client, claim, waiting(delay=60.0)).body == {"verdicts": ["settled"]}, "a wait creates no job"


# -- events -------------------------------------------------------------------------------------------------


def test_emitting_needs_the_scope_that_enqueues_and_the_first_event_counts(lend: Lend, tokens: Path) -> None:
    worker, producer = token_of(tokens, "w", "claim"), token_of(tokens, "p", "enqueue", tasks=("t",))
    reader = token_of(tokens, "r", "read")
    lending = lend()
    lending.client(worker).post("emit", event="paid:42").refused(403, "out of scope")
    lending.client(producer).post("emitted", event="paid:42").refused(403, "out of scope")
    assert lending.client(reader).post("emitted", event="paid:42").body == {"is_emitted": False}
    client = lending.client(producer)
    assert client.post("emit", event="paid:42", payload="3").body == {"is_first": True}
    assert client.post("emit", event="paid:42", payload="4").body == {"is_first": False}
    assert lending.client(reader).post("emitted", event="paid:42").body == {"is_emitted": True}
    assert audit(lending, "emit") == [(("*",), ("emitted",)), (("*",), ("unchanged: emitted before",))]
    assert "paid:42" not in repr(lending.events_of(RemoteCallAudited)), "a name may contain data"
    for event, payload, reason in (("", "1", "event"), ("x" * 201, "1", "event"), ("e", "NaN", "payload")):
        assert reason in client.post("emit", event=event, payload=payload).refused(400, "invalid job")


def test_an_event_for_one_job_reaches_no_job_outside_the_token(lend: Lend, tokens: Path) -> None:
    producer, reader = (token_of(tokens, scope, scope, tasks=("t",)) for scope in ("enqueue", "read"))
    lending = lend()
    own, other = lending.add("t"), lending.add("u")
    for job_id in (other, 10**9):
        message = lending.client(producer).post("emit", event="approved", job_id=job_id).refused(403, "out of scope")
        assert message == f"job {job_id} is unknown, or outside this token's tasks, queues and serial keys"
        lending.client(reader).post("emitted", event="approved", job_id=job_id).refused(403, "out of scope")
    assert lending.client(producer).post("emit", event="approved", job_id=own).body == {"is_first": True}
    assert lending.client(reader).post("emitted", event="approved", job_id=own).body == {"is_emitted": True}
    assert audit(lending, "emit") == [((str(own),), ("emitted",))]


# -- the client ---------------------------------------------------------------------------------------------


def test_what_needs_a_connection_or_an_administrator_is_refused_with_a_sentence(run: Run) -> None:
    workflows = HttpStore("http://127.0.0.1:1").workflows
    lease: Any = None
    with pytest.raises(ConfigurationError, match=r"inside a transaction of yours: not over HTTP.*await app\.emit"):
        workflows.emit_in(object(), "e", "1")
    with pytest.raises(ConfigurationError, match=r"inside a transaction of yours: not over HTTP.*connection="):
        workflows.record_in(object(), lease, NewStep("charge", "1"))
    with pytest.raises(ConfigurationError, match=r"forking a job: not over HTTP.*that store's own URL"):
        run(workflows.fork(1, "charge"))


def test_children_have_the_maximum_attempts_of_the_client(lend: Lend, run: Run) -> None:
    store = MemoryStore()
    lending = lend(store)
    lending.add()

    async def call() -> None:
        async with HttpStore(lending.url, HttpOptions(max_attempts=3)) as remote:
            (held,) = await remote.claim(ClaimRequest(worker="w", token=TOKEN, limit=1, lease=30.0))
            children = (NewJob(task="child"), NewJob(task="child", max_attempts=7))
            wait = Wait(step="pack", children=children, places=(0, 1), value="{}")
            settlement = Settlement(State.QUEUED, AttemptOutcome.WAITING, refund=True, wait=wait)
            assert await remote.settle([(held.lease, settlement)]) == [Verdict.SETTLED]

    run(call())
    jobs = lending.do(store.inspect.list(JobFilter(task="child")))
    assert sorted(job.max_attempts for job in jobs) == [3, 7]


def test_a_workflow_runs_to_its_end_on_a_lent_store(lend: Lend, tokens: Path, run: Run) -> None:
    app = App(lend().url, token=token_of(tokens, "app", "claim", "enqueue", "read", "payload"))
    charges: list[int] = []

    def charge(amount: int) -> int:
        charges.append(amount)
        return amount

    @app.task
    async def pack(number: int) -> int:
        return number * 10

    @app.task
    async def order(ctx: Context, amount: int) -> list[Any]:
        charged = await ctx.step("charge", charge, amount)
        packed = await ctx.map("pack", pack, [1, 2, 3])
        await ctx.sleep(0.01)
        approved = await ctx.event("approved")
        return [charged, packed, approved]

    async def scenario() -> None:
        async with asyncio.timeout(AT_MOST), app.run_in_background(concurrency=4):
            job = await order.enqueue(30)
            assert await job.send("approved", "yes")
            assert await job.result() == [30, [10, 20, 30], "yes"]
        await app.close()

    run(scenario())
    assert charges == [30], "later attempts get the recorded value"


def test_a_store_without_workflows_refuses_a_wait(lend: Lend, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = MemoryStore()
    monkeypatch.setattr(store, "workflows", None)
    client, claim = running(lend(store))
    assert "keeps no workflows" in unwritten(client, claim, waiting(delay=1.0))
    client.post("record", steps=[step(claim)]).refused(400, "refused")
