"""The state that the parts of this store share: address, name of the schema, statements and clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from importlib.resources import files
from typing import Any

import psycopg

from stowhand.errors import ConfigurationError, SchemaMissing, StoreError, StoreRefused, StoreTooSlow, StoreUnreachable
from stowhand.jobs.job import EXPIRED_ERROR
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.limits import BUILT_IN_TASKS
from stowhand.protocols.store import DEFAULT_POOL_SIZE, RESERVED_CONNECTIONS, StoreOptions, pool_refusal, pool_shortage
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.address import STATEMENT_DEADLINE_SECONDS, Address
from stowhand.stores.database.borrowed_pool import BorrowedPool
from stowhand.stores.database.link import Dialer, Pool, Row, Values
from stowhand.stores.database.migrations import HOW_TO_INSTALL
from stowhand.stores.database.statements import load_statements, quote_identifier, quote_text
from stowhand.stores.postgres.queue.rows import column_fillings, pairs
from stowhand.stores.postgres.shared.plan import translating

FUNCTION_BODY_QUOTES = "$stowhand$"
"""Quotes around the bodies of functions if the schema's name contains the usual ones."""
MAX_NAME_BYTES = 63
"""Maximum number of bytes of an identifier in PostgreSQL."""

# Without statistics (right after a burst) the planner would read or sort the whole table for each claim. The settings
# of a function need no session state and work behind a pooler. JIT would cost more than any of these statements.
_INDEX_PLANS = (
    "set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off "
    "set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off"
)
# Grants decide which login may call a function (functions/grants.sql). It runs with the rights of the schema's owner.
_DEFINER_CLAUSE = "security definer set search_path = pg_catalog, pg_temp"


class RowLocked(StoreUnreachable):
    """Another transaction holds a row locked for longer than a statement waits."""


class PostgresContext:
    """One schema in one database, reached by the application's pool if there is one, else by the URL."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self.options = options
        self.schema = _check_schema_name(options.schema)
        self.pool: Pool | BorrowedPool
        read_timeout = options.read_timeout if options.read_only else None
        if options.pool is not None:
            self.pool = BorrowedPool(
                options.pool, prepared=options.prepared_statements, read_timeout_seconds=read_timeout
            )
            self.address = self.pool.address
            self.dialer = Dialer(self.address, self.pool.prepared, read_timeout)
        else:
            self.address = Address(url)
            self.dialer = Dialer(self.address, options.prepared_statements, read_timeout)
            # One of the reserved connections belongs to the pool itself.
            self.pool = Pool(
                self.dialer, (options.pool_size or DEFAULT_POOL_SIZE) - RESERVED_CONNECTIONS + 1, self.role
            )
        self.listen_dialer = self.dialer
        if options.listen_url:
            self.listen_dialer = Dialer(Address(options.listen_url), self.dialer.prepared, read_timeout)
        self.channel = channel_of(self.schema)
        self.keeps_history = options.history is not None
        """Whether completed and canceled jobs are kept in the history."""
        self.fillings = fillings_of(self.schema)
        self.statements = load_statements(
            files("stowhand.stores.postgres.queue") / "statements.sql",
            # Double a % in the schema's name, which the driver would read as a placeholder.
            {name: text.replace("%", "%%") for name, text in self.fillings.items()} | column_fillings(),
        )
        self.worker = ""
        """The name of the worker that claims through this store, which is part of the names of its connections."""
        self.heartbeat_timeout_seconds = STATEMENT_DEADLINE_SECONDS
        """Seconds that a heartbeat waits for a reply, so that a silently lost connection does not cost a lease."""
        self.changed_claim_reason = "its lease is another one now"

    @property
    def place(self) -> str:
        """Schema and address, for error messages."""
        return f"schema {self.schema!r} at {self.address}"

    def statement(self, name: str) -> bytes:
        """Return a statement by its name in statements.sql."""
        return self.statements[name]

    def values(self, **values: object) -> Mapping[str, object]:
        """Return the parameters of a statement with named parameters."""
        return values | {"keep": self.keeps_history, "now": self.now()}

    def leases(self, leases: Sequence[Lease]) -> dict[str, Any]:
        """Return each lease once, in the order of ids, which is the order of locking."""
        ids, tokens = pairs(sorted(set(leases), key=lambda lease: lease.job_id))
        return {"ids": ids, "tokens": tokens}

    def job_id(self, key: int) -> JobId:
        """Return the id that a key of this table means: the key itself."""
        return key

    def now(self) -> datetime | None:
        """Return the frozen time of a test. ``None`` means the server's clock."""
        return self.options.pinned() if self.options.pinned is not None else None

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Give a connection to the application. Commit at the end of the block, or roll back if it raises."""
        return self.pool.application_connection("task")

    def seat(self, slots: int) -> str | None:
        """Let the pool have a connection for each slot. Return a warning if its size is set to fewer.

        Raise ConfigurationError if no connection would be left for tasks.
        """
        pool_size = self.options.pool_size
        if isinstance(self.pool, BorrowedPool):
            if (max_size := self.pool.size) > slots:
                return None
            return (
                f"pool: max_size {max_size} for {slots} jobs at once and the enqueues of their tasks. A job that gets"
                f" no connection waits, 5 minutes at most, and then returns to the queue (attempt not counted); use"
                f" max_size={slots + 1} or more"
            )
        if pool_size is None:
            self.pool.grow(slots + 1)
            return None
        if (refusal := pool_refusal(f"pool_size={pool_size}", pool_size)) is not None:
            raise ConfigurationError(refusal)
        return pool_shortage(f"pool_size={pool_size}", pool_size, slots)

    def role(self, role: str) -> str:
        """Return the application_name of a connection."""
        return f"stowhand:{role}:{self.worker}" if self.worker else f"stowhand:{role}"

    async def ask(self, role: str, name: str, values: Values = (), *, row: str = "the job") -> list[Row]:
        """Run one statement on a connection of the pool. ``row``: the row it may lock, for the error.

        Raise the errors of psycopg, but RowLocked, which is not retried, if another transaction holds the lock.
        """
        try:
            return await self.pool.rows(role, self.statements[name], values)
        except psycopg.errors.LockNotAvailable:
            raise RowLocked(f"{self.address}: an open transaction holds {row}; try again when it has ended") from None

    def translated(self) -> AbstractContextManager[None]:
        """Translate the driver's errors in the block. Errors about values are left to the caller that sent them."""
        return translating(self.translate)

    def translate(self, error: BaseException) -> StoreError:
        """Return the package's error for a driver's error."""
        text = self.address.message(error)
        if postgres_errors.is_pooler_error(error):
            return StoreError(
                f"{self.address}: {text}. A pooler in between does not separate prepared statements: use"
                " --no-prepared-statements (in Python prepared_statements=False), or PgBouncer 1.21 or later"
            )
        if postgres_errors.is_read_only(error) and self.options.read_only:
            return StoreRefused(f"{self.address}: {text}: the store was opened for reading only (read_only)")
        if postgres_errors.is_query_canceled(error) and self.options.read_only:
            return StoreTooSlow(
                f"{self.address}: no answer within {self.options.read_timeout:g} s, the limit of one read"
                f" (read_timeout): {text}"
            )
        if postgres_errors.is_read_only(error):
            return StoreUnreachable(
                f"{self.address}: {text}. It is a standby, or read-only: name the primary, or several hosts with"
                " target_session_attrs=read-write"
            )
        if postgres_errors.is_connection_lost(error) or postgres_errors.is_transient(error):
            return StoreUnreachable(f"{self.address}: {text}")
        if postgres_errors.is_forbidden(error):
            return StoreRefused(
                f"{self.address}: {text}. A login gets its rights from the roles that `stowhand migrate "
                f"--roles` creates ({', '.join(role_names(self.schema).values())}): let an administrator grant it one"
            )
        if postgres_errors.is_undefined_object(error):
            return SchemaMissing(
                f"there is no complete schema {self.schema!r} at {self.address} ({text}): {HOW_TO_INSTALL}"
            )
        return StoreError(f"{self.address}: {text}")


