"""What the pages print is what happens."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from stowhand import App
from tests.docs.pages import DOCS, POSTGRES, ROOT, alike, environment, read_steps, run_steps

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "<!-- run -->" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_commands_of_a_page_print_what_it_says(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    needs_database = POSTGRES in page.read_text()
    database = request.getfixturevalue("postgres_url") if needs_database else None
    steps = read_steps(page)
    ran = list(run_steps(steps, tmp_path, database))
    assert len(ran) == len(steps), "the shell ended early"
    for step, printed in ran:
        # Jobs run side by side: their log lines have no order of their own.
        assert in_order(alike(printed)) == in_order(alike(step.output)), f"$ {step.command}"


def in_order(lines: list[str]) -> list[str]:
    logged = iter(sorted(line for line in lines if line.startswith("[")))
    return [next(logged) if line.startswith("[") else line for line in lines]


def test_the_readmes_program_runs_as_printed(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    program = re.search(r"```python\n# (\w+\.py)\n(.*?)```", readme, re.DOTALL)
    session = re.search(r"```console\n(.*?)```", readme, re.DOTALL)
    assert program is not None
    assert session is not None
    (tmp_path / program[1]).write_text(program[2])
    commands = re.findall(r"^\$ (.*)$", session[1], re.MULTILINE)
    done = subprocess.run(
        ["bash", "-e"], input="\n".join(commands), cwd=tmp_path, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    messages = [line for line in session[1].splitlines() if not line.startswith("$ ")]
    printed = done.stdout.replace(str(tmp_path), "")
    for line in messages:
        assert re.sub(r"\(.*?\)", "()", alike(line)[0]) in [re.sub(r"\(.*?\)", "()", one) for one in alike(printed)], (
            f"the README says {line!r}, but this was printed:\n{printed}"
        )


def test_the_triggers_run_as_printed(postgres_url: str) -> None:
    page = (DOCS / "how-to" / "enqueue-from-a-trigger.md").read_text()
    trigger, one_for_all, rights = re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    app = App(postgres_url)
    app.sync.install()
    app.sync.close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table orders (id int); create table users (id int); create role web")
        for block in (trigger, one_for_all, rights):
            connection.execute(block.encode())
        connection.execute("insert into orders values (1); insert into users values (2); update users set id = 3")
        connection.execute("set local role web; select enqueue_confirmation(4); reset role")
        result = connection.execute("select task_identifier, payload from stowhand.jobs order by id").fetchall()
        connection.rollback()  # a role belongs to the whole server
    changed = {"schema": "public", "table": "users", "id": 2, "op": "INSERT"}
    assert result == [
        ("confirm", {"order": 1}),
        ("user_changed", changed),
        ("user_changed", changed | {"id": 3, "op": "UPDATE"}),
        ("confirm", {"order": 4}),
    ]


def test_every_python_block_can_be_compiled() -> None:
    for page in (*sorted(DOCS.rglob("*.md")), ROOT / "README.md"):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            # A block may show what stands inside an asynchronous function.
            indented = "".join(f"    {line}" for line in block.splitlines(keepends=True))
            compile(f"async def shown():\n{indented}", f"{page.relative_to(ROOT)}", "exec")


def test_an_incorrect_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("<!-- run -->\n```console\n$ echo one\ntwo\n```\n")
    ((step, printed),) = run_steps(read_steps(page), tmp_path, None)
    assert alike(printed) == ["one"] != alike(step.output)
