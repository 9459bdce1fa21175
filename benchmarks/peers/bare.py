"""The least that an enqueue can be with our driver: one durable insert into a table with one index, its id returned."""

from __future__ import annotations

import asyncio
import sys

import probe
import psycopg

TABLE = """
    drop table if exists bare;
    create table bare (
        id bigint generated always as identity primary key, task text not null, payload jsonb not null,
        priority int not null default 0, run_at timestamptz not null default now(), attempts int not null default 0
    );
    create index on bare (priority, run_at, id)
"""
INSERT = "insert into bare (task, payload) values (%s, %s::text::jsonb) returning id"


async def main(verb: str, count: int) -> None:
    """The server is named by PGHOST and its kin."""
    async with await psycopg.AsyncConnection.connect(autocommit=True) as connection:
        if verb == "setup":
            await connection.execute(TABLE)
            return
        with probe.timed(count):
            for number in range(count):
                await (await connection.execute(INSERT, ("noop", f'{{"number":{number}}}'))).fetchone()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
