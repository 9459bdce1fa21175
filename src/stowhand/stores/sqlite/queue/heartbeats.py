"""Renewing leases, resetting jobs and maintenance: on a connection of its own, from one other thread.

Its calls block the loop of that thread, which has nothing else to do: a hop to a further thread would make no file
faster.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from stowhand.clock import stopwatch
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.operating import FORGOTTEN_AFTER, WorkerCard
from stowhand.protocols.queue_store import LEDGER_DAYS
from stowhand.protocols.store import DAY, Foreign, Pulse, Refusal
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.database.sqlite_savepoint import attempt
from stowhand.stores.database.sqlite_writable import WriteProbe
from stowhand.stores.sqlite.queue import finish, flow_tables, operating, schema
from stowhand.stores.sqlite.queue.moment import Moment, micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.statements import load

SQL = load("heartbeats")

PAGE = 1000
PRUNE_AT_ONCE = 2000
"""Rows of the history deleted in one transaction: well under 50 ms, so that other writers get their turn."""
PRUNE_FOR = 2.0
"""Seconds after which the rest is left to the next call."""


def find_foreign(connection: sqlite3.Connection, now: Moment, ours: Sequence[Lease], slack: float) -> Foreign:
    """All leases but these."""
    given = {"boot": now.boot, "late": now.ticks - micros(slack), "ours": as_json([one.job_id for one in ours])}
    late, first = connection.execute(SQL["foreign"], given).fetchone()
    ends_in = None if first is None else (first - now.ticks) / 1_000_000 + slack
    return Foreign(late=bool(late), ends_in=ends_in)


Find = Callable[[sqlite3.Connection, Moment], Sequence[tuple[int, str]]]


class SqliteHeartbeats:
    """Beats, releases and resets."""

    def __init__(
        self,
        connection: SqliteConnection[Moment],
        probe: WriteProbe,
        history: float | None,
        failed_retention: float | None = None,
    ) -> None:
        self._connection = connection
        self._probe = probe
        self._history = history
        self._failed_retention = failed_retention
        self._refused: list[Refusal] = []

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them; leases that are no longer valid are lost."""
        pairs = frozenset((one.job_id, one.token) for one in leases)
        if not pairs:
            return Pulse()

        def renew(connection: sqlite3.Connection, now: Moment) -> Pulse:
            given = {"boot": now.boot, "lease_until": now.ticks + micros(lease)}
            rows: list[tuple[int, str, int]] = []

            def beat(leases: Sequence[tuple[int, str]]) -> None:
                rows.extend(connection.execute(SQL["beat"], given | {"leases": as_json(leases)}).fetchall())

            refused: set[tuple[int, str]] = set()
            if attempt(connection, lambda: beat(sorted(pairs))) is not None:
                rows.clear()
                refused = self._each(connection, sorted(pairs), "beat", lambda pair: beat([pair]))
            canceled = frozenset((job_id, token) for job_id, token, cancel_requested in rows if cancel_requested)
            lost = pairs - {(row[0], row[1]) for row in rows} - refused
            return Pulse(lost=lost, canceled=canceled, refused=frozenset(refused))

        return self._connection.write(renew)

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return without using an attempt. None is ever busy: there is one writer at a time."""
        if leases:
            pairs = [(one.job_id, one.token) for one in leases]
            self._connection.write(lambda connection, now: self._give_back(connection, now, pairs))
        return ()

    async def abandon(self, token: str) -> bool:
        """Release all that this token holds; it claims nothing more."""

        def give_up(connection: sqlite3.Connection, now: Moment) -> None:
            connection.execute(SQL["abandon"], {"token": token, "now": now.wall})
            self._give_back(connection, now, connection.execute(SQL["held_by_token"], {"token": token}).fetchall())

        self._connection.write(give_up)
        return True

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these; those of another boot are over."""
        return self._connection.read(lambda connection, now: find_foreign(connection, now, ours, slack))

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back a page of jobs whose lease ended more than ``slack`` seconds ago, or in another boot."""

        def find(connection: sqlite3.Connection, now: Moment) -> Sequence[tuple[int, str]]:
            given = {"boot": now.boot, "late": now.ticks - micros(slack), "limit": PAGE}
            return connection.execute(SQL["stalled"], given).fetchall()

        return self._reset(find)

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back a page of what this worker holds."""
        return self._reset(
            lambda connection, _: connection.execute(
                SQL["held_by_worker"], {"worker": worker, "limit": PAGE}
            ).fetchall()
        )

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one job."""
        return self._reset(lambda _connection, _now: [(lease.job_id, lease.token)])

    def refused(self) -> Sequence[Refusal]:
        """What the file refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check(self) -> None:
        """Raises SchemaTooNew once a newer, breaking migration has been applied."""
        self._connection.read(lambda connection, _now: schema.check_newer(connection))

    async def check_writable(self) -> None:
        """Writes, and rolls it back."""
        self._probe.look()

    async def maintain(self) -> None:
        """Prune, page by page: history, failed jobs, what flows keep, abandoned tokens, workers, the ledger."""
        self._prune("history", self._history or 0.0)
        self._prune_flows(self._history or 0.0)
        if self._failed_retention is not None:
            self._prune("failed", self._failed_retention)
        self._prune("abandoned", DAY)
        self._prune("workers", FORGOTTEN_AFTER)
        # A day later than they may be scheduled no more: the clock may have been set back between the two.
        self._prune("ticks", (LEDGER_DAYS + 1) * DAY)

    async def worker_seen(self, card: WorkerCard) -> None:
        """Enter it in the list of workers, or note that it still runs."""
        self._connection.write(lambda connection, now: operating.worker_seen(connection, now, card))

    async def worker_gone(self, name: str) -> None:
        """Remove it from the list of workers."""
        self._connection.write(lambda connection, _now: operating.worker_gone(connection, name))

    async def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._probe.close()

    def _give_back(self, connection: sqlite3.Connection, now: Moment, pairs: Sequence[tuple[int, str]]) -> None:
        def give_back(pair: tuple[int, str]) -> None:
            held = finish.find_held(connection, *pair)
            if held is not None:
                finish.give_back(connection, now, held, history=self._history is not None)

        self._each(connection, pairs, "release", give_back)

    def _each(
        self,
        connection: sqlite3.Connection,
        pairs: Iterable[tuple[int, str]],
        doing: str,
        write: Callable[[tuple[int, str]], object],
    ) -> set[tuple[int, str]]:
        """Each under a savepoint; returns those that the file refuses."""
        refused: set[tuple[int, str]] = set()
        for pair in pairs:
            error = attempt(connection, lambda pair=pair: write(pair))  # type: ignore[misc]
            if error is not None:
                refused.add(pair)
                self._refused.append(Refusal(pair[0], doing, clean(str(error))))
        return refused

    def _reset(self, find: Find) -> Sequence[ResetJob]:
        # Look first, without the write lock: there is hardly ever anything to do.
        if not self._connection.read(find):
            return []

        def take_back(connection: sqlite3.Connection, now: Moment) -> list[ResetJob]:
            taken: list[ResetJob] = []

            def reset(pair: tuple[int, str]) -> None:
                held = finish.find_held(connection, *pair)
                if held is not None:
                    taken.append(finish.reset(connection, now, held, history=self._history is not None))

            self._each(connection, find(connection, now), "reset", reset)
            return taken

        return self._connection.write(take_back)

    def _prune_flows(self, age: float) -> None:
        stop = stopwatch() + PRUNE_FOR
        while stopwatch() < stop:
            if not self._connection.write(lambda connection, now: flow_tables.prune(connection, now, age=age)):
                return

    def _prune(self, what: str, age: float) -> None:
        def is_old(connection: sqlite3.Connection, now: Moment) -> bool:
            return connection.execute(SQL[f"is_{what}_old"], given(now)).fetchone() is not None

        def prune(connection: sqlite3.Connection, now: Moment) -> None:
            connection.execute(SQL[f"prune_{what}"], given(now))

        def given(now: Moment) -> dict[str, int]:
            return {"before": now.wall - micros(age), "limit": PRUNE_AT_ONCE}

        stop = stopwatch() + PRUNE_FOR
        while stopwatch() < stop and self._connection.read(is_old):
            self._connection.write(prune)
