"""Grounds: the database on a shared server (PostgreSQL or Redis), or the file, of one contender."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import psycopg
import redis

from benchmarks.counters import Counters, Counts, Reading, quiet_server, server_seconds
from tests.support.servers import PostgresServer


class Ground(Protocol):
    """Ground of a contender, as a course uses it."""

    environment: dict[str, str]
    unit: str
    """What it counts of those who ask it."""
    lag: float
    """Seconds until it has surely counted what a connection did."""

    def asks(self, condition: str) -> bool:
        """Return whether a contender's condition ``live`` holds."""

    def only_worker(self) -> AbstractContextManager[None]:
        """Prevent other work there during the block."""

    def asked(self) -> int:
        """Return the number of statements so far, without the benchmark's own; 0 if they are not counted."""

    def spent(self) -> float:
        """Return the server's processor seconds so far; 0 without a server."""

    def counts(self) -> Reading:
        """Return the server's counts so far without the benchmark's own, after all other connections have closed."""


class PostgresGround:
    """PostgreSQL database, which scripts find by the variables of libpq."""

    unit, lag = "transactions", 11.0

    def __init__(self, url: str, server: PostgresServer) -> None:
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
        self._url, self._server = url, server
        self._counters = Counters(server.admin_url, url, server.pid)
        self._link: psycopg.Connection[Any] | None = None
        self._questions = 0
        """Transactions of our own there."""

    def asks(self, condition: str) -> bool:
        """Return whether this SQL condition holds."""
        if self._link is None:
            self._link = psycopg.connect(self._url, autocommit=True)
            self._questions += 1
        row = self._link.execute(f"select {condition}".encode()).fetchone()
        self._questions += 1
        return bool(row and row[0])

    def asked(self) -> int:
        """Return the count, read in another database, which is not counted."""
        question = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
        with psycopg.connect(self._server.admin_url, autocommit=True) as connection:
            row = connection.execute(question, (self._name,)).fetchone()
        return int(row[0]) if row else 0

    def spent(self) -> float:
        """Return the processor seconds of all its processes."""
        return server_seconds(self._server.pid)

    def counts(self) -> Reading:
        """Return the counts after all connections, including this one, have closed."""
        if self._link is not None:
            self._link.close()
            self._link = None
        return self._counters.read(self._questions)

    def only_worker(self) -> AbstractContextManager[None]:
        """Pause the server's own maintenance, which counts as transactions too."""
        return quiet_server(self._server.admin_url)


class FileGround:
    """SQLite file."""

    unit, lag = "transactions", 0.0

    def __init__(self, file: Path) -> None:
        self.environment = {"STOWHAND_CONNECTION": f"sqlite:///{file}", "BENCH_FILE": str(file)}
        self._file = file

    def asks(self, condition: str) -> bool:
        """Return whether this SQL condition holds."""
        with closing(sqlite3.connect(self._file, timeout=10.0)) as connection:
            return bool(connection.execute(f"select {condition}").fetchone()[0])

    def only_worker(self) -> AbstractContextManager[None]:
        """Do nothing: no other process works there."""
        return nullcontext()

    def asked(self) -> int:
        """Return 0: statements are not counted."""
        return 0

    def spent(self) -> float:
        """Return nothing: there is no server."""
        return 0.0

    def counts(self) -> Reading:
        """Return nothing: there is no server."""
        return Reading(Counts(), Counts())


class RedisGround:
    """Redis database. ``live`` names keys of which one exists while a job is left."""

    unit, lag = "commands", 1.0

    def __init__(self, socket: Path, number: int) -> None:
        url = f"unix://{socket}?db={number}"
        self.environment = {"FLOW_URL": url, "FLOW_SOCKET": str(socket), "FLOW_DB": str(number)}
        self._client = redis.Redis.from_url(url)

    def asks(self, condition: str) -> bool:
        """Return whether one of these keys exists."""
        return bool(self._client.exists(*condition.split()))

    def only_worker(self) -> AbstractContextManager[None]:
        """Do nothing: no other process works there."""
        return nullcontext()

    def asked(self) -> int:
        """Return the number of all commands, including those of scripts, without the INFO of this method."""
        stats: dict[str, dict[str, int]] = self._client.info("commandstats")
        return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")

    def spent(self) -> float:
        """Return the processor seconds that the server reports."""
        cpu: dict[str, float] = self._client.info("cpu")
        return sum(float(cpu[f"used_cpu_{kind}"]) for kind in ("user", "sys"))

    def counts(self) -> Reading:
        """Return only its processor time."""
        spent = Counts(server=self.spent())
        return Reading(spent, spent)
