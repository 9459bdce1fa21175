"""Renews, releases and resets leases, on a connection for the loop of the heartbeater's thread."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.clock import SystemClock, stopwatch
from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Link, Row
from stowhand.stores.database.refused_rows import halved
from stowhand.stores.database.repeating import repeated
from stowhand.stores.postgres.table.context import TableContext, mark_of, marks

PAGE = 1000
SHARE = 99.0
"""Seconds between two looks for waiting records that were canceled, for each second that one took: no index helps."""


class TableHeartbeats:
    """One call at a time, on one loop. Every method raises StoreUnreachable, and may be repeated."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._link = Link(context.dialer, lambda: context.role("heart"))
        self._clock = SystemClock()
        self._look_at = float("-inf")
        self._refused: list[Refusal] = []

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew. How long that lasts is the table's: ``stalled_max_age``, whatever ``lease`` says."""
        if not leases:
            return Pulse()
        kinds = ("lost", "canceled", "busy", "refused")
        answers: dict[str, set[tuple[JobId, str]]] = {kind: set() for kind in kinds}

        def refused(one: Lease, error: Exception) -> None:
            answers["refused"].add((one.job_id, one.token))
            self._refuse(one.job_id, "beat", error)

        with self._context.translated():
            answered = await halved(leases, lambda part: self._ask("beat", **marks(part)), refused)
            for id_, token, found in answered:
                if found != "renewed":
                    answers[found].add((self._context.job_id(id_), token))
        return Pulse(**{name: frozenset(found) for name, found in answers.items()})

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent. Returns the leases whose rows another transaction has locked."""
        if not leases:
            return []
        done: set[tuple[JobId, str]] = set()

        def refused(one: Lease, error: Exception) -> None:
            done.add((one.job_id, one.token))
            self._refuse(one.job_id, "release", error)

        with self._context.translated():
            released = await halved(leases, lambda part: self._ask("release", **marks(part)), refused)
        done |= {(self._context.job_id(id_), token) for id_, token in released}
        missed = [lease for lease in leases if (lease.job_id, lease.token) not in done]
        if not missed:
            return []
        nothing: list[str] = [""] * len(missed)
        found = {
            (self._context.job_id(id_), token): what
            for id_, token, what in await self._rows("look", **marks(missed), states=nothing, errors=nothing)
        }
        return [lease for lease in missed if found.get((lease.job_id, lease.token)) == "busy"]

    async def abandon(self, token: str) -> bool:
        """Give back what it holds. False: its claim is still under way, or some of it is locked.

        A claim commits only after its answer was read; so one whose answer was lost and that is not under way any more
        brings nothing later.
        """
        ((over,),) = await self._rows("claim_is_over", token=token)
        if not over:
            return False
        if not self._context.begun.may_hold(token):
            return True
        found = await self._rows("held_by_token", token=token)
        return not await self.release([Lease(self._context.job_id(key), token, epoch) for key, epoch in found])

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these. Waiting records that were asked to cancel are looked for as well."""
        await self._tidy()
        ids = [str(lease.job_id) for lease in ours]
        ((late, ends_in),) = await self._rows("foreign_leases", ids=ids, age=self._context.options.stalled + slack)
        return Foreign(late=late, ends_in=ends_in)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has not been renewed in time."""
        await self._tidy()
        age = self._context.options.stalled + slack
        return await self._reset(await self._rows("find_stalled", age=age, page=PAGE), age)

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds, but for what another transaction has locked."""
        taken: list[ResetJob] = []
        while page := await self._reset(await self._rows("find_held_by_worker", worker=worker, page=PAGE)):
            taken += page
        return taken

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        return await self._reset(await self._rows("find_held_by_lease", **mark_of(lease)))

    def refused(self) -> Sequence[Refusal]:
        """What the database refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check(self) -> None:
        """Nothing: the table is its owner's; where it no longer fits, the next statement fails."""

    async def check_writable(self) -> None:
        """Nothing: a server that cannot write its log ends, and a claim locks rows, which a standby refuses."""

    async def maintain(self) -> None:
        """Cancel waiting records that were asked to cancel: their turn may be far away."""
        began = stopwatch()
        with self._context.translated():
            more = len(await self._cancel_waiting()) == PAGE
        now = stopwatch()
        self._look_at = now if more else now + SHARE * (now - began)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _tidy(self) -> None:
        if stopwatch() >= self._look_at:
            await self.maintain()

    async def _reset(self, found: Sequence[Row], age: float | None = None) -> Sequence[ResetJob]:
        """Decide by ``lifecycle.reset``, and write: only where the row is still what was found."""
        if not found:
            return []
        options = self._context.options

        async def reset(part: Sequence[Row]) -> list[Row]:
            limits = {"max_resets": options.max_resets, "max_attempts": options.max_num_retries + 1}
            return await self._ask(
                "reset",
                ids=[row[0] for row in part],
                marks=[row[1] for row in part],
                epochs=[row[2] for row in part],
                states=[lifecycle.reset(resets=row[3], **limits).state.value for row in part],
                errors=[options.reset_failure_message] * len(part),
                age=age,
            )

        def refused(row: Row, error: Exception) -> None:
            self._refuse(self._context.job_id(row[0]), "reset", error)

        with self._context.translated():
            written = await halved(found, reset, refused)
        became = {self._context.job_id(id_): State(state) for id_, state in written}
        return [
            ResetJob(key, options.name, became[key], worker or None, age)
            for key, worker, age in ((self._context.job_id(row[0]), row[4], row[5]) for row in found)
            if key in became
        ]

    async def _cancel_waiting(self) -> list[Row]:
        """A page of them; one that the database refuses to change does not stop the others."""
        try:
            return await self._ask("cancel_waiting", page=PAGE, ids=None)
        except psycopg.Error as error:
            if not trouble.is_refusal(error):
                raise
        return await halved(
            await self._ask("find_cancel_waiting", page=PAGE),
            lambda part: self._ask("cancel_waiting", page=PAGE, ids=[row[0] for row in part]),
            lambda row, error: self._refuse(self._context.job_id(row[0]), "cancel", error),
        )

    def _refuse(self, job_id: JobId, doing: str, error: Exception) -> None:
        self._refused.append(Refusal(job_id, doing, clean(trouble.first_line(error))))

    async def _rows(self, name: str, **values: object) -> list[Row]:
        with self._context.translated():
            return await self._ask(name, **values)

    async def _ask(self, name: str, **values: object) -> list[Row]:
        """Repeated a few times after errors by which nothing was done. Raises what psycopg raises."""
        statement, given = self._context.statement(name), self._context.values(**values)
        return await repeated(lambda: self._link.rows(statement, given, self._context.patience), self._clock)
