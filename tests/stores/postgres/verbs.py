"""What tests say to a store, in fewer words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.stores.postgres.queue import PostgresStore


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
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        row = connection.execute(
            "select exists (select from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database())"
        ).fetchone()
        if row == (True,):
            return
        time.sleep(0.002)
    raise AssertionError("nobody waits for a lock")


def make_claims_patient(connection: psycopg.Connection[Any]) -> bytes:
    """A claim is cut short after a quarter of a second, which a busy machine may take for any: from now on it goes on.

    Gives the statement that undoes it.
    """
    row = connection.execute("select pg_get_functiondef('stowhand.pick_heads'::regproc)").fetchone()
    assert row is not None
    source: str = row[0]
    assert "250 milliseconds" in source
    connection.execute(source.replace("250 milliseconds", "1 hour").encode())
    return source.encode()


def cut_off(connection: psycopg.Connection[Any], names: str) -> int:
    """End the connections of these names from the server's side; return when it has let go of them. Their number."""
    ended = [
        pid
        for (pid,) in connection.execute(
            "select pid from pg_stat_activity where application_name like %s and datname = current_database()"
            " and pg_terminate_backend(pid)",
            (names,),
        ).fetchall()
    ]
    wait_until_gone(connection, "pid = any(%s)", ended)
    return len(ended)


def wait_until_closed(connection: psycopg.Connection[Any]) -> None:
    """Until the server has let go of every connection of a store to this database; by then their reads are counted."""
    wait_until_gone(connection, "application_name like %s and datname = current_database()", "stowhand:%")


def wait_until_gone(connection: psycopg.Connection[Any], condition: str, value: object) -> None:
    deadline = time.monotonic() + 60
    while connection.execute(f"select from pg_stat_activity where {condition}".encode(), (value,)).fetchall():
        assert time.monotonic() < deadline, "they do not end"
        time.sleep(0.002)


async def maintain(store: PostgresStore) -> None:
    """As a worker does, now and then."""
    heartbeats = store.heartbeats()
    try:
        await heartbeats.maintain()
    finally:
        await heartbeats.close()
