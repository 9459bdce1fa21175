"""A lending server in a thread, and a client that uses only HTTP and JSON."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
import time
import uuid
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stowhand.events import (
    Event,
    Events,
    InvalidTokensSent,
    JobsReset,
    RemoteCallAudited,
    RequestAnswered,
    StoreCallFailed,
    TokenFileUnreadable,
)
from stowhand.http_server import Serving
from stowhand.jobs.job import NewJob
from stowhand.observe.exposition import LendingMetrics
from stowhand.protocols.queue_store import AnyStore
from stowhand.remote.server.lender import ServerOptions, running
from stowhand.remote.server.tokens import TokenFile, TokenRecord, new_token

T = TypeVar("T")
TIMEOUT_SECONDS = 60.0
"""Time limit of a test. No request waits longer."""
KINDS = (RemoteCallAudited, RequestAnswered, StoreCallFailed, TokenFileUnreadable, InvalidTokensSent)


class Reply:
    """Status, headers and body."""

    def __init__(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.status, self.headers, self.raw = status, headers, raw

    @property
    def body(self) -> Any:
        """Body, decoded from JSON."""
        return json.loads(self.raw)

    def refused(self, status: int, kind: str) -> str:
        """Assert that the reply is this refusal with a fix, and return its message."""
        assert (self.status, self.body["error"]) == (status, kind), self.raw
        assert self.body["fix"]
        return str(self.body["message"])


class Client:
    """Client of a remote worker, with a connection of its own."""

    def __init__(self, url: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self.token = token
        assert parts.hostname is not None
        self.connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS, context=tls)
            if tls is not None
            else http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
        )

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token and "authorization" not in sent:
            sent["authorization"] = f"Bearer {self.token}"
        if body is not None:
            sent.setdefault("content-type", "application/json")
        self.connection.request(method, path, body, sent)
        reply = self.connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, call: str, **body: Any) -> Reply:
        return self.request("POST", f"/v1/{call}", json.dumps(body).encode())

    def claim(self, limit: int = 1, token: str | None = None, **asked: Any) -> list[Any]:
        """Return the records of a claim, which must be answered with 200."""
        reply = self.post("claim", **claiming(limit, token, **asked))
        assert reply.status == 200, reply.raw
        return list(reply.body["claims"])

    def claim_when_due(self, limit: int = 1) -> list[Any]:
        """Claim until a record is returned. In between, poll ``/v1/due``, as an idle worker does."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            due = self.post("due").body
            if claims := self.claim(limit):
                return claims
            assert time.monotonic() < deadline
            wait = 5.0 if due["seconds"] is None else min(max(due["seconds"], 0.01), 5.0)
            self.post("due", wait=wait, wake_count=due["wake_count"])

    def settle(self, *claims: Any, repeat: bool = False, **settlement: Any) -> list[str]:
        fields = {"state": "completed", "ended": "ok"} | settlement
        batch = [{"proof": proof(claim), "settlement": fields} for claim in claims]
        reply = self.post("settle", batch=batch, repeat=repeat)
        assert reply.status == 200, reply.raw
        return list(reply.body["verdicts"])

    def close(self) -> None:
        self.connection.close()


def claiming(limit: object = 1, token: str | None = None, **asked: Any) -> dict[str, Any]:
    return {"worker": "w", "token": token or str(uuid.uuid4()), "limit": limit, "lease": 30.0} | asked


def proof(claim: Any) -> dict[str, Any]:
    """Return the proof that later calls about a claim contain."""
    return {"lease": claim["lease"], "authorization": claim["authorization"]}


class Lending:
    """Server (``lender.running``) on a loop in a thread."""

    def __init__(self, store: AnyStore[Any], options: ServerOptions, metrics: LendingMetrics | None = None) -> None:
        self.metrics = metrics
        self.store, self.options = store, options
        self.events = Events()
        self.emitted: list[Event] = []
        for kind in KINDS:
            self.events.on(kind, self.emitted.append)
        self.reset = threading.Event()
        """Set when a job of a lost worker was reset."""
        self.events.on(JobsReset, lambda _: self.reset.set())
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.server: Serving
        self.clients: list[Client] = []

    def start(self) -> None:
        """Start the server. Raise the error that prevents its start."""
        self._thread.start()
        assert self._up.wait(TIMEOUT_SECONDS)
        if self.failed is not None:
            raise self.failed

    @property
    def url(self) -> str:
        return self.server.url

    def wait_until_polled(self) -> None:
        """Wait until a poll of a client waits."""
        app: Any = self.server._server.config.app

        async def waits() -> None:
            while not app._store_server._claims._poll_counts:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        self.do(waits())

    def client(self, token: str = "", tls: ssl.SSLContext | None = None) -> Client:
        client = Client(self.url, token, tls)
        self.clients.append(client)
        return client

    def request_stop(self, *, closing: bool = True) -> None:
        """Request a stop. ``closing``: close the clients' connections first."""
        for client in self.clients if closing else ():
            client.close()
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self.server.stop)

    def join(self) -> None:
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive(), "the server does not stop"

    def stop(self, *, closing: bool = True) -> None:
        self.request_stop(closing=closing)
        self.join()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(TIMEOUT_SECONDS)

    def add(self, task: str = "t", **details: Any) -> int:
        """Enqueue a job in the lent store, and return its id."""
        store: Any = self.store
        job = self.do(store.jobs.enqueue(NewJob(task=task, **details)))
        return int(job.id)

    def state(self, job_id: int) -> str:
        store: Any = self.store
        return str(self.do(store.jobs.get(job_id)).state)

    def events_of(self, kind: type[T]) -> list[T]:
        """Return the events of this kind, including those emitted after a reply was sent."""
        self.do(asyncio.sleep(0))
        return [event for event in self.emitted if isinstance(event, kind)]

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
                self.failed = error
                self._up.set()

    async def _serve(self) -> None:
        await self.store.open()
        try:
            async with running(self.store, self.options, self.events, self.metrics) as self.server:
                self._up.set()
                await self.server.until_stopped()
        finally:
            await self.store.close()


def token_of(file: Path, name: str = "w", *scopes: str, expires: float | None = None, **limits: Any) -> str:
    """Make a token in this file, and return it."""
    token, token_id, sha256 = new_token()
    now = datetime.now(UTC)
    record = TokenRecord(
        id=token_id,
        name=name,
        sha256=sha256,
        scopes=scopes or ("claim",),
        made=now,
        expires=None if expires is None else now + timedelta(seconds=expires),
        **limits,
    )
    TokenFile(file).change(lambda known: (*known, record))
    return token