def _check_schema_name(schema: str) -> str:
    if not schema or len(schema.encode()) > MAX_NAME_BYTES or "\x00" in schema or schema.startswith("pg_"):
        raise ConfigurationError(
            f"schema {schema!r}: a schema's name has 1 to {MAX_NAME_BYTES} bytes and does not begin with pg_"
        )
    if "$$" in schema and FUNCTION_BODY_QUOTES in f"{schema}$":
        raise ConfigurationError(f"schema {schema!r}: a name that holds $$ cannot hold {FUNCTION_BODY_QUOTES} too")
    return schema


def channel_of(schema: str) -> str:
    """Return the channel on which enqueues notify."""
    channel = f"{schema}:wake"
    if len(channel.encode()) > MAX_NAME_BYTES:
        channel = f"stowhand:{hashlib.sha256(schema.encode()).hexdigest()[:32]}"
    return channel


def fillings_of(schema: str) -> dict[str, str]:
    """Return the fillings of the {braces} in all texts, for a schema of this name."""
    channel = channel_of(schema)
    quoted = quote_identifier(schema)
    return {
        "schema": quoted,
        "schema_text": quote_text(schema),
        "schema_name": quote_text(quoted),
        "live_text": quote_text(f"{quoted}.live"),
        "events_text": quote_text(f"{quoted}.events"),
        "turns_text": quote_text(f"{quoted}.turns"),
        "sequence_text": quote_text(f"{quoted}.live_id_seq"),
        "history_text": quote_text(f"{quoted}.history"),
        "tries_text": quote_text(f"{quoted}.tries"),
        "channel": quote_text(channel),
        "reserved": f"array[{', '.join(map(quote_text, BUILT_IN_TASKS))}]",
        "expired": quote_text(EXPIRED_ERROR),
        "definer": _DEFINER_CLAUSE,
        "index_plans": _INDEX_PLANS,
    } | role_fillings(schema)


ROLE_KINDS = ("enqueuer", "worker", "reader", "admin")
_MAX_ROLE_PREFIX_BYTES = 63 - len("_enqueuer")


def role_names(schema: str) -> dict[str, str]:
    """Return ``{"worker": "stowhand_worker", …}``. Roles are shared by the server, so names begin with the schema's."""
    prefix = schema
    if len(schema.encode()) > _MAX_ROLE_PREFIX_BYTES:
        prefix = f"stowhand_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"
    return {role: f"{prefix}_{role}" for role in ROLE_KINDS}


def role_fillings(schema: str) -> dict[str, str]:
    """Return fillings of statements: ``{worker}`` is the identifier, ``{worker_text}`` the literal."""
    names = role_names(schema)
    return {role: quote_identifier(name) for role, name in names.items()} | {
        f"{role}_text": quote_text(name) for role, name in names.items()
    }
