"""The pages about Django: their blocks make a project, and what they say of it is so."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.terminals import read_steps, reading
from tests.support import subprocesses
from tests.support.fork_server import FORKS_TOO
from tests.support.sources import ROOT
from tests.support.valkey import free_port

_BLOCK = re.compile(r"^```python\n# (\S[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_A_WORKER = "# A worker has been there.\n"
BEGUN = {
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "shop/__init__.py": "",
    "shop/urls.py": "urlpatterns = []\n",
    "shop/settings.py": """
SECRET_KEY = "of a page"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
""",
}
SETTINGS = """
INSTALLED_APPS += ["stowhand.django"]
TASKS = {"default": {"BACKEND": "stowhand.django.StowhandBackend"}}
"""


@pytest.mark.parametrize("page", ["use-it-from-django", "come-from-django-tasks"])
def test_code_on_pages_works(page: str, tmp_path: Path) -> None:
    files, sessions = dict(BEGUN), []
    for place, text in _BLOCK.findall((ROOT / "docs" / "how-to" / f"{page}.md").read_text()):
        if place == "manage.py shell":
            sessions.append(text)
        else:
            files[place] = files.get(place, "") + "\n\n" + text
    if "TASKS" not in files["shop/settings.py"]:
        files["shop/settings.py"] += SETTINGS
    for place, text in files.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    manage(tmp_path, "check", "--fail-level", "ERROR")
    manage(tmp_path, "migrate", "--run-syncdb")
    assert sessions
    assert all("assert " in session for session in sessions)
    a_worker = f"import subprocess\nsubprocess.run({worker()!r}, check=True)\n"
    manage(tmp_path, "shell", "--no-imports", "-c", "\n".join(sessions).replace(_A_WORKER, a_worker))
    if "shop/tests.py" in files:
        assert "Ran 1 test" in manage(tmp_path, "test", "shop")


def test_an_app_of_the_page_for_django_5_works_on_this_django(tmp_path: Path) -> None:
    apps = '\nINSTALLED_APPS += ["django.contrib.auth", "django.contrib.contenttypes"]\n'
    files = BEGUN | {"shop/settings.py": BEGUN["shop/settings.py"] + apps}
    for place, text in _BLOCK.findall((ROOT / "docs" / "how-to" / "use-it-from-django-5.md").read_text()):
        files[place] = files.get(place, "") + "\n\n" + text
    for place, text in files.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    assert "Ran 1 test" in manage(tmp_path, "test", "shop.tests.SigningUp")
    manage(tmp_path, "migrate")
    manage(tmp_path, "shell", "-c", "from shop.signing_up import sign_up; sign_up('ann')")
    assert "Completed task 1 (count_users)" in manage(tmp_path, "stowhand", "worker", "--once")


def test_the_quick_start_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the reloader of ``runserver``, whose child would stay when its parent is killed."""
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)  # the site of other tests
    port = str(free_port())
    with reading(tmp_path, {"8000": port, "manage.py runserver": f"manage.py runserver {port} --noreload"}) as reader:
        reader.run("django-admin startproject shop .")
        for step in read_steps((ROOT / "docs" / "tutorial" / "django.md").read_text()):
            reader.follow(step)


def worker() -> list[str]:
    return [sys.executable, "manage.py", "stowhand", "worker", "--once", "--log-level", "off"]


def manage(folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SITE_", "DJANGO_"))}
    environment.pop("DATABASE_URL", None)
    environment |= {FORKS_TOO: ""} if "shell" in words else {}
    ended = subprocesses.run(
        [sys.executable, "manage.py", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout) + str(ended.stderr)
