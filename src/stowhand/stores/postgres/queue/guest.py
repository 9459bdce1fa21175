"""Enqueueing on a connection that is not ours, inside its owner's transaction; never committed here.

psycopg's connections run the store's own statement. All others call an SQL function that takes one text and gives one
(functions/enqueue.sql: enqueue_text): that much every driver and library can pass on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.callers.drivers import asyncpg_place
from stowhand.stores.callers.recognising import postgres_caller
from stowhand.stores.database import trouble
from stowhand.stores.database.timestamps import read_timestamps_as_utc
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.producing import call_of, refused
from stowhand.stores.postgres.queue.rows import read_job

_reader = msgspec.json.Decoder(Job)


class Guest:
    """Puts jobs into other people's transactions."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._function = f"{context.fillings['schema']}.enqueue_text"

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """In the transaction of this connection. Raises ConfigurationError where its owner could not commit it."""
        job = self._context.options.whole(job)
        if isinstance(connection, psycopg.Connection):
            self._check(connection)
            name, values = call_of(job, self._context.now())
            with self._errors_of(job), psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
                _prepare(cursor)
                cursor.execute(self._context.statements[name], values)
                return read_job(cursor.fetchall()[0])
        if isinstance(connection, psycopg.AsyncConnection):
            self._check(connection)
            return self._asynchronously(connection, job)
        with self._errors_of(job):
            given = postgres_caller(connection).ask(self._function, self._text(job), self._check_place)
            return _reader.decode(given) if isinstance(given, str) else self._answered(given, job)

    async def _asynchronously(self, connection: psycopg.AsyncConnection[Any], job: NewJob) -> Job:
        name, values = call_of(job, self._context.now())
        with self._errors_of(job):
            async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
                _prepare(cursor)
                await cursor.execute(self._context.statements[name], values)
                return read_job((await cursor.fetchall())[0])

    async def _answered(self, asked: Awaitable[str], job: NewJob) -> Job:
        with self._errors_of(job):
            return _reader.decode(await asked)

    def _text(self, job: NewJob) -> str:
        """The job as JSON; ``now``: the frozen time of a test."""
        given, now = limits.check_options(job), self._context.now()
        whole = given if now is None else msgspec.to_builtins(given) | {"now": now}
        return msgspec.json.encode(whole).decode()

    def _check(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        if connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE:
            raise ConfigurationError(
                "this connection of psycopg's is in autocommit and in no transaction, so that each statement is"
                " committed by itself: open one, `with connection.transaction():`"
            )
        self._check_place(connection)

    def _check_place(self, connection: object) -> None:
        """Every driver here knows where it is, without a question to the server."""
        info: Any = getattr(connection, "info", None) or asyncpg_place(connection)
        name = self._context.address.other_name(info) if info is not None else None
        if name is not None:
            raise ConfigurationError(
                f"this connection is to the database {name!r}, and the queue is at {self._context.address}: one"
                " transaction can only cover one database. If they are one behind a pooler, give the App this name"
            )

    @contextmanager
    def _errors_of(self, job: NewJob) -> Iterator[None]:
        """A cut there is not ambiguous: the caller has not committed. What is not of the job is the caller's own."""
        try:
            yield
        except Exception as error:
            own = trouble.beneath(error)
            if isinstance(own, OverflowError) or trouble.is_about_values(own):
                raise refused(job, own) from error
            if trouble.is_absent(own) or trouble.is_forbidden(own):
                raise self._context.translate(own) from error
            raise


def _prepare(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """The caller's connection may read timestamps in its own way; this cursor must not."""
    cursor.format = psycopg.pq.Format.BINARY
    read_timestamps_as_utc(cursor)
