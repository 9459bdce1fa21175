"""Prometheus' `promtool`: the one on PATH, else the one of Debian's package, taken out once into .state/promtool.

Neither root nor an installation is needed: apt downloads the package and checks its signature; one file of it is kept.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

INSTALLED = Path(__file__).parents[2] / ".state" / "promtool"
DOWNLOAD_SECONDS = 100.0
MEMBER = "./usr/bin/promtool"


@cache
def find_promtool() -> Path:
    """The program. Raises RuntimeError where it can neither be found nor downloaded."""
    on_path = shutil.which("promtool")
    if on_path is not None:
        return Path(on_path)
    INSTALLED.mkdir(parents=True, exist_ok=True)
    program = INSTALLED / "promtool"
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=INSTALLED) as folder:
                _extract(_download(Path(folder)), Path(folder)).rename(program)
    return program


def _download(folder: Path) -> Path:
    """Use the machine's lists of packages; where there are none, lists of our own."""
    if shutil.which("apt-get") is None:
        raise RuntimeError("promtool is not on PATH, and there is no apt-get to download it: install Prometheus' tools")
    lists, cache_folder = folder / "lists", folder / "cache"
    own = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache_folder}"]
    (lists / "partial").mkdir(parents=True)
    (cache_folder / "archives" / "partial").mkdir(parents=True)
    errors = ""
    for commands in ([["download", "prometheus"]], [[*own, "update"], [*own, "download", "prometheus"]]):
        done = [_run(["apt-get", "--quiet", *command], folder) for command in commands]
        packages = list(folder.glob("prometheus_*.deb"))
        if packages:
            return packages[0]
        errors += "".join(one.stderr for one in done)
    raise RuntimeError(
        f"promtool is not on PATH, and apt-get cannot download the package prometheus:\n{errors[-2000:]}"
    )


def _extract(package: Path, folder: Path) -> Path:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacked:
        subprocess.run(["tar", "-x", MEMBER], stdin=unpacked.stdout, cwd=folder, timeout=DOWNLOAD_SECONDS, check=True)
    return folder / MEMBER


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
