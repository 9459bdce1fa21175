"""The engine of a flow on a queue store."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, SchemaMissing, StoreError
from stowhand.flows.engine import Position, QueueCount
from stowhand.flows.job import FlowJob
from stowhand.flows.queue.ids import Ids
from stowhand.flows.queue.jobs import QueueJobs
from stowhand.flows.queue.lists import long_apart, read_lists
from stowhand.flows.queue.parents import Children
from stowhand.flows.queue.queues import FlowQueueStore, SharedListener
from stowhand.flows.queue.step import StepJob, new_step, raw, read_job, task_of, too_much
from stowhand.jobs.lifecycle import Complete, Fail, Outcome, Snooze
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.flow_tables import FlowTables, Spending
from stowhand.protocols.handler import Attempt
from stowhand.protocols.options import LEASE, WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import DAY, Heartbeats, Store, StoreOptions, Terms
from stowhand.stores.opening import open_store

OUTAGE_PAUSE = 2.0
"""Seconds until a step is tried again that could not start because the store did not answer."""
PART_LIMIT = 200
MOST_CHECKED = 1000
"""Jobs whose existence one query checks."""


class QueueEngine(QueueJobs):
    """``Engine`` on a URL, or on a store that the application opens and closes."""

    sweep_interval = WorkerOptions().sweep_interval
    handles_child_end = True
    carries = False
    """Never set by tracing here: the settlement enqueues the next step, which then carries the trace context itself."""

    def __init__(self, place: str | QueueStore, shape: FlowShape) -> None:
        self._owns_store = isinstance(place, str)
        store = open_store(place, StoreOptions(history=max(shape.key_life, DAY))) if isinstance(place, str) else place
        super().__init__(shape, store, _tables_of(store), Ids())
        self._listener = SharedListener(store)
        self._existence = ExistenceChecks(self._tables)
        self._children = Children(shape, self._tables, self._ids)
        self._heartbeats: Heartbeats | None = None
        self._sweeping = asyncio.Lock()

    @property
    def description(self) -> str:
        """The store's address."""
        return self._store.description

    async def open(self) -> Sequence[str]:
        """Connect, and install the schema if it is missing. Returns warnings."""
        try:
            await self._store.open()
        except SchemaMissing:
            await self._store.install()
            await self._store.open()
        if self._tables.keeps:
            return []
        if any(queue.is_parent for queue in self.shape.all_queues()):
            raise ConfigurationError(
                f"flow {self.shape.name!r} has parents, and {self.description} keeps no history: what children end "
                "with would be gone before their parent sees it. Open the store with a history"
            )
        return [f"flow {self.shape.name!r}: {self.description} keeps no history, so a finished job is gone at once"]

    async def take(self) -> None:
        """Nothing: task names contain the flow and the queue, so no other flow has them."""

    async def close(self) -> None:
        """Close what was opened here."""
        await self._listener.close()
        await self._children.close()
        if self._heartbeats is not None:
            self._heartbeats.close()
            self._heartbeats = None
        if self._owns_store:
            await self._store.close()

    # -- looking

    async def counts(self) -> Sequence[QueueCount]:
        """Every queue at every priority, and undeclared priorities at which there are jobs."""
        tasks = {task_of(self.shape.name, queue): queue for queue in self.shape.all_queues()}
        found: dict[tuple[str, int], dict[str, int]] = {
            (queue.name, priority): {"failed": 0}
            for queue in tasks.values()
            for priority in range(1, queue.declared.priorities + 1)
        }
        for each in await self._tables.tally(list(tasks)):
            place = found.setdefault((tasks[each.task].name, each.priority), {"failed": 0})
            place[each.standing.value] = each.number
        return [QueueCount(queue=name, priority=priority, **numbers) for (name, priority), numbers in found.items()]

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """The next jobs of a queue, and those that run."""
        return await self._positions(self.shape.find_queue(queue), limit)

    async def sweep(self) -> int:
        """Take back the jobs of dead workers; returns how many of them belong to this flow."""
        async with self._sweeping:
            heartbeats = self._heartbeats = self._heartbeats or self._store.heartbeats()
            taken = await asyncio.to_thread(heartbeats.reset_stalled, LEASE / 3)
        return sum(job.task.startswith(f"{self.shape.name}/") for job in taken)

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """``<flow>/<queue>``."""
        return task_of(self.shape.name, queue)

    def store(self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = LEASE) -> Store[Any]:
        """A view of the one store, which wakes its workers: ``wait_timeout`` is not used."""
        return FlowQueueStore(self._store, self._listener, self.task(queue), Terms(lease=lease))

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> StepJob:
        """The claimed job."""
        return read_job(self.shape, queue, ctx, record)

    async def check_start(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """A deleted job is completed without effect; a limiter or a store that does not answer delays the job."""
        step = _step_job(job)
        try:
            if not await self._existence.has(step.step.root):
                job.ctx.logger.debug("the job was deleted; its worker function is not called")
                return Complete()
            if step.step.apart and not queue.is_parent:
                step.add(await read_lists(self._tables, step.step.apart, queue.declared.attributes_to_get))
            wait = 0.0 if step.step.waits_for is not None else await self._spend(queue, step)
        except StoreError as error:
            return self._later(job, error)
        return Snooze(wait) if wait > 0 else None

    async def _spend(self, queue: FlowQueue, job: StepJob) -> float:
        limiter = queue.declared.limiter
        if limiter is None:
            return 0.0
        value = None if limiter.group_by is None else job.step.values.get(limiter.group_by)
        part = "default" if value is None else bytes(value).decode()
        return await self._tables.spend(
            Spending(
                limiter=limiter.id or self.task(queue),
                part=part if len(part) <= PART_LIMIT else hashlib.sha256(part.encode()).hexdigest(),
                holder=job.id,
                reservoir=limiter.reservoir,
                interval=limiter.interval,
            )
        )

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """The settlement of this step enqueues the next one; the results of the last step become the job's result."""
        before = _step_job(job).step
        if next_queue is None:
            return too_much(before.with_results(fields, queue.name, {}).text()) or Complete(raw(fields) or None)
        following = next(
            (one for one in self.shape.all_queues() if one.name == next_queue and one.parent is None), None
        )
        if following is None:
            return Fail(f"the next queue {next_queue!r} is none of flow {self.shape.name!r}")
        carried, apart, lists = long_apart(fields)
        step = before.with_results(carried, queue.name, apart)
        then = new_step(following, step, job.priority + queue.declared.change_for(job.flow))
        if refused := too_much(then.payload):
            return refused
        if lists:
            try:
                await self._tables.keep(before.root, lists)
            except StoreError as error:
                return self._later(job, error)
        job.ctx.then.append(then)
        return Complete()

    def encode(self, result: object) -> str:
        """Checked before."""
        return msgspec.json.encode(result).decode()

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """Snoozed: the attempt is not counted."""
        job.ctx.logger.info(f"delayed for {delay:g} s: {reason}")
        return Snooze(delay)

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """Fan out; or gather, and go on."""
        parent = _step_job(job)
        if parent.step.waits_for is None:
            try:
                outcome = await self._children.fan_out(queue, parent)
            except StoreError as error:
                return self._later(job, error)
            if outcome is not None:
                return outcome
        try:
            results = await self._children.gather(queue, parent)
        except StoreError as error:
            return self._later(job, error)
        if not isinstance(results, dict):
            return results
        return await self.complete(queue, job, results, queue.declared.next_for(job.flow))

    async def on_child_end(self, queue: FlowQueue, job: FlowJob) -> None:
        """Wake its parent, if this was the last child."""
        parent = _step_job(job).step.parent
        if parent is not None:
            try:
                await self._children.child_ended(parent)
            except StoreError as error:
                job.ctx.logger.warning(f"its parent could not be woken, and checks by itself later: {error}")

    def _later(self, job: FlowJob, error: StoreError) -> Outcome:
        job.ctx.logger.warning(f"not started: {error}")
        return Snooze(OUTAGE_PAUSE)


class ExistenceChecks:
    """Answers single questions with few queries: while one is under way, the next ones are collected."""

    def __init__(self, tables: FlowTables) -> None:
        self._tables = tables
        self._questions: dict[str, asyncio.Future[bool]] = {}
        self._query: asyncio.Task[None] | None = None

    async def has(self, job_id: str) -> bool:
        """Does the job exist (created and not deleted)? Raises what the store raises."""
        answer = self._questions.get(job_id)
        if answer is None:
            answer = self._questions[job_id] = asyncio.get_running_loop().create_future()
            if self._query is None or self._query.done():
                self._query = asyncio.create_task(self._call(), name="flow existence")
        return await asyncio.shield(answer)

    async def _call(self) -> None:
        while self._questions:
            questions = dict(list(self._questions.items())[:MOST_CHECKED])
            self._questions = dict(list(self._questions.items())[MOST_CHECKED:])
            try:
                found = await self._tables.exists(list(questions))
            except Exception as error:  # noqa: BLE001 - passed to every caller
                for answer in questions.values():
                    answer.set_exception(error)
                    answer.exception()  # marks it as retrieved: the caller may have been cancelled
            else:
                for job_id, answer in questions.items():
                    answer.set_result(job_id in found)


def _tables_of(store: object) -> FlowTables:
    tables = getattr(store, "flow_tables", None)
    if tables is None:
        raise ConfigurationError(f"a flow needs Redis or a queue of ours; a {type(store).__qualname__} given")
    made: FlowTables = tables()
    return made


def _step_job(job: FlowJob) -> StepJob:
    assert isinstance(job, StepJob)
    return job
