"""A project on Django 5.2, which has no django.tasks, as docs/how-to/use-it-from-django-5.md shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.sources import ROOT

PACKAGES = ROOT / ".state" / "django-5.2"
FILES = {
    "manage.py": """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "shop/__init__.py": "",
    "shop/settings.py": """
from pathlib import Path
SECRET_KEY = "of tests"
APPS = ["admin", "auth", "contenttypes", "messages", "sessions"]
INSTALLED_APPS = [*(f"django.contrib.{name}" for name in APPS), "shop"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
PROCESSORS = [f"django.{name}" for name in (
    "template.context_processors.request",
    "contrib.auth.context_processors.auth",
    "contrib.messages.context_processors.messages",
)]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": PROCESSORS},
}]
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": Path(__file__).parents[1] / "db.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}}
""",
    "shop/urls.py": """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
""",
}

PAGE = ROOT / "docs" / "how-to" / "use-it-from-django-5.md"
BLOCK = re.compile(r"^```python\n# (shop/[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENQUEUE = """
from django.db import transaction
from shop.signing_up import sign_up
try:
    with transaction.atomic():
        sign_up("ben")
        raise KeyError
except KeyError:
    pass
sign_up("ann")
"""
VISIT = """
from django.contrib.auth.models import User
from django.test import Client
client = Client()
user = User.objects.get()
user.is_staff = user.is_superuser = True
user.save()
client.force_login(user)
reply = client.get("/admin/stowhand/job/job?id=1")
print(reply.status_code, b"count_users" in reply.content)
"""

Manage = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.rare


@pytest.fixture(scope="module")
def manage(tmp_path_factory: pytest.TempPathFactory) -> Manage:
    """Runs ``manage.py`` of a project whose tables are installed."""
    if not PACKAGES.exists():
        pytest.fail("Django 5.2 is not installed: run scripts/setup-django --all")
    folder = tmp_path_factory.mktemp("project")
    blocks = dict(BLOCK.findall(PAGE.read_text()))
    settings = {"shop/settings.py": FILES["shop/settings.py"] + blocks.pop("shop/settings.py")}
    for name, text in (FILES | settings | blocks).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    environment.pop("DATABASE_URL", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    for arguments in (("check",), ("migrate",), ("stowhand", "migrate")):
        done = run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_a_job_is_part_of_the_transaction_and_runs_and_the_admin_shows_it(manage: Manage) -> None:
    assert manage("shell", "-c", ENQUEUE).returncode == 0
    worker = manage("stowhand", "worker", "--once")
    assert worker.returncode == 0, worker.stderr
    assert worker.stderr.count("Completed task") == 1, "one transaction was rolled back"
    listed = manage("stowhand", "jobs", "list", "--state", "completed", "--json")
    assert '"task":"count_users"' in listed.stdout.replace(": ", ":"), listed.stderr
    visited = manage("shell", "-c", VISIT)
    assert visited.stdout.splitlines()[-1] == "200 True", visited.stdout + visited.stderr


def test_the_migrations_fit_the_models(manage: Manage) -> None:
    done = manage("makemigrations", "stowhand", "--check", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["StowhandBackend", "task"])
def test_the_task_backend_is_refused_with_the_version(manage: Manage, name: str) -> None:
    done = manage("shell", "-c", f"from stowhand.django import {name}")
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith(f"ImportError: stowhand.django.{name}: Django 5.2.")
    assert error.endswith("has no django.tasks (Django 6.0 has); declare tasks with an App (STOWHAND_APP)")


def test_a_project_that_names_no_app_gets_an_error_with_the_setting(manage: Manage) -> None:
    program = (
        "from django.test import override_settings\n"
        "from stowhand.django.application import project_app\n"
        "with override_settings(STOWHAND_APP=None):\n"
        "    project_app()\n"
    )
    done = manage("shell", "-c", program)
    assert "declare tasks with an App, and name it: STOWHAND_APP = 'shop.jobs:app'" in done.stderr
