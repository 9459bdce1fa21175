"""The engine of a flow on a queue store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, cast

import msgspec

from stowhand.app.start import open_installed
from stowhand.errors import ConfigurationError, StoreError
from stowhand.flows.engine import NewFlowJob, Position, QueueCount, grouped
from stowhand.flows.job import FlowJob, FlowJobView, Stage, created_at
from stowhand.flows.new_job import Ids
from stowhand.flows.queue.attributes import child_attributes, children_ids, read_lists, show, split_long_lists, stage_of
from stowhand.flows.queue.parents import Parents
from stowhand.flows.queue.step import (
    Step,
    StepJob,
    id_of,
    key_of,
    new_step,
    queue_of,
    raw_values,
    read_job,
    size_failure,
    step_of,
    task_of,
)
from stowhand.flows.queue.store import FlowQueueStore, SharedListener
from stowhand.jobs.job import Job, State
from stowhand.jobs.lifecycle import Complete, Fail, Outcome, Snooze
from stowhand.observe.propagation import with_carried
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.flow_tables import NewFlow, RateLimitRequest, StepState
from stowhand.protocols.options import DEFAULT_LEASE_SECONDS, WorkerOptions
from stowhand.protocols.queue_store import ActionResult, Answer, AnyStore, QueueStore, require_part
from stowhand.protocols.store import SECONDS_PER_DAY, Store, StoreOptions, Terms
from stowhand.protocols.validation import is_storable
from stowhand.stores.url import open_store
from stowhand.worker.heartbeat_thread import HeartbeatThread

MAX_PLAIN_VALUE_CHARS = 200
"""Maximum length of a lookup value that is stored unchanged. Longer ones are hashed."""
OUTAGE_PAUSE_SECONDS = 2.0
"""Time after which a step is tried again if the store did not answer."""


class QueueEngine:
    """Engine of a flow at a URL, or on a store that the application opens and closes."""

    sweep_interval = WorkerOptions().sweep_interval
    handles_child_end = True
    retries_first = False

    def __init__(self, place: str | QueueStore, shape: FlowShape) -> None:
        self._owns_store = isinstance(place, str)
        store = _queue_store(
            open_store(place, StoreOptions(history=max(shape.key_life, SECONDS_PER_DAY)))
            if isinstance(place, str)
            else place
        )
        self.shape = shape
        self._store = store
        self._tables = store.flows
        self.wait_for_commit = None if store.results is None else store.results.wait_for_commit
        self._ids = Ids()
        self.create = grouped(self.create_many)
        """Create a job with its lookups and first step, in one transaction."""
        self._listener = SharedListener(store)
        self._exists = grouped(self._exist)
        """Check whether the job was created and has not been deleted."""
        self._children = Parents(shape, self._tables, self._ids)
        self._heartbeats = HeartbeatThread("stowhand sweep", store.heartbeats)

    @property
    def description(self) -> str:
        """The store's address."""
        return self._store.description

    async def open(self) -> Sequence[str]:
        """Connect, and install the schema if it is missing. Return warnings to log."""
        await open_installed(self._store)
        if self._tables.keeps_history:
            return []
        if any(queue.is_parent for queue in self.shape.all_queues()):
            raise ConfigurationError(
                f"flow {self.shape.name!r} has parents, but {self.description} keeps no history: results of children "
                "would be deleted before their parent gathers them. Open the store with a history"
            )
        return [f"flow {self.shape.name!r}: {self.description} keeps no history, so a finished job is deleted at once"]

    async def claim_queues(self) -> None:
        """Do nothing: task names contain the flow and the queue, so no other flow uses them."""

    async def close(self) -> None:
        """Close the connections, and the store if the engine has opened it."""
        await self._listener.close()
        await self._children.close()
        await self._heartbeats.close()
        if self._owns_store:
            await self._store.close()

    # -- jobs

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """Create all jobs, or none."""
        new = [self._new(job) for job in jobs]
        return await self._tables.create(self.shape.name, new) if new else []

    def _new(self, job: NewFlowJob) -> NewFlow:
        job_id = self._ids.new()
        values, apart, lists = split_long_lists(job.values)
        step = Step(
            id=job_id, flow=self.shape.name, correlation_id=job.correlation_id, values=raw_values(values), apart=apart
        )
        lookups = job.lookups if job.key is None else (*job.lookups, ("", job.key))
        return NewFlow(
            id=job_id,
            step=with_carried(new_step(self.shape.entry, step, job.priority, delay=job.delay), job.carried),
            lookups=tuple((attribute, _lookup_value(value)) for attribute, value in lookups),
            key=None if job.key is None else _lookup_value(job.key),
            lists=lists,
        )

    async def delete(self, job_id: str) -> bool:
        """Delete a job with its children. The outcomes of running steps are discarded."""
        if ":" in job_id or not is_storable(job_id):
            return False
        (attributes,) = await self.read([job_id], resolve_children=False)
        children = [name for names in children_ids(attributes or {}).values() for name in names]
        keys = [self._key(name) for name in (job_id, *children)]
        return await self._tables.delete(self.shape.name, job_id, keys)

    async def ids(self, attribute: str, value: str) -> Sequence[str]:
        """Return the ids of jobs with this value of a lookup attribute, oldest first."""
        return await self._tables.ids(self.shape.name, attribute, _lookup_value(value))

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> Sequence[dict[str, Any] | None]:
        """Return the attributes of each job from its newest step."""
        steps = await self._existing(job_ids)
        jobs = [
            None if step is None else await self._attributes(name, step)
            for name, step in zip(job_ids, steps, strict=True)
        ]
        if resolve_children:
            for job in jobs:
                for attribute, names in children_ids(job or {}).items():
                    children = await self.read(names, resolve_children=True)
                    job[attribute] = [child for child in children if child is not None]  # type: ignore[index]
        return jobs

    async def views(self, job_ids: Sequence[str]) -> Sequence[FlowJobView | None]:
        """Return the view of each job from its newest step."""
        jobs = zip(job_ids, await self._existing(job_ids), strict=True)
        return [None if job is None else await self._view(job_id, job) for job_id, job in jobs]

    async def _view(self, job_id: str, job: Job) -> FlowJobView:
        stage = stage_of(job)
        return FlowJobView(
            id=job_id,
            state=stage,
            queue=queue_of(job.task),
            attributes=await self._attributes(job_id, job),
            failure=(job.last_error or stage.value) if stage in (Stage.FAILED, Stage.CANCELED) else None,
            created_at=created_at(job_id),
            ready_at=job.run_at if stage is Stage.DELAYED else None,
            ended_at=job.finished_at if stage.has_ended else None,
        )

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """Return a page of the attributes of a parent's children."""
        (parent,) = await self._existing([job_id])
        step = None if parent is None else step_of(parent)
        names = [] if step is None else step.children(queue, start, limit)
        return child_attributes(self.shape, names, await self._existing(names))

    async def _existing(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return the newest step of each job; ``None`` if it belongs to another flow or was deleted."""
        jobs = await self._tables.latest([self._key(job_id) for job_id in job_ids])
        roots = [None if job is None else self._root(job, job_id) for job, job_id in zip(jobs, job_ids, strict=True)]
        existing = await self._tables.exists([root for root in roots if root is not None])
        return [job if root in existing else None for job, root in zip(jobs, roots, strict=True)]

    def _root(self, job: Job, job_id: str) -> str | None:
        step = step_of(job)
        if step is None:
            return job_id
        return step.root if step.flow == self.shape.name else None

    async def _attributes(self, job_id: str, job: Job) -> dict[str, Any]:
        step = step_of(job)
        if step is None:
            return {"id": job_id}
        return show(self.shape, job, step) | await read_lists(self._tables, step.apart)

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """Retry the failed steps, as ``stowhand jobs retry`` does."""
        jobs = await self._existing(job_ids)
        return [await self._retry(name, job) for name, job in zip(job_ids, jobs, strict=True)]

    async def _retry(self, job_id: str, job: Job | None) -> Answer:
        if job is None:
            return Answer(job_id, ActionResult.MISSING, f"there is no job {job_id}")
        if job.state not in (State.FAILED, State.CANCELED):
            return Answer(job_id, ActionResult.REFUSED, f"it has not failed: it is {job.state}")
        if queue_of(job.task) not in {queue.name for queue in self.shape.all_queues()}:
            return Answer(
                job_id, ActionResult.REFUSED, f"it failed in {queue_of(job.task)!r}, which is not a queue of this flow"
            )
        step = step_of(job)
        if step is not None and step.parent is not None:
            (parent,) = await self._tables.latest([self._key(step.parent.id)])
            if parent is not None and parent.state is State.FAILED:
                return Answer(job_id, ActionResult.REFUSED, "its parent has failed; retry the parent")
            waiting = None if parent is None or parent.state.terminal else step_of(parent)
            if waiting is None or not waiting.awaits(job_id):
                return Answer(job_id, ActionResult.REFUSED, "its parent has continued without it")
        answer = await self._store.admin.retry(job.id)
        if answer.result is ActionResult.MISSING:  # the store's answer names the step, not the job
            return Answer(job_id, answer.result, f"there is no job {job_id}")
        return Answer(job_id, answer.result, answer.reason)

    async def cancel(self, job_id: str) -> Answer:
        """Cancel the newest step, as ``stowhand jobs cancel`` does."""
        (job,) = await self._existing([job_id])
        while job is not None:
            answer = await self._store.admin.cancel(job.id)
            if answer.result is ActionResult.DONE:
                await self._wake_parent(job)
            if answer.result not in (ActionResult.REFUSED, ActionResult.MISSING):
                return Answer(job_id, answer.result, answer.reason)
            step = job.id
            (job,) = await self._existing([job_id])
            if job is not None and job.id == step:
                return Answer(job_id, answer.result, answer.reason)
        return Answer(job_id, ActionResult.MISSING, f"there is no job {job_id}")

    async def _wake_parent(self, child: Job) -> None:
        """Wake the parent if it waits for no other child."""
        step = step_of(child)
        if step is not None and step.parent is not None:
            with suppress(StoreError):  # the parent checks by itself later
                await self._children.child_ended(step.parent)

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> Sequence[str]:
        """Return the ids of failed jobs of a queue, or of all queues, children included."""
        queues = self.shape.all_queues() if queue is None else [self.shape.find_queue(queue)]
        tasks = [task_of(self.shape.name, flow_queue) for flow_queue in queues]
        keys = await self._tables.failed(tasks, self._key(after) if after else "", limit)
        return [id_of(key) for key in keys]

    async def _exist(self, job_ids: Sequence[str]) -> list[bool]:
        existing = await self._tables.exists(list(dict.fromkeys(job_ids)))
        return [job_id in existing for job_id in job_ids]

    def _key(self, job_id: str) -> str:
        """Return the key of the job's steps; for an id that stores cannot store, a key that no job has."""
        return key_of(self.shape.name, job_id if is_storable(job_id) else "?")

    async def pause(self, queue: FlowQueue) -> bool:
        """Pause the queue's task, as ``stowhand serials pause --task`` does."""
        return (await self._store.operate.pause_task(self.task(queue))).changed

    async def resume(self, queue: FlowQueue) -> bool:
        """Resume the queue's task, and wake its workers."""
        return (await self._store.operate.resume_task(self.task(queue))).changed

    # -- queues

    async def counts(self) -> Sequence[QueueCount]:
        """Count the jobs of every queue at every priority, including undeclared priorities of existing jobs."""
        tasks = {task_of(self.shape.name, queue): queue for queue in self.shape.all_queues()}
        numbers: dict[tuple[str, int], dict[str, int]] = {
            (queue.name, priority): {"failed": 0}
            for queue in tasks.values()
            for priority in range(1, queue.declared.priorities + 1)
        }
        for row in await self._tables.tally(list(tasks)):
            states = numbers.setdefault((tasks[row.task].name, row.priority), {"failed": 0})
            states[row.state.value] = row.number
        pauses = await self._store.inspect.pauses()
        paused = {queue.name for task, queue in tasks.items() if task in pauses.tasks}
        return [
            QueueCount(queue=name, priority=priority, paused=name in paused, **states)
            for (name, priority), states in numbers.items()
        ]

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """Return the next and the running jobs of a queue. The positions of each state start at 1."""
        flow_queue = self.shape.find_queue(queue)
        numbers = {state: count(1) for state in StepState}
        return [
            Position(
                job_id=id_of(row.key),
                queue=flow_queue.name,
                priority=row.priority,
                state=row.state.value,
                position=next(numbers[row.state]),
                ready_at=row.ready_at,
            )
            for row in await self._tables.in_queue(task_of(self.shape.name, flow_queue), limit)
        ]

    async def sweep(self) -> int:
        """Reset the jobs of lost workers. Return how many of them belong to this flow."""
        reset_jobs = await self._heartbeats.call(lambda heartbeats: heartbeats.reset_stalled(DEFAULT_LEASE_SECONDS / 3))
        return sum(job.task.startswith(f"{self.shape.name}/") for job in reset_jobs)

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """Return the task name, ``<flow>/<queue>``."""
        return task_of(self.shape.name, queue)

    def store(
        self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = DEFAULT_LEASE_SECONDS
    ) -> Store[Any]:
        """Return a view of the shared store. It wakes workers itself, so ``wait_timeout`` is not used."""
        return FlowQueueStore(self._store, self._listener, self.task(queue), Terms(lease=lease))

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> StepJob:
        """Return the claimed job."""
        return read_job(self.shape, queue, ctx, record)

    async def check_start(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """Return the outcome of a job that may not start; ``None`` if it may.

        A deleted job is completed. A job waits for its limiter, and while the store does not answer.
        """
        step = _step_job(job)
        try:
            if not await self._exists(step.step.root):
                job.ctx.logger.debug("the job was deleted; its worker function is not called")
                return Complete()
            if step.step.apart and not queue.is_parent:
                step.add(await read_lists(self._tables, step.step.apart, queue.declared.attributes_to_get))
            wait = 0.0 if step.step.waits_for is not None else await self._seconds_to_wait(queue, step)
        except StoreError as error:
            return self._delay_for_outage(job, error)
        return Snooze(wait) if wait > 0 else None

    async def _seconds_to_wait(self, queue: FlowQueue, job: StepJob) -> float:
        limiter = queue.declared.limiter
        if limiter is None:
            return 0.0
        value = None if limiter.group_by is None else job.step.values.get(limiter.group_by)
        part = "default" if value is None else bytes(value).decode()
        return await self._tables.spend(
            RateLimitRequest(
                limiter=limiter.id or self.task(queue),
                part=_lookup_value(part),
                holder=job.id,
                reservoir=limiter.reservoir,
                interval=limiter.interval,
            )
        )

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """Enqueue the next step in the settlement of this one. Results of the last step become the job's result."""
        step = _step_job(job).step
        if next_queue is None:
            too_large = size_failure(step.with_results(fields, queue.name, {}).text())
            return too_large or Complete(raw_values(fields) or None)
        next_flow_queue = next(
            (queue for queue in self.shape.all_queues() if queue.name == next_queue and queue.parent is None), None
        )
        if next_flow_queue is None:
            return Fail(f"the next queue {next_queue!r} is not a queue of flow {self.shape.name!r}")
        short_fields, apart, lists = split_long_lists(fields)
        next_step = step.with_results(short_fields, queue.name, apart)
        next_job = new_step(next_flow_queue, next_step, job.priority + queue.declared.change_for(job.flow))
        if refused := size_failure(next_job.payload):
            return refused
        if lists:
            try:
                await self._tables.store_lists(step.root, lists)
            except StoreError as error:
                return self._delay_for_outage(job, error)
        job.ctx.then.append(next_job)
        return Complete()

    def encode(self, result: object) -> str:
        """Return the result as JSON text. It was validated before."""
        return msgspec.json.encode(result).decode()

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """Snooze the job; the attempt is not counted."""
        job.ctx.logger.info(f"delayed for {delay:g} s: {reason}")
        return Snooze(delay)

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """Fan out, or gather and complete the step."""
        parent = _step_job(job)
        try:
            if parent.step.waits_for is None:
                outcome = await self._children.fan_out(queue, parent)
                if outcome is not None:
                    return outcome
            elif not parent.step.waits_for:
                outcome = await self._children.recreate_failed(queue, parent)
                if outcome is not None:
                    return outcome
            results = await self._children.gather(queue, parent)
        except StoreError as error:
            return self._delay_for_outage(job, error)
        if not isinstance(results, dict):
            return results
        return await self.complete(queue, job, results, queue.declared.next_for(job.flow))

    async def on_child_end(self, queue: FlowQueue, job: FlowJob) -> None:
        """Wake the job's parent if this was its last child."""
        parent = _step_job(job).step.parent
        if parent is not None:
            try:
                await self._children.child_ended(parent)
            except StoreError as error:
                job.ctx.logger.warning(f"its parent could not be woken, and checks by itself later: {error}")

    def _delay_for_outage(self, job: FlowJob, error: StoreError) -> Outcome:
        job.ctx.logger.warning(f"delayed for {OUTAGE_PAUSE_SECONDS:g} s: {error}")
        return Snooze(OUTAGE_PAUSE_SECONDS)


def _lookup_value(value: str) -> str:
    """Return a lookup value for storage. Long texts and control characters, which stores refuse, are hashed."""
    if len(value) <= MAX_PLAIN_VALUE_CHARS and value.isprintable():
        return value
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _queue_store(store: AnyStore[Job]) -> QueueStore:
    require_part(store, "flows", store.flows)
    return cast("QueueStore", store)


def _step_job(job: FlowJob) -> StepJob:
    assert isinstance(job, StepJob)
    return job
