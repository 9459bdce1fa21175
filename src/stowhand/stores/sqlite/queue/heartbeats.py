"""Renewing leases, resetting jobs and maintenance: on a connection of its own, from one other thread.

Its calls block the loop of that thread, which has nothing else to do: a hop to a further thread would make no file
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.operating import FORGOTTEN_AFTER, VERSION_GONE, VERSIONS_FOR, WorkerCard
from stowhand.protocols.progress import Progress
from stowhand.protocols.queue_store import LEDGER_DAYS
from stowhand.protocols.store import DAY, Foreign, Pulse
from stowhand.protocols.throughput import HOURS_FOR, TaskMinute
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.database.sqlite_writable import WriteProbe
from stowhand.stores.sqlite.leaser import Leaser
from stowhand.stores.sqlite.queue import finish, flow_tables, schema, throughput
from stowhand.stores.sqlite.queue.claim import expire
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.telling import tell
from stowhand.stores.sqlite.queue.transaction import Transaction

PAGE = 1000
PRUNE_AT_ONCE = 2000
"""Rows of the history deleted in one transaction: well under 50 ms, so that other writers get their turn."""
PRUNE_FOR = 2.0
"""Seconds after which the rest is left to the next call."""


def find_foreign(tx: Transaction, ours: Sequence[Lease], slack: float) -> Foreign:
    """All leases but these."""
    now = tx.now.ticks
    late, first = tx.row("foreign", late=now - micros(slack), ours=as_json([one.job_id for one in ours]))
    return Foreign(late=bool(late), ends_in=None if first is None else (first - now) / 1_000_000 + slack)


Pair = tuple[int, str]
"""Job id and token."""


class SqliteHeartbeats(Leaser[Transaction]):
    """Beats, releases and resets."""

    def __init__(
        self,
        connection: SqliteConnection[Transaction],
        impatient: SqliteConnection[Transaction],
        probe: WriteProbe | None,
        history: float | None,
        failed_retention: float | None = None,
    ) -> None:
        super().__init__(connection, probe)
        self._impatient = impatient
        self._history = history or 0.0
        self._failed_retention = failed_retention

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them; leases that are no longer valid are lost."""
        pairs = frozenset((one.job_id, one.token) for one in leases)
        if not pairs:
            return Pulse()

        def renew(tx: Transaction, part: Sequence[Pair]) -> list[tuple[int, str, int]]:
            lease_until = tx.now.ticks + micros(lease)
            return tx.rows("beat", lease_until=lease_until, leases=as_json(part))

        rows, refused = await self._write_each("beat", sorted(pairs), renew)
        canceled = frozenset((job_id, token) for job_id, token, cancel_requested in rows if cancel_requested)
        lost = pairs - {(row[0], row[1]) for row in rows} - refused
        return Pulse(lost=lost, canceled=canceled, refused=frozenset(refused))

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        """Those that were asked to cancel."""
        pairs = as_json([one.pair for one in leases])
        return frozenset(self._connection.read(lambda tx: tx.rows("find_canceled", leases=pairs)))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return without using an attempt. None is ever busy: there is one writer at a time."""
        if leases:
            await self._give_back([one.pair for one in leases])
        return ()

    async def abandon(self, token: str) -> bool:
        """Release all that this token holds; it claims nothing more."""

        def give_up(tx: Transaction) -> list[Pair]:
            tx.run("abandon", token=token)
            return tx.rows("held_by_token", token=token)

        if held := self._connection.write(give_up):
            await self._give_back(held)
        return True

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these; those of another boot are over."""
        return self._connection.read(lambda tx: find_foreign(tx, ours, slack))

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back a page of jobs whose lease ended more than ``slack`` seconds ago, or in another boot.

        And tell of jobs that a statement of somebody else's has failed.
        """
        if self._connection.read(lambda tx: tx.row("is_untold")) is not None:
            self._connection.write(lambda tx: tell(tx, None))
        return await self._reset(lambda tx: tx.rows("stalled", late=tx.now.ticks - micros(slack), limit=PAGE))

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back a page of what this worker holds."""
        return await self._reset(lambda tx: tx.rows("held_by_worker", worker=worker, limit=PAGE))

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one job."""
        return await self._reset(lambda _: [(lease.job_id, lease.token)])

    async def check(self) -> None:
        """Raises SchemaTooNew once a newer, breaking migration has been applied."""
        self._connection.read(lambda tx: schema.check_newer(tx.raw))

    async def maintain(self) -> None:
        """Prune, page by page: history, failed jobs, what flows keep, abandoned tokens, workers, the ledger; and fold
        throughput."""
        if self._connection.read(lambda tx: tx.row("expired", limit=1)) is not None:
            self._connection.write(expire)
        self._prune("history", self._history)
        self._prune_flows(self._history)
        if self._failed_retention is not None:
            self._prune("failed", self._failed_retention)
        self._prune("uniques", 0)
        self._prune("abandoned", DAY)
        self._prune("workers", FORGOTTEN_AFTER)
        self._prune("app_versions", VERSIONS_FOR)
        # A day later than they may be scheduled no more: the clock may have been set back between the two.
        self._prune("ticks", (LEDGER_DAYS + 1) * DAY)
        stop = stopwatch() + PRUNE_FOR
        while stopwatch() < stop and self._connection.read(throughput.is_foldable):
            self._connection.write(throughput.fold)
        self._prune("throughput", HOURS_FOR)

    async def keep_progress(self, notes: Sequence[Progress], within: float) -> None:
        """On a connection that waits for no other writer."""
        given = as_json([(note.lease.job_id, note.lease.token, note.done, note.text) for note in notes])
        self._impatient.write(lambda tx: tx.run("keep_progress", notes=given))

    async def close(self) -> None:
        """Close the connections."""
        await super().close()
        self._impatient.close()

    async def worker_seen(self, card: WorkerCard) -> None:
        """Enter it in the list of workers, or note that it still runs."""
        tasks = None if card.tasks is None else as_json(card.tasks)
        flags = None if card.forbidden_flags is None else as_json(card.forbidden_flags)
        entry = msgspec.structs.asdict(card) | {"tasks": tasks, "forbidden_flags": flags}

        def write(tx: Transaction) -> None:
            tx.run("worker_seen", **entry)
            if card.app_version is not None:
                seen = tx.run("app_version_seen", version=card.app_version, gone=micros(VERSION_GONE))
                if not seen.rowcount:
                    tx.run("app_version_new", version=card.app_version)

        self._connection.write(write)

    async def worker_gone(self, name: str) -> None:
        """Remove it from the list of workers."""
        self._connection.write(lambda tx: tx.run("worker_gone", name=name))

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        """Write what a worker counted."""
        return self._connection.write(lambda tx: throughput.write(tx, writer, minutes))

    async def _give_back(self, pairs: Sequence[Pair]) -> None:
        def give_back(tx: Transaction, part: Sequence[Pair]) -> list[None]:
            for pair in part:
                held = finish.find_held(tx, *pair)
                if held is not None:
                    finish.give_back(tx, held)
            return []

        await self._write_each("release", pairs, give_back)

    async def _reset(self, find: Callable[[Transaction], Sequence[Any]]) -> Sequence[ResetJob]:
        # Look first, without the write lock: there is hardly ever anything to do.
        found = self._connection.read(find)
        if not found:
            return []

        def reset(tx: Transaction, part: Sequence[Pair]) -> list[ResetJob]:
            still = set(find(tx))  # a lease may have been renewed meanwhile
            held = [finish.find_held(tx, *pair) for pair in part if pair in still]
            return [finish.reset(tx, one) for one in held if one is not None]

        taken, _ = await self._write_each("reset", found, reset)
        return taken

    def _prune_flows(self, age: float) -> None:
        stop = stopwatch() + PRUNE_FOR
        while stopwatch() < stop:
            if not self._connection.write(lambda tx: flow_tables.prune(tx, age=age)):
                return

    def _prune(self, what: str, age: float) -> None:
        def is_old(tx: Transaction) -> bool:
            return tx.row(f"is_{what}_old", before=tx.now.wall - micros(age)) is not None

        def prune(tx: Transaction) -> None:
            tx.run(f"prune_{what}", before=tx.now.wall - micros(age), limit=PRUNE_AT_ONCE)

        stop = stopwatch() + PRUNE_FOR
        while stopwatch() < stop and self._connection.read(is_old):
            self._connection.write(prune)
