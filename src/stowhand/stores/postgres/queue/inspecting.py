"""Looking at jobs, and acting on single ones."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import Answer, Done, JobFilter
from stowhand.protocols.validation import validate_filter, validate_id, validate_ids, validate_key
from stowhand.stores.database.link import Values
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import Row, plain_array, read_job

LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
HISTORY = (State.COMPLETED, State.CANCELED)
ABOVE_ALL = 2**63 - 1
_NAMES = ("task", "queue", "key", "worker", "error", "since", "until", "limit")
AT_ONCE = 500
"""Jobs that are acted on in one transaction: some tens of milliseconds, so that nothing waits long for their locks."""


class Inspector:
    """Answers people's questions, and does what they ask of one job."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        found = await self._rows("get", (validate_id(job_id),))
        return read_job(found[0]) if found else None

    async def find(self, wanted: JobFilter) -> Sequence[Job]:
        """In id order, rising or falling."""
        wanted = validate_filter(wanted)
        found = await self._rows("newest" if wanted.newest_first else "list", _asked(wanted))
        return [read_job(row) for row in found]

    async def counts(self) -> dict[State, int]:
        """Live jobs and history by state."""
        counts = dict.fromkeys(State, 0)
        for state, number in await self._rows("counts"):
            counts[State(state)] += number
        return counts

    async def oldest_due(self) -> float:
        """Seconds for which the job that is due longest could have run."""
        ((seconds,),) = await self._rows("oldest_due", (self._context.now(),))
        return float(seconds)

    async def retry(self, job_id: int) -> Answer:
        """Due now, attempts and resets 0."""
        return await self._act("retry", job_id, (validate_id(job_id), self._context.now()))

    async def cancel(self, job_id: int) -> Answer:
        """At once, or asked of its worker."""
        return await self._act("cancel", job_id, (validate_id(job_id), self._context.keep, self._context.now()))

    async def remove(self, job_id: int) -> Answer:
        """Delete, unless it runs or is completed."""
        return await self._act("remove", job_id, (validate_id(job_id),))

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key; a running one loses it and will not run again."""
        ((job_id, done, why),) = await self._rows("remove_key", (validate_key(key),))
        if done == Done.MISSING:
            return Answer(None, Done.MISSING, f"no live job has the key {key!r}")
        return Answer(job_id, Done(done), why)

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Due now, attempts and resets 0."""
        return await self._act_on_all("retry_jobs", job_ids, self._context.now())

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """At once, or asked of their workers."""
        return await self._act_on_all("cancel_jobs", job_ids, self._context.keep, self._context.now())

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Delete, unless they run or are completed."""
        return await self._act_on_all("remove_jobs", job_ids)

    async def _act_on_all(self, name: str, job_ids: Sequence[int], *values: object) -> list[Answer]:
        answers: list[Answer] = []
        ids = validate_ids(job_ids)
        for start in range(0, len(ids), AT_ONCE):
            answers += await self._act_on_page(name, ids[start : start + AT_ONCE], values)
        return answers

    async def _act_on_page(self, name: str, ids: Sequence[int], values: tuple[object, ...]) -> list[Answer]:
        """In one transaction; each alone where somebody holds one of them."""
        try:
            found = await self._rows(name, (plain_array(ids), *values))
        except _Held as error:
            if len(ids) == 1:
                return [Answer(ids[0], Done.REFUSED, str(error))]
            alone = [await self._act_on_page(name, [job_id], values) for job_id in ids]
            return [answer for answers in alone for answer in answers]
        return [_answer(*row) for row in found]

    async def _act(self, name: str, job_id: int, values: Sequence[object]) -> Answer:
        ((done, why),) = await self._rows(name, values)
        return _answer(job_id, done, why)

    async def _rows(self, name: str, values: Values = ()) -> list[Row]:
        with self._context.translated():
            try:
                return await self._context.pool.rows("inspect", self._context.statements[name], values)
            except psycopg.errors.LockNotAvailable:
                raise _Held(
                    f"{self._context.address}: somebody's open transaction holds the job; try again when it has ended"
                ) from None


class _Held(StoreUnreachable):
    """A row is locked, and stays so."""


def _answer(job_id: int, done: str, why: str) -> Answer:
    return Answer(job_id, Done(done), f"there is no job {job_id}" if done == Done.MISSING else why)


def _asked(wanted: JobFilter) -> dict[str, object]:
    """Of each of the two tables: whether it is read at all, and unless for all that it keeps, for which states."""
    asked: dict[str, object] = {name: getattr(wanted, name) for name in _NAMES}
    asked["after"] = wanted.after or (ABOVE_ALL if wanted.newest_first else 0)
    states = set(wanted.states or LIVE)
    for table, kept in (("live", LIVE), ("history", HISTORY)):
        here = [state.value for state in kept if state in states]
        asked[table], asked[f"{table}_states"] = bool(here), None if len(here) == len(kept) else here
    return asked
