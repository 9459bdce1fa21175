"""Where a contender runs: a database of its own on the one server (PostgreSQL or Redis), or a file of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import LiteralString, Protocol
from urllib.parse import parse_qs, urlsplit

import psycopg
import redis


class Ground(Protocol):
    """What a course needs to know of it."""

    environment: dict[str, str]
    unit: str
    """What it counts of those who ask it."""
    lag: float
    """Seconds until it has surely counted what a connection did."""

    def asks(self, condition: str) -> bool:
        """Whether this holds: a contender's ``live``."""

    def only_worker(self) -> AbstractContextManager[None]:
        """While this lasts nobody else works there."""

    def asked(self) -> int:
        """So far, without our own questions; 0 where nobody counts."""

    def spent(self) -> float:
        """Seconds of processor time of the server so far; 0 where nobody counts."""


class PostgresGround:
    """A database. Its scripts find it by the variables of libpq."""

    unit, lag = "transactions", 11.0

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        places = parse_qs(parts.query)
        self.environment = {
            "STOWHAND_CONNECTION": url,
            "PGHOST": places["host"][0],
            "PGPORT": places["port"][0],
            "PGUSER": parts.username or "postgres",
            "PGDATABASE": parts.path.lstrip("/"),
        }
        self._name = parts.path.lstrip("/")
        self._url, self._admin = url, url.replace(parts.path, "/postgres", 1)

    def asks(self, condition: str) -> bool:
        """Whether this SQL holds."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(f"select {condition}").fetchone()
        return bool(row and row[0])

    def asked(self) -> int:
        """Asked in another database, which is not counted."""
        question = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
        with psycopg.connect(self._admin, autocommit=True) as connection:
            row = connection.execute(question, (self._name,)).fetchone()
        return int(row[0]) if row else 0

    def spent(self) -> float:
        """Nobody counts."""
        return 0.0

    @contextmanager
    def only_worker(self) -> Iterator[None]:
        """The server's own housekeeping counts as transactions too, so it pauses (and makes up for it afterwards)."""
        self._reconfigure("alter system set autovacuum = off")
        try:
            yield
        finally:
            self._reconfigure("alter system reset autovacuum")

    def _reconfigure(self, statement: LiteralString) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement)
            connection.execute("select pg_reload_conf()")


class FileGround:
    """A file of SQLite."""

    unit, lag = "transactions", 0.0

    def __init__(self, file: Path) -> None:
        self.environment = {"STOWHAND_CONNECTION": f"sqlite:///{file}", "BENCH_FILE": str(file)}
        self._file = file

    def asks(self, condition: str) -> bool:
        """Whether this SQL holds."""
        with closing(sqlite3.connect(self._file, timeout=10.0)) as connection:
            return bool(connection.execute(f"select {condition}").fetchone()[0])

    def only_worker(self) -> AbstractContextManager[None]:
        """Nobody else ever does."""
        return nullcontext()

    def asked(self) -> int:
        """Nobody counts."""
        return 0

    def spent(self) -> float:
        """There is no server."""
        return 0.0


class RedisGround:
    """A numbered database. ``live`` names the keys of which one is there while a job is left."""

    unit, lag = "commands", 1.0

    def __init__(self, socket: Path, number: int) -> None:
        url = f"unix://{socket}?db={number}"
        self.environment = {"FLOW_URL": url, "FLOW_SOCKET": str(socket), "FLOW_DB": str(number)}
        self._client = redis.Redis.from_url(url)

    def asks(self, condition: str) -> bool:
        """Whether one of these keys is there."""
        return bool(self._client.exists(*condition.split()))

    def only_worker(self) -> AbstractContextManager[None]:
        """Nobody else ever does."""
        return nullcontext()

    def asked(self) -> int:
        """Commands by anybody, those of scripts among them; our own question is INFO."""
        stats: dict[str, dict[str, int]] = self._client.info("commandstats")
        return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")

    def spent(self) -> float:
        """As it says itself."""
        cpu: dict[str, float] = self._client.info("cpu")
        return sum(float(cpu[f"used_cpu_{kind}"]) for kind in ("user", "sys"))
