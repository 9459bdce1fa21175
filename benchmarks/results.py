"""Results for the page about speed, with their machine, in benchmarks/results.json."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from benchmarks.report import Runs

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results.json"
REPORTED_PACKAGES = ("psycopg", "msgspec", "redis", "httpx", "uvicorn")
"""Packages whose versions matter."""


class Machine(msgspec.Struct, frozen=True):
    """Machine of a measurement. No field identifies a single machine."""

    processor: str
    cores: int
    memory: str
    system: str
    versions: dict[str, str]


class Measured(msgspec.Struct, frozen=True):
    """Measured part of the results."""

    command: str
    commit: str
    day: str
    seconds: int
    load: str
    """Of the machine, one minute's average: before and after."""
    machine: Machine
    figures: Runs


Results = dict[str, Measured]
"""By part."""


def read(file: Path = FILE) -> Results:
    """Read the results; empty if there is no file."""
    return msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else {}


def write(results: Results, file: Path = FILE) -> None:
    """Write figures with four digits, and a line for the runs of each contender."""
    short = {name: msgspec.structs.replace(part, figures=_shortened(part.figures)) for name, part in results.items()}
    text = msgspec.json.format(msgspec.json.encode(dict(sorted(short.items()))), indent=1).decode()
    runs_in_a_line = re.sub(r"\[[\s\d.,eE+-]*\]", lambda found: "".join(found[0].split()).replace(",", ", "), text)
    file.write_text(runs_in_a_line + "\n")


def this_machine(servers: dict[str, str]) -> Machine:
    """Return this machine. ``servers``: versions of servers and peers."""
    pretty = platform.freedesktop_os_release()["PRETTY_NAME"] if platform.system() == "Linux" else platform.platform()
    versions = (
        {"Python": platform.python_version()} | {name: metadata.version(name) for name in REPORTED_PACKAGES} | servers
    )
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory=f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        system=f"{pretty}, {platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        versions=versions,
    )


def commit() -> str:
    """Return the measured commit, followed by ``+`` if the sources differ from it."""
    known = _git("rev-parse", "--short=10", "HEAD")
    return known + "+" * bool(_git("status", "--porcelain", "src", "benchmarks/*.py")) if known else "unknown"


def figures(results: Results, parts: tuple[str, ...]) -> Runs:
    """Return the figures of these parts together."""
    return {measure: found for name in parts if name in results for measure, found in results[name].figures.items()}


def _shortened(figures: Runs) -> Runs:
    return {
        measure: {who: [float(f"{run:.4g}") for run in runs] for who, runs in found.items()}
        for measure, found in figures.items()
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
