"""The dashboard in the admin: whose permissions are which rights."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

Browser = Callable[..., Any]
HOME = "/admin/stowhand/job/"


@pytest.fixture
def browser(site: None) -> Iterator[Browser]:
    """A test client of somebody with these permissions, who checks forms as a server does."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    jobs: list[User] = []

    def sign_in(*permissions: str, staff: bool = True) -> Client:
        user = User.objects.create_user(f"somebody {len(jobs)}", password="x", is_staff=staff)
        jobs.append(user)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="stowhand", codename__in=permissions)
        )
        assert user.user_permissions.count() == len(permissions)
        client = Client(enforce_csrf_checks=True)
        client.force_login(user)
        return client

    yield sign_in
    for user in jobs:
        user.delete()


@pytest.fixture
def job(site: None) -> Any:
    """One that waits, in the database of the backend `default`."""
    from tests.django.site.shop import tasks

    result = tasks.add.enqueue(1, other=4711)
    yield result
    from tests.django.conftest import drain

    drain(result.task.get_backend())


def test_the_admin_has_an_entry_for_visitors_with_the_permission(browser: Browser) -> None:
    assert HOME in browser("view_job").get("/admin/").content.decode()
    assert HOME not in browser().get("/admin/").content.decode()


def test_every_page_links_back_to_the_admin(browser: Browser, job: Any) -> None:
    for page in ("", "jobs", f"job?id={job.id}"):
        shown = browser("view_job").get(HOME + page).content.decode()
        assert '<a class="home" href="/admin/">Back to the administration</a>' in shown


def test_without_the_permission_nothing_is_shown(browser: Browser, job: Any) -> None:
    assert browser().get(HOME).status_code == 403
    assert browser("payloads_job", "change_job").get(f"{HOME}jobs").status_code == 403
    outside = browser("view_job", staff=False).get(HOME)
    assert (outside.status_code, "/admin/login/" in outside["location"]) == (302, True)


def test_payloads_need_their_permission(browser: Browser, job: Any) -> None:
    page = f"{HOME}job?id={job.id}"
    plain, whole = (
        browser(*given).get(page).content.decode().replace("<wbr>", "")
        for given in [("view_job",), ("view_job", "payloads_job")]
    )
    assert "tests.django.site.shop.tasks.add" in plain
    assert "4711" not in plain
    assert "4711" in whole


def test_links_and_assets_stay_below_the_entry(browser: Browser, job: Any) -> None:
    client = browser("view_job")
    result = client.get(f"{HOME}jobs").content.decode()
    local = re.findall(r'(?:href|src)="(/[^"]*)"', result)
    assert local
    assert [link for link in local if not link.startswith(HOME.rstrip("/"))] == ["/admin/"], "the way back"
    (style,) = {link for link in local if "board.css" in link}
    assert client.get(style)["content-type"] == "text/css; charset=utf-8"


def test_a_visitor_with_the_permission_cancels_a_job_with_the_forms_token(browser: Browser, job: Any) -> None:
    client = browser("view_job", "change_job")
    page = client.get(f"{HOME}job?id={job.id}").content.decode()
    (token,) = set(re.findall(r'name="token" value="([0-9a-f]+)"', page))
    form = {"action": "cancel", "id": job.id, "token": "0" * 64}
    assert client.post(f"{HOME}act", form).status_code == 403
    done = client.post(f"{HOME}act", form | {"token": token})
    assert done.status_code in (302, 303), done.content.decode()
    job.refresh()
    assert job.status == "FAILED"


def test_without_the_extra_web_the_entry_names_the_extra(browser: Browser) -> None:
    with mock.patch.dict(sys.modules, {"stowhand.django.dashboard": None}):
        result = browser("view_job").get(HOME)
    assert (result.status_code, "pip install 'stowhand[web]'" in result.content.decode()) == (501, True)


def test_a_page_has_no_stream_and_reloads_itself(browser: Browser, job: Any) -> None:
    client = browser("view_job", "change_job")
    assert client.get(HOME, headers={"accept": "text/event-stream"}).status_code == 204
    assert client.get(HOME)["refresh"] == "5"
    assert "refresh" not in client.get(f"{HOME}job?id={job.id}"), "what is typed there would be gone"
    assert browser("view_job").get(f"{HOME}job?id={job.id}")["refresh"] == "5"
    reader = browser("view_job", "payloads_job")
    assert "refresh" not in reader.get(f"{HOME}job?id={job.id}"), "what is opened there would be closed"


def test_a_site_below_any_path_sets_the_cookie_of_its_forms(browser: Browser, job: Any) -> None:
    reply = browser("view_job", "change_job").get(f"{HOME}jobs", SCRIPT_NAME="/b\u00c3\u00bcro")
    assert 'action="/b%C3%BCro/admin/stowhand/job/act"' in reply.content.decode()
    (visit,) = [one for name, one in reply.cookies.items() if "stowhand-visit" in name]
    assert visit["path"] == "/b%C3%BCro/admin/stowhand/job"
