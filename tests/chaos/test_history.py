"""The checker of histories: it reports a history that breaks a rule, and none that a store has written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from stowhand.jobs.job import NewJob, State
from stowhand.limits import Concurrency, Rate
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.stores.url import open_store
from tests.contract.backends import PostgresBackend, SqliteBackend
from tests.model.test_differential import live
from tests.support import history
from tests.support.databases import Databases
from tests.support.history import LIVE_ONLY, Change, Image, Step, StepChange, check_history, check_steps, check_waits
from tests.support.schema import install

NEW = Image(
    state=State.QUEUED,
    epoch=0,
    attempts=0,
    max_attempts=2,
    resets=0,
    max_resets=1,
    serial="s",
    key=None,
    cancel_requested=False,
    settled_token=None,
    started_at=None,
)
RUNNING = replace(NEW, state=State.PROCESSING, epoch=1, attempts=1, token="a", started_at="1")
ERRORED = replace(NEW, state=State.ERRORED, epoch=1, attempts=1, settled_token="a", started_at="1")
AGAIN = replace(ERRORED, state=State.PROCESSING, epoch=2, attempts=2, token="b", settled_token=None, started_at="2")
COMPLETED = replace(RUNNING, state=State.COMPLETED, token=None, settled_token="a")
CANCELED = replace(NEW, state=State.CANCELED)
FAILED = replace(ERRORED, state=State.FAILED)


def life(*images: Image | None, job: int = 1, start: int = 0) -> list[Change]:
    """The changes of a job that becomes each of these, one after the other, from nothing."""
    changes = []
    for n, (old, new) in enumerate(zip((None, *images), images, strict=False), start):
        transaction = f"{job}.{n}"
        is_past = [image is not None and image.state in (State.COMPLETED, State.CANCELED) for image in (old, new)]
        if is_past[0] is is_past[1] or old is None or new is None:
            changes.append(Change(2 * n, transaction, any(is_past), job, old, new))
        else:
            changes.append(Change(2 * n, transaction, is_past[0], job, old, None))
            changes.append(Change(2 * n + 1, transaction, is_past[1], job, None, new))
    return changes


def rules(changes: list[Change], **options: Any) -> list[str]:
    return [violation.rule for violation in check_history(changes, **options)]


def test_a_lawful_life_breaks_no_rule() -> None:
    assert rules(life(NEW, RUNNING, ERRORED, AGAIN, replace(COMPLETED, epoch=2, attempts=2, settled_token="b"))) == []
    assert rules(life(NEW, RUNNING, replace(NEW, epoch=2, resets=1, started_at="1"))) == [], "reset"
    assert rules(life(NEW, RUNNING, replace(NEW, epoch=1, started_at="1"))) == [], "released"
    assert rules(life(NEW, CANCELED)) == []
    assert rules(life(NEW, RUNNING, WAITING, replace(RUNNING, epoch=2, token="b", waits_for="time:sleep"))) == [], (
        "waits"
    )
    assert rules(life(NEW, RUNNING, FAILED, NEW_AGAIN, None), administered=True) == []
    assert rules(life(NEW, RUNNING, None), keeps_history=False) == []


WAITING = replace(NEW, epoch=1, started_at="1", settled_token="a", waits_for="time:sleep")
NEW_AGAIN = replace(FAILED, state=State.QUEUED, attempts=0)
UNLAWFUL = {
    "begins as completed": (life(COMPLETED), "transition"),
    "begins with an attempt": (life(replace(NEW, attempts=1)), "transition"),
    "completes without a claim": (life(NEW, replace(COMPLETED, epoch=0, attempts=0)), "transition"),
    "leaves its end": (life(NEW, RUNNING, COMPLETED, ERRORED), "transition"),
    "runs after its end": (life(NEW, RUNNING, FAILED, AGAIN), "transition"),
    "is revived by nobody": (life(NEW, RUNNING, FAILED, NEW_AGAIN), "transition"),
    "disappears while it waits": (life(NEW, None), "transition"),
    "disappears while it runs": (life(NEW, RUNNING, None), "transition"),
    "is claimed twice": (life(NEW, RUNNING, replace(RUNNING, token="b", epoch=2, attempts=2)), "transition"),
    "is settled under another token": (life(NEW, RUNNING, replace(COMPLETED, settled_token="b")), "transition"),
    "is settled by a release": (life(NEW, RUNNING, replace(NEW, epoch=1, attempts=1)), "transition"),
    "waits and counts its attempt": (life(NEW, RUNNING, replace(WAITING, attempts=1)), "transition"),
    "waits despite a cancellation": (
        life(NEW, RUNNING, replace(RUNNING, cancel_requested=True), WAITING),
        "transition",
    ),
    "is errored with no attempt left": (
        life(*(replace(one, max_attempts=1) for one in (NEW, RUNNING, ERRORED))),
        "transition",
    ),
    "is reset too often": (
        life(*(replace(one, max_resets=0) for one in (NEW, RUNNING, replace(NEW, epoch=2, resets=1)))),
        "transition",
    ),
    "is reset without a new epoch": (life(NEW, RUNNING, replace(NEW, epoch=1, resets=1)), "transition"),
    "waits again despite a cancellation": (
        life(NEW, RUNNING, replace(RUNNING, cancel_requested=True), ERRORED),
        "transition",
    ),
    "exceeds its attempts": (life(NEW, replace(RUNNING, attempts=3)), "attempts"),
    "claims at an old epoch": (life(NEW, RUNNING, ERRORED, replace(AGAIN, epoch=1)), "epoch"),
    "changes outside the log": ([*life(NEW), *life(NEW, RUNNING, ERRORED)[2:]], "continuity"),
    "is claimed under a used token": (life(NEW, RUNNING, ERRORED, replace(AGAIN, token="a")), "token"),
    "overlaps in its serial key": (
        [*life(NEW, RUNNING), *life(NEW, replace(RUNNING, token="b"), job=2, start=5)],
        "serial",
    ),
    "shares a slot of its limit": (
        [
            *life(NEW, replace(RUNNING, limit_name="l", limit_slot=1)),
            *life(NEW, replace(RUNNING, serial="t", token="b", limit_name="l", limit_slot=1), job=2, start=5),
        ],
        "limit",
    ),
    "shares a slot of its key": (
        [
            *life(NEW, replace(RUNNING, serial="l\tk", key_slot=2)),
            *life(NEW, replace(RUNNING, serial="l\tk", key_slot=2, token="b"), job=2, start=5),
        ],
        "key",
    ),
    "gets a serial key while it waits": (life(replace(NEW, serial=None), NEW), "transition"),
    "moves in two transactions": (
        [replace(one, transaction=str(one.n)) for one in life(NEW, RUNNING, COMPLETED)],
        "transition",
    ),
}


@pytest.mark.parametrize(("changes", "rule"), UNLAWFUL.values(), ids=UNLAWFUL)
def test_a_history_that_breaks_a_rule_is_reported(changes: list[Change], rule: str) -> None:
    assert rule in rules(changes)


KEYED = replace(NEW, serial="t\tk", task="t")
BEYOND = {
    "a slot above the limit": (Concurrency(1), replace(NEW, limit_name="t", limit_slot=2), "limit"),
    "no slot": (Concurrency(1), NEW, "limit"),
    "a slot above the limit of the key": (Concurrency(1, key="k"), replace(KEYED, key_slot=2), "key"),
    "no key": (Concurrency(1, key="k"), replace(NEW, key_slot=1), "key"),
}


PENDING, RECORDED, RECORDED_ANEW = Step(None, None), Step("1", None), Step("2", None)


def steps(*images: Step | None, name: str = "s", place: int = 0) -> list[StepChange]:
    """The changes of a step that becomes each of these, one after the other, from nothing."""
    return [StepChange(1, name, place, old, new) for old, new in zip((None, *images), images, strict=False)]


def family(*remaining: int, ended: int) -> list[StepChange]:
    """The changes of a step with children: its row with these counts, and a row for each ended child."""
    rows = steps(*(Step("{}", None, count) for count in remaining), place=-1)
    return rows + [change for place in range(ended) for change in steps(RECORDED, place=place)]


def test_a_lawful_workflow_breaks_no_rule() -> None:
    assert check_steps([*steps(RECORDED), *steps(PENDING, RECORDED, name="event"), *family(2, 1, 0, ended=2)]) == []
    assert check_steps(family(2, 1, ended=1)) == [], "one child has not ended"
    assert check_steps(family(2, 1, 0, 1, 0, ended=3)) == [], "a failed child is created anew"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (steps(RECORDED, RECORDED_ANEW), "step"),
        (steps(Step(None, "timed out"), RECORDED), "step"),
        (family(2, 1, 0, ended=1), "children"),
        (family(2, 1, ended=2), "children"),
        (family(1, -1, ended=2), "children"),
    ],
)
def test_a_workflow_that_breaks_a_rule_is_reported(changes: list[StepChange], rule: str) -> None:
    assert check_steps(changes)[0].rule == rule


EVENT = "insert into stowhand_events (name, job_id, payload, at) values ('e', 0, '1', 0)"
PENDING_WAIT = "insert into stowhand_steps (job_id, name, place, epoch, at) values (2, 'event:e', 0, 1, 0)"
COUNT = (
    "insert into stowhand_steps (job_id, name, place, value, remaining, epoch, at)"
    " values (2, 's', -1, '{{}}', {}, 1, 0)"
)
LOST = {
    "its time never comes": ("time:s", []),
    "its event was emitted": ("event:e", [EVENT, PENDING_WAIT]),
    "it has no such children": ("children:s", []),
    "its children have ended": ("children:s", [COUNT.format(0)]),
    "fewer children are left than it waits for": ("children:s", [COUNT.format(1)]),
}


@pytest.mark.parametrize("reason", LOST)
def test_a_job_that_nothing_wakes_is_reported(tmp_path: Path, reason: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    asyncio.run(_installed(url))
    claimed(url)
    waits_for, statements = LOST[reason]
    never = history.NEVER_MICROS
    ask(url, f"update stowhand_jobs set waits_for = '{waits_for}', run_at = {never} where id = 2")
    for statement in statements:
        ask(url, statement)
    assert [violation.reason for violation in check_waits(url)] == [f"it waits for {waits_for}, and {reason}"]


@pytest.mark.parametrize(("limit", "image", "rule"), BEYOND.values(), ids=BEYOND)
def test_a_job_that_runs_beyond_its_limit_is_reported(limit: Concurrency, image: Image, rule: str) -> None:
    running = replace(RUNNING, **{name: getattr(image, name) for name in ("serial", *LIVE_ONLY[2:])}, task="t")
    released = replace(NEW, epoch=1, started_at="1", task="t", serial=running.serial)
    changes = life(replace(NEW, task="t", serial=None), running, released)
    assert rules(changes, limits={"t": [limit]}) == [rule]
    assert rules(changes) == []


@pytest.mark.parametrize(("gap", "expected"), [(0.5, []), (0.49, ["rate"])])
def test_a_start_before_its_rate_allows_it_is_reported(gap: float, expected: list[str]) -> None:
    """The rate is of two jobs per second with a burst of two, so the third start waits for half a second."""
    changes: list[Change] = []
    for job, at in enumerate((100.0, 100.0, 100.0 + gap), 1):
        running = replace(RUNNING, serial=KEYED.serial, task="t", token=str(job), started_at=str(at), key_slot=job)
        changes += life(replace(KEYED, serial=None), running, job=job, start=5 * job)
    assert rules(changes, limits={"t": [Rate(2, per=1.0, burst=2, key="k")]}) == expected
    assert rules(changes, limits={"t": [Rate(2, per=1.0, burst=2, key="k")]}, clock_steps=[(25, 30)]) == []


def test_a_waiting_job_gets_the_key_of_its_limit() -> None:
    running = replace(RUNNING, serial=KEYED.serial, task="t", key_slot=1)
    assert rules(life(replace(KEYED, serial=None), KEYED, running)) == []
    assert rules(life(replace(KEYED, serial=None), KEYED, replace(KEYED, serial=None))) == []


# -- real stores --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres_setup() -> Any:
    def prepared(url: str) -> None:
        install(url)
        history.install(url)

    return prepared


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store whose transitions are logged."""
    if request.param == "postgres":
        server: Databases = request.getfixturevalue("postgres_server")
        with server.lend(request.getfixturevalue("postgres_setup")) as url:
            yield url
    else:
        url = f"sqlite:///{tmp_path}/jobs.db"
        asyncio.run(_installed(url))
        history.install(url)
        yield url


