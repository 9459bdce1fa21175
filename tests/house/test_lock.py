"""House rule: the lock is complete and names no place; no file names a registry or a developer's machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import ROOT

LOCKS = {
    "requirements.lock": {"hatchling", "editables", "psycopg", "psycopg-binary", "click", "msgspec"},
    "requirements-django.lock": {"hatchling", "editables", "psycopg", "psycopg-binary", "django", "pytest"},
    "requirements-django-6.0.lock": {"django"},
    "requirements-django-5.2.lock": {"django", "asgiref", "sqlparse"},
}
"""What each of them must hold, among others."""
NOT_OURS = {".git", ".venv", ".venv-django", ".state", "node_modules", "build", "dist"}

# In pieces, so that this file does not match itself.
REGISTRIES = [
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "npm" + r"js\.(?:org|com)",
    "deb" + r"\.debian\.org",
]
MACHINE = (
    r"(?<![\w.)>}*/-])/(?:" + "|".join(["work", "tmp", "root", "home", "opt/py" + "pi", "opt/wheels"]) + r")\b(?![-=])"
)
PLACES = re.compile("|".join([*REGISTRIES, MACHINE]), re.IGNORECASE)


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_names_no_registry(lock: str) -> None:
    for line in (ROOT / lock).read_text().splitlines():
        assert "://" not in line, line
        assert " @ " not in line, line
        option = line.strip().startswith("-") and not line.strip().startswith("--hash=sha256:")
        assert not option, f"an option of pip in the lock: {line}"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_is_pinned_and_hashed(lock: str) -> None:
    entries = list(_entries(lock))
    assert len(entries) >= len(LOCKS[lock])
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[\w.]+ ", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_holds_what_installs_the_project(lock: str) -> None:
    assert LOCKS[lock] <= {entry.split("==")[0] for entry in _entries(lock)}


def test_no_file_names_a_registry_or_this_machine() -> None:
    rows = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in _files()
        for number, line in enumerate(_text(path).splitlines(), start=1)
        if (match := PLACES.search(line))
    ]
    assert not rows, "\n".join(rows)


def test_the_search_finds_what_it_looks_for() -> None:
    tmp, home = "/" + "tmp", "/" + "home"
    for bad in (f"cd {tmp}/x", f'"{home}/me"', f"path={tmp}", "https://py" + "pi.org/project/x"):
        assert PLACES.search(bad), bad
    for good in ("docs/home/x.md", "src/work/x", "ProtectHome=yes", f"{home}-page", "a/tmp", "/worker/7"):
        assert not PLACES.search(good), good


def test_npm_packages_are_pinned_and_hashed_and_name_no_registry() -> None:
    locks = sorted((ROOT / "tests" / "support" / "npm").glob("*/package-lock.json"))
    assert [lock.parent.name for lock in locks] == ["axe-core", "chromium"]
    for lock in locks:
        assert "://" not in lock.read_text()
        packages = json.loads(lock.read_text())["packages"]
        assert all(one["integrity"].startswith("sha512-") for name, one in packages.items() if name)


def _entries(lock: str) -> Iterator[str]:
    """One string per package: its pin, its markers and its hashes."""
    lines = [line for line in (ROOT / lock).read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    yield from joined.splitlines()


def _files() -> list[Path]:
    """What git tracks or would track; outside a clone (an unpacked archive), everything that is not made."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # In an unpacked archive inside another clone git would speak for that one.
    if listed.returncode == 0 and (ROOT / ".git").exists():
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return list(_walk())


def _walk() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.endswith("_cache")]
        yield from (Path(folder) / name for name in names if not name.endswith(".pyc"))


def _text(path: Path) -> str:
    """Empty for what is not a text, or has gone since it was listed."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""
