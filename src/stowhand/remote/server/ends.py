"""Who waits over HTTP for the end of jobs: however many clients, the lent store is asked once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from stowhand.clock import Clock
from stowhand.protocols.offered import there
from stowhand.protocols.results import Standing
from stowhand.protocols.waits import Waits
from stowhand.remote.server.claims import ANSWER_BYTES, Claims, Gone, check_seconds, first
from stowhand.remote.server.grants import Grant, Scope
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.wake_broadcast import WakeBroadcast
from stowhand.remote.wire import LONGEST_WAIT, Ends, EndsAsked

MOST_SEEN = 100_000
"""Jobs of which it is remembered that a token may see them."""


class LentEnds:
    """Of one lent store, on the server's loop. ``claims``: counts the requests that wait, and ends them."""

    def __init__(self, shared_store: SharedStore, wake_broadcast: WakeBroadcast, claims: Claims, clock: Clock) -> None:
        self._shared_store = shared_store
        self._wake_broadcast = wake_broadcast
        self._claims = claims
        self._clock = clock
        self._waits: Waits | None = None
        self._seen: set[tuple[Grant, int]] = set()

    async def close(self) -> None:
        """End every wait."""
        if self._waits is not None:
            await self._waits.close()

    async def of(self, grant: Grant, asked: EndsAsked, gone: Gone) -> Ends:
        """Those that have ended, or where ``wait`` is given, that do before it is over.

        Raises Refused without the scopes that show a result, ConfigurationError where the store tells of no ends.
        """
        grant.need(Scope.READ)
        grant.need(Scope.PAYLOAD)
        check_seconds("wait", asked.wait, LONGEST_WAIT)
        waits = self._store_waits()
        hidden = await self._hidden(grant, (job_id for job_id, _ in asked.jobs if (grant, job_id) not in self._seen))
        jobs = {job_id: revision for job_id, revision in asked.jobs if job_id not in hidden}
        if asked.wait and jobs and not hidden:
            await self._until_one_ends(waits, grant, tuple(jobs.items()), asked.wait, gone)
        standings = await waits.results.ask(list(jobs)) if jobs else ()
        ended = [one for one in standings if one.ends(jobs[one.job_id])]
        # A key may have passed a job of this id to another task meanwhile.
        hidden |= await self._hidden(grant, [one.job_id for one in ended])
        told = [Standing(job_id, is_known=False) for job_id in hidden]
        told += [one for one in ended if one.job_id not in hidden]
        fits = _fitting(told)
        left_out = tuple(one.job_id for one in told[fits:])
        return Ends(ended=tuple(told[:fits]), left_out=left_out, retention=await waits.results.retention())

    def _store_waits(self) -> Waits:
        if self._waits is None:
            store = self._shared_store.store
            self._waits = Waits(there(store, "results", store.results), self._clock)
        return self._waits

    async def _until_one_ends(
        self, waits: Waits, grant: Grant, jobs: Sequence[tuple[int, int]], wait: float, gone: Gone
    ) -> None:
        with self._claims.polling(grant, "too many requests wait for ends under this token", "send one per process"):
            ended = asyncio.ensure_future(waits.first(jobs))
            try:
                await first(ended, gone(), self._wake_broadcast.stopping.wait(), self._clock.sleep(wait))
                if ended.done():
                    ended.result()
            finally:
                ended.cancel()
        self._claims.check_still(grant)

    async def _hidden(self, grant: Grant, job_ids: Iterable[int]) -> set[int]:
        """Those that are outside the token's tasks and queues: it is told what it is told of jobs that never were."""
        if grant.tasks is None and grant.queues is None:
            return set()
        hidden = set()
        producer = self._shared_store.queue("waited for").jobs
        for job_id in job_ids:
            job = await producer.get(job_id)
            if job is not None and not grant.sees(job):
                hidden.add(job_id)
            elif job is not None and len(self._seen) < MOST_SEEN:
                self._seen.add((grant, job_id))
        return hidden


def _fitting(told: Sequence[Standing]) -> int:
    """How many of them fit into one answer; one always does."""
    size = 0
    for place, one in enumerate(told):
        size += len(one.result_text or "") + len(one.last_error or "")
        if place and size > ANSWER_BYTES:
            return place
    return len(told)
