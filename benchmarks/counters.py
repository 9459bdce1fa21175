"""Costs of work besides time, counted by the server and the system. They depend little on the load of the machine.

    counters = Counters(server.admin_url, url, server.pid)
    before = counters.read()
    ...                                      # and whoever worked has hung up
    for name, figure in (counters.read() - before).a_job(jobs): ...

Nobody else may use the server meanwhile, and autovacuum is off (``quiet_server``): WAL and transaction ids are counted
for the whole server. A checkpoint stands before everything that is counted, so that the first change of each page
writes the page whole, in every run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg

HANG_UP = 30.0
"""Seconds within which those who worked have closed their connections: only then is all that they did counted."""
COUNT_OTHER_CLIENTS = "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend'"
READ_TOTALS = """
    select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, xact_commit + xact_rollback,
      pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_control_checkpoint()).next_multixact_id::text::bigint,
      tup_updated + tup_deleted
    from pg_stat_database where datname = %s
"""


@dataclass(frozen=True)
class Counts:
    """Counts of some work."""

    wal: float = 0.0
    """Bytes, with the pages that are written whole after a checkpoint."""
    commits: float = 0.0
    """Transactions of any kind, those that only read and those rolled back among them."""
    xids: float = 0.0
    """Transactions that wrote, subtransactions among them."""
    multixacts: float = 0.0
    dead: float = 0.0
    """Row versions that updates and deletes left behind."""
    server: float = 0.0
    """Seconds of processor time of all the server's processes."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)))

    def a_job(self, jobs: int) -> Iterator[tuple[str, float]]:
        """Return the share of one of this many jobs, by name and unit."""
        yield "WAL, bytes a job", self.wal / jobs
        yield "commits a job", self.commits / jobs
        yield "transaction ids a job", self.xids / jobs
        yield "MultiXacts a job", self.multixacts / jobs
        yield "dead row versions a job", self.dead / jobs
        yield "processor time of the server, us a job", 1e6 * self.server / jobs


@dataclass(frozen=True)
class Reading:
    """Totals of a server. ``later - earlier`` is what happened between, without the checkpoint of either reading."""

    before_checkpoint: Counts
    after_checkpoint: Counts

    def __sub__(self, earlier: Reading) -> Counts:
        return self.before_checkpoint - earlier.after_checkpoint


class Counters:
    """Counters of one database and its server."""

    def __init__(self, admin_url: str, url: str, postmaster: int) -> None:
        """``admin_url``: another database of the same server, so that the questions are not counted."""
        self._admin, self._database, self._postmaster = admin_url, urlsplit(url).path.lstrip("/"), postmaster

    def read(self, own: int = 0) -> Reading:
        """Read after all other connections have closed, and subtract the caller's own transactions. Raises
        TimeoutError if they do not close."""
        with psycopg.connect(self._admin, autocommit=True) as connection:
            self._wait_for_silence(connection)
            before = self._totals(connection, own)
            connection.execute("checkpoint")
            after = self._totals(connection, own)
        multixacts = after.multixacts  # of the last checkpoint: the totals before it do not have them yet
        return Reading(replace(before, multixacts=multixacts), after)

    def _totals(self, connection: psycopg.Connection[Any], own: int) -> Counts:
        row = connection.execute(READ_TOTALS, (self._database,)).fetchone()
        assert row is not None
        wal, commits, xids, multixacts, dead = map(int, row)
        return Counts(wal, commits - own, xids, multixacts, dead, server_seconds(self._postmaster))

    def _wait_for_silence(self, connection: psycopg.Connection[Any]) -> None:
        deadline = time.monotonic() + HANG_UP
        while (row := connection.execute(COUNT_OTHER_CLIENTS, (self._database,)).fetchone()) and row[0]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{row[0]} connections to {self._database} are still open")
            time.sleep(0.02)


@contextmanager
def quiet_server(admin_url: str) -> Iterator[None]:
    """Pause the server's own maintenance during the block. It catches up afterwards."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("alter system set autovacuum = off")
        connection.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        with psycopg.connect(admin_url, autocommit=True) as connection:
            connection.execute("alter system reset autovacuum")
            connection.execute("select pg_reload_conf()")


def server_seconds(postmaster: int) -> float:
    """Return the processor seconds of a server with all its processes. Ended ones count with their parent."""
    parent = psutil.Process(postmaster)
    while True:
        times = parent.cpu_times()
        living = processor_seconds(child.pid for child in parent.children(recursive=True))
        if parent.cpu_times()[2:4] == times[2:4]:  # none has ended meanwhile, and gone missing
            return float(times.user + times.system + times.children_user + times.children_system) + living


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor seconds of these processes, user and system. Ended ones do not count."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total
