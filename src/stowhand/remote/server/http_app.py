"""Requests and replies: an ASGI application over a StoreServer. Replies are JSON, errors a ``wire.ErrorReply``."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
from stowhand.events import Events, RemoteCallAudited, RequestAnswered, RequestBroken, StoreCallFailed
from stowhand.protocols.store import RecordedSettlement
from stowhand.remote import wire
from stowhand.remote.server.authenticator import Authenticator, Proxies
from stowhand.remote.server.bodies import check_head, read
from stowhand.remote.server.claims import LentRecord
from stowhand.remote.server.health import Health
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.settlements import audited, reply_of
from stowhand.remote.server.store_server import StoreServer
from stowhand.remote.server.tokens import Grant
from stowhand.remote.server.wake_broadcast import NAME
from stowhand.remote.wire import (
    ClaimedRecord,
    ClaimReply,
    ErrorKind,
    LogReply,
    LogRequest,
    ReleaseReply,
    ReleaseRequest,
    RemoteClaimRequest,
    ResetReply,
    ResetRequest,
    SettleRequest,
    Verb,
)

if TYPE_CHECKING:
    from stowhand.observe.exposition import LendingMetrics

RETRY_AFTER_SECONDS = 1
"""When to call again a store that did not answer."""
MAX_ID_CHARACTERS = 64
MAX_AUDITED_IDS = 200
"""The limit of ids in one line of the audit."""
Endpoint = Callable[[Request], Awaitable[Response]]
OTHER_CALL = "other"
"""The name of unknown calls in the metrics."""
_NOT_REPORTED = (StoreUnreachable, LeaseLost, LogRefused)
"""Not reported here: the background tasks report an outage; the others are no failure of the store."""


class AuditEntry(NamedTuple):
    """Entry of the audit for a call that changes something."""

    ids: Sequence[Any]
    verdicts: Sequence[str] = ()
    worker: str = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """The execution of one verb. Functions get the message and the result of the execution."""

    run: Callable[..., Awaitable[Any]]
    """Called with the grant, the message or the id in the path, and, if it ``waits``, what ends the wait."""
    reply: Callable[[Any, Any], Any] = lambda _, found: found
    audit: Callable[[Any, Any], AuditEntry | None] = lambda *_: None
    count: Callable[[LendingMetrics, Any], None] = lambda *_: None
    waits: bool = False


class HttpApp:
    """ASGI application of one server. Without ``metrics`` nothing is counted."""

    def __init__(
        self,
        store_server: StoreServer,
        authenticator: Authenticator,
        health: Health,
        events: Events,
        metrics: LendingMetrics | None = None,
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
        return [
            *(Route(verb.path, self._endpoint(verb, call), methods=[verb.method]) for verb, call in self._calls()),
            Route("/healthz", self._named("healthz", self._healthz)),
            Route("/readyz", self._named("readyz", self._readyz)),
            Route("/metrics", self._named("metrics", self._show_metrics)),
        ]

    def _calls(self) -> list[tuple[Verb[Any, Any], Call]]:
        server = self._store_server
        return [
            (
                wire.CLAIM,
                Call(run=server.claim, reply=_claimed, audit=_audit_claim, count=_count_lent),
            ),
            (wire.HEARTBEAT, Call(run=server.heartbeat)),
            (wire.PROGRESS, Call(run=server.progress)),
            (wire.SETTLE, Call(run=server.settle, reply=reply_of, audit=_audit_settle, count=_count_settled)),
            (wire.RESET, Call(run=server.reset, audit=_audit_reset)),
            (wire.RELEASE, Call(run=server.release, audit=_audit_release)),
            (wire.QUEUES, Call(run=server.declare_queues)),
            (wire.LOGS, Call(run=server.log, audit=_audit_log)),
            (wire.ENQUEUE, Call(run=server.enqueue, audit=lambda _, enqueued: AuditEntry(enqueued.ids))),
            (wire.DUE, Call(run=server.due, waits=True)),
            (wire.ENDS, Call(run=server.jobs.ends)),
            (wire.JOB, Call(run=server.jobs.job)),
            (wire.TRIES, Call(run=server.jobs.tries)),
            (wire.FAILURES, Call(run=server.jobs.failures)),
            (wire.TERMS, Call(run=server.terms)),
        ]

    def _endpoint(self, verb: Verb[Any, Any], call: Call) -> Endpoint:
        async def answer(request: Request) -> Response:
            grant = self._admit(request)
            for scope in verb.scopes:
                grant.need(scope)
            message = None if verb.request is None else await read(request, verb.request)
            arguments = tuple(request.path_params.values()) if message is None else (message,)
            ends = (lambda: _disconnected(request),) if call.waits else ()
            found = await call.run(grant, *arguments, *ends)
            if self._metrics is not None:
                call.count(self._metrics, found)
            if self._events.wants(RemoteCallAudited) and (audit_entry := call.audit(message, found)) is not None:
                self._audit(request, verb, grant, audit_entry)
            return Response(msgspec.json.encode(call.reply(message, found)), media_type="application/json")

        return self._named(verb.name, answer)

    def _named(self, name: str, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint, whose requests are counted and logged by this name."""

        async def call(request: Request) -> Response:
            request.scope["stowhand.call"] = name
            return await endpoint(request)

        return call

    async def _healthz(self, request: Request) -> Response:
        return _state(self._health.alive())

    async def _readyz(self, request: Request) -> Response:
        return _state(await self._health.ready())

    async def _show_metrics(self, request: Request) -> Response:
        self._admit(request).need(wire.Scope.READ)
        if self._metrics is None:
            raise Refused(ErrorKind.UNKNOWN, "this server keeps no metrics", "pip install 'stowhand[metrics]' there")
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    # -- around them -----------------------------------------------------------------------------

    def _admit(self, request: Request) -> Grant:
        """Identify the caller, before the body is read."""
        grant = self._authenticator.admit(request.headers, _address(request))
        request.scope["stowhand.who"] = grant.id
        return grant

    def _audit(self, request: Request, verb: Verb[Any, Any], grant: Grant, audited: AuditEntry) -> None:
        ids = tuple(str(job_id)[:MAX_ID_CHARACTERS] for job_id in audited.ids[:MAX_AUDITED_IDS])
        verdicts = tuple(audited.verdicts[:MAX_AUDITED_IDS])
        self._events.emit(RemoteCallAudited(verb.name, grant.id, audited.worker, ids, verdicts, _address(request)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request. Errors become replies, and every request emits an event."""
        started_at, status = stopwatch(), 0

        async def send_and_note(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        scope["app"] = self  # makes the router raise for an unknown path
        if peer := scope.get("client"):
            scope["client"] = self._proxies.client(peer[0], Headers(scope=scope)), peer[1]
        try:
            check_head(scope)
            await self._router(scope, receive, send_and_note)
        except ClientDisconnect:
            status = status or 499  # the client has disconnected
        except Exception as error:  # noqa: BLE001 - boundary: any error becomes a reply
            reply = self._reply_to(error, scope)
            if not status:
                await reply(scope, receive, send_and_note)
        self._report(scope, status, stopwatch() - started_at)

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        call = _call_of(scope)
        if self._metrics is not None:
            self._metrics.answered(call, status)
        if self._events.wants(RequestAnswered):
            address = (scope.get("client") or ("",))[0]
            self._events.emit(RequestAnswered(call, status, seconds, scope.get("stowhand.who", ""), address))

    def _reply_to(self, error: Exception, scope: Scope) -> Response:
        refused = _refused(error)
        cause = error.__cause__ if isinstance(error, Refused) else error
        if isinstance(cause, StoreError) and not isinstance(cause, _NOT_REPORTED):
            self._events.emit(StoreCallFailed(NAME, _call_of(scope), str(cause), RETRY_AFTER_SECONDS))
        if refused is None:
            self._events.emit(RequestBroken(_call_of(scope), "".join(traceback.format_exception(error))))
            refused = Refused(ErrorKind.BROKEN, "the server has a bug; its log says more", "tell its administrator")
        headers = {"retry-after": str(refused.retry_after)} if refused.retry_after is not None else {}
        if isinstance(error, HTTPException):
            headers |= dict(error.headers or {})  # Allow: the methods of this path
        if refused.closes:
            headers["connection"] = "close"
        if refused.kind is ErrorKind.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return Response(
            msgspec.json.encode(refused.error_reply()), refused.status, headers=headers, media_type="application/json"
        )


def _refused(error: Exception) -> Refused | None:
    """Return the refusal for an error; ``None`` for a bug."""
    match error:
        case Refused():
            return error
        case HTTPException(status_code=405):
            return Refused(ErrorKind.METHOD, "no such method here", "see docs/reference/http.md for the calls")
        case HTTPException():
            return Refused(ErrorKind.UNKNOWN, "there is no such call", "see docs/reference/http.md for the calls")
        case InvalidJob():
            return Refused(
                ErrorKind.INVALID_JOB, str(error), "nothing was enqueued; fix the field and send all of it again"
            )
        case ConfigurationError():
            return Refused(ErrorKind.REFUSED, str(error), "the lent store cannot do this")
        case LogRefused():
            return Refused(ErrorKind.LOG_REFUSED, str(error), "end this attempt, or append a new entry")
        case LeaseLost():
            return Refused(
                ErrorKind.LEASE_LOST, str(error), "end this attempt: its record now belongs to another attempt"
            )
        case OutcomeUnknown():
            return Refused(
                ErrorKind.OUTCOME_UNKNOWN, str(error), "repeat it with the same key", retry_after=RETRY_AFTER_SECONDS
            )
        case StoreError():
            # A driver's message may name hosts and users: it is for the server's own log only.
            answers = not isinstance(error, StoreUnreachable | SchemaError)
            message = "the lent store refused or failed" if answers else "the lent store does not answer"
            return Refused(
                ErrorKind.UNREACHABLE,
                message,
                "try again soon; the server's log says more",
                retry_after=RETRY_AFTER_SECONDS,
            )
    return None


def _state(found: tuple[bool, dict[str, Any]]) -> Response:
    is_well, details = found
    return Response(msgspec.json.encode(details), 200 if is_well else 503, media_type="application/json")


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected. The body has been read, so no other message can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _call_of(scope: Scope) -> str:
    """Return the name of the call, for metrics and log."""
    name: str = scope.get("stowhand.call", OTHER_CALL)
    return name


# -- replies, counts and audit of single calls ---------------------------------------------------


def _claimed(_: RemoteClaimRequest, sent: Sequence[LentRecord]) -> ClaimReply:
    return ClaimReply(claims=cast("tuple[ClaimedRecord, ...]", tuple(msgspec.Raw(one.body) for one in sent)))


def _count_lent(metrics: LendingMetrics, sent: Sequence[LentRecord]) -> None:
    metrics.lent(len(sent))


def _count_settled(metrics: LendingMetrics, found: Sequence[RecordedSettlement]) -> None:
    metrics.settled(found)


def _audit_claim(message: RemoteClaimRequest, sent: Sequence[LentRecord]) -> AuditEntry | None:
    return AuditEntry([one.lease.job_id for one in sent], worker=message.worker) if sent else None


def _audit_settle(message: SettleRequest, found: Sequence[RecordedSettlement]) -> AuditEntry:
    return AuditEntry(
        [one.proof.lease.job_id for one in message.batch[:MAX_AUDITED_IDS]],
        [audited(one) for one in found[:MAX_AUDITED_IDS]],
    )


def _audit_reset(message: ResetRequest, done: ResetReply) -> AuditEntry:
    verdicts = [f"reset: {job.state.value}" for job in done.jobs]
    return AuditEntry([job.job_id for job in done.jobs], verdicts, message.worker or "")


def _audit_release(message: ReleaseRequest, found: ReleaseReply) -> AuditEntry:
    pairs = [proof.lease.pair for proof in message.leases]
    ids: list[Any] = [job_id for job_id, _ in pairs]
    verdicts = [
        "busy" if pair in found.busy else "nothing: lost" if pair in found.lost else "released" for pair in pairs
    ]
    if message.token is not None:
        ids, verdicts = [*ids, "*"], [*verdicts, "token released" if found.abandoned else "token busy"]
    return AuditEntry(ids, verdicts)


def _audit_log(message: LogRequest, numbers: LogReply) -> AuditEntry:
    return AuditEntry([message.proof.lease.job_id], [f"{len(numbers.numbers)} added"])
