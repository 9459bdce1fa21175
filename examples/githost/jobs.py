"""The tasks of the host.

DATABASE_URL=postgresql:///githost stowhand worker jobs:app --preset service
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
from git import ABSENT, exists, new_commits, refs, size_kib

from stowhand import App, Context
from stowhand.errors import Poison

URL = os.environ.get("DATABASE_URL", "postgresql:///githost")
app = App(URL)


async def record_push(connection: psycopg.AsyncConnection[Any], repository: int, ref: str, old: str, new: str) -> None:
    """The event, the job and its notification, in the caller's transaction: all of them, or none."""
    cursor = await connection.execute(
        "INSERT INTO githost.push_events (repository, ref, old, new) VALUES (%s, %s, %s, %s) RETURNING id",
        [repository, ref, old, new],
    )
    row = await cursor.fetchone()
    assert row is not None
    await process_push.enqueue_in(connection, row[0])


@app.task(name="push:process", max_attempts=5)
async def process_push(ctx: Context, push: int) -> None:
    """Record what a push brought. However often it runs, and wherever it is killed, that happens once."""
    async with ctx.connection() as connection:
        cursor = await connection.execute(
            "SELECT repository, path, new, processed_at, array("
            "  SELECT DISTINCT ON (ref) new FROM githost.push_events AS other"
            "  WHERE other.repository = event.repository AND processed_at IS NOT NULL ORDER BY ref, id DESC)"
            " FROM githost.push_events AS event JOIN githost.repositories ON repositories.id = repository"
            " WHERE event.id = %s",
            [push],
        )
        row = await cursor.fetchone()
    if row is None:
        raise Poison(f"push {push} is gone, and its repository with it")
    repository, path, new, processed_at, known = row
    if processed_at is not None:
        return
    # Not from `old` but from all that has been processed: whichever of two pushes comes first, nothing is left out.
    # No transaction is open while git works.
    found = await new_commits(present(path), new, known)
    async with ctx.connection() as connection:
        cursor = await connection.execute(
            "UPDATE githost.push_events SET processed_at = now() WHERE id = %s AND processed_at IS NULL", [push]
        )
        if cursor.rowcount == 0:
            return  # another worker was quicker
        await connection.execute(
            "INSERT INTO githost.commits (repository, push_event, id, subject)"
            " SELECT %s, %s, * FROM unnest(%s::text[], %s::text[]) ON CONFLICT DO NOTHING",
            [repository, push, [commit for commit, _ in found], [subject for _, subject in found]],
        )
        # The last one wins: one waiting job for each repository, and never two that run.
        one = f"repo:size_recalc {repository}"
        await recalculate_size.options(key=one, serial=one).enqueue_in(connection, repository)


@app.task(name="repo:size_recalc", max_attempts=5)
async def recalculate_size(ctx: Context, repository: int) -> None:
    """Overwrite the size of a repository with what it is now."""
    async with ctx.connection() as connection:
        cursor = await connection.execute("SELECT path FROM githost.repositories WHERE id = %s", [repository])
        row = await cursor.fetchone()
    if row is None:
        raise Poison(f"repository {repository} is gone")
    size = await size_kib(present(row[0]))
    async with ctx.connection() as connection:
        await connection.execute("UPDATE githost.repositories SET size_kib = %s WHERE id = %s", [size, repository])


@app.task(name="push:sweep", cron="*/5 * * * *", max_attempts=5, key="push:sweep")
async def sweep(ctx: Context) -> None:
    """Record what no hook could: refs that are elsewhere than their last event says.

    A push whose hook is just about to write may be recorded twice. That does no harm.
    """
    async with ctx.connection() as connection:
        cursor = await connection.execute("SELECT id, path FROM githost.repositories ORDER BY id")
        repositories = await cursor.fetchall()
    for repository, path in repositories:
        if not exists(path):
            ctx.logger.warning(f"repository {repository}: there is no {path}")
            continue
        async with ctx.connection() as connection:
            for ref in await sweep_repository(connection, repository, path):
                ctx.logger.info(f"repository {repository}: {ref} had not been recorded")


async def sweep_repository(connection: psycopg.AsyncConnection[Any], repository: int, path: str) -> list[str]:
    """The refs of which a push has been recorded now, in the caller's transaction."""
    # One sweep at a time. Hooks and pushes do not wait for this lock.
    await connection.execute("SELECT FROM githost.repositories WHERE id = %s FOR NO KEY UPDATE", [repository])
    cursor = await connection.execute(
        "SELECT DISTINCT ON (ref) ref, new FROM githost.push_events WHERE repository = %s ORDER BY ref, id DESC",
        [repository],
    )
    recorded = dict(await cursor.fetchall())
    # Asked after the events: a push in between looks new, and is. The other way round it would look undone.
    there = await refs(path)
    moved = [ref for ref in sorted(recorded | there) if recorded.get(ref, ABSENT) != there.get(ref, ABSENT)]
    for ref in moved:
        await record_push(connection, repository, ref, recorded.get(ref, ABSENT), there.get(ref, ABSENT))
    return moved


@app.task(name="push:forget", cron="17 3 * * *", max_attempts=5, key="push:forget")
async def forget(ctx: Context, days: int = 14) -> None:
    """Forget pushes that were processed so long ago, but the last one of each ref: the others build upon it."""
    async with ctx.connection() as connection:
        cursor = await connection.execute(
            "DELETE FROM githost.push_events AS event WHERE processed_at < now() - %s * interval '1 day' AND EXISTS ("
            "  SELECT FROM githost.push_events AS later WHERE later.repository = event.repository"
            "  AND later.ref = event.ref AND later.id > event.id AND later.processed_at IS NOT NULL)",
            [days],
        )
    ctx.log(f"{cursor.rowcount} pushes forgotten")


def present(path: str) -> str:
    """The path of a repository. Raises Poison: its folder is gone, and no further attempt brings it back."""
    if not exists(path):
        raise Poison(f"there is no repository at {path}")
    return path
