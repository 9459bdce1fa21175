"""The dashboard behind a Django view. It converts permissions, requests and replies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from stowhand.django.application import project_app
from stowhand.django.models import ACT, ADD, LOOK, PAYLOADS
from stowhand.web.request import Reply, Request, Right, Visitor
from stowhand.wsgi import Dashboard

DJANGO_PERMISSIONS = {Right.LOOK: LOOK, Right.PAYLOADS: PAYLOADS, Right.ACT: ACT, Right.ADD: ADD}
"""Django's permission for each right. Without the first, nothing is visible."""


def show(request: HttpRequest, page: str) -> HttpResponse:
    """Show a page of the dashboard, in a view that runs in a thread. ``page``: its path below the entry."""
    dashboard_request = Request(
        method=request.method,
        path=f"/{page}",
        query=dict(request.GET.lists()),
        form=dict(request.POST.lists()),
        headers={name.lower(): value for name, value in request.headers.items()},
        peer=request.META.get("REMOTE_ADDR", ""),
        is_secure=request.is_secure(),
        prefix=quote(request.path.removesuffix(page).rstrip("/")),
        home_link=(reverse(f"{request.resolver_match.namespace}:index"), "Back to the administration"),
        visitor=Visitor(request.user.get_username(), frozenset(_rights(request.user))),
        is_identified=True,
    )
    return _response(_dashboard().answer(dashboard_request))


def _rights(user: Any) -> Iterator[Right]:
    if user.has_perm(LOOK):
        yield from (right for right, permission in DJANGO_PERMISSIONS.items() if user.has_perm(permission))


@cache
def _dashboard() -> Dashboard:
    return Dashboard(project_app())


def _response(reply: Reply) -> HttpResponse:
    assert isinstance(reply.body, bytes)
    response = HttpResponse(reply.body, status=reply.status)
    del response["content-type"]
    for name, value in reply.headers:
        if name == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    return response
