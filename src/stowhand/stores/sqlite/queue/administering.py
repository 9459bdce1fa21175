"""Acts on jobs, on one or on many at once: some hundreds in a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import Answer, Reschedule
from stowhand.protocols.validation import validate_ids, validate_reason, validate_reschedule, validate_workers
from stowhand.stores.sqlite.queue import administer, inspector, operating
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.producing import Producer


class Administrator:
    """``history``: completed and canceled jobs are kept."""

    def __init__(self, connections: Connections, producer: Producer, *, history: bool) -> None:
        self._connections = connections
        self.add_built_in = producer.add_built_in
        self._history = history

    async def retry(self, job_id: int) -> Answer:
        """Due now."""
        return await self._connections.write(partial(inspector.retry, job_id=job_id), wakes=True)

    async def cancel(self, job_id: int) -> Answer:
        """At once if it waits; a running one is canceled by its worker."""
        return await self._connections.write(partial(inspector.cancel, job_id=job_id, history=self._history))

    async def remove(self, job_id: int) -> Answer:
        return await self._connections.write(lambda connection, _: inspector.remove(connection, job_id))

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._answers(job_ids, inspector.retry)

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._answers(job_ids, partial(inspector.cancel, history=self._history))

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._answers(job_ids, lambda connection, _, job_id: inspector.remove(connection, job_id))

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._connections.write(lambda connection, _: inspector.remove_key(connection, key))

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Page by page."""
        retried: list[int] = []
        for ids in administer.pages(validate_ids(job_ids)):
            retried += await self._connections.write(partial(operating.retry_failed, job_ids=ids), wakes=True)
        return retried

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        return await self._act(job_ids, partial(administer.complete, history=self._history))

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Failed, with attempts = max_attempts."""
        return await self._act(job_ids, partial(administer.fail, reason=validate_reason(reason)))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        to = validate_reschedule(to)
        return await self._act(job_ids, partial(administer.reschedule, to=to, history=self._history))

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Reset what these workers hold now."""
        tokens = dict(await self._connections.read(partial(administer.held_by, workers=validate_workers(workers))))

        def take_back(connection: sqlite3.Connection, now: Moment, *, job_ids: Sequence[int]) -> Sequence[Job]:
            pairs = [(job_id, tokens[job_id]) for job_id in job_ids]
            return administer.take_back(connection, now, pairs=pairs, history=self._history)

        return await self._act(list(tokens), take_back)

    async def _act(self, job_ids: Sequence[int], act: administer.Action) -> Sequence[Job]:
        changed: list[Job] = []
        for ids in administer.pages(validate_ids(job_ids)):
            changed += await self._connections.write(partial(act, job_ids=ids), wakes=True)
        return changed

    async def _answers(self, job_ids: Sequence[int], act: Callable[..., Answer]) -> Sequence[Answer]:
        answers: list[Answer] = []
        for ids in administer.pages(validate_ids(job_ids)):

            def page(connection: sqlite3.Connection, now: Moment, ids: Sequence[int] = ids) -> Sequence[Answer]:
                return [act(connection, now, job_id) for job_id in ids]

            answers += await self._connections.write(page, wakes=True)
        return answers
