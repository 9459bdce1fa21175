"""The tutorial about a workflow: what it says happens, on each database, although its worker is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.terminals import read_steps, reading
from tests.support.checkers import mypy

STEPS = list(read_steps((DOCS / "tutorial" / "order.md").read_text()))
SOONER = {"asyncio.sleep(10)": "asyncio.sleep(2)"}
"""A reader needs the ten seconds, to type."""


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_tutorial_works_as_printed(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    replacements = dict(SOONER)
    if engine == "postgres":
        replacements["sqlite:///shop.db"] = request.getfixturevalue("postgres_url")
    with reading(tmp_path, replacements) as reader:
        for step in STEPS:
            reader.follow(step)
        printed = [line.strip() for line in reader.lines_left_out()]
        assert not [line for line in printed if line.startswith(("charging", "packing", "mailing"))]


def test_the_files_of_the_tutorial_are_typed(tmp_path: Path) -> None:
    for step in STEPS:
        if step.where.endswith(".py"):
            (tmp_path / step.where).write_text(step.text)
    assert mypy(list(tmp_path.glob("*.py"))) == ""
