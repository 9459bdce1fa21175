"""What tests say to a store, in fewer words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg

from stowhand.job import Job
from stowhand.store import Claim, ClaimRequest, Lease
from stowhand.stores.postgres import PostgresStore


def ask(limit: int = 1, **asked: Any) -> ClaimRequest:
    wanted: dict[str, Any] = {"worker": "w", "token": str(uuid.uuid4()), "limit": limit, "lease": 30.0}
    return ClaimRequest(**(wanted | asked))


async def claim(store: PostgresStore, limit: int = 1, **asked: Any) -> Sequence[Claim[Job]]:
    return await store.claim(ask(limit, **asked))


async def take(store: PostgresStore, **asked: Any) -> Lease:
    (got,) = await claim(store, **asked)
    return got.lease


def wait_for_a_waiter(connection: psycopg.Connection[Any]) -> None:
    """Until somebody in this database waits for a lock."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        row = connection.execute(
            "select exists (select from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database())"
        ).fetchone()
        if row == (True,):
            return
    raise AssertionError("nobody waits for a lock")
