"""Jobs that an application's trigger does not let be claimed: they stop no others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import StoreError
from stowhand.jobs.job import NewJob
from stowhand.stores.sqlite.queue import SqliteStore
from tests.stores.postgres.verbs import ask


def refuse(path: Path, which: str, action: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"create trigger refuse before update on stowhand_jobs when {which} and new.state = 'processing'"
            f" begin select raise({action}); end"
        )


@pytest.mark.parametrize(
    ("action", "why"), [("abort, 'not this one'", "not this one"), ("ignore", "a trigger keeps it unchanged")]
)
def test_the_others_are_claimed(path: Path, run: Any, action: str, why: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        warnings: list[str] = []
        store.notices.on_warning(lambda warning, fix: warnings.append(warning))
        bad, *good = await store.jobs.enqueue_many(NewJob(task="t", serial="q" if n == 5 else None) for n in range(6))
        refuse(path, f"new.id = {bad}", action)
        assert [each.lease.job_id for each in await store.claim(ask(1))] == good[:1]
        assert [each.lease.job_id for each in await store.claim(ask(9))] == good[1:]
        assert await store.claim(ask(9)) == []
        assert [f"job {bad} cannot be claimed: {why}" in warning for warning in warnings] == [True]
        await store.close()

    run(story())


def test_when_no_job_of_several_can_be_claimed_the_store_is_at_fault(path: Path, run: Any) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(3))
        refuse(path, "1", "abort, 'not this one'")
        with pytest.raises(StoreError, match="not this one"):
            await store.claim(ask(3))
        await store.close()

    run(story())
