"""Replies that are invalid or errors: the client's error names the cause, and contains no secret."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from contextlib import suppress

import msgspec
import msgspec.inspect
import pytest

from stowhand.errors import ConfigurationError, InvalidJob, OutcomeUnknown, StoreError, StoreUnreachable
from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.attempt import Progress, ProgressKeeper
from stowhand.protocols.store import ClaimRequest, RefusedSettlement, Verdict
from stowhand.remote import HttpOptions, HttpStore
from stowhand.remote.client.http_caller import MAX_CONNECTIONS, NoReply
from stowhand.remote.wire import MAX_BODY_BYTES, VERBS, ErrorReply
from tests.conftest import Run
from tests.remote.client.canned import CannedServer, error_reply, reply

TOKEN = "stow_0a1b_secret-of-this-worker"
REQUEST = ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30.0)
NONE: dict[str, object] = {"claims": []}
LEASE = Lease(7, REQUEST.token, 1)


def claim(server: CannedServer, run: Run, timeout: float = 10.0) -> object:
    """One claim; what it gives or raises."""

    async def go() -> object:
        store = HttpStore(server.url, HttpOptions(token=TOKEN, timeout=timeout))
        try:
            return await store.claim(REQUEST)
        finally:
            await store.close()

    return run(go())


PAGE = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502</h1></body></html>"
ODD = {
    "a page of a proxy": (reply(PAGE, "502 Bad Gateway"), NoReply, "502: <html>.*502 Bad Gateway"),
    "a timeout of a proxy": (reply(b"", "504 Gateway Timeout"), NoReply, "504$"),
    "too many": (error_reply("too many", "slowly", "429 Too Many", "wait"), StoreUnreachable, r"slowly \(wait\)$"),
    "the store is away": (error_reply("unreachable", "away", "503 Service Unavailable"), StoreUnreachable, "away$"),
    "a bug": (error_reply("broken", "a bug", "500 Internal Server Error"), NoReply, "500: a bug$"),
    "a limit of a proxy": (reply(b"", "429 Too Many Requests"), NoReply, "429$"),
    "a pause of no number": (reply(b"", "503 Busy", retry_after="\u00b2"), NoReply, "503$"),
    "who knows": (error_reply("outcome unknown", "perhaps", "503 Service Unavailable"), NoReply, "perhaps$"),
    "another server": (
        reply(b"<h1>Welcome</h1>", "404 Not Found"),
        StoreError,
        "<h1>Welcome</h1>; is this the address",
    ),
    "a redirect": (reply(b"", "302 Found", location="https://else"), StoreError, "redirect.*not followed"),
    "no JSON": (reply(b"<html>hello</html>"), StoreError, "message that this version cannot read"),
    "another shape": (reply({"claims": 7}), StoreError, "claims"),
    "a wrong token": (error_reply("unauthorized", "no", "401 Unauthorized", "fix"), StoreError, "stowhand tokens make"),
    "malformed": (error_reply("malformed", "limit: -1", "400 Bad Request"), StoreError, "limit: -1"),
    "a token that comes back": (
        error_reply("malformed", f"{TOKEN}\n\x1b[31m", "400 Bad"),
        StoreError,
        r": \*\*\* \[31m$",
    ),
    "half a reply": (reply(NONE)[:-5], NoReply, "127.0.0.1"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", NoReply, "127.0.0.1"),
}


@pytest.mark.parametrize("what", ODD)
def test_an_invalid_reply_is_reported_without_a_secret(what: str, run: Run) -> None:
    said, kind, words = ODD[what]
    with CannedServer(said, cuts=what in ("half a reply", "no HTTP")) as server:
        with pytest.raises(StoreError, match=words) as caught:
            claim(server, run)
        assert type(caught.value) is kind or isinstance(caught.value, kind)
        assert isinstance(caught.value, StoreUnreachable) is issubclass(kind, StoreUnreachable)
        assert TOKEN not in repr(caught.value)
        assert "\x1b" not in str(caught.value)


def test_an_unknown_field_of_a_reply_is_ignored(run: Run) -> None:
    with CannedServer(reply({"claims": [], "more": 1})) as server:
        assert claim(server, run) == []


@pytest.mark.parametrize("answer", [*(verb.response for verb in VERBS), ErrorReply], ids=str)
def test_a_later_version_may_add_fields_to_a_reply_at_every_level(answer: type) -> None:
    records = structs_in(msgspec.inspect.type_info(answer), set())
    assert records
    assert not [one for one in records if one.__struct_config__.forbid_unknown_fields]


def structs_in(of: object, seen: set[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """The structs of a type, and of their fields."""
    match of:
        case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in seen:
            seen.add(cls)
            for field in fields:
                structs_in(field.type, seen)
        case msgspec.inspect.Metadata(type=inner):
            structs_in(inner, seen)
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            structs_in(item, seen)
        case msgspec.inspect.TupleType(item_types=types) | msgspec.inspect.UnionType(types=types):
            for one in types:
                structs_in(one, seen)
    return seen


def test_a_reply_that_drips_ends_with_the_deadline_of_the_whole_call(run: Run) -> None:
    class Dripping(CannedServer):
        def _serve(self, client: socket.socket) -> None:
            with client, suppress(OSError):
                for byte in reply(NONE):
                    client.sendall(bytes([byte]))
                    self.end_silence.wait(1.0)

    with Dripping(b"") as server:
        began = time.monotonic()
        with pytest.raises(NoReply, match=r"no answer within 0\.3 s"):
            claim(server, run, timeout=0.3)

        async def beat() -> None:
            heartbeats = HttpStore(server.url, HttpOptions(timeout=0.3)).heartbeats()
            with pytest.raises(NoReply):
                await heartbeats.beat([LEASE], 30.0)
            await heartbeats.close()

        run(beat())
        assert time.monotonic() - began < 20, "it waited for the last byte"


def test_a_server_that_is_down_is_reported_at_once(run: Run) -> None:
    with socket.socket() as deaf, CannedServer(b"") as server:
        deaf.bind(("127.0.0.1", 0))  # nobody else may listen there meanwhile
        server.url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(StoreUnreachable) as caught:
            claim(server, run)
    assert not isinstance(caught.value, NoReply)


def test_the_client_waits_for_retry_after(run: Run) -> None:
    away = error_reply("unreachable", "away", "503 Service Unavailable", retry_after="1")

    async def go(server: CannedServer) -> float:
        store = HttpStore(server.url)
        began = time.monotonic()
        with pytest.raises(StoreUnreachable):
            await store.claim(REQUEST)
        assert await store.claim(REQUEST) == []
        await store.close()
        return time.monotonic() - began

    with CannedServer(away, reply(NONE)) as server:
        assert 0.99 < run(go(server)) < 20


def test_a_long_poll_is_cancelled_when_its_worker_stops(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        assert await store.wait(0.1) is True
        polling = asyncio.create_task(store.wait(30.0))
        assert await asyncio.to_thread(server.reached_silence.wait, 25)
        began = time.monotonic()
        polling.cancel()
        await asyncio.wait([polling])
        await store.close()
        assert time.monotonic() - began < 20, "it waited for its poll"

    with CannedServer(reply({"wake_count": "a.1"}), b"") as server:
        run(go(server))
    assert [body["wait"] for body in server.bodies] == [0, 30]
    assert [body.get("wake_count") for body in server.bodies] == [None, "a.1"]


def test_after_a_failed_poll_the_store_is_not_listening_until_one_is_answered(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        states = [store.is_listening]
        assert await store.wait(0.0) is True
        states.append(store.is_listening)
        with pytest.raises(StoreUnreachable):
            await store.wait(0.0)
        states.append(store.is_listening)
        assert await store.wait(0.0) is True, "another count: the server was restarted, and anything may have come"
        assert await store.wait(0.0) is False
        assert [*states, store.is_listening] == [False, True, False, False], "the lent store is not listening"
        await store.close()

    deaf = reply({"wake_count": "b.1", "is_listening": False})
    with CannedServer(
        reply({"wake_count": "a.1"}), reply(b"", "502 Bad Gateway"), reply({"wake_count": "b.1"}), deaf
    ) as server:
        run(go(server))


def test_conditions_are_closed_values_only(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        for bad in (sql("length(path) < {}", 3), "size < 3"):
            with pytest.raises(ConfigurationError, match="Where"):
                await store.claim(ClaimRequest(worker="w", token="t", limit=1, lease=1.0, conditions=(bad,)))
        assert server.heads == []
        await store.claim(ClaimRequest(worker="w", token="t", limit=1, lease=1.0, conditions=(Where("size", "<", 3),)))
        assert server.bodies[0]["conditions"] == [{"column": "size", "op": "<", "value": 3}]
        with pytest.raises(ConfigurationError, match="supports no conditions"):
            await store.claim(REQUEST)
        with pytest.raises(ConfigurationError, match=r"no claim \(ask\)"):
            await store.claim(REQUEST)
        await store.close()

    out_of_scope = error_reply("out of scope", "no claim", "403 Forbidden", "ask")
    with CannedServer(
        reply(NONE), error_reply("refused", "supports no conditions", "400 Bad Request"), out_of_scope
    ) as server:
        run(go(server))


def test_a_refused_settlement_does_not_affect_the_others(run: Run) -> None:
    settled = reply({"verdicts": ["settled"]})
    refused = error_reply("malformed", "batch[0].settlement.delay: -1 s", "400 Bad Request")
    batch = [(Lease(n, "t", 1), COMPLETED) for n in (1, 2)]

    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        first, second = await store.settle(batch)
        assert first is Verdict.SETTLED
        assert isinstance(second, RefusedSettlement)
        assert "delay: -1" in second.reason
        await store.close()

    with CannedServer(refused, settled, refused) as server:
        run(go(server))
    sent = [[one["proof"]["lease"]["job_id"] for one in body["batch"]] for body in server.bodies]
    assert sent == [[1, 2], [1], [2]]


@pytest.mark.parametrize("result", ['"' + "x" * 1024 * 1024 + '"', '"\ud800"'])
def test_a_settlement_that_is_too_large_for_a_request_is_not_sent(run: Run, result: str) -> None:
    big = Settlement(State.COMPLETED, AttemptOutcome.OK, result=result)
    batch = [(Lease(1, "t", 1), big), (Lease(2, "t", 1), COMPLETED)]

    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        first, second = await store.settle(batch)
        assert isinstance(first, RefusedSettlement)
        assert second is Verdict.SETTLED
        await store.close()

    with CannedServer(reply({"verdicts": ["settled"]})) as server:
        run(go(server))
    (body,) = server.bodies
    assert [one["proof"]["lease"]["job_id"] for one in body["batch"]] == [2]


def test_the_reply_is_the_settlement_that_the_server_has_recorded(run: Run) -> None:
    recorded = {"state": "canceled", "ended": "canceled", "error": "it failed"}
    differences = [{"place": 0, "recorded": recorded}, {"place": 1, "unwritten": "a trigger says no"}]
    request = Settlement(State.ERRORED, AttemptOutcome.RETRY, error="it failed")
    batch = [(Lease(n, "t", 1), request) for n in (1, 2)]

    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        assert await store.settle(batch) == [
            Settlement(State.CANCELED, AttemptOutcome.CANCELED, error="it failed"),
            RefusedSettlement("a trigger says no"),
        ]
        await store.close()

    with CannedServer(reply({"verdicts": ["settled", "unwritten"], "differences": differences})) as server:
        run(go(server))


def test_large_batches_are_sent_in_requests_below_the_limit(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        result = '"' + "x" * 300_000 + '"'
        batch = [(Lease(n, "t", 1), Settlement(State.COMPLETED, AttemptOutcome.OK, result=result)) for n in range(7)]
        assert len(await store.settle(batch)) == 7
        await store.close()

    three, one = reply({"verdicts": ["settled"] * 3}), reply({"verdicts": ["settled"]})
    with CannedServer(three, three, one) as server:
        run(go(server))
    assert [len(body["batch"]) for body in server.bodies] == [3, 3, 1]


def test_a_failed_enqueue_reports_the_jobs_of_earlier_requests(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        jobs = [NewJob(task="t") for _ in range(1500)]
        with pytest.raises(OutcomeUnknown, match="the first 1000 jobs of this call are enqueued"):
            await store.jobs.enqueue_many(jobs)
        with pytest.raises(InvalidJob, match="task: not here"):
            await store.jobs.enqueue(NewJob(task="t"))
        with pytest.raises(StoreError, match="not for the task 't'"):
            await store.jobs.enqueue(NewJob(task="t"))
        request = len(server.heads)
        for wrong in ([NewJob(task="a", key="k"), NewJob(task="b", key="k")], [NewJob(task="")]):
            with pytest.raises(InvalidJob):
                await store.jobs.enqueue_many(wrong)
        with pytest.raises(InvalidJob, match="lent store"):
            await store.jobs.enqueue(NewJob(task="t", payload='"' + '\\"' * 520_000 + '"'))
        with pytest.raises(InvalidJob, match="enqueue_many"):
            await store.jobs.add_jobs([NewJob(task="t") for _ in range(1001)])
        assert len(server.heads) == request, "what cannot be is refused before anything is sent"
        await store.close()

    first = reply({"ids": list(range(1, 1001))})
    bad = error_reply("invalid job", "task: not here", "400 Bad Request")
    outside = error_reply("out of scope", "this token is not for the task 't'", "403 Forbidden")
    with CannedServer(first, reply(b"", "502 Bad Gateway"), bad, outside) as server:
        run(go(server))


def test_a_reply_with_leases_of_another_claim_is_refused(run: Run) -> None:
    lent = {
        "lease": {"job_id": 1, "token": "another", "epoch": 1},
        "authorization": "a",
        "record": {},
        "kind": "record",
    }
    with (
        CannedServer(reply({"claims": [lent | {"task": "t", "attempts": 1, "max_attempts": 1}]})) as server,
        pytest.raises(StoreError, match="leases of another claim"),
    ):
        claim(server, run)


def test_a_long_poll_may_wait_in_addition_to_the_timeout_of_a_call(run: Run) -> None:
    class Late(CannedServer):
        def _serve(self, client: socket.socket) -> None:
            with client, suppress(OSError):
                client.recv(65536)
                self.end_silence.wait(0.4)
                client.sendall(reply({"wake_count": "a.2"}))

    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url, HttpOptions(timeout=0.2))
        store._wake_count = "a.1"
        assert await store.wait(20.0) is True
        await store.close()

    with Late() as server:
        run(go(server))


def test_a_repeated_settlement_contains_the_proof_of_its_lease(run: Run) -> None:
    lent = {"lease": {"job_id": 7, "token": REQUEST.token, "epoch": 1}, "authorization": "proof", "kind": "record"}
    claims = {"claims": [lent | {"record": {}, "task": "t", "attempts": 1, "max_attempts": 1}]}

    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url)
        await store.claim(REQUEST)
        assert await store.settle([(LEASE, COMPLETED)]) == [Verdict.BUSY]
        assert len(store._proofs) == 1
        assert await store.settle([(LEASE, COMPLETED)], repeat=True) == [Verdict.SETTLED]
        assert len(store._proofs) == 0
        await store.claim(REQUEST)
        heartbeats = store.heartbeats()
        assert (await heartbeats.beat([LEASE], 30.0)).lost == {(7, REQUEST.token)}
        assert len(store._proofs) == 0
        await heartbeats.close()
        await store.close()

    busy, settled = reply({"verdicts": ["busy"]}), reply({"verdicts": ["settled"]})
    with CannedServer(reply(claims), busy, settled, reply(claims), reply({"lost": [[7, REQUEST.token]]})) as server:
        run(go(server))
    assert [body["repeat"] for body in server.bodies if "repeat" in body] == [False, True]
    assert [body["batch"][0]["proof"]["authorization"] for body in server.bodies if "batch" in body] == ["proof"] * 2


def test_a_call_without_a_connection_was_not_executed(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        store = HttpStore(server.url, HttpOptions(timeout=20.0))
        patience = store._http._extensions["timeout"]
        assert patience["pool"] < 20.0, "the first to end are those that wait for a connection"
        patience["pool"] = 0.3
        calls = [asyncio.create_task(store.jobs.enqueue(NewJob(task="t"))) for _ in range(MAX_CONNECTIONS + 3)]
        while sum(call.done() for call in calls) < 3:
            await asyncio.wait([call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED)
        server.end_silence.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        unsent = [str(error) for error in ends if isinstance(error, StoreUnreachable)]
        assert len(unsent) == 3
        assert "connections are in use" in unsent[0]
        assert sum(isinstance(error, OutcomeUnknown) for error in ends) == MAX_CONNECTIONS
        await store.close()

    with CannedServer(b"") as server:
        run(go(server))


def test_sending_progress_stops_at_its_time_limit(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        heartbeats = HttpStore(server.url).heartbeats()
        assert isinstance(heartbeats, ProgressKeeper)
        with pytest.raises(StoreUnreachable, match=r"no answer within 0\.05 s"):
            await heartbeats.keep_progress([Progress(LEASE, 0.1)], 0.05)
        await heartbeats.close()

    with CannedServer(b"") as server:
        run(go(server))


def test_many_progress_notes_are_sent_in_requests_below_the_limit(run: Run) -> None:
    async def go(server: CannedServer) -> None:
        heartbeats = HttpStore(server.url).heartbeats()
        assert isinstance(heartbeats, ProgressKeeper)
        notes = [Progress(Lease(n, "t" * 36, 1), 1 / 3, "\N{SNOWMAN}" * 200) for n in range(1001)]
        await heartbeats.keep_progress(notes, 60.0)
        await heartbeats.close()

    with CannedServer(reply({"lost": []})) as server:
        run(go(server))
    assert [len(body["notes"]) for body in server.bodies] == [500, 500, 1]
    assert max(len(json.dumps(body, ensure_ascii=False).encode()) for body in server.bodies) < MAX_BODY_BYTES // 2
