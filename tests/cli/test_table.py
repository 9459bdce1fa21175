"""``stowhand table``: what it prints is SQL that runs, its numbers say how it ended, logs cannot drive a terminal."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Stowhand

FILE = "sqlite:///app.db"
PROGRAM = """\
from stowhand.table import TableOptions, TableStore

options = TableOptions(name="uploads", table_name="jobs", alternate_column_names={"state": "status"})
store = TableStore("sqlite:///app.db", options)
something = 5
"""


@pytest.fixture
def program(folder: Path) -> str:
    """A module of the application's, of a name that no other test imports."""
    name = f"app_{uuid.uuid4().hex[:8]}"
    (folder / f"{name}.py").write_text(PROGRAM)
    return name


def make(call: Stowhand, *arguments: object) -> None:
    """In the file app.db of the current folder."""
    printed = call("table", "ddl", "jobs", "--dialect", "sqlite", *arguments)
    assert printed.code == 0, printed.err
    run_sql(printed.out)


def run_sql(text: str) -> None:
    with closing(sqlite3.connect("app.db")) as connection:
        connection.executescript(text)


def run_statements(connection: psycopg.Connection, printed: str) -> None:
    """One after the other, as psql does it."""
    for statement in printed.split(";\n"):
        connection.execute(statement.encode())


def test_a_table_made_by_ddl_passes_check(call: Stowhand) -> None:
    make(call, "--view", "seen", "--column", "state=status", "--key", "uuid")
    flags = ["--table", "jobs", "--view", "seen", "--column", "state=status"]
    checked = call("table", "check", *flags, "-c", FILE)
    assert (checked.code, checked.out, checked.err) == (0, "", "A worker can serve it.\n")


def test_the_sql_of_check_fixes_the_table(call: Stowhand, postgres_url: str) -> None:
    printed = call("table", "ddl", "jobs", "--notify", "--view", "seen")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(printed.out.encode())
        connection.execute("alter table jobs alter failure_message set not null; drop index jobs_stalled")
        arguments = ["--table", "jobs", "--view", "seen", "-c", postgres_url]
        checked = call("table", "check", *arguments)
        assert checked.code == 1
        assert "-- FAIL: column failure_message is NOT NULL" in checked.out
        assert "(--column failure_message=job_failure_message)" in checked.out
        arguments += ["--column", "failure_message=job_failure_message"]
        checked = call("table", "check", *arguments)
        assert "-- advice: no index on (last_heartbeat_at)" in checked.out
        rows = call("table", "check", "--json", *arguments).rows()
        assert [row["fatal"] for row in rows] == [True, False]
        only = call("table", "check", "--sql", *arguments)
        assert only.out == "".join(f"{row['fix']}\n" for row in rows)
        run_statements(connection, checked.out)
    assert call("table", "check", *arguments).code == 0


def test_columns_are_mapped_as_check_suggests(call: Stowhand, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "create table orders (id int primary key, shop int, state int, started_at timestamptz not null"
            " default now()); insert into orders (id, shop, state) values (1, 1, 5), (2, 2, 6)"
        )
        arguments = ["--table", "orders", "-c", postgres_url]
        output = re.findall(r"\((--column) (\w+=\w+)\)", call("table", "check", *arguments).out)
        assert output == [("--column", "state=job_state"), ("--column", "started_at=job_started_at")]
        arguments += [word for pair in output for word in pair]
        run_statements(connection, call("table", "check", *arguments).out)
        again = call("table", "check", *arguments)
        assert (again.code, again.out) == (0, "")
        kept = "select id, shop, state, started_at is not null from orders order by shop"
        assert connection.execute(kept).fetchall() == [(1, 1, 5, True), (2, 2, 6, True)]
        assert connection.execute("select job_state from orders").fetchall() == [("completed",), ("completed",)]
        only = call("table", "check", "--sql", *arguments, "--column", "cancel=shop")
        assert (only.code, only.out) == (1, "")


