"""Creation, deletion, retry and cancelation of a flow's jobs in Redis. Each change is one atomic script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stowhand.errors import OutcomeUnknown, QueueFull, StoreError, StoreUnreachable
from stowhand.flows.engine import NewFlowJob
from stowhand.flows.job import Stage
from stowhand.flows.redis.error_translation import NoReply, translated
from stowhand.flows.redis.inspector import Inspector
from stowhand.flows.redis.layout import JobLocation, Keys, QueueLocation
from stowhand.flows.redis.server import Server, take_queues
from stowhand.flows.redis.values import KEY_FIELD, STATE_FIELD, StoredJob, state_of
from stowhand.jobs import strict_json
from stowhand.observe.propagation import TRACE_PARENT
from stowhand.protocols.queue_store import ActionResult, Answer

MAX_BATCH_JOBS = 200
"""Jobs that one script creates; meanwhile the server serves no other client."""
MAX_BATCH_CHARS = 512 * 1024
"""Characters of their values."""
MAX_WAITING_JOBS = 1_000_000
"""Default ``max_length`` of the first queue: jobs take memory, and perhaps no worker serves the queue."""
MAX_CANCEL_ATTEMPTS = 40
"""A job may move on between reading it and the script that cancels it."""
_NOT_CANCELED = {
    Stage.COMPLETED: (ActionResult.REFUSED, "it has completed already"),
    Stage.FAILED: (ActionResult.REFUSED, "it has failed already; delete it, or retry it"),
    Stage.CANCELED: (ActionResult.UNCHANGED, "it is canceled already"),
    Stage.LOST: (ActionResult.REFUSED, "no list of its queue contains it; delete it, or retry it"),
}
_NOT_RETRIED = {
    "changed": "it has just changed; read it again",
    "orphan": "its parent was deleted",
    "parent failed": "its parent has failed; retry the parent",
    "gathered": "its parent has continued without it; create a new parent",
    "gathering": "its parent is running; try again",
    "unknown parent": "its parent is unknown: another program has created it",
}


class RedisJobs:
    """Writer of the jobs of one flow, children included."""

    def __init__(self, keys: Keys, inspector: Inspector, server: Server) -> None:
        self._keys = keys
        self._inspector = inspector
        self._server = server
        self._shape = keys.shape
        self._queues = {queue.name: QueueLocation(keys, queue) for queue in keys.shape.all_queues()}
        self._entry = self._queues[keys.shape.entry.name]
        max_length = keys.shape.entry.declared.max_length
        self._max_waiting = MAX_WAITING_JOBS if max_length is None else max_length
        self._life = round(keys.shape.key_life * 1000)
        self._places = msgspec.json.encode({queue.name: _place(queue) for queue in self._queues.values()}).decode()

    # -- create ----------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewFlowJob]) -> list[str]:
        """Store the jobs and add them to the first queue, up to 200 in one step. Return their ids.

        A call without a reply is repeated; the repeat does not change jobs that exist by then. Raises StoreUnreachable
        if nothing was written, and OutcomeUnknown if that is not known or only some of the jobs were written.
        """
        created_ids: list[str] = []
        for batch in _batches([(self._keys.new_id(), job) for job in jobs]):
            try:
                created_ids += await self._create(batch)
            except StoreError as error:
                if created_ids:
                    raise OutcomeUnknown(
                        f"the first {len(created_ids)} of {len(jobs)} jobs were created, then: {error}"
                    ) from error
                raise
        return created_ids

    async def _create(self, batch: Sequence[tuple[str, NewFlowJob]]) -> Sequence[str]:
        entry = self._entry.name
        is_lasting = self._keys.is_lasting
        keys = [self._keys.job(batch[0][0])]
        if not is_lasting:
            keys.append(self._keys.flow(entry))
        args: list[Any] = [self._keys.jobs, self._life, "1" if is_lasting else "", self._shape.name]
        args += [self._keys.prefix, self._keys.root(entry), self._max_waiting, entry]
        for job_id, job in batch:
            args += self._words(job_id, job)
        unanswered = False

        async def attempt() -> Any:
            nonlocal unanswered
            try:
                with translated(self._server.address):
                    return await self._server.run_once("create", keys, args)
            except NoReply:
                unanswered = True
                raise

        try:
            created_count, *ids = await self._server.ask(attempt)
        except StoreError as error:
            if unanswered:
                raise OutcomeUnknown(f"it is not known whether the jobs were created: {error}") from error
            raise
        if created_count < 0:
            raise QueueFull(
                f"{self._server.address}: queue {entry!r} holds as many jobs as its max_length, {self._max_waiting}:"
                " nothing was created. Start workers that serve it, or raise max_length"
            )
        if not created_count:
            await take_queues(self._keys, self._server)  # raises the error that names the flow that owns it now
            raise StoreUnreachable(f"{self._server.address}: queue {entry!r} has a new owner; try again")
        return list(ids)

    def _words(self, job_id: str, job: NewFlowJob) -> Iterator[Any]:
        """Yield a job's arguments in the order in which ``create.lua`` reads them."""
        fields = dict(job.values)
        if job.correlation_id is not None:
            fields["correlationId"] = strict_json.encode(job.correlation_id, what="correlation_id")
        if context := job.carried.get(TRACE_PARENT):
            fields.setdefault(TRACE_PARENT, strict_json.encode(context, what=TRACE_PARENT))
        if self._keys.is_lasting:
            fields |= {"flowName": strict_json.encode(self._shape.name), "priority": str(job.priority)}
        lists = dict.fromkeys(self._keys.lookup(attribute, value) for attribute, value in job.lookups)
        key = "" if job.key is None else self._keys.key(job.key)
        if job.key is not None:
            fields[KEY_FIELD] = strict_json.encode(job.key, what="key")
            lists[key] = None
        delay = 0 if job.delay is None else round(job.delay * 1000)
        yield from (job_id, self._entry.bases[job.priority - 1], delay, key, 2 * len(fields))
        for name, text in fields.items():
            yield from (name, text)
        yield len(lists)
        yield from lists

    # -- delete, retry, cancel -------------------------------------------------------------------

    async def delete(self, job_id: str) -> bool:
        """Delete a job, its children and its lookups. A running job is not interrupted, but its result is not kept."""
        location = self._keys.location(job_id)
        if location is None or location.child is not None:
            return False
        return bool(await self._server.run("delete", (location.hash,), self._entry.text, location.listed, self._places))

    async def retry(self, job_id: str) -> Answer:
        """Put a job at the end of the queue in which it failed or was lost, with all retries and a full lifetime."""
        job = await self._inspector.find(job_id)
        if job is None:
            return Answer(job_id, ActionResult.MISSING, "there is no such job, or it has expired")
        location, stored = job
        stage, name = state_of(self._shape, stored)
        if stage not in (Stage.FAILED, Stage.CANCELED, Stage.LOST):
            return Answer(job_id, ActionResult.REFUSED, f"it has not failed: it is {stage}")
        queue = self._queues.get(name or "")
        if queue is None or not _may_be_in(location, queue):
            reason = f"it failed in {name!r}, which is not a queue of this flow that it can be in"
            return Answer(job_id, ActionResult.REFUSED, reason)
        return await self._put_back(location, queue, stored, is_lost=stage is Stage.LOST)

    async def _put_back(
        self, location: JobLocation, queue: QueueLocation, stored: StoredJob, *, is_lost: bool
    ) -> Answer:
        """Put the job back, unless it has changed since ``stored`` was read."""
        raw = stored.raw
        expected = {
            "failed": raw.get("failed"),
            "failed_queue": raw.get("failedQueue"),
            "state": raw.get(STATE_FIELD),
            "lost": is_lost,
        }
        text = msgspec.json.encode(expected).decode()
        result = await self._server.run("retry", (location.hash,), queue.text, location.listed, text)
        if result == "retried":
            return Answer(location.job_id, ActionResult.DONE)
        return Answer(location.job_id, ActionResult.REFUSED, _NOT_RETRIED[result])

    async def cancel(self, job_id: str) -> Answer:
        """Cancel a waiting job at once; request a running one to stop. May be repeated."""
        for _ in range(MAX_CANCEL_ATTEMPTS):
            job = await self._inspector.find(job_id)
            if job is None:
                return Answer(job_id, ActionResult.MISSING, f"there is no job {job_id}")
            location, stored = job
            stage, name = state_of(self._shape, stored)
            if stage in _NOT_CANCELED:
                return Answer(job_id, *_NOT_CANCELED[stage])
            queue = self._queues.get(name or "")
            if queue is None:
                return Answer(job_id, ActionResult.REFUSED, f"it is in {name!r}, which is not a queue of this flow")
            match await self._server.run("cancel", (location.hash,), queue.text, location.listed, unanswered=True):
                case "canceled":
                    return Answer(job_id, ActionResult.DONE)
                case "asked":
                    return Answer(job_id, ActionResult.ASKED, "it is running; its worker will stop it")
        return Answer(job_id, ActionResult.REFUSED, "it has just changed; try again")


def _batches(jobs: Sequence[tuple[str, NewFlowJob]]) -> Iterator[list[tuple[str, NewFlowJob]]]:
    batch: list[tuple[str, NewFlowJob]] = []
    size = 0
    for entry in jobs:
        entry_size = sum(map(len, entry[1].values.values()))
        if batch and (len(batch) == MAX_BATCH_JOBS or size + entry_size > MAX_BATCH_CHARS):
            yield batch
            batch = []
            size = 0
        batch.append(entry)
        size += entry_size
    if batch:
        yield batch


def _may_be_in(location: JobLocation, queue: QueueLocation) -> bool:
    """Return whether the job can be in the queue: a child only in its own, any other job in none of a child."""
    return queue.flow_queue.parent is None if location.child is None else location.child.name == queue.name


def _place(queue: QueueLocation) -> dict[str, Any]:
    """Return the description of a queue that ``delete.lua`` reads."""
    names = ("root", "bases", "hashes", "limiter")
    description = {name: queue.described[name] for name in names if name in queue.described}
    if queue.flow_queue.parent is not None:
        description["named"] = queue.keys.child_hashes(queue.flow_queue)
    return description
