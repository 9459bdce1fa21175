"""The examples of graphile-worker's README, rewritten under examples/readme, do what they say on a real PostgreSQL."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from stowhand import App
from stowhand.retry import resolve_backoff, wait
from tests.docs.pages import CONTRIBUTING, ROOT, environment
from tests.support.checkers import mypy
from tests.support.databases import Databases
from tests.support.servers import PostgresServer

TWINS = ROOT / "examples" / "readme"
QUIET_DAY = {"pool:listen:error", "pool:gracefulShutdown:error", "worker:getJob:error", "worker:fatalError"}
"""Events of a bad day: tests/runner/test_events.py has them."""
README_EVENTS = (
    "pool:create pool:listen:connecting pool:listen:success pool:listen:error pool:release pool:gracefulShutdown"
    " pool:gracefulShutdown:error worker:create worker:release worker:stop worker:getJob:start worker:getJob:error"
    " worker:getJob:empty worker:fatalError job:start job:success job:error job:failed job:complete gracefulShutdown"
    " stop"
)


def ran(command: list[str], folder: Path, url: str, **more: str) -> str:
    """What it printed. It must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment() | {"DATABASE_URL": url} | more, text=True, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(name: str, folder: Path, url: str) -> list[str]:
    return ran(["python", "-W", "error", str(TWINS / f"{name}.py")], folder, url).splitlines()


def sql(name: str, url: str) -> None:
    ran(["psql", url, "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--file={TWINS / name}"], TWINS, url)


@pytest.fixture
def installed(postgres_url: str) -> str:
    app = App(postgres_url)
    app.sync.install()
    app.sync.close()
    return postgres_url


def jobs(url: str, columns: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"select {columns} from stowhand.jobs order by id".encode()).fetchall()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("runner", ["Hooray! Worker worker-1.1 completed job 1"]),
        (
            "worker_utils",
            ["1 calculate-life-meaning {'value': 42}", "2 one-after-another task_2 of the day customer:1"],
        ),
        (
            "log_factory",
            [
                "debug | received {'foo': 'bar'} | task_2 1 None | None",
                "info | half of it | task_2 1 None | {'percent': 50}",
                "warning | slowly | task_2 1 None | None",
                "error | given up | task_2 1 last | None",
            ],
        ),
        (
            "helpers_of_a_task",
            ["lent connection: 1", "query: 42 for {'of': 'the ultimate question'}", "attempt 1 of 25", "answer: 42"],
        ),
        (
            "keys",
            [
                "debounce: 1 {'count': 2} 12:05",
                "throttle: 3 {'count': 2} 12:00",
                "dedupe: 5 {'count': 1} 12:00",
                "removed: done",
                "again: missing",
            ],
        ),
        (
            "administration",
            [
                "completed: [1]",
                "failed: [(2, 'no such customer')]",
                "rescheduled: [(2, 5, 25, 5), (3, 5, 25, 5)]",
            ],
        ),
        ("crontabs", ["by a text 0 False", "parsed 0 False", "by items 0 False", "the file has 3 items"]),
        (
            "forbidden_flags",
            ["['customer 2']", "['customer 2']", "['customer 2']", "['customer 1', 'customer 2']"],
        ),
    ],
)
def test_a_program_prints_what_the_page_shows(name: str, says: list[str], tmp_path: Path, postgres_url: str) -> None:
    assert program(name, tmp_path, postgres_url) == says


def test_one_job_is_added_from_a_script(tmp_path: Path, installed: str) -> None:
    assert program("quick_add_job", tmp_path, installed) == ["added 1"]


