"""The dashboard for synchronous applications: through WSGI (Flask and others), or in a view of Django."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from stowhand.app.app import App
from stowhand.app.portal import Portal
from stowhand.events import Events
from stowhand.observe.lending_listener import LendingListener
from stowhand.remote.server.refusals import Refused
from stowhand.remote.wire import ErrorKind
from stowhand.web.board import mounted_board
from stowhand.web.request import MAX_FORM_BYTES, Reply, Request, Visitor, fields_of, text

__all__ = ["dashboard"]

REFRESH_SECONDS = "5"
"""Seconds until an open page reloads itself."""
_INPUT_ELEMENTS = re.compile(rb'<(?:select|textarea|details|input(?! type="hidden"))')
"""Elements that a visitor can fill in or open. Pages with them do not reload, which would reset the elements."""
_LIVE_REGION = re.compile(rb'(<section id="[^"]*") data-region')


class Dashboard:
    """The dashboard of one process, with its own event loop for the App's store.

    Pages have no event streams, because each would occupy a thread. Pages without inputs reload themselves instead.
    """

    def __init__(self, app: App, events: Events | None = None) -> None:
        if events is None:
            LendingListener(events := Events(), name="web")
        self._board = mounted_board(app, events)
        self.report_bug = self._board.report_bug
        self._portal = Portal(app.close)

    def answer(self, request: Request) -> Reply:
        """Return the reply, whose body is complete."""
        if "text/event-stream" in request.headers.get("accept", ""):
            return Reply(status=204)
        reply = self._portal.run(lambda: self._board.answer(request), "a thread that has no event loop")
        assert isinstance(reply.body, bytes)  # only a stream has another body
        if not (reply.is_page and request.method == "GET"):
            return reply
        # With live regions, the page's script would request an event stream.
        static_reply = msgspec.structs.replace(reply, body=_LIVE_REGION.sub(rb"\1", reply.body))
        if _INPUT_ELEMENTS.search(reply.body):
            return static_reply
        return static_reply.with_headers(("refresh", REFRESH_SECONDS))


def dashboard(
    app: App, *, rights: Callable[[WSGIEnvironment], Visitor | Iterable[str]], events: Events | None = None
) -> WSGIApplication:
    """Return a WSGI application that your application can mount.

        web.wsgi_app = DispatcherMiddleware(web.wsgi_app, {"/jobs-admin": dashboard(app, rights=rights)})

    Args:
        app: The App whose store is shown.
        rights: Returns the rights of the sender of a request, from its environ: some of ``look``, ``payloads``,
            ``act``, ``add``, or a ``Visitor``. If it raises, nothing is shown: the error is logged, and your server
            gets it.
        events: Receive changes and outages. By default they are logged.

    """
    board = Dashboard(app, events)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            visitor = Visitor.of(rights(environ))
        except Exception as error:
            board.report_bug("rights", error)
            raise
        try:
            request = _request(environ, visitor)
        except Refused as refused:
            reply = text(refused.status, f"{refused.message}\n")
        else:
            reply = board.answer(request)
        assert isinstance(reply.body, bytes)
        length = () if reply.status == 204 else (("content-length", str(len(reply.body))),)
        start_response(f"{reply.status} {HTTPStatus(reply.status).phrase}", [*reply.headers, *length])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [reply.body]

    return answer


def _request(environ: WSGIEnvironment, visitor: Visitor) -> Request:
    """Read the request. Raises Refused for a form that is too large."""
    is_form, length = environ["REQUEST_METHOD"] == "POST", int(environ.get("CONTENT_LENGTH") or 0)
    if is_form and length > MAX_FORM_BYTES:
        raise Refused(ErrorKind.TOO_LARGE, f"a form has at most {MAX_FORM_BYTES} bytes")
    body = environ["wsgi.input"].read(length).decode("latin-1") if is_form else ""
    return Request(
        method=environ["REQUEST_METHOD"],
        path=_decoded(environ.get("PATH_INFO", "")) or "/",
        query=fields_of(environ.get("QUERY_STRING", "")),
        form=fields_of(body),
        headers={
            name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")
        },
        peer=environ.get("REMOTE_ADDR", ""),
        is_secure=environ["wsgi.url_scheme"] == "https",
        prefix=quote(_decoded(environ.get("SCRIPT_NAME", ""))),
        visitor=visitor,
        is_identified=True,
    )


def _decoded(value: str) -> str:
    """Decode a value, whose bytes WSGI passes as Latin-1."""
    return value.encode("latin-1").decode("utf-8", "replace")
