"""The engine on Redis: puts together what ``stores/redis`` can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.flows.creating import Creating
from stowhand.flows.engine import NewFlowJob, Position, QueueCount
from stowhand.flows.job import FlowJob
from stowhand.flows.redis.address import Address, check_hash_tag, read_address
from stowhand.flows.redis.claiming import FlowRecord
from stowhand.flows.redis.dialing import Dialer
from stowhand.flows.redis.ending import StepEnd, encode_end, handed_over
from stowhand.flows.redis.facts import look_at_server
from stowhand.flows.redis.jobs import RedisJobs
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.looking import Looking
from stowhand.flows.redis.naming import Naming
from stowhand.flows.redis.owning import take_queues
from stowhand.flows.redis.parents import LOST, Parents, raw
from stowhand.flows.redis.positions import Positions
from stowhand.flows.redis.retrying import Retrying
from stowhand.flows.redis.store import FlowStore
from stowhand.flows.redis.trouble import translated
from stowhand.flows.redis.values import readable, view_of, wanted
from stowhand.flows.view import FlowJobView
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Complete, Fail, Outcome, Settlement, Snooze
from stowhand.jobs.text import clean
from stowhand.protocols.flow_shape import FlowQueue, FlowShape, Layout
from stowhand.protocols.handler import Attempt
from stowhand.protocols.options import LEASE
from stowhand.protocols.propagation import TRACE_PARENT, handed_on
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import Reply

SWEEP_INTERVAL = 0.2
"""Seconds; six times that while nothing runs, and the script does its work once a second at most."""
OUTAGE_PAUSE = 1.0
"""Seconds until a parent looks for its children again."""
MOST_REASONS = 10_000
_FACTS = ("flowName", "priority", "correlationId")


class RedisEngine:
    """One flow at one address. Nothing is connected before it is used. Raises ConfigurationError."""

    sweep_interval = SWEEP_INTERVAL
    tells_parents = False
    carries = False

    def __init__(self, place: str, shape: FlowShape) -> None:
        self.shape = shape
        self._address = read_address(place)
        check_hash_tag(self._address, shape.hash_tag)
        self._dialer = Dialer(self._address)
        self._sweeper: FlowStore | None = None
        self._taken = False
        self._naming = Naming(Keys(shape))
        way = (self._address, self._dialer.calls, SystemClock())
        self._looking, self._standing = Looking(self._naming, *way), Positions(self._naming, *way)
        self._jobs = RedisJobs(self._naming, self._looking, *way)
        self._creating = Creating(self.create_many)
        self._retrying = Retrying(self._naming, self._looking, *way)
        self._parents = Parents(self._naming, self._looking)
        self._bare: dict[str | None, Outcome] = {}
        """Ends without attributes: there are as many as queues."""
        self._reasons: dict[tuple[str, str], str] = {}

    @property
    def description(self) -> str:
        """Where it is."""
        return str(self._address)

    async def open(self) -> Sequence[str]:
        """Connect, and look at the server: too old a one is refused, what may lose jobs is told."""
        with translated(self._address, opening=True):
            facts = await look_at_server(self._dialer.calls(), clustered=self._address.clustered)
        return [f"{self.description}: {finding}" for finding in facts.findings]

    async def take(self) -> None:
        """Once for as long as it is open."""
        if not self._taken:
            await take_queues(self._naming.keys, self._dialer.calls(), self._address, SystemClock())
            self._taken = True

    async def close(self) -> None:
        """Let every connection go."""
        self._taken = False
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            await sweeper.close()
        await self._dialer.close()

    # -- jobs

    async def create(self, job: NewFlowJob) -> str:
        """One script, with those that are created meanwhile. Raises OutcomeUnknown when a repeat has no answer."""
        return await self._creating.create(job)

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """Some hundreds in one script."""
        await self.take()
        return await self._jobs.create(jobs)

    async def delete(self, job_id: str) -> bool:
        """One script."""
        spot = self._naming.spot(job_id)
        return spot is not None and await self._jobs.delete(spot)

    async def ids(self, attribute: str, value: str) -> Sequence[str]:
        """Some may have expired."""
        return await self._looking.ids(attribute, value)

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> Sequence[dict[str, Any] | None]:
        """In the order given. A value that is no JSON is ``None``."""
        return await self._looking.read(job_ids, resolve_children=resolve_children)

    async def stand(self, job_id: str) -> FlowJobView | None:
        """Looked for in its queues. In the classic layout nothing says when it ended."""
        spot = self._naming.spot(job_id)
        (known,) = await self._looking.read([job_id], resolve_children=False)
        if spot is None or known is None:
            return None
        queue, how, ready = await self._standing.place(spot)
        if queue is None:  # it may have moved on meanwhile
            (known,) = await self._looking.read([job_id], resolve_children=False)
            if known is None:
                return None
        return view_of(known, None if queue is None else queue.name, how, ready)

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """Some hundreds in a round trip."""
        spot = self._naming.spot(job_id)
        keys = [] if spot is None else await self._looking.child_keys(spot.hash, queue)
        found = await self._looking.children(keys[start : start + limit])
        return [child if fields else child | LOST for fields, child in found]

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """One after the other, each in one script."""
        self._taken = False  # it may be long ago
        await self.take()
        return [await self._retrying.retry(job_id) for job_id in job_ids]

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> Sequence[str]:
        """Looks at every key of the database: for people."""
        return await self._looking.failed(queue, after=after, limit=limit)

    # -- looking

    async def counts(self) -> Sequence[QueueCount]:
        """In one moment. Failed jobs are not counted: they are in no list."""
        return [QueueCount(**msgspec.structs.asdict(count)) for count in await self._standing.counts()]

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """In one moment; up to ``limit`` of each state."""
        places = await self._standing.positions(self.shape.find_queue(queue), limit)
        return [Position(queue=queue, **msgspec.structs.asdict(place)) for place in places]

    async def sweep(self) -> int:
        """Every queue, however short the last look is ago."""
        await self.take()
        if self._sweeper is None:
            self._sweeper = FlowStore(self._address, self.shape)
        return len(await self._sweeper.sweep())

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """The queue's full name."""
        return queue.name

    def store(self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = LEASE) -> FlowStore:
        """With connections of its own."""
        seen = self._parents.seen(queue)
        asked = seen.declared.attributes_to_get
        if self.carries and asked is not None:
            declared = msgspec.structs.replace(seen.declared, attributes_to_get=(*asked, TRACE_PARENT))
            seen = msgspec.structs.replace(seen, declared=declared)
        return _OneQueue(self._address, self.shape, seen, lock_time, wait_timeout, lease, self._reasons)

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> FlowJob:
        """What was claimed. A parent's attributes are not looked at before they are needed."""
        known: FlowRecord = record
        values = {} if queue.is_parent else wanted(self._asked_for(queue, known.values))
        job_id = self._naming.shown(queue, known.id)
        correlation_id = readable(known.correlation_id)
        flow = self.shape.name if queue.parent is not None else known.flow
        if self.shape.layout is Layout.PRIORITY:
            named = known.flow if queue.parent is None else queue.name
            values |= dict(zip(_FACTS, (named, known.priority, correlation_id), strict=True))
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

    def _asked_for(self, queue: FlowQueue, values: dict[str, str | None]) -> dict[str, str | None]:
        """Without the context, unless it is asked for by name: who returns all that was given must not pass it on."""
        if not self.carries or TRACE_PARENT in (queue.declared.attributes_to_get or ()):
            return values
        return {name: text for name, text in values.items() if name != TRACE_PARENT}

    async def admit(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """Whoever is claimed may run: a limiter has its say before that."""
        return None

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """The settlement's script keeps them and moves the job on."""
        if fields or (self.carries and handed_on() is not None):
            return self._ended(StepEnd(fields=raw(fields), next=next_queue))
        if next_queue not in self._bare:
            self._bare[next_queue] = self._ended(StepEnd(next=next_queue))
        return self._bare[next_queue]

    def encode(self, result: object) -> str:
        """It is text already: what cannot be written has failed before."""
        return str(result)

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """The reason goes to the store beside the settlement."""
        while len(self._reasons) >= MOST_REASONS:  # of attempts that lost their lease, and were never settled
            del self._reasons[next(iter(self._reasons))]
        self._reasons[job.ctx.lease.job_id, job.ctx.lease.token] = reason
        return Snooze(delay)

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """Fan out, gather, or wait on; an outage of the server is no fault of the job."""
        try:
            end = await self._parents.step(queue, job)
        except StoreError as error:
            job.ctx.logger.warning(f"its children cannot be read: {error}")
            return self.postpone(queue, job, OUTAGE_PAUSE, "its children could not be read")
        return self._ended(end) if isinstance(end, StepEnd) else end

    async def left(self, queue: FlowQueue, job: FlowJob) -> None:
        """The settlement of the last child has woken its parent."""

    def _ended(self, end: StepEnd) -> Outcome:
        """Written here, so that what cannot be written fails the job: it must not pass for a job without results."""
        try:
            return Complete(encode_end(handed_over(end) if self.carries else end))
        except ValueError as error:  # InvalidJob, and names that are no Unicode
            return Fail(clean(f"the step's end cannot be written: {error}"))


class _OneQueue(FlowStore):
    """Of one queue, for its workers; takes along why jobs are to wait."""

    def __init__(
        self,
        address: Address,
        shape: FlowShape,
        queue: FlowQueue,
        lock_time: float,
        wait_timeout: float,
        lease: float,
        reasons: dict[tuple[str, str], str],
    ) -> None:
        super().__init__(address, shape, [queue], lock_time=lock_time, wait_timeout=wait_timeout, lease=lease)
        self._told = reasons

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """As ever."""
        if self._told:
            for lease, _ in batch:
                reason = self._told.pop((lease.job_id, lease.token), None)
                if reason is not None:
                    self.reasons[lease.job_id, lease.token] = reason
        return await super().settle(batch, repeat=repeat)
