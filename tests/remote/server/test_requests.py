"""Whatever comes in: malformed, huge, slow, or too much of it. One server for all, but where limits are small."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from stowhand.remote.server.bodies import MAX_HEADERS
from stowhand.remote.server.lender import ServerOptions
from stowhand.remote.wire import MAX_BODY_BYTES
from stowhand.testing import MemoryStore
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Client, Lending, claiming

JSON = "Content-Type: application/json\r\n"
LEASE = {"job_id": 1, "token": "t", "epoch": 1}
PROOF = {"lease": LEASE, "authorization": "a"}
ENDED = {"state": "completed", "ended": "ok"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lending]:
    lending = Lending(MemoryStore(), ServerOptions(port=0, tokens=tmp_path_factory.mktemp("t") / "tokens.json"))
    lending.start()
    yield lending
    lending.stop()


@pytest.fixture
def client(shared: Lending) -> Iterator[Client]:
    client = Client(shared.url)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "object"),
        (b'{"tasks": ' + b"[" * 100_000, "tasks"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"worker": 1}', "worker"),
        (json.dumps(claiming(nonsense=1)).encode(), "nonsense"),
        (json.dumps(claiming(limit="3")).encode(), "limit"),
        (json.dumps(claiming(limit=-1)).encode(), "limit"),
        (json.dumps(claiming(lease=0)).encode(), "lease"),
        (json.dumps(claiming(lease=1e9)).encode(), "lease"),
        (json.dumps(claiming(tasks=["a", 1])).encode(), "tasks[1]"),
        (json.dumps(claiming(token="x")).encode(), "token"),
        (json.dumps({**claiming(), "worker": ""}).encode(), "worker"),
        (json.dumps({**claiming(), "worker": "a\nb"}).encode(), "worker"),
    ],
    ids=lambda value: value if isinstance(value, str) else "body",  # the tokens differ from process to process
)
def test_a_body_that_cannot_be_read_is_refused_with_the_place(client: Client, body: bytes, where: str) -> None:
    reply = client.request("POST", "/v1/claim", body)
    assert reply.status == 400
    assert where in reply.body["message"]
    assert reply.body["fix"]


@pytest.mark.parametrize(
    ("call", "body", "where"),
    [
        ("enqueue", {"jobs": [{"task": "a", "priorty": 5}]}, "jobs[0]: Object contains unknown field 'priorty'"),
        ("enqueue", {"jobs": [{"task": "a", "on_failure": {"task": "b", "keys": "k"}}]}, "jobs[0].on_failure"),
        ("claim", claiming(conditions=[{"column": "n", "op": "=", "value": 1, "or": 2}]), "conditions[0]"),
        ("heartbeat", {"leases": [PROOF | {"until": 1}], "lease": 30.0}, "leases[0]"),
        ("release", {"leases": [PROOF | {"lease": LEASE | {"until": 1}}]}, "leases[0].lease"),
        ("settle", {"batch": [{"proof": PROOF, "settlement": ENDED | {"when": 1}}]}, "batch[0].settlement"),
        (
            "settle",
            {"batch": [{"proof": PROOF, "settlement": ENDED | {"then": [{"task": "a", "priorty": 5}]}}]},
            "batch[0].settlement.then[0]",
        ),
        ("progress", {"notes": [{"proof": PROOF, "done": 0.5, "all": 1}]}, "notes[0]"),
        ("tasks", {"queues": {"a": "mail"}, "flags": []}, "Object contains"),
        ("logs", {"proof": PROOF, "add": [{"key": "k", "startTime": "2030-01-01T00:00:00Z", "hue": 1}]}, "add[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_field_is_refused_at_every_level(client: Client, call: str, body: object, where: str) -> None:
    message = client.post(call, **body).refused(400, "malformed")  # type: ignore[arg-type]
    assert message.startswith(where)
    assert "unknown field" in message


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"work_queue": "mail"}, "unknown field 'work_queue'; did you mean 'queue'? Available: "),
        ({"priorty": 5}, "did you mean 'priority'?"),
        (
            {"payload": {"to": "ada"}},
            "jobs[0].payload: Expected 'str', got 'object'; encode the JSON as text: \"payload\": \"{",
        ),
    ],
)
def test_an_invalid_field_of_a_job_is_answered_with_advice(
    client: Client, field: dict[str, object], words: str
) -> None:
    reply = client.post("enqueue", jobs=[{"task": "a", **field}])
    assert words in reply.refused(400, "malformed")
    assert "docs/reference/http.md" in reply.body["fix"]


@pytest.mark.parametrize("own", [{"fair": True}, {"key": "customer"}])
def test_turns_or_a_key_without_a_limit_of_keys_are_refused(client: Client, own: dict[str, object]) -> None:
    tasks, limits = {"t": {"rate": "t", **own}}, {"t": {"rate": 1, "rate_seconds": 1.0}}
    message = client.post("tasks", queues={"t": "default"}, tasks=tasks, limits=limits).refused(400, "malformed")
    assert "a key, or fair, without key_limit" in message


def test_wrong_methods_and_unknown_calls_are_refused(client: Client) -> None:
    reply = client.get("/v1/claim")
    reply.refused(405, "method")
    assert "POST" in reply.headers["allow"]
    client.post("terms").refused(405, "method")
    client.get("/v2/claim").refused(404, "unknown")
    client.get("/").refused(404, "unknown")
    client.get("/v1/jobs/1/2").refused(404, "unknown")


def test_a_body_with_a_too_large_content_length_is_refused_unread(shared: Lending) -> None:
    head = f"POST /v1/settle HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
    assert "413" in status_of(shared, head.encode())


def test_a_body_that_exceeds_the_limit_is_refused_while_it_is_read(shared: Lending) -> None:
    head = f"POST /v1/settle HTTP/1.1\r\nHost: localhost\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert "413" in status_of(shared, head.encode() + chunk * 17)


def test_a_body_of_exactly_the_limit_is_read(client: Client) -> None:
    body = json.dumps(claiming()).encode()
    assert client.request("POST", "/v1/claim", body + b" " * (MAX_BODY_BYTES - len(body))).status == 200
    client.request("POST", "/v1/claim", body + b" " * (MAX_BODY_BYTES - len(body) + 1)).refused(413, "too large")


def test_too_many_items_are_refused(client: Client) -> None:
    client.post("enqueue", jobs=[{"task": "t"}] * 1001).refused(400, "malformed")
    lease = {"job_id": 1, "token": "t", "epoch": 1}
    proofs = [{"lease": lease, "authorization": ""}] * 1001
    client.post("heartbeat", leases=proofs, lease=30.0).refused(400, "malformed")


def test_headers_that_are_too_large_are_refused(shared: Lending) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    assert "431" in status_of(shared, head + b"X: " + b"x" * 33_000 + b"\r\n\r\n")
    assert "431" in status_of(shared, b"GET /" + b"x" * 33_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with connect(shared) as sock:  # one that never ends is refused on the way
        send_what_is_taken(sock, head + b"X: " + b"x" * 200_000)
        assert b" 400 " in read_all(sock)


def test_too_many_headers_are_refused(client: Client) -> None:
    few = {f"x-{number}": "1" for number in range(MAX_HEADERS - 10)}
    assert client.request("GET", "/v1/terms", None, **few).status == 200
    many = {f"x-{number}": "1" for number in range(MAX_HEADERS + 1)}
    client.request("GET", "/v1/terms", None, **many).refused(431, "malformed")


TWO_LENGTHS = b"POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: 46\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/terms HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        TWO_LENGTHS + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_request_that_is_not_http_is_refused_and_the_connection_closed(shared: Lending, raw: bytes) -> None:
    with connect(shared) as sock:
        sock.sendall(raw)
        output = read_all(sock)
        assert b" 400 " in output.split(b"\r\n", 1)[0]
        assert output.count(b"HTTP/1.1 ") == 1


def test_a_body_that_arrives_too_slowly_is_refused(shared: Lending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.remote.server.bodies.READ_TIMEOUT_SECONDS", 0.3)
    head = f"POST /v1/claim HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 5000\r\n\r\n".encode()
    with connect(shared) as sock:
        sock.sendall(head)
        assert trickle(sock, b" " * 5000) < 100
        assert b" 408 " in read_all(sock)


@pytest.mark.parametrize("job_id", [None, [], {}, [[1]], True, 1.5, "x" * 1000, -(2**63)])
def test_a_lease_with_an_invalid_id_is_lost(client: Client, job_id: object) -> None:
    proof = {"lease": {"job_id": job_id, "token": "t", "epoch": 1}, "authorization": "é"}
    settlement = {"state": "completed", "ended": "ok"}
    assert client.post("heartbeat", leases=[proof], lease=30.0).body["lost"] == [[job_id, "t"]]
    assert client.post("settle", batch=[{"proof": proof, "settlement": settlement}]).body["verdicts"] == ["lost"]
    assert client.post("release", leases=[proof]).body["lost"] == [[job_id, "t"]]


def test_a_poll_waits_at_most_30_seconds(client: Client) -> None:
    assert "wait" in client.post("due", wait=31, wake_count="").refused(400, "malformed")


def test_numbers_outside_their_range_are_refused(client: Client) -> None:
    body = json.dumps(claiming()).encode()
    for number in (b"1" + b"0" * 5000, b"1e999", b"-1e308"):
        client.request("POST", "/v1/claim", body.replace(b"30.0", number)).refused(400, "malformed")


def test_a_poll_may_wait_longer_than_the_read_timeout(lend: Lend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.remote.server.bodies.READ_TIMEOUT_SECONDS", 0.2)
    client = lend().client()
    known = client.post("due").body["wake_count"]
    assert client.post("due", wait=0.5, wake_count=known).status == 200
    assert client.claim() == []


def test_connections_are_bounded(lend: Lend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.http_server.MAX_CONNECTIONS", 2)
    lending = lend()
    first, second = lending.client(), lending.client()
    assert first.claim() == []
    assert second.claim() == []
    assert lending.client().request("GET", "/v1/terms").status == 503
    assert first.claim() == []
    first.close()
    deadline = time.monotonic() + 30
    while (answered := lending.client().request("GET", "/v1/terms")).status != 200:
        assert time.monotonic() < deadline, answered


def connect(lending: Lending) -> socket.socket:
    parts = urlsplit(lending.url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 0), timeout=30)


def status_of(lending: Lending, raw: bytes) -> str:
    with connect(lending) as sock:
        send_what_is_taken(sock, raw)
        return sock.recv(4096).split(b"\r\n", 1)[0].decode()


def send_what_is_taken(sock: socket.socket, raw: bytes) -> None:
    """Send bytes. The server may refuse the request, and close the connection before all are sent."""
    with suppress(ConnectionError):
        sock.sendall(raw)


def read_all(sock: socket.socket) -> bytes:
    """Until the other side closes."""
    raw = b""
    try:
        while data := sock.recv(4096):
            raw += data
    except ConnectionResetError:
        pass
    return raw


def trickle(sock: socket.socket, raw: bytes) -> int:
    """Send byte after byte until the server closes the connection. Return the number of sent bytes."""
    sock.settimeout(0.02)
    for number in range(len(raw)):
        try:
            sock.sendall(raw[number : number + 1])
            if sock.recv(1, socket.MSG_PEEK) is not None:
                sock.settimeout(30)
                return number
        except TimeoutError:
            continue
        except OSError:
            return number
    return len(raw)