def test_a_script_never_installs_the_schema(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(AssertionError, match="run `stowhand migrate`"):
        program("quick_add_job", tmp_path, postgres_url)


def test_the_quickstart_of_the_command_line_greets(tmp_path: Path, postgres_url: str) -> None:
    shutil.copytree(TWINS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "crontab").unlink()  # a worker would read it
    output = ran(["sh", "-c", "sh quickstart.sh 2>&1"], tmp_path, postgres_url)
    assert "Worker connected and looking for jobs... (task names: 'hello', 'task_1', 'task_2')" in output
    assert "INFO: Hello, Bobby Tables" in output
    assert "Completed task 1 (hello) with success (" in output


def test_the_command_line_has_every_option_of_the_readme(tmp_path: Path) -> None:
    shown = ran(["stowhand", "worker", "--help"], tmp_path, "")
    there = (
        "--help --version -c --connection -s --schema --schema-only --once -w --watch --crontab -j --jobs -m"
        " --max-pool-size --poll-interval --no-prepared-statements"
    )
    assert not [option for option in there.split() if not re.search(rf"(?<![\w-]){option}(?![\w-])", shown)]


def test_the_quickstart_of_the_library_greets_until_it_is_stopped(tmp_path: Path, postgres_url: str) -> None:
    process = subprocess.Popen(
        ["python", "-W", "error", str(TWINS / "quickstart.py")], cwd=tmp_path, text=True,
        env=environment() | {"DATABASE_URL": postgres_url}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:  # the deadline is the test's own
            lines.append(line)
            if "Completed" in line:
                break
        process.send_signal(signal.SIGTERM)
        lines += process.communicate(timeout=60)[1].splitlines()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, lines
    assert lines[0] == "[core] INFO: Worker connected and looking for jobs... (task names: 'hello')\n"
    assert lines[1].endswith(": hello{1})] INFO: Hello, Bobby Tables\n")
    assert "Completed task 1 (hello) with success (" in lines[2]


def test_every_event_of_the_readme_is_emitted(tmp_path: Path, postgres_url: str) -> None:
    first, last, *others = program("every_event", tmp_path, postgres_url)
    assert (first, last) == ("first: pool:create", "last: stop")
    assert others == [f"{name} {'not heard' if name in QUIET_DAY else 'heard'}" for name in README_EVENTS.split()]


def test_the_tasks_of_the_folder_take_a_payload_with_or_without_helpers(tmp_path: Path, installed: str) -> None:
    shutil.copytree(TWINS / "tasks", tmp_path / "tasks")
    for task in ("task_1", "task_2"):
        ran(["stowhand", "enqueue", task, '{"foo": "bar"}'], tmp_path, installed)
    output = ran(["sh", "-c", "stowhand worker --once 2>&1"], tmp_path, installed, STOWHAND_DEBUG="1")
    assert (tmp_path / "task_1.txt").read_text() == "{'foo': 'bar'}\n"
    assert 'DEBUG: Received {"foo": "bar"}' in output
    assert output.count("with success") == 2


def test_jobs_are_scheduled_from_sql(installed: str) -> None:
    sql("schedule.sql", installed)
    assert jobs(
        installed, "task_identifier, queue_name, max_attempts, round(extract(epoch from run_at - created_at), -1)"
    ) == [
        ("send_email", None, 25, 0),
        ("reminder", None, 25, 2 * 86400),
        ("later", "a serial", 3, 90),
    ]


def test_the_triggers_add_jobs(installed: str) -> None:
    sql("triggers.sql", installed)
    with psycopg.connect(installed) as connection:
        connection.execute(
            "insert into my_table values (1); insert into user_emails values (2, false), (3, true);"
            "insert into users values (4, 'a'); update users set name = 'b'; delete from users;"
            "insert into pdfs values (5, 'a'); update pdfs set title = 'a'; update pdfs set title = 'b'"
        )
    assert jobs(installed, "task_identifier, payload ->> 'id', payload ->> 'op'") == [
        ("my_task", "1", None),
        ("send_verification_email", "2", "INSERT"),
        ("user_changed", "4", "INSERT"),
        ("user_changed", "4", "UPDATE"),
        ("user_changed", "4", "DELETE"),
        ("generate_pdf", "5", "INSERT"),
        ("generate_pdf", "5", "UPDATE"),
    ]


def test_a_key_is_updated_and_removed_in_sql(installed: str) -> None:
    script = (TWINS / "keys.sql").read_text()
    added, _, removed = script.partition("-- And now none.")
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute(added.encode())
        assert jobs(installed, "task_identifier, payload, key, revision") == [("send_email", {"count": 2}, "abc", 1)]
        connection.execute(removed.encode())
    assert jobs(installed, "id") == []


def test_jobs_are_administered_in_sql(installed: str) -> None:
    with psycopg.connect(installed) as connection:
        connection.execute("select stowhand.add_job('work') from generate_series(1, 8)")
    complete, fail, reschedule = (TWINS / "administration.sql").read_text().split("\n\n")
    with psycopg.connect(installed, autocommit=True) as connection:
        assert [row[0] for row in connection.execute(fail.encode())] == [7]
        assert jobs(installed, "id, state, attempts, last_error")[6] == (7, "failed", 25, "the reason")
        assert [row[0] for row in connection.execute(reschedule.encode())] == [7]
        assert jobs(installed, "id, state, attempts, priority")[6] == (7, "queued", 5, 5)
        assert [row[0] for row in connection.execute(complete.encode())] == [7]
    assert (7,) not in jobs(installed, "id")


def test_the_crontab_can_be_checked(tmp_path: Path, postgres_url: str) -> None:
    lines = ran(
        ["stowhand", "cron", "check", str(TWINS / "crontab"), "--from", "2026-03-27T00:00:00Z"], tmp_path, postgres_url
    ).splitlines()
    items = [line.partition(": ")[2] for line in lines if not line.startswith(" ")]
    assert items == [
        "30 4 * * 1 send_weekly_email",
        '30 4 * * 1 send_weekly_email ?id=onboarding&fill=2d&max=10 {"onboarding":false}',
        "0 */4 * * * rollup",
    ]
    assert lines[1].split() == ["2026-03-30", "04:30:00Z", "Mon", "04:30", "UTC"]


def test_the_table_of_delays_is_the_backoff_of_a_worker(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute((TWINS / "backoff.sql").read_bytes()).fetchall()
    assert [round(delay.total_seconds(), 5) for _, delay, _ in rows] == [
        round(wait(resolve_backoff("natural"), attempt, None), 5) for attempt in range(1, 25)
    ]
    assert str(rows[-1][2]).startswith("3 days, 23:20:14")


def test_the_queue_is_uninstalled_by_one_statement(installed: str) -> None:
    sql("uninstall.sql", installed)
    with psycopg.connect(installed) as connection:
        left = connection.execute("select 1 from pg_namespace where nspname = 'stowhand'").fetchone()
    assert left is None


def test_a_missing_schema_leaves_no_error_in_the_servers_log(
    tmp_path: Path, postgres_url: str, postgres_server: Databases
) -> None:
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("somebody else's server keeps its log to itself")
    before = len(postgres_server.log())
    shutil.copytree(TWINS / "tasks", tmp_path / "tasks")
    ran(["stowhand", "worker", "--once"], tmp_path, postgres_url)
    errors = [line for line in postgres_server.log()[before:].splitlines() if "ERROR" in line]
    assert errors == []


def test_a_strict_type_checker_accepts_the_programs() -> None:
    assert mypy(list(TWINS.glob("*.py"))) == ""


def test_every_twin_is_on_the_page_of_graphile_worker() -> None:
    page = (CONTRIBUTING / "graphile-worker.md").read_text()
    files = [file.relative_to(TWINS).as_posix() for file in TWINS.rglob("*.*") if "__pycache__" not in file.parts]
    assert len(files) > 15
    assert not [file for file in (*files, "crontab") if f"`{file}`" not in page]
