"""The dashboard as an ASGI application, for a server to run or another application to mount."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stowhand.app.app import App
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.observe.lending_listener import LendingListener
from stowhand.protocols.queue_store import QueueStore
from stowhand.remote.server.bodies import collect
from stowhand.remote.server.refusals import Refused
from stowhand.web.board import Board, mounted_board
from stowhand.web.request import MAX_FORM_BYTES, Reply, Request, Visitor, fields_of, text

VisitorRights = Visitor | Iterable[str]
VisitorReader = Callable[[HttpRequest], Awaitable[Visitor]]


class Asgi:
    """ASGI application of a board.

    ``identify_visitor`` identifies the visitor of a request; without it, the board does. ``prefix``: mount path, if the
    server does not provide it.
    """

    def __init__(self, board: Board, identify_visitor: VisitorReader | None = None, prefix: str = "") -> None:
        self._board = board
        self._identify_visitor = identify_visitor
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive)
        read_visitor = None if self._identify_visitor is None else partial(self._identify_visitor, request)
        try:
            response = _response(await self._board.answer(await _read(request, read_visitor, self._prefix)))
        except ClientDisconnect:
            return
        except Refused as refused:
            closing = [("connection", "close")] if refused.closes else []
            response = _response(text(refused.status, f"{refused.message}\n", *closing))
        await response(scope, receive, send)


async def _read(http: HttpRequest, read_visitor: Callable[[], Awaitable[Visitor]] | None, prefix: str) -> Request:
    """Read the request. Raises Refused for a form that is too large."""
    root, path = http.scope.get("root_path", ""), http.scope["path"]
    # Repeated headers are joined, so that no value hides another.
    headers = {name: ", ".join(http.headers.getlist(name)) for name in http.headers}
    headers["cookie"] = "; ".join(http.headers.getlist("cookie"))
    return Request(
        method=http.method,
        path=path.removeprefix(root).removeprefix(prefix) or "/",
        query=fields_of(http.scope.get("query_string", b"").decode("latin-1")),
        form=fields_of((await collect(http, MAX_FORM_BYTES)).decode("latin-1")) if http.method == "POST" else {},
        headers=headers,
        peer=http.client.host if http.client is not None else "",
        is_secure=http.scope.get("scheme") == "https",
        prefix=quote(root + prefix),
        visitor=Visitor() if read_visitor is None else await read_visitor(),
        is_identified=read_visitor is not None,
        read_visitor=read_visitor,
    )


def _response(reply: Reply) -> Response:
    body, status = reply.body, reply.status
    response = Response(body, status) if isinstance(body, bytes) else StreamingResponse(body, status)
    for name, value in reply.headers:
        response.headers.append(name, value)
    return response


def dashboard(
    app_or_store: App | QueueStore,
    *,
    rights: Callable[[HttpRequest], VisitorRights | Awaitable[VisitorRights]],
    prefix: str = "",
    events: Events | None = None,
) -> Asgi:
    """Return an ASGI application that your application can mount.

        app.mount("/jobs-admin", dashboard(jobs, rights=lambda request: ["look"] if request.user.is_staff else []))

    Args:
        app_or_store: An App, or a store. The first page opens it; you close it.
        rights: Returns the rights of the sender of a request: some of ``look``, ``payloads``, ``act``, ``add``, or a
            ``Visitor``, whose name appears in the audit. It may be ``async``. If it raises, nothing is shown: the error
            is logged, unless it is an ``HTTPException``, and your application gets it.
        prefix: Path where it is mounted, if the server does not provide it (``root_path``).
        events: Receives changes and outages. By default they are logged.

    Raises:
        ConfigurationError: ``prefix`` is not a path like ``/jobs-admin``.

    """
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigurationError(f"dashboard: prefix: got {prefix!r}; write it like /jobs-admin")

    async def identify_visitor(request: HttpRequest) -> Visitor:
        try:
            visitor_rights = rights(request)
            return Visitor.of(await visitor_rights if inspect.isawaitable(visitor_rights) else visitor_rights)
        except HTTPException:  # A reply that the application chose, such as a redirect to its sign-in page.
            raise
        except Exception as error:
            board.report_bug("rights", error)
            raise

    if events is None:
        LendingListener(events := Events(), name="web")
    board = mounted_board(app_or_store, events)
    return Asgi(board, identify_visitor, prefix)