async def _installed(url: str) -> None:
    store = open_store(url)
    await store.schema.install()
    await store.close()


def claimed(url: str) -> list[Claim[Any]]:
    """Enqueue two jobs of one serial key and one without, and claim."""

    async def story() -> list[Claim[Any]]:
        store = open_store(url)
        await store.open()
        try:
            await store.jobs.enqueue_many(NewJob(task="t", serial=serial) for serial in ("s", "s", None))
            request = ClaimRequest(worker="w", token="00000000-0000-0000-0000-000000000001", limit=9, lease=30)
            return list(await store.claim(request))
        finally:
            await store.close()

    return asyncio.run(story())


def ask(url: str, statement: str) -> None:
    """Change rows behind the store's back, as a mutant of it would."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            assert file.execute(statement.replace("live", "stowhand_jobs")).rowcount
    else:
        with psycopg.connect(url) as connection:
            assert connection.execute(statement.replace("live", "stowhand.live").encode()).rowcount


def test_random_operations_break_no_rule(url: str, tmp_path: Path) -> None:
    """They include every call for people, and claims under used tokens, which stores do not refuse."""
    if url.startswith("sqlite"):
        asyncio.run(live([SqliteBackend(tmp_path / "jobs.db")], seed=3))
    else:
        place = PostgresBackend(url)
        asyncio.run(live([place], seed=3))
        place.close()
    changes = history.read_log(url)
    assert len(changes) > 50
    assert {str(found) for found in check_history(changes, administered=True) if found.rule != "token"} == set()


MUTANTS = {
    "settles without the token": "update live set state = 'queued', token = null, lease_until = null, worker = null"
    ", settled_token = '00000000-0000-0000-0000-000000000009' {lease} where id = 1",
    "takes a serial key that is held": "update live set state = 'processing', epoch = 1, attempts = 1, worker = 'w'"
    ", token = '00000000-0000-0000-0000-000000000009', lease_until = {later} {boot} where id = 2",
    "deletes a running job": "delete from live where id = 1",
    "loses a waiting job": "delete from live where id = 2",
    "sets the epoch back": "update live set epoch = 0 where id = 1",
}
EXPECTED = {"takes a serial key that is held": "serial"}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_store_that_breaks_a_rule_is_reported(url: str, mutant: str) -> None:
    assert {claim.record.id for claim in claimed(url)} == {1, 3}
    is_sqlite = url.startswith("sqlite")
    if is_sqlite:
        ask_schema(url, "drop index stowhand_jobs_key_slots")
    fillings = {
        "lease": ", lease_boot = null" if is_sqlite else "",
        "boot": ", lease_boot = 'b'" if is_sqlite else "",
        "later": "1" if is_sqlite else "now()",
    }
    ask(url, MUTANTS[mutant].format(**fillings))
    with pytest.raises(AssertionError, match=EXPECTED.get(mutant, "transition")):
        history.assert_lawful(url)


def ask_schema(url: str, statement: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute(statement)


def test_a_change_that_escapes_the_log_is_reported(url: str) -> None:
    claimed(url)
    if url.startswith("sqlite"):
        ask_schema(url, "drop trigger transition_log_live_update")
    else:
        with psycopg.connect(url) as connection:
            connection.execute("alter table stowhand.live disable trigger transition_log_update")
    ask(url, "update live set epoch = 7 where id = 2")
    with pytest.raises(AssertionError, match="log: job 2"):
        history.assert_lawful(url)
