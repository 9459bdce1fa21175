"""The same random lives on the model, SQLite and PostgreSQL: after every step the rows must be the same.

A difference is a bug in one of them, or a question that SEMANTICS has not answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast

import psycopg
import pytest

from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.testing import FakeClock
from tests.conftest import Run
from tests.contract.backends import OVER, PostgresBackend, Secrets, SqliteBackend, payload_of
from tests.model.engine.store import ModelStore
from tests.model.operations import NO_ANSWER, Operations, Twin
from tests.stores.postgres.verbs import make_claims_patient
from tests.support.databases import Databases

Rows = list[dict[str, object]]

STEPS = 150
SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_store_behaves_like_the_model(
    seed: int, run: Run, tmp_path: Path, differential_database: PostgresBackend
) -> None:
    file = SqliteBackend(tmp_path / "jobs.db")
    file.install()
    differential_database.empty()
    run(live([ModelPlace(), file, differential_database], seed), timeout=100)


@pytest.mark.parametrize("seed", [1, 8])
def test_settlements_with_a_claim_behave_like_their_specification(
    seed: int, run: Run, differential_database: PostgresBackend
) -> None:
    differential_database.empty()
    run(live([ModelPlace(), differential_database], seed, chains=True), timeout=100)


@pytest.fixture(scope="module")
def differential_database(postgres_server: Databases) -> Any:
    url = postgres_server.create_database()
    place = PostgresBackend(url)
    place.install()
    with psycopg.connect(url, autocommit=True) as connection:
        make_claims_patient(connection)
    yield place
    place.close()
    postgres_server.drop_database(url)


class Place(Protocol):
    """A home of jobs that can be looked at."""

    name: str

    def store(self, options: StoreOptions) -> QueueStore:
        """A store on these jobs."""

    def secrets(self) -> dict[int, Secrets]:
        """What no store shows of its rows, by job."""

    def ticks(self, identifier: str) -> list[datetime]:
        """The ticks of a crontab item in the ledger, in order."""


class ModelPlace:
    """The specification as an example."""

    name = "model"

    def store(self, options: StoreOptions) -> QueueStore:
        self._model = ModelStore(options)
        return cast("QueueStore", self._model)

    def secrets(self) -> dict[int, Secrets]:
        return {
            row.id: (row.epoch, row.token, row.settled_token, None if row.state in OVER else row.loses_retries)
            for row in self._model.rows()
        }

    def ticks(self, identifier: str) -> list[datetime]:
        return self._model.timetable.ticks(identifier)


async def live(places: list[Place], seed: int, *, chains: bool = False) -> None:
    clock = FakeClock()
    options = StoreOptions(pinned=clock.now)
    operations = Operations(seed, clock, chains=chains)
    message: deque[str] = deque(maxlen=40)
    async with AsyncExitStack() as stack:
        twins = [await open_twin(place, options, stack) for place in places]
        for step in range(STEPS):
            words, do = operations.draw()
            message.append(f"{step}: {words}")
            answers: list[object] = []
            images: list[Rows] = []
            for place, twin in zip(places, twins, strict=True):
                tell = await do(twin)
                images.append(await look(place, twin))
                answers.append(tell())
            operations.born = len(twins[0].ids)
            life = f"seed {seed}\n" + "\n".join(message)
            expected = next((answer for answer in answers if answer != NO_ANSWER), NO_ANSWER)
            for twin, answer, image in zip(twins[1:], answers[1:], images[1:], strict=True):
                assert answer == expected, f"{twin.name} answers otherwise than {twins[0].name}\n{life}"
                assert image == images[0], (
                    f"{twin.name} differs from {twins[0].name}\n{life}\n{differing(images[0], image)}"
                )


async def open_twin(place: Place, options: StoreOptions, stack: AsyncExitStack) -> Twin:
    store = place.store(options)
    await store.open()
    stack.push_async_callback(store.close)
    heartbeats = store.heartbeats()
    stack.push_async_callback(heartbeats.close)
    return Twin(place.name, store, heartbeats)


async def look(place: Place, twin: Twin) -> Rows:
    """Every row, by the order of birth; and what the store says of all of them together."""
    jobs = await twin.store.inspect.list(JobFilter(states=tuple(State), limit=10_000))
    secrets = place.secrets()
    twin.learn([job.id for job in jobs])
    tried = [job for job in jobs if job.last_worker is not None or job.state is State.FAILED]
    tries = {job.id: list(await twin.store.jobs.tries(job.id)) for job in tried}
    rows = [
        {
            "born": twin.ordinals[job.id],
            **describe(job, twin.ordinals),
            "secrets": secrets[job.id],
            "tries": tries.get(job.id),
        }
        for job in jobs
    ]
    together: dict[str, object] = {
        "due": await twin.store.next_due(("a", "b")),
        "counts": await twin.store.inspect.counts(),
        "known": await twin.store.timetable.known_items(),
        "ticks": [place.ticks(name) for name in ("a", "b")],
    }
    return [*rows, together]


def describe(job: Job, ordinals: Mapping[int, int]) -> dict[str, object]:
    """A row without its id, in words that mean the same in every store."""
    skipped = ("id", "payload_text", "flags")
    row = {name: getattr(job, name) for name in Job.__struct_fields__ if name not in skipped}
    if job.state is not State.PROCESSING:
        # When an attempt began that has ended is a note for people; it may get lost on the way.
        del row["started_at"]
    payload = payload_of(job.payload_text)
    if isinstance(payload, dict) and "job_id" in payload:  # it tells of a failure
        payload = payload | {"job_id": ordinals[payload["job_id"]]}
    return row | {"payload": payload, "flags": set(job.flags)}


def differing(expected: Rows, found: Rows) -> str:
    """Every column in which two stores differ, one per line."""
    lines = [] if len(expected) == len(found) else [f"{len(expected) - 1} rows, {len(found) - 1} rows"]
    for row, other in zip(expected, found, strict=False):
        keys = [key for key in row if row[key] != other.get(key)]
        lines += [f"born {row.get('born')}: {key} is {other.get(key)!r}, not {row[key]!r}" for key in keys]
    return "\n".join(lines)
