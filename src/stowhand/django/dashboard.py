"""The dashboard behind a view of Django's: whose permissions are which rights, a request and a reply turned over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse

from stowhand.app.portal import Portal
from stowhand.django.models import ACT, ADD, LOOK, PAYLOADS
from stowhand.django.project import app_of, chosen_backend
from stowhand.events import Events
from stowhand.observe.lending import LendingListener
from stowhand.web.acting import Acting
from stowhand.web.asked import Asked, Reply, Right, Who
from stowhand.web.board import Board
from stowhand.web.reading import Reading

RIGHTS = {Right.LOOK: LOOK, Right.PAYLOADS: PAYLOADS, Right.ACT: ACT, Right.ADD: ADD}
"""Without the first there is nothing to see."""
EVENTS = "text/event-stream"


def show(request: HttpRequest, page: str) -> HttpResponse:
    """``page``: its path below the entry. Streams of changes are refused, for each would keep a thread."""
    if EVENTS in request.headers.get("accept", ""):
        return HttpResponse(status=204)
    board, portal = _dashboard()
    asked = Asked(
        method=request.method,
        path=f"/{page}",
        query=dict(request.GET.lists()),
        form=dict(request.POST.lists()),
        headers={name.lower(): value for name, value in request.headers.items()},
        peer=request.META.get("REMOTE_ADDR", ""),
        secure=request.is_secure(),
        prefix=request.path.removesuffix(page).rstrip("/"),
        who=Who(request.user.get_username(), frozenset(_rights(request.user))),
        known=True,
    )
    return _response(portal.run(lambda: board.answer(asked), "a view that runs in a thread, as the admin's does"))


def _rights(user: Any) -> Iterator[Right]:
    if user.has_perm(LOOK):
        yield from (right for right, permission in RIGHTS.items() if user.has_perm(permission))


@cache
def _dashboard() -> tuple[Board, Portal]:
    """One of this process, and the loop on which its store is."""
    app = app_of(chosen_backend())
    LendingListener(events := Events(), name="web")
    return Board(Reading(app.open), acting=Acting(events, app.registry.made_elsewhere)), Portal(app.close)


def _response(reply: Reply) -> HttpResponse:
    assert isinstance(reply.body, bytes)  # only a stream of changes is none
    response = HttpResponse(reply.body, status=reply.status)
    del response["content-type"]
    for name, value in reply.headers:
        if name == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    return response
