"""A job that is there if and only if the caller's psycopg transaction commits: blocking, asynchronous, from a trigger.

DATABASE_URL=postgresql:///shop python examples/enqueue_in_a_postgres_transaction.py
"""

from __future__ import annotations

import asyncio
import os

import psycopg

from stowhand import App

URL = os.environ["DATABASE_URL"]
app = App(URL)

TABLE_AND_TRIGGER = """
create table if not exists orders (id bigint generated always as identity primary key, item text);

create or replace function confirm_order() returns trigger language plpgsql as $$
begin
  perform stowhand.add_job('confirm', json_build_object('order', new.id));
  return new;
end $$;

create or replace trigger order_placed after insert on orders for each row execute function confirm_order();
"""


@app.task
async def confirm(order: int) -> str:
    return f"confirmed {order}"


@app.task
async def invoice(order: int) -> str:
    return f"invoiced {order}"


def place(connection: psycopg.Connection, item: str) -> int:
    """The trigger enqueues ``confirm``; this enqueues ``invoice``. Both belong to the caller's transaction."""
    row = connection.execute("insert into orders (item) values (%s) returning id", [item]).fetchone()
    assert row is not None
    order: int = row[0]
    invoice.enqueue_in(connection, order)
    return order


async def place_async(connection: psycopg.AsyncConnection, item: str) -> int:
    cursor = await connection.execute("insert into orders (item) values (%s) returning id", [item])
    row = await cursor.fetchone()
    assert row is not None
    order: int = row[0]
    await invoice.enqueue_in(connection, order)
    return order


async def work() -> None:
    async with app:
        await app.worker(once=True).run()
        for job_id in range(1, 20):
            job = await app.get(job_id)
            if job is not None:
                print(job.state, job.result)


async def main() -> None:
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        print("order", await place_async(connection, "lamp"))  # commits at the end of the block
    await work()


if __name__ == "__main__":
    app.sync.install()
    with psycopg.connect(URL) as connection:
        connection.execute(TABLE_AND_TRIGGER)
    with psycopg.connect(URL) as connection:
        print("order", place(connection, "book"))
    try:
        with psycopg.connect(URL) as connection:
            place(connection, "nothing")
            raise ValueError("an empty order")
    except ValueError as error:
        print("rolled back:", error)
    app.sync.close()
    asyncio.run(main())
