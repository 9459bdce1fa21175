"""A project on Django 5.2, which has no django.tasks, as docs/how-to/use-it-from-django-5.md shows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.databases import Databases
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
import json, os
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
DATABASES = {"default": json.loads(os.environ["DATABASE"])}
""",
    "shop/urls.py": """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
""",
    # Nothing imports the App before the migration of the test database does.
    "shop/late/__init__.py": "",
    "shop/late/tests.py": """
from django.db import connection
from django.test import TestCase

class Late(TestCase):
    def test_the_app_is_first_imported_here_or_by_the_migration(self):
        from shop.jobs import count_users
        assert count_users.enqueue_in(connection).id == 1
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

TABLES = """
from django.db import connection
print(sorted(name for name in connection.introspection.table_names() if name.startswith("stowhand_")))
"""

Manage = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.rare


@pytest.fixture(scope="module")
def manage(tmp_path_factory: pytest.TempPathFactory) -> Manage:
    """Runs ``manage.py`` of a project whose tables are installed."""
    run = project(tmp_path_factory.mktemp("project"))
    succeed(run, "check")
    succeed(run, "migrate")
    return run


def project(folder: Path) -> Manage:
    """Write a project, and return a function that runs its ``manage.py`` with a file of SQLite or another database."""
    if not PACKAGES.exists():
        pytest.fail("Django 5.2 is not installed: run scripts/setup-django --all")
    files = dict(FILES)
    for name, text in BLOCK.findall(PAGE.read_text()):
        files[name] = files.get(name, "") + text
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    environment.pop("DATABASE_URL", None)

    def run(*arguments: str, database: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=folder,
            env=environment | {"DATABASE": json.dumps(database or sqlite(str(folder / "db.sqlite3")))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def sqlite(name: str, **options: Any) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        **options,
    }


def postgres(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username or "postgres",
        "PASSWORD": parts.password or "",
        "HOST": query["host"][0] if "host" in query else parts.hostname,
        "PORT": query["port"][0] if "port" in query else parts.port,
    }


def succeed(run: Manage, *arguments: str) -> str:
    """Run a command that must not fail, and return its output."""
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_job_is_part_of_the_transaction_and_runs_and_the_admin_shows_it(manage: Manage) -> None:
    assert manage("shell", "-c", ENQUEUE).returncode == 0
    worker = manage("stowhand", "worker", "--once")
    assert worker.returncode == 0, worker.stderr
    assert worker.stderr.count("Completed task") == 1, "one transaction was rolled back"
    listed = manage("stowhand", "jobs", "list", "--state", "completed", "--json")
    assert '"task":"count_users"' in listed.stdout.replace(": ", ":"), listed.stderr
    visited = manage("shell", "-c", VISIT)
    assert visited.stdout.splitlines()[-1] == "200 True", visited.stdout + visited.stderr


def test_the_tests_of_the_page_pass_on_a_file(manage: Manage, tmp_path: Path) -> None:
    database = sqlite(str(tmp_path / "absent.sqlite3"), TEST={"NAME": str(tmp_path / "test.sqlite3")})
    assert "Ran 2 tests" in succeed(partial(manage, database=database), "test", "shop.tests")
    assert not (tmp_path / "absent.sqlite3").exists()


def test_the_tests_of_the_page_pass_on_postgres(tmp_path: Path, postgres_server: Databases) -> None:
    run = project(tmp_path)
    file = tmp_path / "shop" / "tests.py"
    file.write_text(file.read_text().replace("stowhand_jobs", "stowhand.live_jobs"))
    with postgres_server.lend(None) as url:
        assert "Ran 2 tests" in succeed(partial(run, database=postgres(url)), "test", "--noinput", "shop.tests")


@pytest.mark.parametrize("label", ["shop.tests.SigningUp", "shop.late"])
@pytest.mark.parametrize("name", [None, ":memory:"])
def test_enqueue_in_works_in_a_test_database_in_memory(manage: Manage, label: str, name: str | None) -> None:
    database = None if name is None else sqlite(name)
    assert "Ran 1 test" in succeed(partial(manage, database=database), "test", label)


def test_other_calls_refuse_a_database_in_memory(manage: Manage) -> None:
    done = manage("stowhand", "worker", "--once", database=sqlite(":memory:"))
    assert "a database in memory can be used only by its own connections" in done.stderr
    assert done.returncode != 0


def test_the_migration_is_undone_when_no_job_waits(tmp_path: Path) -> None:
    run = project(tmp_path)
    succeed(run, "migrate")
    succeed(run, "shell", "-c", "from shop.signing_up import sign_up; sign_up('ann')")
    refused = run("migrate", "stowhand", "zero")
    assert "1 jobs are not finished in DATABASES['default']" in refused.stderr
    assert "stowhand_jobs" in succeed(run, "shell", "-c", TABLES)
    succeed(run, "stowhand", "worker", "--once")
    succeed(run, "migrate", "stowhand", "zero")
    assert succeed(run, "shell", "-c", TABLES).splitlines()[-1] == "[]"


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
