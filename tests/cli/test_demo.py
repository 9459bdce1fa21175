"""The demo does its work on whatever files a folder holds, and never touches anybody's queue."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from scripts.checksums import walk
from tests.cli.conftest import Stowhand

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo"


def demo(files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "checksums", files],
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parent)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def files(folder: Path) -> Path:
    """A folder of files with names that files really have."""
    files = folder / "files"
    files.mkdir()
    for name in ("a.py", "100%41.txt", "grün.md", "b.py", "c.py", "sentence. And a long one it is", "two\nlines.md"):
        (files / name).write_text("one\nthree\n")
    Path(os.fsdecode(os.fsencode(files) + b"/bad\xff.b\xfe")).write_text("not Unicode\n")
    os.mkfifo(files / "pipe")
    (files / "link").symlink_to(files / "a.py")
    return files


def test_the_demo_computes_every_checksum_once_whatever_a_file_is_called(files: Path) -> None:
    ended = demo(files)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "nothing lost, nothing doubled" in ended.stdout
    assert "jobs completed              6 of 6 files" in ended.stdout
    assert "failed first, then retried  3" in ended.stdout
    assert "was killed by SIGKILL" in ended.stdout


def test_an_existing_queue_is_not_changed(stowhand: Stowhand, folder: Path, files: Path) -> None:
    (folder / "stowhand.toml").write_text('connection = "sqlite:///precious.db"\n')
    assert stowhand("migrate").code == 0
    assert stowhand("enqueue", "precious").out == "1\n"
    before = jobs_in(folder / "precious.db")
    ended = demo(files)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ".state/demo/queue.db (the demo's own file)" in ended.stdout
    assert jobs_in(folder / "precious.db") == before


def jobs_in(file: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("select * from stowhand_live").fetchall()


def test_unprintable_names_and_special_files_are_skipped(files: Path) -> None:
    names = [path.name for path in walk(files)]
    assert names == ["100%41.txt", "a.py", "b.py", "c.py", "grün.md", "sentence. And a long one it is"]


def test_unreadable_files_are_skipped(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(walk(files))
    may = os.access  # root may read everything, so the system's answer is changed instead of the file's mode
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "a.py" and may(path, mode))
    assert list(walk(files)) == [path for path in before if path.name != "a.py"]


def test_relative_paths_start_at_the_callers_folder(folder: Path) -> None:
    clone = folder / "clone"
    (clone / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, clone / "scripts" / "demo")
    for tool in (clone / "scripts" / "setup", clone / ".venv" / "bin" / "python"):
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(f"#!{sys.executable}\nimport os, sys; print(os.getcwd(), *sys.argv[1:])\n")
        tool.chmod(0o755)

    def typed(*arguments: str) -> str:
        done = subprocess.run(
            [clone / "scripts" / "demo", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.splitlines()[-1]

    assert typed("tasks") == f"{folder} -m checksums --state {clone}/.state/demo tasks"
    assert typed() == f"{clone} -m checksums --state {clone}/.state/demo"
