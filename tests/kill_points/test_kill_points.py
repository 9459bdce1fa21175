"""Faults at the calls of small programs: a random sample, and proofs that a fault strikes where its name says."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.kill_points import runs
from tests.kill_points.points import ENGINES, MOMENTS, Fault, Moment
from tests.kill_points.watched import Points, Watched
from tests.kill_points.wire import Wire

SAMPLE_SECONDS = 13.0
"""With the start of a server at most 20."""


@pytest.mark.rare
@pytest.mark.timeout(120)
def test_a_random_fault_at_a_random_call_breaks_no_promise() -> None:
    seed = int(os.environ.get("KILL_POINTS_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"KILL_POINTS_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    with runs.places(ENGINES) as made:
        report = runs.run_sample(made, seed, SAMPLE_SECONDS)
    assert not report.failures, "\n\n".join([*report.failures, f"the sample: KILL_POINTS_SEED={seed}"])
    assert report.struck > 0


@pytest.mark.timeout(120)
def test_a_store_that_breaks_a_promise_after_a_fault_is_reported() -> None:
    """The mutant counts the attempt of a claim whose reply was lost."""
    fault = Fault("claim", "postgres", "claim/claim.1", "cut", "after")
    with runs.places(["postgres"]) as made:
        place = made["postgres"]
        assert isinstance(place, runs.PostgresPlace)
        sound = runs.run(place, "claim", fault)
        place.ask(
            "create or replace function stowhand.abandon(_token uuid, _keep boolean, _now timestamptz default null)"
            " returns boolean language sql as $$"
            " update stowhand.live set state = 'queued', token = null, worker = null, lease_until = null"
            " where token = _token; select true $$"
        )
        mutant = runs.run(place, "claim", fault)
    assert (sound.has_struck, sound.complaints) == (True, ())
    assert mutant.has_struck
    assert "no outcome, release or reset ends an attempt so" in mutant.complaints[0]


MUTANTS = {
    # Nobody is woken by an event.
    "event-after": ("drop trigger wake_waiting on stowhand.events", "and its event was emitted"),
    # The values of steps are lost.
    "steps-and-a-failure": (
        (
            "create or replace function stowhand.record_steps(_ids bigint[], _tokens uuid[], _names text[],"
            " _values text[], _errors text[], _now timestamptz default null) returns setof boolean language sql as"
            " $$ select true from unnest(_ids) $$"
        ),
        "was returned, and None is recorded",
    ),
    # An ended child is not counted.
    "map": (
        (
            "create or replace function stowhand.end_children(_ids bigint[], _values json[], _errors text[],"
            " _at timestamptz) returns void language sql as $$ $$"
        ),
        "nobody wakes them",
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_store_that_breaks_a_promise_of_workflows_is_reported(name: str) -> None:
    statement, complaint = MUTANTS[name]
    with runs.places(["postgres"]) as made:
        place = made["postgres"]
        assert isinstance(place, runs.PostgresPlace)
        sound = runs.run(place, f"workflow-{name}")
        place.ask(statement)
        mutant = runs.run(place, f"workflow-{name}")
    assert sound.complaints == ()
    assert complaint in "\n".join(mutant.complaints)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_request_to_postgres_is_lost_before_or_after_its_commit(postgres_url: str, moment: Moment) -> None:
    strikes: list[str] = []
    with psycopg.connect(postgres_url, autocommit=True) as direct:
        direct.execute("create table rows (n int)")
        fault = Fault("claim", "postgres", "other/insert.2", "cut", moment)
        with Wire(postgres_url, fault, lambda: strikes.append(moment)) as wire:
            with closing(psycopg.connect(wire.url, autocommit=True)) as connection:
                connection.execute("insert into rows values (%s)", [1])
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("insert into rows values (%s)", [2])
            assert wire.points == ["other/connect.1", "other/insert.1", "other/insert.2"]
        assert strikes == [moment]
        expected = [(1,)] if moment == "before" else [(1,), (2,)]
        assert direct.execute("select n from rows order by n").fetchall() == expected


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose commits are points."""
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None, factory=Watched)) as connection:
        connection.execute("create table rows (n)")
        yield connection


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_commit_to_sqlite_is_lost_before_or_after_it(
    watched: sqlite3.Connection, tmp_path: Path, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("claim", "sqlite", "insert.2", "cut", moment)
    monkeypatch.setattr(Watched, "points", Points(tmp_path / "points", fault), raising=False)
    for n in (1, 2):
        watched.execute("BEGIN IMMEDIATE")
        watched.execute("insert into rows values (?)", (n,))
        if n == 1:
            watched.execute("COMMIT")
        else:
            with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
                watched.execute("COMMIT")
    assert (tmp_path / "points").read_text() == "insert.1\ninsert.2\n"
    with closing(sqlite3.connect(tmp_path / "rows.db")) as other:
        expected = [(1,)] if moment == "before" else [(1,), (2,)]
        assert other.execute("select n from rows order by n").fetchall() == expected
