"""The engine of a flow on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowhand.errors import StoreError
from stowhand.flows.engine import NewFlowJob, Position, grouped
from stowhand.flows.job import FlowJob, FlowJobView
from stowhand.flows.redis.address import check_hash_tag, read_address
from stowhand.flows.redis.error_translation import translated
from stowhand.flows.redis.inspector import Inspector
from stowhand.flows.redis.jobs import RedisJobs
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.parents import LOST_CHILD, Parents, raw_values
from stowhand.flows.redis.server import Server, check_server, take_queues
from stowhand.flows.redis.settlements import StepResult, encode_end, with_trace_context
from stowhand.flows.redis.store import FlowRecord, FlowStore
from stowhand.flows.redis.values import NOTE_FIELDS, readable, requested_values, view_of
from stowhand.jobs.lifecycle import Complete, Fail, Outcome, Snooze
from stowhand.jobs.text import clean
from stowhand.observe.propagation import TRACE_PARENT, current_traceparent
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.options import DEFAULT_LEASE_SECONDS
from stowhand.protocols.queue_store import Answer

SWEEP_INTERVAL_SECONDS = 0.2
"""Seconds; six times that while nothing runs. The script itself works once a second at most."""
OUTAGE_PAUSE_SECONDS = 1.0
"""Seconds until a parent reads its children again, after an outage."""
MAX_REASONS = 10_000
HIDDEN_FIELDS = (*NOTE_FIELDS, TRACE_PARENT)


class RedisEngine:
    """Engine of one flow at one address. It connects on first use. Raises ConfigurationError."""

    sweep_interval = SWEEP_INTERVAL_SECONDS
    handles_child_end = False
    wait_for_commit = None
    retries_first = True

    def __init__(self, place: str, shape: FlowShape) -> None:
        self.shape = shape
        self._address = read_address(place)
        check_hash_tag(self._address, shape.hash_tag)
        self._server = server = Server(self._address)
        self._has_taken_queues = False
        self._keys = keys = Keys(shape)
        self._inspector = inspector = Inspector(keys, server)
        self._jobs = RedisJobs(keys, inspector, server)
        self._parents = Parents(keys, inspector)
        self.create = grouped(self.create_many)
        """Create a job in one script with concurrent creations. Raise OutcomeUnknown if a repeat gets no reply."""
        self.ids = inspector.ids
        self.read = inspector.read
        self.failed = inspector.failed
        self.counts = inspector.counts
        self.delete = self._jobs.delete
        self.cancel = self._jobs.cancel
        self._bare: dict[str | None, Outcome] = {}
        """Outcomes without attributes by next queue, each encoded once."""
        self._reasons: dict[tuple[str, str], str] = {}

    @property
    def description(self) -> str:
        """The server's address."""
        return str(self._address)

    async def open(self) -> Sequence[str]:
        """Connect, and check the server: one that is too old is refused; settings that may lose jobs are warnings."""
        with translated(self._address, opening=True):
            findings = await check_server(self._server.client)
        return [f"{self.description}: {finding}" for finding in findings]

    async def claim_queues(self) -> None:
        """Mark the queues as this flow's, once while the engine is open."""
        if not self._has_taken_queues:
            await take_queues(self._keys, self._server)
            self._has_taken_queues = True

    async def close(self) -> None:
        """Close every connection."""
        self._has_taken_queues = False
        await self._server.dialer.close()

    # -- jobs

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """Create the jobs, up to 200 in one script."""
        await self.claim_queues()
        return await self._jobs.create(jobs)

    async def views(self, job_ids: Sequence[str]) -> Sequence[FlowJobView | None]:
        """Read the jobs one after the other. The classic layout does not record when a job ended."""
        jobs = [await self._inspector.find(job_id) for job_id in job_ids]
        return [None if job is None else view_of(self.shape, job[0].job_id, job[1]) for job in jobs]

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """Read a page of children, up to 200 in a round trip."""
        location = self._keys.location(job_id)
        keys = [] if location is None else await self._inspector.child_keys(location.hash, queue)
        children = await self._inspector.children(keys[start : start + limit])
        return [child if fields else child | LOST_CHILD for fields, child in children]

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """Retry the jobs one after the other, each in one script."""
        self._has_taken_queues = False  # another flow may have taken a queue since
        await self.claim_queues()
        return [await self._jobs.retry(job_id) for job_id in job_ids]

    async def pause(self, queue: FlowQueue) -> bool:
        """Set the key that every claim checks."""
        return await self._server.command("SET", self._keys.paused(queue.name), "1", "NX") is not None

    async def resume(self, queue: FlowQueue) -> bool:
        """Delete the key; idle workers claim again within a second."""
        return bool(await self._server.command("DEL", self._keys.paused(queue.name)))

    # -- queues

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """Return an atomic snapshot of up to ``limit`` jobs in each state."""
        return await self._inspector.positions(self.shape.find_queue(queue), limit)

    async def sweep(self) -> int:
        """Sweep every queue now, however recent the last sweep is."""
        await self.claim_queues()
        stores = [FlowStore(self._server, self.shape, queue) for queue in self.shape.all_queues()]
        return sum([len(await store.sweep()) for store in stores])

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """Return the queue's full name."""
        return queue.name

    def store(
        self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = DEFAULT_LEASE_SECONDS
    ) -> FlowStore:
        """Return a store of the queue with its own connections."""
        seen = self._parents.seen(queue)
        attributes = seen.declared.attributes_to_get
        if attributes is not None:
            declared = msgspec.structs.replace(seen.declared, attributes_to_get=(*attributes, TRACE_PARENT))
            seen = msgspec.structs.replace(seen, declared=declared)
        return FlowStore(
            Server(self._address),
            self.shape,
            seen,
            lock_time=lock_time,
            wait_timeout=wait_timeout,
            lease=lease,
            reasons=self._reasons,
        )

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> FlowJob:
        """Return the claimed job. A parent's attributes are decoded only when they are needed."""
        known: FlowRecord = record
        values = {} if queue.is_parent else requested_values(self._without_notes(queue, known.values))
        job_id = self._keys.public_id(queue, known.id)
        correlation_id = readable(known.correlation_id)
        flow, named = (known.flow, known.flow) if queue.parent is None else (self.shape.name, queue.name)
        if self._keys.is_lasting:
            values |= {"flowName": named, "priority": known.priority, "correlationId": correlation_id}
        values["id"] = job_id
        return FlowJob(
            job_id,
            flow,
            queue.name,
            values,
            ctx,
            priority=known.priority,
            correlation_id=correlation_id if isinstance(correlation_id, str) else None,
            retries=known.retries,
        )

    def _without_notes(self, queue: FlowQueue, values: dict[str, str | None]) -> dict[str, str | None]:
        """Remove the scripts' own fields and the trace context, unless the queue requests them by name.

        A function that returns all its attributes must not write them.
        """
        requested = queue.declared.attributes_to_get or ()
        return {name: text for name, text in values.items() if name not in HIDDEN_FIELDS or name in requested}

    async def check_start(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """Return ``None``: the claim has applied the limiters, so the job may run."""
        return None

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """Return an outcome whose settlement script stores the fields and moves the job on."""
        if fields or current_traceparent() is not None:
            return self._ended(StepResult(fields=raw_values(fields), next=next_queue))
        if next_queue not in self._bare:
            self._bare[next_queue] = self._ended(StepResult(next=next_queue))
        return self._bare[next_queue]

    def encode(self, result: object) -> str:
        """Return the result, which ``complete`` has already encoded as text."""
        return str(result)

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """Snooze the job. The reason goes to the store beside the settlement, which has no field for it."""
        while len(self._reasons) >= MAX_REASONS:  # left by attempts that lost their lease and were never settled
            del self._reasons[next(iter(self._reasons))]
        self._reasons[job.ctx.lease.job_id, job.ctx.lease.token] = reason
        return Snooze(delay)

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """Fan out, gather, or keep waiting. During an outage the job is postponed, not failed."""
        try:
            end = await self._parents.step(queue, job)
        except StoreError as error:
            job.ctx.logger.warning(f"its children cannot be read: {error}")
            return self.postpone(queue, job, OUTAGE_PAUSE_SECONDS, "its children could not be read")
        return self._ended(end) if isinstance(end, StepResult) else end

    async def on_child_end(self, queue: FlowQueue, job: FlowJob) -> None:
        """Do nothing: the settlement of the last child wakes the parent."""

    def _ended(self, end: StepResult) -> Outcome:
        """Encode the end now, so that an end that cannot be written fails the job instead of losing its results."""
        try:
            return Complete(encode_end(with_trace_context(end)))
        except ValueError as error:  # InvalidJob, and names that are not valid Unicode
            return Fail(clean(f"the step's end cannot be written: {error}"))