def test_a_partitioned_table_is_checked_with_declared_unique_ids(call: Stowhand, postgres_url: str) -> None:
    printed = call("table", "ddl", "jobs", "--key", "text").out.replace(" PRIMARY KEY", " not null")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(printed.replace("\n);", ", day date default now()) partition by range (day);", 1).encode())
        arguments = ["--table", "jobs", "-c", postgres_url]
        refused = call("table", "check", *arguments)
        assert (refused.code, "set unique_ids=True, --unique-ids" in refused.out) == (1, True)
        declared = call("table", "check", "--unique-ids", *arguments)
        assert (declared.code, "no index begins with id; build it on each partition" in declared.out) == (0, True)


def test_advice_without_failures_is_code_0(call: Stowhand) -> None:
    make(call)
    run_sql("drop index jobs_stalled")
    checked = call("table", "check", "--table", "jobs", "-c", FILE)
    assert checked.code == 0
    assert checked.out.startswith("-- advice: ")
    assert "The rest is advice" in checked.err


def test_the_table_is_named_by_a_store_or_options_of_the_program(call: Stowhand, program: str) -> None:
    make(call, "--column", "state=status")
    assert call("table", "check", f"{program}:store").code == 0
    assert call("table", "check", program).code == 0
    assert call("table", "check", f"{program}:options", "-c", FILE).code == 0
    run_sql("alter table jobs rename status to state")
    assert call("table", "check", f"{program}:store").code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check"], "name the table"),
        (["check", "{}:store", "--table", "jobs"], "name the table"),
        (["check", "{}:store", "--column", "state=status"], "omit --view, --column and --unique-ids"),
        (["check", "{}:store", "-c", FILE], "already names its database"),
        (["check", "{}:something"], "an int, not a TableStore or TableOptions"),
        (["check", "{}:nothing"], "has no 'nothing'"),
        (["check", "{}:options"], "name the database"),
        (["check", "--table", "jobs"], "name the database"),
        (["check", "--table", "jobs; drop table jobs", "-c", FILE], "is SQL, not a name"),
        (["check", "--table", "jobs", "--column", "state", "-c", FILE], "write it with =, as in name=value"),
        (["check", "--table", "jobs", "--column", "stat=x", "-c", FILE], "did you mean 'state'?"),
        (["check", "--table", "jobs", "-c", "https://elsewhere"], "https"),
        (["ddl", "jobs; drop"], "is SQL, not a name"),
        (["ddl", "jobs", "--column", "state=a", "--column", "state=b"], "same column twice"),
        (["ddl", "jobs", "--column", "state=id"], "id"),
        (["ddl", "jobs", "--channel", "c"], "--channel needs --notify"),
        (["ddl", "jobs", "--notify", "--dialect", "sqlite"], "SQLite has no NOTIFY"),
        (["logs", "1"], "name the table"),
    ],
)
def test_an_invalid_table_is_code_2_with_the_reason(
    call: Stowhand, program: str, arguments: list[str], said: str
) -> None:
    ended = call("table", *(argument.format(program) for argument in arguments))
    assert ended.code == 2, ended.err
    assert said in ended.err
    assert ended.out == ""


def test_an_unreachable_database_is_code_3(call: Stowhand) -> None:
    for verb in (["check"], ["logs", "1"]):
        ended = call("table", *verb, "--table", "jobs", "-c", "postgresql://me:hunter2@127.0.0.1:1/none")
        assert ended.code == 3
        assert "hunter2" not in ended.err


LOG = [
    {
        "key": "step.\x1b[31mred",
        "command": ["git", "clone", "a b", "\x1b]0;title\x07"],
        "startTime": "2026-01-02T03:04:05+01:00",
        "exitCode": 128,
        "out": "cloning …\nfatal: \x1b[2Jno\r\n  such\n",
        "durationMs": 1234,
    },
    {"key": "now", "startTime": "2026-01-02T03:04:07Z"},
]


