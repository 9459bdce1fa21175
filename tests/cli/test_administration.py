"""``stowhand jobs complete | fail | reschedule | unlock``: the same words and answers on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.clock import wall_clock
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.url import open_store
from tests.cli.conftest import Stowhand
from tests.support.databases import Databases
from tests.support.emptying import empty


def install(url: str) -> None:
    async def installed() -> None:
        store = open_store(url)
        await store.schema.install()
        await store.close()

    asyncio.run(installed())


@pytest.fixture(scope="module")
def database(postgres_server: Databases) -> Iterator[str]:
    url = postgres_server.create_database()
    install(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store that the commands find when nothing names one; its schema installed, no job in it."""
    url = f"sqlite:///{folder}/stowhand.db"
    if request.param == "sqlite":
        install(url)
        return url
    url = str(request.getfixturevalue("database"))
    with psycopg.connect(url, autocommit=True) as connection:
        empty(connection)
    monkeypatch.setenv("DATABASE_URL", url)
    return url


@pytest.fixture
def serial(url: str, call: Stowhand) -> Stowhand:
    """Jobs 1, 2 and 3 wait."""
    assert url
    for number in (1, 2, 3):
        assert call("enqueue", "hello", "--key", f"k{number}", "--serial", f"q{number}").code == 0
    return call


@pytest.fixture
def claim(url: str) -> Callable[[], None]:
    """The next job is claimed by w1."""

    def claim() -> None:
        async def story() -> None:
            store = open_store(url)
            request = ClaimRequest(worker="w1", token=str(uuid.uuid4()), limit=1, lease=30.0)
            assert len(await store.claim(request)) == 1
            await store.close()

        asyncio.run(story())

    return claim


def shown(serial: Stowhand, job_id: int) -> dict[str, Any]:
    (row,) = serial("jobs", "show", job_id, "--json").rows()
    return row


def test_jobs_are_completed_and_refusals_have_a_reason(serial: Stowhand, claim: Callable[[], None]) -> None:
    claim()
    serial("jobs", "cancel", 3)
    ended = serial("jobs", "complete", 99, 2, 3, 1)
    assert ended.out.splitlines() == [
        "99: missing",
        "2: done (it is completed)",
        "3: refused (it is canceled already)",
        "1: refused (it is running, held by w1)",
    ]
    assert (ended.code, ended.err) == (1, "")
    assert [row["id"] for row in serial("jobs", "list", "--state", "completed", "--json").rows()] == [2]
    assert serial("jobs", "complete", 2).out == "2: refused (it is completed already)\n"


