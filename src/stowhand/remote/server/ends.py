"""How jobs of the lent store ended, for callers that wait for them over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stowhand.protocols.offered import there
from stowhand.protocols.results import Standing
from stowhand.remote.server.claims import ANSWER_BYTES
from stowhand.remote.server.grants import Grant
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.wire import Ends, EndsAsked

MOST_SEEN = 100_000
"""Jobs of which it is remembered that a token may see them."""


class LentEnds:
    """Of one lent store, on the server's loop."""

    def __init__(self, shared_store: SharedStore) -> None:
        self._shared_store = shared_store
        self._seen: set[tuple[Grant, int]] = set()

    async def of(self, grant: Grant, asked: EndsAsked) -> Ends:
        """Those that have ended. Raises Refused, ConfigurationError where the store says nothing of ends."""
        store = self._shared_store.store
        results = there(store, "results", store.results)
        hidden = await self._hidden(grant, (job_id for job_id in asked.job_ids if (grant, job_id) not in self._seen))
        job_ids = [job_id for job_id in asked.job_ids if job_id not in hidden]
        ended = await results.ask(job_ids) if job_ids else ()
        # A key may have passed a job of this id to another task meanwhile.
        hidden |= await self._hidden(grant, [one.job_id for one in ended])
        told = [Standing(job_id, is_known=False) for job_id in hidden]
        told += [one for one in ended if one.job_id not in hidden]
        fits = _fitting(told)
        left_out = tuple(one.job_id for one in told[fits:])
        return Ends(ended=tuple(told[:fits]), left_out=left_out, retention=await results.retention())

    async def _hidden(self, grant: Grant, job_ids: Iterable[int]) -> set[int]:
        """Those that are outside the token's tasks and serial keys: it is told what it is told of jobs that never
        were."""
        if grant.tasks is None and grant.serials is None:
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
