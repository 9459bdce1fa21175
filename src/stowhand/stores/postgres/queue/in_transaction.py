"""Enqueues inside a transaction of the caller, which is never committed here.

Every driver and library passes one text to the SQL function ``enqueue_text`` (functions/enqueue.sql), and one back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.callers.caller import POSTGRES, PostgresCaller
from stowhand.stores.callers.connection_types import caller_to
from stowhand.stores.callers.postgres import asyncpg_address
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.migrations import Applied
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.installer import check_status, status_of
from stowhand.stores.postgres.queue.producer import refused

_reader = msgspec.json.Decoder(Job)
_ledger_reader = msgspec.json.Decoder(list[Applied])


class InTransaction:
    """Producer in the transactions of callers."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._schema = context.fillings["schema"]
        self.function = f"{self._schema}.enqueue_text"
        # A caller calls a function of one text; this form appends an empty text to the ledger.
        self._ledger = f"""(
            select coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
                m.id, m.breaking, pg_catalog.to_jsonb(m)->>'fingerprint')), '[]')::text
            from {context.fillings["schema"]}.applied_migrations m) || pg_catalog.lower"""
        self._is_checked = False
        """Whether the schema was checked, once, in the transaction of the first caller."""

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """Enqueue in the transaction of this connection.

        Raise SchemaError, and ConfigurationError if the owner of the connection could not commit.
        """
        with self._errors_of(job):
            answer = self.call(connection, self.function, self.text_of(job))
            return _reader.decode(answer) if isinstance(answer, str) else self._read_answer(answer, job)

    def call(self, connection: object, function: str, text: str) -> str | Awaitable[str]:
        """Call a function of one text in the transaction of this connection, and return its text."""
        caller = caller_to(POSTGRES, connection)
        if not self._is_checked:
            ledger = caller.ask(self._ledger, "", self._check_place)
            if not isinstance(ledger, str):
                return self._check_and_call(ledger, caller, function, text)
            self._check_schema(ledger)
        answer: str | Awaitable[str] = caller.ask(function, text, self._check_place)
        return answer

    async def _check_and_call(self, ledger: Awaitable[str], caller: PostgresCaller, function: str, text: str) -> str:
        self._check_schema(await ledger)
        answer: str = await caller.ask(function, text, self._check_place)
        return answer

    def _check_schema(self, ledger: str) -> None:
        check_status(status_of(_ledger_reader.decode(ledger), self._context), self._context)
        self._is_checked = True

    def text_of(self, job: NewJob) -> str:
        """Return the job as JSON, with the frozen time of a test as ``now``."""
        valid, now = limits.check_options(self._context.options.with_max_attempts(job)), self._context.now()
        whole = valid if now is None else msgspec.to_builtins(valid) | {"now": now}
        return msgspec.json.encode(whole).decode()

    async def _read_answer(self, answer: Awaitable[str], job: NewJob) -> Job:
        with self._errors_of(job):
            return _reader.decode(await answer)

    def _check_place(self, connection: object) -> None:
        """Raise ConfigurationError for a connection to another database. Drivers know this without a request."""
        info: Any = getattr(connection, "info", None) or asyncpg_address(connection)
        name = self._context.address.other_name(info) if info is not None else None
        if name is not None:
            raise ConfigurationError(
                f"this connection is to the database {name!r}, and the queue is at {self._context.address}: one"
                " transaction can only cover one database. If they are one behind a pooler, give the App this name"
            )

    def function_of(self, name: str) -> str:
        """Return the name of a function of the schema."""
        return f"{self._schema}.{name}"

    @contextmanager
    def _errors_of(self, job: NewJob) -> Iterator[None]:
        """Translate errors about the job. Others are the caller's, who has not committed yet."""
        try:
            yield
        except Exception as error:
            driver_error = postgres_errors.driver_error(error)
            if isinstance(driver_error, OverflowError) or postgres_errors.is_about_values(driver_error):
                raise refused(job, driver_error) from error
            if postgres_errors.is_undefined_object(driver_error) or postgres_errors.is_forbidden(driver_error):
                raise self._context.translate(driver_error) from error
            raise
