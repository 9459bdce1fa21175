"""The dashboard for applications that answer synchronously: Flask and others by WSGI, Django in a view of its own."""

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
"""Seconds until a page that is looked at fetches itself again."""
_INPUT_ELEMENTS = re.compile(rb'<(?:select|textarea|details|input(?! type="hidden"))')
"""A page where something can be chosen, typed or opened stays as it is: it would be gone, or closed."""
_LIVE_REGION = re.compile(rb'(<section id="[^"]*") data-region')


class Dashboard:
    """One of this process, with a loop of its own on which the App's store is.

    No page has a stream of changes, for each would keep a thread: where nothing can be typed or opened, it fetches
    itself again.
    """

    def __init__(self, app: App, events: Events | None = None) -> None:
        if events is None:
            LendingListener(events := Events(), name="web")
        self._board = mounted_board(app, events)
        self._portal = Portal(app.close)

    def answer(self, request: Request) -> Reply:
        """Its body is whole."""
        if "text/event-stream" in request.headers.get("accept", ""):
            return Reply(status=204)
        reply = self._portal.run(lambda: self._board.answer(request), "a thread that has no event loop")
        assert isinstance(reply.body, bytes)  # only a stream is none
        if not (reply.is_page and request.method == "GET"):
            return reply
        still = msgspec.structs.replace(
            reply, body=_LIVE_REGION.sub(rb"\1", reply.body)
        )  # by these its script would listen
        return still if _INPUT_ELEMENTS.search(reply.body) else still.with_headers(("refresh", REFRESH_SECONDS))


def dashboard(
    app: App, *, rights: Callable[[WSGIEnvironment], Visitor | Iterable[str]], events: Events | None = None
) -> WSGIApplication:
    """A WSGI application for an application of yours to mount.

        web.wsgi_app = DispatcherMiddleware(web.wsgi_app, {"/jobs-admin": dashboard(app, rights=rights)})

    ``rights``: what the sender of a request, of this environ, may do: some of ``look``, ``payloads``, ``act``, ``add``,
    or a ``Visitor``. Where it raises, nothing is shown. ``events``: hear what is changed; else it is logged.
    """
    shown = Dashboard(app, events)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        who = Visitor.of(rights(environ))
        try:
            request = _request(environ, who)
        except Refused as refused:
            reply = text(refused.status, f"{refused.message}\n")
        else:
            reply = shown.answer(request)
        assert isinstance(reply.body, bytes)
        length = () if reply.status == 204 else (("content-length", str(len(reply.body))),)
        start_response(f"{reply.status} {HTTPStatus(reply.status).phrase}", [*reply.headers, *length])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [reply.body]

    return answer


def _request(environ: WSGIEnvironment, who: Visitor) -> Request:
    """Raises Refused for a form that is too large."""
    is_form, length = environ["REQUEST_METHOD"] == "POST", int(environ.get("CONTENT_LENGTH") or 0)
    if is_form and length > MAX_FORM_BYTES:
        raise Refused(ErrorKind.TOO_LARGE, f"a form has at most {MAX_FORM_BYTES} bytes")
    sent = environ["wsgi.input"].read(length).decode("latin-1") if is_form else ""
    return Request(
        method=environ["REQUEST_METHOD"],
        path=_decoded(environ.get("PATH_INFO", "")) or "/",
        query=fields_of(environ.get("QUERY_STRING", "")),
        form=fields_of(sent),
        headers={
            name[5:].lower().replace("_", "-"): said for name, said in environ.items() if name.startswith("HTTP_")
        },
        peer=environ.get("REMOTE_ADDR", ""),
        is_secure=environ["wsgi.url_scheme"] == "https",
        prefix=quote(_decoded(environ.get("SCRIPT_NAME", ""))),
        visitor=who,
        is_identified=True,
    )


def _decoded(given: str) -> str:
    """WSGI passes bytes on as if they were Latin-1."""
    return given.encode("latin-1").decode("utf-8", "replace")
