"""``stowhand migrate`` and ``stowhand doctor`` on a PostgreSQL schema: its settings, and what others have done."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Stowhand


@pytest.fixture
def url(postgres_url: str) -> str:
    """An empty database."""
    return postgres_url


def test_the_schema_keeps_the_default_number_of_attempts(call: Stowhand, url: str) -> None:
    assert call("migrate", "-c", url, "--default-attempts", 5).code == 0
    output = call("doctor", "-c", url)
    assert "5 for a job without a number from its call, task, preset or App" in output.out
    with psycopg.connect(url, autocommit=True) as connection:
        one = "select max_attempts from stowhand.add_job('a')"
        spec = "('b',null,null,null,null,null,null,null, null)::stowhand.job_spec"
        several = f"select max_attempts from stowhand.add_jobs(array[{spec}])"
        table = "insert into stowhand.live (task) values ('c') returning max_attempts"
        for statement in (one, several, table):
            assert connection.execute(statement.encode()).fetchone() == (5,), statement
        assert connection.execute("select max_attempts from stowhand.add_job('a', max_attempts := 7)").fetchone() == (
            7,
        )
        # An upgrade, and a fix, make the functions anew.
        connection.execute("drop function stowhand.remove(bigint)")
        assert "remove is missing: fixed" in call("migrate", "-c", url).out
        assert call("migrate", "-c", url).out.startswith("Nothing to do")
        assert connection.execute(one.encode()).fetchone() == (5,)
    assert call("migrate", "-c", url, "--default-attempts", 25).out.endswith("has 25 from now on (before: 5).\n")


def test_doctor_names_a_preset_that_sql_does_not_use(call: Stowhand, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call("migrate", "-c", url)
    assert "25 for a job without a number" in call("doctor", "-c", url).out
    monkeypatch.setenv("STOWHAND_PRESET", "service")
    difference = "warn  attempts    5 for a job that is enqueued with these settings, 25 for one that SQL adds"
    assert difference in call("doctor", "-c", url).out
    call("migrate", "-c", url, "--default-attempts", 5)
    assert "ok    attempts    5 for a job without a number" in call("doctor", "-c", url).out


def test_a_starting_worker_logs_the_defaults_that_sql_does_not_use(
    call: Stowhand, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWHAND_PRESET", "service")
    assert "25 for one that SQL adds" in call("worker", "-c", url, "--once").err
    call("migrate", "-c", url, "--default-attempts", 5)
    assert "SQL adds" not in call("worker", "-c", url, "--once").err


@pytest.mark.parametrize("number", [0, -1, 2**31])
def test_an_invalid_number_of_attempts_is_refused(call: Stowhand, url: str, number: int) -> None:
    refused = call("migrate", "-c", url, "--default-attempts", number)
    assert refused.code == 2
    assert "max_attempts" in refused.err
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regnamespace('stowhand')").fetchone() == (None,)


def test_sqlite_has_no_default_number_of_attempts_and_nothing_is_written(call: Stowhand, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    refused = call("migrate", "-c", f"sqlite:///{file}", "--default-attempts", 5)
    assert refused.code == 2
    assert "only a PostgreSQL schema stores a default number of attempts" in refused.err
    assert not refused.out
    assert not file.exists()


def test_doctor_reports_changes_by_other_programs_and_migrate_reverts_them(call: Stowhand, url: str) -> None:
    call("migrate", "-c", url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "create or replace function stowhand.wake() returns void language sql as 'select null::void'"
        )
    sick = call("doctor", "-c", url)
    assert sick.code == 1
    assert (
        "the function wake is not the one of this version: changed by another program; run stowhand migrate" in sick.out
    )
    assert "function wake is not the one of this version: fixed" in call("migrate", "-c", url).out
    assert call("doctor", "-c", url).code == 0
