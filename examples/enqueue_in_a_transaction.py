"""A job that is there if and only if the caller's own transaction commits. With psycopg it looks the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from stowhand import App

app = App("sqlite:///shop.db")


@app.task
def confirm(order: int) -> None:
    """Tell the customer."""


def place_order(connection: sqlite3.Connection, item: str) -> int:
    with connection:  # commits at the end, rolls back on an error
        cursor = connection.execute("insert into orders (item) values (?)", (item,))
        order = cursor.lastrowid or 0
        confirm.enqueue_in(connection, order)
        if item == "nothing":
            raise ValueError("an empty order")
    return order


def main() -> None:
    app.sync.install()
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("create table if not exists orders (id integer primary key, item text)")
        place_order(connection, "book")
        try:
            place_order(connection, "nothing")
        except ValueError as error:
            print(f"rolled back: {error}")
        (orders,) = connection.execute("select count(*) from orders").fetchone()
        print(f"{orders} order, and one job to confirm it")
    app.sync.close()


if __name__ == "__main__":
    main()
