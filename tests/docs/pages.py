"""Pages as programs: the files a page shows are written, its commands are run, and what they print is compared.

    <!-- file: tasks/hello.py -->     the next fenced block is this file
    <!-- run -->                      the next fenced block is run: `$ command` lines, each followed by its output

All commands of a page run in one shell, in a folder of their own, so `export` and `cd` last as they would for a reader.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.support import subprocesses

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ADDRESS = "https://docs.example.com/stowhand"
"""Of the site that the tests build."""
CONTRIBUTING = DOCS / "contributing"
POSTGRES = "postgresql:///shop"
"""Stands in the pages for the database of the test."""
PLACE = "/srv/shop"
"""Stands in the pages for the folder that they are run in."""
_MARKED = re.compile(r"^<!-- (file: \S+|run) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPLIT = "@@@@"
_DIFFERS = (
    (re.compile(r"worker-[\w.-]+-\d+-[0-9a-f]{12}"), "WORKER"),
    (re.compile(r"\d+\.\d\dms|\b\d+ ms\b"), "TOOK"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"postgresql://\S+"), "DATABASE"),
    (re.compile(r"the schema, number \d+"), "the schema, number N"),
    (re.compile(r"\[100%\]"), ""),
    (re.compile(r"[ \t]+"), " "),
)


class Step(msgspec.Struct, frozen=True):
    """A command, and what it prints according to the page."""

    command: str
    output: str


def read_steps(page: Path) -> list[Step]:
    """The marked blocks of a page, in their order; a file is written by a command that prints nothing."""
    steps: list[Step] = []
    for mark, body in _MARKED.findall(page.read_text()):
        steps.extend(_steps(body) if mark == "run" else [_writing(mark.removeprefix("file: "), body)])
    return steps


def run_steps(steps: list[Step], folder: Path, database: str | None) -> Iterator[tuple[Step, str]]:
    """Run them; each with what it really printed, stderr included."""
    commands = "\n".join(f"{step.command}\necho {_SPLIT}" for step in steps)
    if database is not None:
        commands = commands.replace(POSTGRES, f"'{database}'")
    done = subprocess.run(
        ["bash"], input=commands, cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
    )  # fmt: skip
    printed = done.stdout.replace(str(folder), PLACE).split(f"{_SPLIT}\n")
    yield from zip(steps, printed, strict=False)


def environment() -> dict[str, str]:
    """This one, without what names a store, and with our programs first; a reader's pytest has no plugin but ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOWHAND_", "PG", "COLUMNS"))}
    kept.pop("DATABASE_URL", None)
    # Not resolved: a virtual environment's python is a link, and its programs lie beside the link.
    path = os.pathsep.join([subprocesses.programs(), str(Path(sys.executable).parent), kept["PATH"]])
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "stowhand.testing.plugin"}
    return kept | {"PATH": path, "NO_COLOR": "1"} | plugins


def alike(text: str) -> list[str]:
    """Lines without what differs from run to run, and without the widths of columns."""
    for pattern, name in _DIFFERS:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def _writing(name: str, text: str) -> Step:
    return Step(f"mkdir -p $(dirname {name}) && cat >{name} <<'{_SPLIT}'\n{text}{_SPLIT}", "")


def _steps(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Step(command, output)
