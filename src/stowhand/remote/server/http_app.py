"""ASGI application of a StoreServer. Replies are JSON; errors are a ``wire.ErrorReply``."""

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
from stowhand.jobs.lease import Pair
from stowhand.protocols.store import RecordedSettlement
from stowhand.remote import wire
from stowhand.remote.server.authenticator import Authenticator, Proxies
from stowhand.remote.server.bodies import check_head, read
from stowhand.remote.server.claims import EncodedClaim
from stowhand.remote.server.health import Health
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.settlements import audit_text, reply_of
from stowhand.remote.server.store_server import StoreServer
from stowhand.remote.server.tokens import Grant
from stowhand.remote.server.wake_broadcast import LENDER_NAME
from stowhand.remote.wire import (
    ClaimedRecord,
    ClaimReply,
    EmitReply,
    EmitRequest,
    ErrorKind,
    LogReply,
    LogRequest,
    RecordReply,
    RecordRequest,
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
"""Delay after which a client calls again if the store did not answer."""
MAX_ID_CHARACTERS = 64
MAX_AUDITED_IDS = 200
"""Maximum number of ids in one line of the audit."""
Endpoint = Callable[[Request], Awaitable[Response]]
OTHER_CALL = "other"
"""Name of unknown calls in the metrics."""
_UNREPORTED_ERRORS = (StoreUnreachable, LeaseLost, LogRefused)
"""Errors that no event reports: the background tasks report an outage, and the others are not failures of the store."""


class AuditEntry(NamedTuple):
    """Audit entry of a call that changes something."""

    ids: Sequence[Any]
    verdicts: Sequence[str] = ()
    worker: str = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Execution of one verb. ``reply`` and ``audit`` receive the message, and the result that ``run`` returns."""

    run: Callable[..., Awaitable[Any]]
    """Called with the grant, and the message or the id in the path; if it ``waits``, also with WaitForDisconnect."""
    reply: Callable[[Any, Any], Any] = lambda _, result: result
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
        # A Starlette application would answer errors with text, so only its router is used.
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
                wire.CLAIM_VERB,
                Call(run=server.claim, reply=_claim_reply, audit=_audit_claim, count=_count_claims),
            ),
            (wire.HEARTBEAT_VERB, Call(run=server.heartbeat)),
            (wire.PROGRESS_VERB, Call(run=server.progress)),
            (wire.SETTLE_VERB, Call(run=server.settle, reply=reply_of, audit=_audit_settle, count=_count_verdicts)),
            (wire.RESET_VERB, Call(run=server.reset, audit=_audit_reset)),
            (wire.RELEASE_VERB, Call(run=server.release, audit=_audit_release)),
            (wire.TASKS_VERB, Call(run=server.declare_tasks)),
            (wire.LOGS_VERB, Call(run=server.log, audit=_audit_log)),
            (wire.RECORD_VERB, Call(run=server.workflows.record, audit=_audit_record)),
            (wire.STEPS_VERB, Call(run=server.workflows.read)),
            (wire.ENQUEUE_VERB, Call(run=server.enqueue, audit=lambda _, enqueued: AuditEntry(enqueued.ids))),
            (wire.EMIT_VERB, Call(run=server.workflows.emit, audit=_audit_emit)),
            (wire.EMITTED_VERB, Call(run=server.workflows.is_emitted)),
            (wire.DUE_VERB, Call(run=server.due, waits=True)),
            (wire.ENDS_VERB, Call(run=server.jobs.ends)),
            (wire.JOB_VERB, Call(run=server.jobs.job)),
            (wire.TRIES_VERB, Call(run=server.jobs.tries)),
            (wire.FAILURES_VERB, Call(run=server.jobs.failures)),
            (wire.TERMS_VERB, Call(run=server.terms)),
        ]

    def _endpoint(self, verb: Verb[Any, Any], call: Call) -> Endpoint:
        async def answer(request: Request) -> Response:
            grant = self._admit(request)
            for scope in verb.scopes:
                grant.need(scope)
            message = None if verb.request is None else await read(request, verb.request)
            arguments = list(request.path_params.values()) if message is None else [message]
            if call.waits:
                arguments.append(lambda: _until_disconnected(request))
            result = await call.run(grant, *arguments)
            if self._metrics is not None:
                call.count(self._metrics, result)
            if self._events.wants(RemoteCallAudited) and (audit_entry := call.audit(message, result)) is not None:
                self._audit(request, verb, grant, audit_entry)
            return Response(msgspec.json.encode(call.reply(message, result)), media_type="application/json")

        return self._named(verb.name, answer)

    def _named(self, name: str, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint, with its requests counted and logged under this name."""

        async def call(request: Request) -> Response:
            request.scope["stowhand.call"] = name
            return await endpoint(request)

        return call

    async def _healthz(self, request: Request) -> Response:
        return _health_response(*self._health.alive())

    async def _readyz(self, request: Request) -> Response:
        return _health_response(*await self._health.ready())

    async def _show_metrics(self, request: Request) -> Response:
        self._admit(request).need(wire.Scope.READ)
        if self._metrics is None:
            raise Refused(
                ErrorKind.UNKNOWN, "this server has no metrics", "on the server: pip install 'stowhand[metrics]'"
            )
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    # -- all requests ----------------------------------------------------------------------------

    def _admit(self, request: Request) -> Grant:
        """Identify the caller, before the body is read."""
        grant = self._authenticator.admit(request.headers, _address(request))
        request.scope["stowhand.who"] = grant.id
        return grant

    def _audit(self, request: Request, verb: Verb[Any, Any], grant: Grant, entry: AuditEntry) -> None:
        ids = tuple(str(job_id)[:MAX_ID_CHARACTERS] for job_id in entry.ids[:MAX_AUDITED_IDS])
        verdicts = tuple(entry.verdicts[:MAX_AUDITED_IDS])
        self._events.emit(RemoteCallAudited(verb.name, grant.id, entry.worker, ids, verdicts, _address(request)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request. Errors become replies, and every request emits an event."""
        started_at, status = stopwatch(), 0

        async def send_and_record_status(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        scope["app"] = self  # makes the router raise for an unknown path
        if peer := scope.get("client"):
            scope["client"] = self._proxies.client(peer[0], Headers(scope=scope)), peer[1]
        try:
            check_head(scope)
            await self._router(scope, receive, send_and_record_status)
        except ClientDisconnect:
            status = status or 499  # the code of nginx for a disconnected client
        except Exception as error:  # noqa: BLE001 - boundary: any error becomes a reply
            reply = self._reply_to(error, scope)
            if not status:
                await reply(scope, receive, send_and_record_status)
        self._report(scope, status, stopwatch() - started_at)

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        call = _call_of(scope)
        if self._metrics is not None:
            self._metrics.count_request(call, status)
        if self._events.wants(RequestAnswered):
            address = (scope.get("client") or ("",))[0]
            self._events.emit(RequestAnswered(call, status, seconds, scope.get("stowhand.who", ""), address))

    def _reply_to(self, error: Exception, scope: Scope) -> Response:
        refused = _refused(error)
        cause = error.__cause__ if isinstance(error, Refused) else error
        if isinstance(cause, StoreError) and not isinstance(cause, _UNREPORTED_ERRORS):
            self._events.emit(StoreCallFailed(LENDER_NAME, _call_of(scope), str(cause), RETRY_AFTER_SECONDS))
        if refused is None:
            self._events.emit(RequestBroken(_call_of(scope), "".join(traceback.format_exception(error))))
            refused = Refused(
                ErrorKind.BROKEN, "internal error; the server's log has the details", "report it to the administrator"
            )
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
            return Refused(ErrorKind.METHOD, "wrong method for this path", "see docs/reference/http.md for the calls")
        case HTTPException():
            return Refused(ErrorKind.UNKNOWN, "there is no such call", "see docs/reference/http.md for the calls")
        case InvalidJob():
            return Refused(
                ErrorKind.INVALID_JOB, str(error), "nothing was enqueued; fix the field, and repeat the whole request"
            )
        case ConfigurationError():
            return Refused(ErrorKind.REFUSED, str(error), "the lent store does not support this")
        case LogRefused():
            return Refused(ErrorKind.LOG_REFUSED, str(error), "end this attempt, or append a new entry")
        case LeaseLost():
            return Refused(
                ErrorKind.LEASE_LOST, str(error), "end this attempt: its record now belongs to another attempt"
            )
        case OutcomeUnknown():
            return Refused(
                ErrorKind.OUTCOME_UNKNOWN,
                str(error),
                "repeat the call with the same key",
                retry_after=RETRY_AFTER_SECONDS,
            )
        case StoreError():
            # A driver's message may contain host names and user names, so it is only logged on the server.
            has_answered = not isinstance(error, StoreUnreachable | SchemaError)
            message = "the lent store refused or failed" if has_answered else "the lent store does not answer"
            return Refused(
                ErrorKind.UNREACHABLE,
                message,
                "try again soon; see the server's log",
                retry_after=RETRY_AFTER_SECONDS,
            )
    return None


def _health_response(is_healthy: bool, page: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(page), 200 if is_healthy else 503, media_type="application/json")


async def _until_disconnected(request: Request) -> None:
    """Return when the client has disconnected. The body has been read, so no other message can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _call_of(scope: Scope) -> str:
    """Return the name of the call for metrics and log."""
    name: str = scope.get("stowhand.call", OTHER_CALL)
    return name


# -- replies, counts and audit of single calls ---------------------------------------------------


def _claim_reply(_: RemoteClaimRequest, claims: Sequence[EncodedClaim]) -> ClaimReply:
    return ClaimReply(claims=cast("tuple[ClaimedRecord, ...]", tuple(msgspec.Raw(claim.body) for claim in claims)))


def _count_claims(metrics: LendingMetrics, claims: Sequence[EncodedClaim]) -> None:
    metrics.count_claims(len(claims))


def _count_verdicts(metrics: LendingMetrics, results: Sequence[RecordedSettlement]) -> None:
    metrics.count_verdicts(results)


def _audit_claim(message: RemoteClaimRequest, claims: Sequence[EncodedClaim]) -> AuditEntry | None:
    return AuditEntry([claim.lease.job_id for claim in claims], worker=message.worker) if claims else None


def _audit_settle(message: SettleRequest, results: Sequence[RecordedSettlement]) -> AuditEntry:
    return AuditEntry(
        [proved.proof.lease.job_id for proved in message.batch[:MAX_AUDITED_IDS]],
        [audit_text(result) for result in results[:MAX_AUDITED_IDS]],
    )


def _audit_reset(message: ResetRequest, reply: ResetReply) -> AuditEntry:
    verdicts = [f"reset: {job.state.value}" for job in reply.jobs]
    return AuditEntry([job.job_id for job in reply.jobs], verdicts, message.worker or "")


def _audit_release(message: ReleaseRequest, reply: ReleaseReply) -> AuditEntry:
    pairs = [proof.lease.pair for proof in message.leases]
    ids: list[Any] = [job_id for job_id, _ in pairs]
    verdicts = [_release_verdict(pair, reply) for pair in pairs]
    if message.token is not None:
        ids.append("*")
        verdicts.append("token released" if reply.abandoned else "token busy")
    return AuditEntry(ids, verdicts)


def _release_verdict(pair: Pair, reply: ReleaseReply) -> str:
    if pair in reply.busy:
        return "busy"
    return "unchanged: lost" if pair in reply.lost else "released"


def _audit_log(message: LogRequest, reply: LogReply) -> AuditEntry:
    return AuditEntry([message.proof.lease.job_id], [f"{len(reply.numbers)} added"])


def _audit_record(message: RecordRequest, reply: RecordReply) -> AuditEntry:
    verdicts = ["recorded" if is_held else "unchanged: lost" for is_held in reply.is_held]
    return AuditEntry([proved.proof.lease.job_id for proved in message.steps], verdicts)


def _audit_emit(message: EmitRequest, reply: EmitReply) -> AuditEntry:
    # Without the event's name: it often contains data, such as the number of an order.
    job_id = "*" if message.job_id is None else message.job_id
    return AuditEntry([job_id], ["emitted" if reply.is_first else "unchanged: emitted before"])