def test_logs_are_shown_by_entry_and_cannot_control_the_terminal(call: Stowhand) -> None:
    make(call)
    run_sql("insert into jobs (id) values (1), (2)")
    with closing(sqlite3.connect("app.db")) as connection, connection:
        connection.execute("update jobs set execution_logs = ? where id = 1", [json.dumps(LOG)])
    where = ["--table", "jobs", "-c", FILE]
    assert call("table", "logs", 1, *where).out.splitlines() == [
        r"  1  step.\x1b[31mred      2026-01-02 02:04:05Z  exit 128 in 1234 ms",
        r"     $ git clone 'a b' '\x1b]0;title\x07'",
        "     cloning …",
        r"     fatal: \x1b[2Jno",
        "       such",
        "",
        "  2  now                   2026-01-02 03:04:07Z  running",
    ]
    shown = call("table", "logs", "--json", 1, *where)
    assert shown.out.isascii()
    assert [row["number"] for row in shown.rows()] == [1, 2]
    assert shown.rows()[0]["exitCode"] == 128
    empty = call("table", "logs", 2, *where)
    assert (empty.code, empty.out, empty.err) == (0, "", "Nothing has been logged.\n")
    missing = call("table", "logs", 3, *where)
    assert (missing.code, missing.err) == (1, "error: there is no record 3\n")
    assert call("table", "logs", "x", *where).code == 2


def test_logs_are_found_by_keys_of_text_and_uuid(call: Stowhand, postgres_url: str) -> None:
    key = str(uuid.uuid4())
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name, kind, value in (("worded", "text", "17"), ("marked", "uuid", key)):
            connection.execute(call("table", "ddl", name, "--key", kind).out.encode())
            entry = json.dumps(LOG[1])
            connection.execute(
                f"insert into {name} (id, execution_logs) values (%s, array[%s]::json[])".encode(), [value, entry]
            )
            shown = call("table", "logs", value, "--table", name, "-c", postgres_url)
            assert shown.code == 0, shown.err
            assert "running" in shown.out


def test_a_table_that_cannot_be_served_is_refused_with_its_ddl(call: Stowhand) -> None:
    make(call)
    run_sql("drop index jobs_state_process_after; alter table jobs drop column process_after")
    ended = call("table", "logs", 1, "--table", "jobs", "-c", FILE)
    assert ended.code == 1
    assert "process_after" in ended.err
    assert "ALTER TABLE" in ended.err


def test_records_are_listed_shown_retried_and_canceled(call: Stowhand) -> None:
    make(call)
    run_sql(
        "insert into jobs (id, state, failure_message, num_failures) values (1, 'failed', 'no\x1b[2Jway\nmore', 2),"
        " (2, 'queued', null, 0), (3, 'completed', null, 0)"
    )
    where = ["--table", "jobs", "-c", FILE]
    listed = call("table", "list", *where)
    assert [line.split() for line in listed.out.splitlines()] == [
        ["ID", "STATE", "FAILURES", "RESETS", "DUE", "STARTED", "WORKER", "LAST", "ERROR"],
        ["1", "failed", "2", "0", "-", "-", "-", *listed.out.splitlines()[1].split()[7:]],
        ["2", "queued", "0", "0", "-", "-", "-", "-"],
    ]
    assert "\x1b" not in listed.out
    shown = call("table", "show", "1", "--json", *where).rows()
    assert [(row["id"], row["state"], row["num_failures"]) for row in shown] == [(1, "failed", 2)]
    assert "failure message" in call("table", "show", "1", *where).out
    retried = call("table", "retry", "1", "3", *where)
    assert (retried.code, retried.out.splitlines()[0]) == (1, "1: done")
    assert retried.out.splitlines()[1].startswith("3: refused (it is completed")
    canceled = call("table", "cancel", "1", "2", *where)
    assert (canceled.code, canceled.out) == (0, "1: done\n2: done\n")
    rows = call("table", "list", "--state", "canceled", "--json", *where).rows()
    assert [row["id"] for row in rows] == [1, 2]
    assert call("table", "list", *where).err == "No records.\n"
    assert call("table", "show", "9", *where).code == 1
    assert call("table", "list", "--state", "odd", *where).code == 2


def test_the_last_argument_names_the_programs_store(call: Stowhand, program: str) -> None:
    make(call, "--column", "state=status")
    run_sql("insert into jobs (id) values (7)")
    assert call("table", "cancel", "7", f"{program}:store").out == "7: done\n"
    assert call("table", "retry", "7", f"{program}:store").out == "7: done\n"
    refused = call("table", "retry", f"{program}:store")
    assert (refused.code, "ID... MODULE:NAME" in refused.err) == (2, True)
