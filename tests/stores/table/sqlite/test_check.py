"""What is wrong with a table is found, with DDL that fixes it; what cannot be served is refused, and not touched."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.jobs.conditions import sql
from stowhand.protocols.attempt import Attempt
from stowhand.stores.table.backend import Finding
from tests.conftest import Run
from tests.stores.table.sqlite.application import TABLE, Application, claimed

Made = Callable[..., Application]
PLAIN = re.sub(r"CREATE INDEX.*", "", TABLE.format(moment="TEXT"))


def check(app: Application, run: Run, **options: Any) -> list[Finding]:
    table = app.table(**options)
    return list(run(table.check()))


def mappings(found: Sequence[Finding]) -> dict[str, str]:
    """The columns that a check says to map."""
    return dict(re.findall(r"\(--column (\w+)=(\w+)\)", "\n".join(finding.problem for finding in found)))


def altered(column: str, line: str) -> str:
    """The table with this line for that column."""
    return re.sub(rf"^    {column} .*$", f"    {line}", PLAIN, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        (altered("process_after", ""), "no column process_after"),
        (altered("num_resets", "num_reset INTEGER,"), "no column num_resets"),
        (altered("worker_hostname", ""), "no column worker_hostname"),
        (altered("state", "state INTEGER,"), "column state is INTEGER: it must keep text"),
        (altered("failure_message", "failure_message REAL,"), "failure_message is REAL"),
        (altered("num_failures", "num_failures TEXT NOT NULL DEFAULT '0',"), "num_failures is TEXT: it must keep"),
        (altered("finished_at", "finished_at TEXT NOT NULL DEFAULT '',"), "finished_at is NOT NULL; a worker"),
        (altered("execution_logs", "execution_logs TEXT NOT NULL DEFAULT '[]',"), "execution_logs is NOT NULL"),
        (altered("started_at", "started_at TEXT AS (queued_at),"), "started_at computes itself"),
        (altered("id", "id INTEGER,"), "id has no unique index"),
        (altered("state", "state TEXT DEFAULT 'queued' CHECK (state IN ('queued', 'processing', 'completed')),"),
            "a CHECK of uploads refuses a record that is errored, failed, canceled"),
        ("CREATE TABLE other (n)", "there is no table uploads"),
    ],
)  # fmt: skip
def test_each_trouble_is_found_and_its_ddl_mends_it(made: Made, run: Run, ddl: str, problem: str) -> None:
    app = made(ddl)
    result = check(app, run)
    messages = [finding for finding in result if problem in finding.problem]
    assert messages, result
    columns: dict[str, str] = {}
    for _ in range(2):  # the second check knows the columns that the first one says to map
        for finding in check(app, run, alternate_column_names=columns):
            app.raw.executescript(finding.fix)
            columns |= mappings([finding])
            assert "DROP" not in finding.fix
    assert check(app, run, alternate_column_names=columns) == []
    if "CREATE TABLE other" not in ddl:
        app.sql("INSERT INTO uploads (path) VALUES ('x')") if "id has no" not in problem else app.add(id=7)
        assert run(_claim_one(app, alternate_column_names=columns)) == app.sql("SELECT id FROM uploads")[0][0]


def test_a_table_that_gets_a_state_had_rows_before_which_do_not_begin_to_run(made: Made, run: Run) -> None:
    app = made(
        "CREATE TABLE uploads (id INTEGER PRIMARY KEY, path TEXT); INSERT INTO uploads (path) VALUES ('x'), ('y')"
    )
    app.raw.executescript("\n".join(finding.fix for finding in check(app, run)))
    app.sql("INSERT INTO uploads (path) VALUES ('z')")
    assert app.states() == ["completed", "completed", "queued"]
    assert run(_claim_one(app)) == 3


async def _claim_one(app: Application, **options: Any) -> Any:
    return (await claimed(await app.served(**options))).lease.job_id


@pytest.mark.parametrize(
    ("rule", "refused", "columns"),
    [
        ("state IN ('queued', 'processing', 'completed')", "errored, failed, canceled", ""),
        ("state <> 'canceled'", "canceled", ""),
        ("state <> 'odd'", "", ""),
        ("(state = 'processing') <= (started_at IS NOT NULL)", "", "state, started_at"),
        ("path LIKE '%.py' AND state = 'queued'", "", "state"),
        ("path LIKE '%.py'", "", ""),
    ],
)
def test_a_check_of_the_state_is_computed_and_others_are_left_to_the_owner(
    made: Made, run: Run, rule: str, refused: str, columns: str
) -> None:
    table = PLAIN.rstrip().removesuffix(");")
    app = made(f"{table}, CHECK ({rule}))")
    rows = [finding for finding in check(app, run) if "CHECK" in finding.problem]
    events = [(finding.problem.partition("that is ")[2].partition(";")[0], finding.fatal) for finding in rows]
    if columns:
        assert events == [("", False)]
        assert f"concerns {columns}, which a worker writes" in rows[0].problem
        return
    assert events == ([(refused, True)] if refused else [])
    if rows:
        mapped = mappings(rows)
        for finding in check(app, run, alternate_column_names=mapped):
            app.raw.executescript(finding.fix)
        again = check(app, run, alternate_column_names=mapped)
        assert not [finding for finding in again if finding.fatal]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"table_name": "uploda"}, "there is no table uploda"),
        ({"table_name": "app.uploads"}, "there is no table app.uploads"),
        ({"table_name": "shown"}, "shown is a view: its rows cannot be locked and updated; use the table"),
        ({"table_name": "words"}, "words is a virtual table"),
        ({"view_name": "nothing"}, "there is no view nothing"),
        ({"view_name": "keyless"}, "keyless does not show id"),
        ({"column_expressions": ["id", "sizes"]}, "sizes"),
        ({"order_by_expression": sql("nonsense(")}, "order_by_expression"),
        ({"alternate_column_names": {"cancel": "stop"}}, "no column stop \\(for cancel\\)"),
        ({"alternate_column_names": {"lease_token": "holder"}}, "no column holder"),
    ],
)
def test_what_the_options_say_is_compared_with_the_file(
    app: Application, run: Run, options: dict[str, Any], problem: str
) -> None:
    app.raw.executescript(
        "CREATE VIEW shown AS SELECT * FROM uploads; CREATE VIEW keyless AS SELECT size FROM uploads;"
        "CREATE VIRTUAL TABLE words USING fts5 (id, state)"
    )
    app.add()
    fatal = [finding for finding in check(app, run, **options) if finding.fatal]
    assert re.search(problem, "\n".join(finding.problem for finding in fatal)), fatal
    with pytest.raises(TableUnsuitable, match=problem):
        run(app.table(**options).open())
    assert app.states() == ["queued"]


@pytest.mark.parametrize(
    "ddl",
    [
        "DROP TABLE uploads; CREATE TABLE uploads (state TEXT CHECK (shop_knows(state)),",
        "CREATE TRIGGER told AFTER UPDATE ON uploads BEGIN SELECT shop_knows(NEW.state); END",
        "CREATE TRIGGER told AFTER UPDATE ON uploads BEGIN INSERT INTO gone VALUES (1); END",
    ],
)
def test_what_only_the_application_can_write_is_refused(app: Application, run: Run, ddl: str) -> None:
    app.raw.create_function("shop_knows", 1, bool, deterministic=True)
    app.raw.executescript(ddl if ddl.endswith("END") else ddl + altered("state", "").partition("(")[2])
    (found,) = [finding for finding in check(app, run) if finding.fatal]
    assert re.search("a worker's writes are not possible here: .*(shop_knows|main.gone)", found.problem)
    with pytest.raises(TableUnsuitable, match="writes are not possible"):
        run(app.table().open())


def test_unknown_states_are_reported_and_do_no_harm(app: Application, run: Run) -> None:
    for state in (None, "new", "new", "queued"):
        app.add(state=state)
    result = check(app, run)
    assert not any(finding.fatal for finding in result)
    message = "\n".join(finding.problem for finding in result)
    assert "2 records have the state 'new', unknown to workers" in message
    assert "1 record has no state (NULL)" in message


@pytest.mark.parametrize(("default", "said"), [("", "no default"), (" DEFAULT 'new'", "the default 'new'")])
def test_a_state_with_another_default_is_reported_and_kept(made: Made, run: Run, default: str, said: str) -> None:
    app = made(altered("state", f"state TEXT{default},"))
    (finding,) = [one for one in check(app, run) if "default" in one.problem]
    assert said in finding.problem
    assert (finding.fix, finding.fatal) == ("", False)


def test_transactional_handlers_are_refused(app: Application, run: Run) -> None:
    async def scenario() -> None:
        table = await app.served()
        with pytest.raises(ConfigurationError, match="transactional handlers need PostgreSQL"):
            await table.begin(Attempt.__new__(Attempt))

    run(scenario())
