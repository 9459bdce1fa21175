"""The dashboard as an ASGI application: what a server runs, and what an application mounts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from urllib.parse import quote

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
from stowhand.web.board import Board, mounted
from stowhand.web.request import FORM_BYTES, Reply, Request, Who, fields_of, text

Given = Who | Iterable[str]
Visitor = Callable[[HttpRequest], Awaitable[Who]]


class Asgi:
    """``visitor``: who asks; ``None``: the board finds out. ``prefix``: where it is, if the server does not say."""

    def __init__(self, board: Board, visitor: Visitor | None = None, prefix: str = "") -> None:
        self._board = board
        self._visitor = visitor
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive)
        visitor = None if self._visitor is None else partial(self._visitor, request)
        try:
            response = _response(await self._board.answer(await _read(request, visitor, self._prefix)))
        except ClientDisconnect:
            return
        except Refused as refused:
            closing = [("connection", "close")] if refused.closes else []
            response = _response(text(refused.status, f"{refused.message}\n", *closing))
        await response(scope, receive, send)


async def _read(http: HttpRequest, visitor: Callable[[], Awaitable[Who]] | None, prefix: str) -> Request:
    """Raises Refused for a form that is too large."""
    root, path = http.scope.get("root_path", ""), http.scope["path"]
    headers = {name: ", ".join(http.headers.getlist(name)) for name in http.headers}  # no value hides another
    headers["cookie"] = "; ".join(http.headers.getlist("cookie"))
    return Request(
        method=http.method,
        path=path.removeprefix(root).removeprefix(prefix) or "/",
        query=fields_of(http.scope.get("query_string", b"").decode("latin-1")),
        form=fields_of((await collect(http, FORM_BYTES)).decode("latin-1")) if http.method == "POST" else {},
        headers=headers,
        peer=http.client.host if http.client is not None else "",
        secure=http.scope.get("scheme") == "https",
        prefix=quote(root + prefix),
        who=Who() if visitor is None else await visitor(),
        known=visitor is not None,
        ask_who=visitor,
    )


def _response(reply: Reply) -> Response:
    body, status = reply.body, reply.status
    response = Response(body, status) if isinstance(body, bytes) else StreamingResponse(body, status)
    for name, value in reply.headers:
        response.headers.append(name, value)
    return response


def dashboard(
    kept: App | QueueStore,
    *,
    rights: Callable[[HttpRequest], Given | Awaitable[Given]],
    prefix: str = "",
    events: Events | None = None,
) -> Asgi:
    """An ASGI application for an application of yours to mount.

        app.mount("/jobs-admin", dashboard(jobs, rights=lambda request: ["look"] if request.user.is_staff else []))

    ``kept``: an App, or a store, which is opened when the first page is asked for; you close it. ``rights``: what the
    sender of a request may do: some of ``look``, ``payloads``, ``act``, ``add``, or a ``Who``, whose name is kept for
    the audit; it may be ``async``. Where it raises, nothing is shown. ``prefix``: where it is mounted, where the server
    around it does not say (``root_path``). ``events``: hear what is changed and of outages; else it is logged.
    """
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigurationError(f"dashboard: prefix: {prefix!r} given; write it like /jobs-admin")

    async def visitor(request: HttpRequest) -> Who:
        given = rights(request)
        return Who.of(await given if inspect.isawaitable(given) else given)

    if events is None:
        LendingListener(events := Events(), name="web")
    return Asgi(mounted(kept, events), visitor, prefix)
