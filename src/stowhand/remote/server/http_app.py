"""Requests and replies: an ASGI application over a StoreServer. Every reply is JSON; every error a ``wire.Trouble``."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from stowhand.clock import stopwatch
from stowhand.errors import (
    ConfigurationError,
    InvalidJob,
    LeaseLost,
    LogRefused,
    OutcomeUnknown,
    SchemaError,
    StoreError,
    StoreUnreachable,
)
from stowhand.events import Events, LentChanged, RequestAnswered, RequestBroken, StoreTrouble
from stowhand.protocols.store import Recorded
from stowhand.remote.server import grants
from stowhand.remote.server.authenticator import Authenticator
from stowhand.remote.server.bodies import check_head, read
from stowhand.remote.server.grants import Grant
from stowhand.remote.server.health import Health
from stowhand.remote.server.proxies import Proxies
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.settlements import audited, reply_of
from stowhand.remote.server.slow_requests import CONNECTION
from stowhand.remote.server.store_server import StoreServer
from stowhand.remote.server.wake_broadcast import NAME
from stowhand.remote.wire import (
    ClaimAsked,
    DueAsked,
    EndsAsked,
    Enqueue,
    Held,
    Kind,
    LogChange,
    ProgressSaid,
    Release,
    Reset,
    Settlements,
)

RETRY_AFTER = 1
"""Seconds after which a store that did not answer may be asked again."""
ID_WIDTH = 64
IDS_SHOWN = 200
"""Ids in one line of the audit."""
CALLS = (
    *("claim", "heartbeat", "progress", "settle", "release", "reset", "logs"),
    *("enqueue", "due", "ends", "terms", "jobs", "failures"),
    *("healthz", "readyz", "metrics"),
)
_NOT_REPORTED = (StoreUnreachable, LeaseLost, LogRefused)
"""Not reported here: the background tasks report an outage; the others are no failure of the store."""
Endpoint = Callable[[Request, Grant], Awaitable[Response]]


class ServerMetrics(Protocol):
    """What is counted, and shown on ``/metrics``."""

    def answered(self, call: str, status: int) -> None:
        """A request was answered."""

    def lent(self, number: int) -> None:
        """This many records were lent."""

    def settled(self, found: Sequence[Recorded]) -> None:
        """This was recorded for a batch of settlements."""

    def text(self) -> bytes:
        """In the Prometheus text format."""


class HttpApp:
    """One server's application: what uvicorn runs. Without ``metrics`` nothing is counted."""

    def __init__(
        self,
        store_server: StoreServer,
        authenticator: Authenticator,
        health: Health,
        events: Events,
        metrics: ServerMetrics | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self._store_server = store_server
        self._authenticator = authenticator
        self._health = health
        self._events = events
        self._metrics = metrics
        self._proxies = proxies or Proxies()
        # Not a Starlette application: that answers errors as text.
        self._router = Router(self._routes(), redirect_slashes=False)

    def _routes(self) -> list[Route]:
        posted = {
            "claim": self._claim,
            "heartbeat": self._heartbeat,
            "progress": self._progress,
            "settle": self._settle,
            "release": self._release,
            "reset": self._reset,
            "logs": self._log,
            "enqueue": self._enqueue,
            "due": self._due,
            "ends": self._ends,
        }
        return [
            *(Route(f"/v1/{name}", self._admitted(call), methods=["POST"]) for name, call in posted.items()),
            Route("/v1/terms", self._admitted(self._terms)),
            Route("/v1/jobs/{id}", self._admitted(self._job)),
            Route("/v1/jobs/{id}/tries", self._admitted(self._tries)),
            Route("/v1/failures", self._admitted(self._failures)),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._admitted(self._show_metrics)),
        ]

    # -- the calls -------------------------------------------------------------------------------

    async def _claim(self, request: Request, grant: Grant) -> Response:
        message = await read(request, ClaimAsked)
        sent = await self._store_server.claim(grant, message)
        if sent:
            if self._metrics is not None:
                self._metrics.lent(len(sent))
            self._audit(request, grant, [one.lease.job_id for one in sent], worker=message.worker)
        return Response(b'{"claims":[' + b",".join(one.body for one in sent) + b"]}", media_type="application/json")

    async def _heartbeat(self, request: Request, grant: Grant) -> Response:
        return _reply(await self._store_server.heartbeat(grant, await read(request, Held)))

    async def _progress(self, request: Request, grant: Grant) -> Response:
        return _reply(await self._store_server.progress(grant, await read(request, ProgressSaid)))

    async def _settle(self, request: Request, grant: Grant) -> Response:
        sent = await read(request, Settlements)
        found = await self._store_server.settle(grant, sent)
        if self._metrics is not None:
            self._metrics.settled(found)
        if self._events.wants(LentChanged):
            ids = [one.proof.lease.job_id for one in sent.batch[:IDS_SHOWN]]
            self._audit(request, grant, ids, [audited(one) for one in found[:IDS_SHOWN]])
        return _reply(reply_of(sent.batch, found))

    async def _release(self, request: Request, grant: Grant) -> Response:
        message = await read(request, Release)
        found = await self._store_server.release(grant, message)
        pairs = [proof.lease.pair for proof in message.leases]
        ids: list[Any] = [job_id for job_id, _ in pairs]
        words = [
            "busy" if pair in found.busy else "nothing: lost" if pair in found.lost else "released" for pair in pairs
        ]
        if message.token is not None:
            ids, words = [*ids, "*"], [*words, "token released" if found.abandoned else "token busy"]
        self._audit(request, grant, ids, words)
        return _reply(found)

    async def _reset(self, request: Request, grant: Grant) -> Response:
        message = await read(request, Reset)
        found = await self._store_server.reset(grant, message)
        words = [f"reset: {job.state.value}" for job in found.jobs]
        self._audit(request, grant, [job.job_id for job in found.jobs], words, worker=message.worker or "")
        return _reply(found)

    async def _log(self, request: Request, grant: Grant) -> Response:
        change = await read(request, LogChange)
        found = await self._store_server.log(grant, change)
        self._audit(request, grant, [change.proof.lease.job_id], [f"{len(change.add)} added"])
        return _reply(found)

    async def _enqueue(self, request: Request, grant: Grant) -> Response:
        found = await self._store_server.enqueue(grant, await read(request, Enqueue))
        self._audit(request, grant, found.ids)
        return _reply(found)

    async def _due(self, request: Request, grant: Grant) -> Response:
        message = await read(request, DueAsked)
        return _reply(await self._store_server.due(grant, message, lambda: _disconnected(request)))

    async def _ends(self, request: Request, grant: Grant) -> Response:
        message = await read(request, EndsAsked)
        return _reply(await self._store_server.ends(grant, message))

    async def _terms(self, request: Request, grant: Grant) -> Response:
        return _reply(self._store_server.terms())

    async def _job(self, request: Request, grant: Grant) -> Response:
        return _reply(await self._store_server.job(grant, request.path_params["id"]))

    async def _tries(self, request: Request, grant: Grant) -> Response:
        return _reply(await self._store_server.tries(grant, request.path_params["id"]))

    async def _failures(self, request: Request, grant: Grant) -> Response:
        return _reply(await self._store_server.failures(grant))

    async def _healthz(self, request: Request) -> Response:
        return _state(self._health.alive())

    async def _readyz(self, request: Request) -> Response:
        return _state(await self._health.ready())

    async def _show_metrics(self, request: Request, grant: Grant) -> Response:
        grant.need(grants.Scope.READ)
        if self._metrics is None:
            raise Refused(Kind.UNKNOWN, "this server keeps no metrics", "pip install 'stowhand[metrics]' there")
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    # -- around them -----------------------------------------------------------------------------

    def _admitted(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            return await endpoint(request, self._admit(request))

        return call

    def _admit(self, request: Request) -> Grant:
        """Identify the caller, before the body is read."""
        grant = self._authenticator.admit(request.headers, _address(request))
        request.scope["stowhand.who"] = grant.id
        connection = request.scope.get("state", {}).get(CONNECTION)
        if connection is not None and not connection.admit():
            raise Refused(
                Kind.TOO_MANY, "too many connections", "close idle ones", retry_after=5, status=503, closes=True
            )
        return grant

    def _audit(
        self, request: Request, grant: Grant, ids: Any, verdicts: list[str] | None = None, worker: str = ""
    ) -> None:
        if self._events.wants(LentChanged):
            shown = tuple(str(job_id)[:ID_WIDTH] for job_id in ids[:IDS_SHOWN])
            call = request.url.path.rpartition("/")[2]
            self._events.emit(
                LentChanged(call, grant.id, worker, shown, tuple((verdicts or [])[:IDS_SHOWN]), _address(request))
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Turns errors into replies, and emits an event for every request."""
        began, status = stopwatch(), 0

        async def noting(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        scope["app"] = self  # makes the router raise for an unknown path
        if peer := scope.get("client"):
            scope["client"] = self._proxies.client(peer[0], Headers(scope=scope)), peer[1]
        try:
            check_head(scope)
            await self._router(scope, receive, noting)
        except ClientDisconnect:
            status = status or 499  # the client has disconnected
        except Exception as error:  # noqa: BLE001 - boundary: any error becomes a reply
            reply = self._reply_to(error, scope)
            if not status:
                await reply(scope, receive, noting)
        self._report(scope, status, stopwatch() - began)

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        call = _call_of(scope)
        if self._metrics is not None:
            self._metrics.answered(call, status)
        if self._events.wants(RequestAnswered):
            address = (scope.get("client") or ("",))[0]
            self._events.emit(RequestAnswered(call, status, seconds, scope.get("stowhand.who", ""), address))

    def _reply_to(self, error: Exception, scope: Scope) -> Response:
        refused = _refused(error)
        trouble = error.__cause__ if isinstance(error, Refused) else error
        if isinstance(trouble, StoreError) and not isinstance(trouble, _NOT_REPORTED):
            self._events.emit(StoreTrouble(NAME, _call_of(scope), str(trouble), RETRY_AFTER))
        if refused is None:
            self._events.emit(RequestBroken(_call_of(scope), "".join(traceback.format_exception(error))))
            refused = Refused(Kind.BROKEN, "the server has a bug; its log says more", "tell its administrator")
        headers = {"retry-after": str(refused.retry_after)} if refused.retry_after is not None else {}
        if isinstance(error, HTTPException):
            headers |= dict(error.headers or {})  # Allow: the methods of this path
        if refused.closes:
            headers["connection"] = "close"
        if refused.kind is Kind.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return Response(
            msgspec.json.encode(refused.trouble()), refused.status, headers=headers, media_type="application/json"
        )


def _refused(error: Exception) -> Refused | None:
    """The reply to an error; ``None``: it is a bug."""
    match error:
        case Refused():
            return error
        case HTTPException(status_code=405):
            return Refused(Kind.METHOD, "no such method here", "see docs/how-to/lend-a-store.md for the calls")
        case HTTPException():
            return Refused(Kind.UNKNOWN, "there is no such call", "see docs/how-to/lend-a-store.md for the calls")
        case InvalidJob():
            return Refused(
                Kind.INVALID_JOB, str(error), "nothing was enqueued; mend the field and send all of it again"
            )
        case ConfigurationError():
            return Refused(Kind.REFUSED, str(error), "the lent store cannot do this")
        case LogRefused():
            return Refused(Kind.LOG_REFUSED, str(error), "end this attempt, or append a new entry")
        case LeaseLost():
            return Refused(Kind.LEASE_LOST, str(error), "end this attempt: its record now belongs to another attempt")
        case OutcomeUnknown():
            return Refused(Kind.OUTCOME_UNKNOWN, str(error), "repeat it with the same key", retry_after=RETRY_AFTER)
        case StoreError():
            # A driver's message may name hosts and users: it is for the server's own log only.
            answers = not isinstance(error, StoreUnreachable | SchemaError)
            message = "the lent store refused or failed" if answers else "the lent store does not answer"
            return Refused(
                Kind.UNREACHABLE, message, "try again soon; the server's log says more", retry_after=RETRY_AFTER
            )
    return None


def _reply(message: Any) -> Response:
    return Response(msgspec.json.encode(message), media_type="application/json")


def _state(found: tuple[bool, dict[str, Any]]) -> Response:
    well, facts = found
    return Response(msgspec.json.encode(facts), 200 if well else 503, media_type="application/json")


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected. The body has been read, so no other message can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _call_of(scope: Scope) -> str:
    """The call's name for the metrics: one of ``CALLS``, or ``other``."""
    parts = scope["path"].strip("/").split("/")
    name = parts[1] if len(parts) > 1 and parts[0] == "v1" else parts[0]
    return name if name in CALLS else "other"
