"""The entry of the dashboard in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path

from stowhand.django.models import LOOK, Job


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """Admin entry that opens the dashboard in place of a list of models."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(_show)
        return [path("", view, name="stowhand_job_changelist"), re_path("^(?P<page>.+)$", view)]

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.has_perm(LOOK))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: the dashboard has the form, not the admin."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


def _show(request: HttpRequest, page: str = "") -> HttpResponse:
    try:
        from stowhand.django.dashboard import show
    except ImportError as error:  # the admin imports every app at its start; only this page needs the extra
        message = f"The dashboard needs the extra 'web': pip install 'stowhand[web]' ({error})\n"
        return HttpResponse(message, status=501, content_type="text/plain; charset=utf-8")
    return show(request, page)


# Each form of the dashboard has its own token, which is bound to the visitor and checked there.
_show.csrf_exempt = True  # type: ignore[attr-defined]
