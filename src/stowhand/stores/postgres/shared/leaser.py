"""Leases: renewed, handed back, and taken back from the dead. On a connection for the heartbeater's own loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stowhand.clock import SystemClock
from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.store import Foreign, Pulse, RefusedChange
from stowhand.stores.calls import UNREPORTED, Calls, reported
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Link, Row
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.postgres.shared.plan import Context
from stowhand.stores.verdicts import Pair

C = TypeVar("C", bound=Context)
T = TypeVar("T")
PAGE = 1000


class Leaser(Generic[C]):
    """What the heartbeats of the queue and of a user's table do alike; each adds what it alone has.

    What differs is in the two files statements.sql: the same names, the same columns in the answers, other SQL. One
    call at a time, on one loop. Every method raises StoreUnreachable, and may be repeated.
    """

    def __init__(self, context: C, calls: Calls = UNREPORTED) -> None:
        self.calls = calls
        self._context = context
        self._link = Link(context.dialer, lambda: context.role("heart"))
        self._clock = SystemClock()
        self._refused: list[RefusedChange] = []

    @reported
    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now; a table's option says how long, whatever ``lease`` is."""
        if not leases:
            return Pulse()
        answers: dict[str, set[Pair]] = {"lost": set(), "canceled": set(), "busy": set()}

        async def beat(part: Sequence[Lease]) -> list[Row]:
            return await self._try("beat", **self._context.leases(part), lease=lease)

        answered, refused = await self._write_each("beat", leases, beat, lambda one: one.job_id)
        for key, token, found in answered:
            if found == "moved":
                self._refused.append(RefusedChange(self._context.job_id(key), "beat", self._context.moved))
                found = "lost"
            if found != "renewed":
                answers[found].add((self._context.job_id(key), token))
        answers["refused"] = {one.pair for one in refused}
        return Pulse(**{name: frozenset(found) for name, found in answers.items()})

    @reported
    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent. Returns the leases whose rows another transaction has locked."""
        if not leases:
            return []

        async def release(part: Sequence[Lease]) -> list[Row]:
            return await self._try("release", **self._context.leases(part))

        released, refused = await self._write_each("release", leases, release, lambda one: one.job_id)
        done = {self._context.job_id(row[0]) for row in released} | {one.job_id for one in refused}
        missed = [lease for lease in leases if lease.job_id not in done]
        if not missed:
            return []
        nothing = [""] * len(missed)
        with self._context.translated():
            looked = await self._ask("look", **self._context.leases(missed), states=nothing, errors=nothing)
        found = {(self._context.job_id(key), token): what for key, token, what, *_ in looked}
        return [lease for lease in missed if found.get((lease.job_id, lease.token)) == "busy"]

    @reported
    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these."""
        with self._context.translated():
            ((late, ends_in),) = await self._ask("foreign_leases", **self._context.leases(ours), slack=slack)
        return Foreign(late=late, ends_in=ends_in)

    @reported
    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has not been renewed in time."""
        return await self._reset(await self._find("find_stalled", slack=slack), slack)

    @reported
    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds, but for what another transaction has locked."""
        taken: list[ResetJob] = []
        while page := await self._reset(await self._find("find_held_by_worker", worker=worker)):
            taken += page
        return taken

    @reported
    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        about = {"id": lease.job_id, "token": lease.token, "epoch": lease.epoch}
        return await self._reset(await self._find("find_held_by_lease", **about))

    def refused(self) -> Sequence[RefusedChange]:
        """What the database refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check_writable(self) -> None:
        """Nothing: a server that cannot write its log ends, and a claim locks rows, which a standby refuses."""
        # Where only the tables are on a full disk, a write that needs another page fails.

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _find(self, name: str, **values: object) -> list[Row]:
        with self._context.translated():
            return await self._ask(name, page=PAGE, **values)

    async def _reset(self, found: Sequence[Row], slack: float | None = None) -> Sequence[ResetJob]:
        """Decide by ``lifecycle.reset``, and write: only where the row is still what was found."""
        if not found:
            return []

        async def reset(part: Sequence[Row]) -> list[Row]:
            decided = [lifecycle.reset(resets=row[5], max_resets=row[6], max_attempts=row[7]) for row in part]
            return await self._try(
                "reset",
                ids=[row[0] for row in part],
                marks=[row[1] for row in part],
                epochs=[row[2] for row in part],
                states=[each.state.value for each in decided],
                errors=[each.error for each in decided],
                slack=slack,
            )

        answered, _ = await self._write_each("reset", found, reset, lambda row: self._context.job_id(row[0]))
        became = {key: State(state) for key, state in answered}
        return [
            ResetJob(self._context.job_id(key), task, became[key], worker or None, age)
            for key, _, _, task, worker, _, _, _, age in found
            if key in became
        ]

    async def _write_each(
        self,
        doing: str,
        items: Sequence[T],
        write: Callable[[Sequence[T]], Awaitable[Sequence[Row]]],
        job_id: Callable[[T], JobId],
    ) -> tuple[list[Row], list[T]]:
        """The answers, and the items that the database refuses: these are reported."""
        with self._context.translated():
            written = await write_each(items, write, self._clock, postgres_errors.concerns_call)
        for item, error in written.refused:
            self._refused.append(RefusedChange(job_id(item), doing, clean(postgres_errors.first_line(error))))
        return written.rows, [item for item, _ in written.refused]

    async def _ask(self, name: str, /, **values: object) -> list[Row]:
        """Repeated a few times after errors by which nothing was done. Raises what psycopg raises."""
        return await retry_transient(lambda: self._try(name, **values), self._clock)

    async def _try(self, name: str, /, **values: object) -> list[Row]:
        statement, given = self._context.statement(name), self._context.values(**values)
        return await self._link.rows(statement, given, lambda: self._context.patience)
