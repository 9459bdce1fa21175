"""The twelve needs of docs/explanation/compared-with-others.md are one program, which asserts what it shows."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowhand import App
from stowhand.testing import Jobs
from tests.conftest import Run
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "explanation" / "compared-with-others.md").read_text()
BLOCKS = re.findall(r"^\*\*([\w ]+)\*\*[^`]*?(?:`[^`\n]+`[^`]*?)*```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PEERS = ("Celery", "Dramatiq", "RQ", "procrastinate", "pgqueuer", "Oban-py", "DBOS")


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the first block, in a folder with the rows of an application."""
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as connection:
        connection.execute("CREATE TABLE users (email TEXT)")
    names: dict[str, Any] = {"__name__": "shop"}
    exec(BLOCKS[0][1], names)
    return names


@pytest.fixture
def stowhand_app(names: dict[str, Any]) -> Iterator[App]:
    app: App = names["app"]
    yield app
    app.sync.close()


def test_there_are_twelve_needs_of_at_most_ten_lines() -> None:
    assert len(BLOCKS) == PAGE.count("```python") == 12
    assert max(len(code.splitlines()) for _, code in BLOCKS) <= 10


def test_the_program_runs_on_a_file(names: dict[str, Any], run: Run) -> None:
    app: App = names["app"]

    async def program() -> None:
        await app.open(install=True)
        for need, code in BLOCKS[1:]:
            compiled = compile(code, need, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if (running := eval(compiled, names)) is not None:
                await running
        assert [job.task for job in await app.list()] == ["send", "fetch"], "charge waits, and fetch for its retry"
        await app.close()

    run(program())


def test_its_test_passes_in_virtual_time(names: dict[str, Any], jobs: Jobs) -> None:
    exec(dict(BLOCKS)["Test"], names)
    names["test_a_mail_is_sent_after_a_week"](jobs)


def test_the_readme_and_the_page_agree() -> None:
    readme, page = (table(text) for text in ((ROOT / "README.md").read_text(), PAGE))
    assert readme["keeps jobs in"][1:] == page["keeps jobs in"]
    for one, other in (("cron", "cron"), ("enqueue in your transaction", "in your transaction")):
        assert [cell.partition(",")[0] == "no" for cell in readme[one][1:]] == [cell == "no" for cell in page[other]]


def table(text: str) -> dict[str, list[str]]:
    """Rows of the table about the other libraries, by their first cell."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    start = next(at for at, cells in enumerate(lines) if cells[-7:] == list(PEERS))
    width = len(lines[start])
    return {cells[0]: cells[1:] for cells in lines[start:] if len(cells) == width}
