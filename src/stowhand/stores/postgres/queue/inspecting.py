"""Lists and shows jobs, and acts on single ones."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import Answer, Done, JobFilter
from stowhand.protocols.validation import validate_filter, validate_id, validate_key
from stowhand.stores.database.link import Values
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import Row, read_job

LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
HISTORY = (State.COMPLETED, State.CANCELED)
ABOVE_ALL = 2**63 - 1
"""Greater than every id."""
_NAMES = ("task", "queue", "key", "worker", "error", "since", "until", "limit")


class Inspector:
    """For people: what is there, and retry, cancel or remove one job."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        found = await self._rows("get", (validate_id(job_id),))
        return read_job(found[0]) if found else None

    async def find(self, wanted: JobFilter) -> Sequence[Job]:
        """In id order, rising or falling."""
        wanted = validate_filter(wanted)
        found = await self._rows("newest" if wanted.newest_first else "list", _parameters(wanted))
        return [read_job(row) for row in found]

    async def counts(self) -> dict[State, int]:
        """Live jobs and history by state."""
        counts = dict.fromkeys(State, 0)
        for state, number in await self._rows("counts"):
            counts[State(state)] += number
        return counts

    async def oldest_due(self) -> float:
        """Seconds since the job that is due longest became due."""
        ((seconds,),) = await self._rows("oldest_due", (self._context.now(),))
        return float(seconds)

    async def retry(self, job_id: int) -> Answer:
        """Due now, attempts and resets 0."""
        return await self._act("retry", job_id, (validate_id(job_id), self._context.now()))

    async def cancel(self, job_id: int) -> Answer:
        """At once; a running job is asked to stop."""
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

    async def _act(self, name: str, job_id: int, values: Sequence[object]) -> Answer:
        ((done, why),) = await self._rows(name, values)
        return answer(job_id, done, why)

    async def _rows(self, name: str, values: Values = ()) -> list[Row]:
        with self._context.translated():
            return await self._context.ask("inspect", name, values)


def answer(job_id: int, done: str, why: str) -> Answer:
    """What an acting statement replied about one job."""
    return Answer(job_id, Done(done), f"there is no job {job_id}" if done == Done.MISSING else why)


def _parameters(wanted: JobFilter) -> dict[str, object]:
    """Of each of the two tables: whether it is read at all, and for which states; NULL for all that it keeps."""
    parameters: dict[str, object] = {name: getattr(wanted, name) for name in _NAMES}
    parameters["after"] = wanted.after or (ABOVE_ALL if wanted.newest_first else 0)
    states = set(wanted.states or LIVE)
    for table, kept in (("live", LIVE), ("history", HISTORY)):
        here = [state.value for state in kept if state in states]
        parameters[table] = bool(here)
        parameters[f"{table}_states"] = None if len(here) == len(kept) else here
    return parameters
