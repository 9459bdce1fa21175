"""Commands that are given an App: whose store, whose declarations, and what is said where somebody says otherwise."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.conftest import Stowhand, command
from tests.support import subprocesses

_numbers = itertools.count(1)
JOBS = """\
from stowhand import App

app = App({arguments})

@app.task(serial="bank", max_attempts=3, priority=7, key="one")
def charge(cents: int) -> None: ...
"""


BARE = """\
from stowhand import App

app = App({arguments})
"""


class Place:
    """A folder with one module that has an App; each test's module has a name of its own, for modules are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.module = folder, f"app_of_test_{next(_numbers)}"
        self.app = f"{self.module}:app"

    def write(self, arguments: str, text: str = JOBS) -> str:
        (self.folder / f"{self.module}.py").write_text(text.replace("{arguments}", arguments))
        return self.app


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.syspath_prepend(folder)
    return Place(folder)


def test_the_example_of_the_readme_works_with_the_store_of_the_app(place: Place, stowhand: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db'")
    migrated = stowhand("migrate", "--app", app)
    assert migrated.code == 0
    assert migrated.err == f"Store: sqlite:///{place.folder}/mine.db (the App of {app})\n"
    assert stowhand("enqueue", "charge", '{"cents": 5}', "--app", app).out == "1\n"
    worked = stowhand("worker", "--once", "--app", app)
    assert worked.code == 0, worked.err
    assert f"Store: sqlite:///{place.folder}/mine.db (the App of {app})" in worked.err
    assert "Completed task 1 (charge)" in worked.err
    assert sorted(file.name for file in place.folder.glob("*.db")) == ["mine.db"]


@pytest.mark.parametrize("command", [("jobs", "list"), ("stats",), ("serials", "list"), ("cron", "list"), ("doctor",)])
def test_every_command_with_an_app_uses_its_store(place: Place, call: Stowhand, command: tuple[str, ...]) -> None:
    app = place.write("'sqlite:///mine.db'")
    call("migrate", "--app", app)
    ended = call(*command, "--app", app)
    assert ended.code == 0, ended.err
    assert [file.name for file in place.folder.glob("*.db")] == ["mine.db"]
    if command == ("doctor",):
        assert f"sqlite:///{place.folder}/mine.db (the App of {app})" in ended.out


def test_a_settings_file_may_name_the_app_whose_store_wins(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db'")
    (place.folder / "stowhand.toml").write_text(f"app = '{app}'\nconnection = 'sqlite:///other.db'\n")
    assert call("migrate").code == 0
    looked = call("jobs", "list")
    assert "stowhand.toml: connection names sqlite:///other.db, which is not used" in looked.err
    assert [file.name for file in place.folder.glob("*.db")] == ["mine.db"]


def test_a_database_url_beside_the_store_of_an_app_is_reported(
    place: Place, call: Stowhand, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = place.write("'sqlite:///dev.db'")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2@db/shop")
    assert call("migrate", "--app", app).code == 0
    output = call("jobs", "list", "--app", app).err
    assert "DATABASE_URL names postgresql://me:***@db/shop, which is not used" in output


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_a_worker_with_another_store_than_its_app_names_both(place: Place, stowhand: Stowhand, way: str) -> None:
    app = place.write("'sqlite:///mine.db', schema='jobs'")
    environ = {"STOWHAND_CONNECTION": "sqlite:///other.db"} if way == "environment" else {}
    flags = ("-c", "sqlite:///other.db") if way == "flag" else ()
    worked = stowhand("worker", "--once", "--app", app, *flags, **environ)
    assert worked.code == 0, worked.err
    assert f"Store: sqlite:///{place.folder}/other.db" in worked.err
    assert f"overrides the store of the App of {app}, sqlite:///mine.db" in worked.err
    produced = place.folder / "produce.py"
    produced.write_text(f"from {place.module} import app\napp.sync.install()\napp.sync.close()\n")
    # The producer is a program of its own, under the same environment.
    subprocesses.run([sys.executable, str(produced)], cwd=place.folder, check=True, env={**os.environ, **environ})
    assert (place.folder / "mine.db").exists()


def test_a_flag_that_names_the_apps_file_is_the_apps_store(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db', history=None")
    own = f"sqlite:///{place.folder / 'mine.db'}"
    assert call("migrate", "--app", app, "-c", own).code == 0
    call("enqueue", "charge", '{"cents": 5}', "--app", app, "-c", own)
    worked = call("worker", "--once", "--app", app, "-c", own)
    assert "another store" not in worked.err
    assert call("jobs", "list", "--state", "completed", "-c", own).err == "No completed jobs.\n", (
        "the App keeps no history"
    )


def test_store_options_of_an_app_do_not_apply_to_another_store(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db', history=None")
    other = ("-c", "sqlite:///other.db", "--app", app)
    call("migrate", *other)
    call("enqueue", "charge", '{"cents": 5}', *other)
    call("worker", "--once", *other)
    assert [job["id"] for job in call("jobs", "list", "--state", "completed", "--json", *other).rows()] == [1]


def test_the_schema_of_an_app_is_installed_and_used(
    place: Place, call: Stowhand, stowhand: Stowhand, postgres_url: str
) -> None:
    app = place.write(f"'{postgres_url}', schema='mine'")
    assert call("migrate", "--app", app).code == 0
    assert call("enqueue", "charge", '{"cents": 5}', "--app", app).out == "1\n"
    assert "Completed task 1 (charge)" in stowhand("worker", "--once", "--app", app).err
    outdone = stowhand("worker", "--once", "--app", app, STOWHAND_SCHEMA="theirs")
    assert "STOWHAND_SCHEMA theirs overrides the schema of the App" in outdone.err


def test_a_pool_of_an_app_names_its_database(
    place: Place, call: Stowhand, stowhand: Stowhand, postgres_url: str
) -> None:
    pool = f"pool=AsyncConnectionPool('{postgres_url}', open=False)"
    app = place.write(pool, "from psycopg_pool import AsyncConnectionPool\n" + JOBS)
    assert call("migrate", "--app", app).code == 0
    assert call("enqueue", "charge", '{"cents": 5}', "--app", app).out == "1\n"
    assert "Completed task 1 (charge)" in stowhand("worker", "--once", "--app", app).err


def test_an_app_in_memory_is_used_by_one_process_only(place: Place, call: Stowhand) -> None:
    app = place.write("'memory://'")
    assert call("worker", "--once", "--app", app).code == 0
    assert "in the memory of one process" in call("worker", "--processes", 2, "--app", app).err
    assert "in the memory of another process" in call("jobs", "list", "--app", app).err
    assert "name it in an App" in call("jobs", "list", "-c", "memory://").err


# -- declarations --------------------------------------------------------------------------------


def test_options_of_a_task_apply_to_jobs_of_the_command_line(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db'")
    call("migrate", "--app", app)
    assert call("enqueue", "charge", '{"cents": 5}', "--app", app).code == 0
    options = ("--priority", 0, "--key", "b", "--serial", "q")
    assert call("enqueue", "charge", '{"cents": 6}', "--app", app, *options).code == 0
    first, second = call("jobs", "list", "--json", "--app", app).rows()
    assert [first[name] for name in ("serial", "max_attempts", "priority", "key")] == ["bank", 3, 7, "one"]
    assert [second[name] for name in ("serial", "max_attempts", "priority", "key")] == ["q", 3, 0, "b"]
    assert first["payload"] == {"cents": 5}


@pytest.mark.parametrize("payload", ['{"cents": "five"}', "{}", '{"cents": 5, "euros": 1}'])
def test_a_payload_that_does_not_fit_the_task_is_refused_on_the_command_line(
    place: Place, call: Stowhand, payload: str
) -> None:
    app = place.write("'sqlite:///mine.db'")
    call("migrate", "--app", app)
    ended = call("enqueue", "charge", payload, "--app", app)
    assert ended.code in (1, 2)
    assert "payload of task 'charge'" in ended.err
    assert call("jobs", "list", "--app", app).err == "No waiting, running or failed jobs.\n"


def test_options_of_a_task_apply_to_a_crontab_beside_the_app(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db'")
    call("migrate", "--app", app)
    (place.folder / "crontab").write_text("0 4 * * * charge ?priority=2 {cents:5}\n")
    ran = call("cron", "run", "charge", "--app", app, "--crontab", "crontab")
    assert ran.code == 0, ran.err
    (job,) = call("jobs", "list", "--json", "--app", app).rows()
    assert [job[name] for name in ("serial", "max_attempts", "priority", "key")] == ["bank", 3, 2, "one"]


def test_a_worker_refuses_a_crontab_whose_payload_does_not_fit_the_task(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db'")
    (place.folder / "crontab").write_text("0 4 * * * charge\n0 5 * * * charge ?id=b {cents:1.5}\n")
    ended = call("worker", "--once", "--app", app, "--crontab", "crontab")
    assert ended.code == 2
    assert "crontab line 1: payload of task 'charge': missing argument 'cents'" in ended.err
    assert "crontab line 2: payload of task 'charge'" in ended.err


# -- discovery -----------------------------------------------------------------------------------


def test_a_worker_imports_the_included_modules_of_an_app(place: Place, call: Stowhand) -> None:
    package = place.folder / f"{place.module}_tasks"
    (package / "mail").mkdir(parents=True)
    task = f"from {place.module} import app\n\n@app.task\ndef NAME() -> None: ...\n"
    named = {"__init__.py": "", "money.py": "charge", "mail/__init__.py": "send", "_own.py": "never"}
    for file, name in named.items():
        (package / file).write_text(task.replace("NAME", name) if name else "")
    app = place.write(f"'sqlite:///mine.db', include=['{package.name}.*']", BARE)
    worked = call("worker", "--once", "--app", app)
    assert worked.code == 0, worked.err
    assert "(task names: 'send', 'charge')" in worked.err
    assert call("enqueue", "charge", "--app", app).code == 0, "and commands know them"


def test_a_worker_without_tasks_of_the_user_is_an_error(place: Place, call: Stowhand) -> None:
    app = place.write("", BARE)
    for processes in (1, 2):
        ended = call("worker", "--once", "--app", app, "--processes", processes)
        assert ended.code == 2
        assert "this App declares no task" in ended.err
        assert "App(include=[" in ended.err
    assert call("worker", "--schema-only", "--app", app).code == 0


def test_a_worker_that_only_schedules_needs_no_task(place: Place, call: Stowhand) -> None:
    app = place.write("", BARE + "app.cron('0 4 * * *', 'elsewhere')\n")
    ended = call("worker", "--once", "--app", app)
    assert ended.code == 0, ended.err
    assert "this worker only schedules" in ended.err


def test_a_module_that_cannot_be_imported_is_named(place: Place, call: Stowhand) -> None:
    app = place.write("include=['no_such_module_here']")
    ended = call("worker", "--once", "--app", app)
    assert ended.code == 2
    assert "no module named 'no_such_module_here'" in ended.err


def test_a_watching_worker_waits_for_the_first_file_in_an_empty_folder(folder: Path) -> None:
    (folder / "tasks" / "hello.py").unlink()
    with subprocesses.Popen(command("worker", "--watch"), cwd=folder, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        try:
            assert any("No tasks yet in tasks: waiting" in line for line in until(worker.stderr, "looking for jobs"))
            (folder / "tasks" / "hello.py").write_text("def hello(payload, helpers): ...\n")
            assert "(task names: 'hello')" in until(worker.stderr, "Reloaded the tasks")[-1]
        finally:
            worker.terminate()
            worker.communicate(timeout=60)


def until(lines: Iterable[str], words: str) -> list[str]:
    """The lines up to the one that has these words."""
    read: list[str] = []
    for line in lines:
        read.append(line)
        if words in line:
            return read
    raise AssertionError(f"{words!r} was never said: {''.join(read)}")


PASSING = """\
import msgspec
from stowhand import App, Context

def marked(job):
    return msgspec.structs.replace(job, priority=job.priority + 1)

app = App({arguments}, on_enqueue=[marked])

@app.task(priority=10)
def charge(cents: int) -> None: ...

@app.task
async def begin(ctx: Context) -> None:
    ctx.enqueue_after(charge.new_job(5))

@app.task
async def ask(payload, helpers):
    await helpers.add_job("charge", {"cents": 6})

app.cron("0 4 * * *", charge, {"cents": 7}, identifier="nightly")
"""


def test_on_enqueue_of_an_app_applies_to_every_command(place: Place, call: Stowhand) -> None:
    app = place.write("'sqlite:///mine.db'", PASSING)
    call("migrate", "--app", app)
    assert call("enqueue", "charge", '{"cents": 4}', "--app", app).code == 0
    assert call("cron", "run", "nightly", "--app", app).code == 0
    for task in ("begin", "ask"):
        assert call("enqueue", task, "--app", app).code == 0
    assert call("worker", "--once", "--app", app).code == 0
    rows = call("jobs", "list", "--state", "completed", "--json", "--app", app).rows()
    priorities = {(row["task"], row["payload"].get("cents")): row["priority"] for row in rows}
    assert priorities == {("begin", None): 1, ("ask", None): 1} | {("charge", cents): 11 for cents in (4, 5, 6, 7)}
