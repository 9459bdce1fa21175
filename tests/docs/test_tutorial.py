"""The tutorial: what it says happens, on a PostgreSQL, with processes and terminals of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, POSTGRES
from tests.docs.terminals import read_steps, reading
from tests.support.checkers import mypy
from tests.support.valkey import free_port

PAGE = (DOCS / "tutorial" / "index.md").read_text()
STEPS = list(read_steps(PAGE))
SOONER = {'"lamp": 1, "wardrobe": 10': '"lamp": 0.1, "wardrobe": 1.5', '"table": 1': '"table": 0.1'}
"""A reader needs the ten seconds, to type."""


def test_the_tutorial_works_as_printed(postgres_url: str, tmp_path: Path) -> None:
    web, dashboard = str(free_port()), str(free_port())
    ports = {"8000": web, "uvicorn web:web": f"uvicorn web:web --port {web}"}
    ports |= {"web --allow-actions": f"web --allow-actions --port {dashboard}"}
    with reading(tmp_path, {POSTGRES: postgres_url} | ports | SOONER) as reader:
        for step in STEPS:
            reader.follow(step)
        left_out = [line for line in reader.lines_left_out() if "WARNING" not in line]  # as of a busy machine
        assert "\n".join(left_out) == ""


def test_the_files_of_the_tutorial_are_typed(tmp_path: Path) -> None:
    for step in STEPS:
        if step.where.endswith(".py"):
            (tmp_path / step.where).write_text(step.text)
    assert mypy(list(tmp_path.glob("*.py"))) == ""


@pytest.mark.parametrize(
    "page",
    [
        "<!-- terminal: 1 -->\n```console\n$ echo one\ntwo\n```\n",
        "<!-- terminal: 1 -->\n```console\n$ echo one\n```\n",
    ],
)
def test_an_incorrect_line_is_noticed(page: str, tmp_path: Path) -> None:
    (step,) = read_steps(page)
    with reading(tmp_path, {}) as reader, pytest.raises(AssertionError, match=r"^\$ echo one"):
        reader.follow(step)