def test_without_a_history_a_completed_job_is_deleted_and_answered(
    serial: Stowhand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWHAND_HISTORY", "none")
    ended = serial("jobs", "complete", 1, 1, "--json")
    assert (ended.code, ended.rows()) == (0, [{"id": 1, "done": "done", "why": "it is completed"}] * 2)
    assert serial("jobs", "show", 1).code == 1


@pytest.mark.parametrize(
    ("options", "reason"), [([], "Manually marked as failed"), (["--reason", "no such customer"], "no such customer")]
)
def test_jobs_are_permanently_failed(serial: Stowhand, options: list[str], reason: str) -> None:
    ended = serial("jobs", "fail", 1, 2, *options)
    assert (ended.code, ended.out) == (0, "1: done (it is failed)\n2: done (it is failed)\n")
    assert {key: shown(serial, 1)[key] for key in ("state", "attempts", "last_error", "key")} == {
        "state": "failed",
        "attempts": 25,
        "last_error": reason,
        "key": "k1",
    }
    assert shown(serial, 3)["state"] == "queued"


def test_reschedule_changes_only_the_given_values(serial: Stowhand) -> None:
    before = shown(serial, 1)
    options = ["--run-at", "2031-02-03T04:05:06+01:00", "--priority", -5, "--attempts", 2, "--max-attempts", 7]
    options += ["--to-queue", "bulk"]
    ended = serial("jobs", "reschedule", 1, *options)
    assert (ended.code, ended.out) == (0, "1: done (it is queued)\n")
    changed = {"run_at": "2031-02-03T03:05:06Z", "priority": -5, "attempts": 2, "max_attempts": 7, "queue": "bulk"}
    assert shown(serial, 1) == before | changed | {"updated_at": shown(serial, 1)["updated_at"]}
    serial("jobs", "reschedule", 1, "--priority", 0)
    assert shown(serial, 1)["run_at"] == changed["run_at"]
    assert shown(serial, 1)["priority"] == 0


def test_a_failed_job_runs_again_with_its_attempts_restored(serial: Stowhand) -> None:
    serial("jobs", "fail", 1)
    assert serial("jobs", "fail", 1).out == "1: done (it had already failed; its error was replaced)\n"
    assert serial("jobs", "reschedule", 1, "--priority", 1).out == "1: done (it is failed)\n"
    assert serial("jobs", "reschedule", 1, "--attempts", 0).out == "1: done (it is queued)\n"
    assert serial("jobs", "reschedule", 1, "--attempts", 25).out == "1: done (it is failed)\n"


def test_a_delay_counts_from_now(serial: Stowhand) -> None:
    assert serial("jobs", "reschedule", 1, "--run-at", "+1h").code == 0
    run_at = datetime.fromisoformat(shown(serial, 1)["run_at"])
    assert timedelta(minutes=59) < run_at - wall_clock() < timedelta(minutes=61)
    assert run_at.tzinfo == UTC


def test_jobs_of_a_lost_worker_are_reset(serial: Stowhand, claim: Callable[[], None]) -> None:
    claim()
    claim()
    ended = serial("jobs", "unlock", "somebody", "w1", "--json")
    assert ended.rows() == [{"id": number, "done": "done", "why": "it is queued"} for number in (1, 2)]
    assert (ended.code, ended.err) == (0, "")
    assert {key: shown(serial, 1)[key] for key in ("state", "attempts", "resets", "worker")} == {
        "state": "queued",
        "attempts": 0,
        "resets": 1,
        "worker": None,
    }
    again = serial("jobs", "unlock", "w1")
    assert (again.code, again.out) == (1, "")
    assert "--state processing" in again.err


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["complete"], "ID"),
        (["complete", "x"], "'x'"),
        (["complete", 0], "0"),
        (["complete", 1, 2**63], "9223372036854775808"),
        (["fail"], "ID"),
        (["reschedule", 1], "--run-at, --priority, --attempts, --max-attempts or --to-queue"),
        (["reschedule", "--priority", 1], "ID"),
        (["reschedule", 1, "--run-at", "tomorrow"], "'tomorrow'"),
        (["reschedule", 1, "--run-at", "2031-02-03T04:05:06"], "time zone"),
        (["reschedule", 1, "--run-at", "+200000000h"], "a hundred years"),
        (["reschedule", 1, "--priority", 2**31], "2147483648"),
        (["reschedule", 1, "--priority", 1, "--attempts", -1], "attempts: -1"),
        (["reschedule", 1, "--priority", 1, "--max-attempts", 0], "max_attempts: 0"),
        (["unlock"], "WORKER"),
    ],
)
def test_an_invalid_value_is_a_usage_error_and_changes_nothing(
    serial: Stowhand, arguments: list[object], said: str
) -> None:
    before = serial("jobs", "list", "--json").out
    ended = serial("jobs", *arguments)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert serial("jobs", "list", "--json").out == before


@pytest.mark.parametrize("name", ["", "no such", "w\udc80", '{"w1"'])
def test_unlock_of_an_unknown_worker_resets_nothing(serial: Stowhand, name: str, claim: Callable[[], None]) -> None:
    claim()
    ended = serial("jobs", "unlock", name)
    assert (ended.code, ended.out) == (1, "")
    assert shown(serial, 1)["state"] == "processing"
