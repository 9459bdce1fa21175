"""The jobs of a flow on a queue store: create, find, read, retry and delete them, and their positions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count
from typing import Any

from stowhand.errors import UndecodablePayload
from stowhand.flows.creating import Creating
from stowhand.flows.engine import NewFlowJob, Position
from stowhand.flows.queue.ids import Ids
from stowhand.flows.queue.lists import long_apart, read_lists
from stowhand.flows.queue.reading import children_named, gathered, show, stage_of
from stowhand.flows.queue.step import Step, id_of, key_of, new_step, queue_of, raw, read_step, task_of
from stowhand.flows.view import FlowJobView, Stage, created_at
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.flow_tables import FlowTables, NewFlow, StepState
from stowhand.protocols.propagation import load
from stowhand.protocols.queue_store import Answer, Done, QueueStore
from stowhand.protocols.validation import is_storable

VALUE_LIMIT = 200
"""Characters of a lookup value that is stored as it is; longer ones are hashed."""


class QueueJobs:
    """The part of the engine that does not work on jobs."""

    def __init__(self, shape: FlowShape, store: QueueStore, tables: FlowTables, ids: Ids) -> None:
        self.shape = shape
        self._store = store
        self._tables = tables
        self._ids = ids
        self._creating = Creating(self.create_many)

    async def create(self, job: NewFlowJob) -> str:
        """Its row, its lookups and its first step, in one transaction."""
        return await self._creating.create(job)

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """All or none."""
        new = [self._new(job) for job in jobs]
        if new:
            await self._tables.create(self.shape.name, new)
        return [one.id for one in new]

    def _new(self, job: NewFlowJob) -> NewFlow:
        job_id = self._ids.new()
        values, apart, lists = long_apart(job.values)
        step = Step(id=job_id, flow=self.shape.name, correlation_id=job.correlation_id, values=raw(values), apart=apart)
        return NewFlow(
            id=job_id,
            step=load(new_step(self.shape.entry, step, job.priority, delay=job.delay), job.carried),
            lookups=tuple((attribute, _lookup_value(value)) for attribute, value in job.lookups),
            lists=lists,
        )

    async def delete(self, job_id: str) -> bool:
        """With its children. What runs ends without effect."""
        if ":" in job_id or not is_storable(job_id):
            return False
        (found,) = await self.read([job_id], resolve_children=False)
        children = [name for names in children_named(found or {}).values() for name in names]
        keys = [self._key(name) for name in (job_id, *children)]
        return await self._tables.delete(self.shape.name, job_id, keys)

    async def ids(self, attribute: str, value: str) -> Sequence[str]:
        """Oldest first: ids sort by time."""
        return await self._tables.ids(self.shape.name, attribute, _lookup_value(value))

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> Sequence[dict[str, Any] | None]:
        """From the newest step of each."""
        jobs = await self._existing(job_ids)
        shown = [None if job is None else await self._shown(name, job) for name, job in zip(job_ids, jobs, strict=True)]
        if resolve_children:
            for job in shown:
                for attribute, names in children_named(job or {}).items():
                    found = await self.read(names, resolve_children=True)
                    job[attribute] = [child for child in found if child is not None]  # type: ignore[index]
        return shown

    async def view(self, job_id: str) -> FlowJobView | None:
        """Its newest step."""
        (job,) = await self._existing([job_id])
        if job is None:
            return None
        stage = stage_of(job)
        return FlowJobView(
            id=job_id,
            state=stage,
            queue=queue_of(job.task),
            attributes=await self._shown(job_id, job),
            failure=(job.last_error or stage.value) if stage in (Stage.FAILED, Stage.CANCELED) else None,
            created_at=created_at(job_id),
            ready_at=job.run_at if stage is Stage.DELAYED else None,
            ended_at=job.finished_at if stage.has_ended else None,
        )

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """From the newest step of each."""
        (parent,) = await self._existing([job_id])
        if parent is None:
            return []
        try:
            names = read_step(parent).children(queue, start, limit)
        except UndecodablePayload:
            return []
        return gathered(self.shape, names, await self._existing(names))

    async def _existing(self, job_ids: Sequence[str]) -> list[Job | None]:
        """The newest step of each; ``None`` where it belongs to another flow, or its job was deleted."""
        jobs = await self._tables.latest([self._key(job_id) for job_id in job_ids])
        roots = [None if job is None else self._root(job, job_id) for job, job_id in zip(jobs, job_ids, strict=True)]
        existing = await self._tables.exists([root for root in roots if root is not None])
        return [job if root in existing else None for job, root in zip(jobs, roots, strict=True)]

    def _root(self, job: Job, job_id: str) -> str | None:
        try:
            step = read_step(job)
        except UndecodablePayload:
            return job_id
        return step.root if step.flow == self.shape.name else None

    async def _shown(self, job_id: str, job: Job) -> dict[str, Any]:
        try:
            step = read_step(job)
        except UndecodablePayload:
            return {"id": job_id}
        return show(self.shape, job, step) | await read_lists(self._tables, step.apart)

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """As ``stowhand jobs retry`` on the failed step."""
        jobs = await self._existing(job_ids)
        return [await self._retry(name, job) for name, job in zip(job_ids, jobs, strict=True)]

    async def _retry(self, job_id: str, job: Job | None) -> Answer:
        if job is None:
            return Answer(job_id, Done.MISSING, f"there is no job {job_id}")
        if job.state not in (State.FAILED, State.CANCELED):
            return Answer(job_id, Done.REFUSED, f"it has not failed: it is {job.state}")
        if queue_of(job.task) not in {queue.name for queue in self.shape.all_queues()}:
            return Answer(job_id, Done.REFUSED, f"it failed in {queue_of(job.task)!r}, which is no queue of this flow")
        parent = read_step(job).parent
        if parent is not None:
            (above,) = await self._tables.latest([self._key(parent.id)])
            if above is None or above.state.terminal or not read_step(above).awaits(job_id):
                return Answer(job_id, Done.REFUSED, "its parent has gone on without it")
        answer = await self._store.retry(job.id)
        why = f"there is no job {job_id}" if answer.done is Done.MISSING else answer.why  # it names the step
        return Answer(job_id, answer.done, why)

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> Sequence[str]:
        """Of one queue, or of all, children included."""
        queues = self.shape.all_queues() if queue is None else [self.shape.find_queue(queue)]
        tasks = [task_of(self.shape.name, each) for each in queues]
        keys = await self._tables.failed(tasks, self._key(after) if after else "", limit)
        return [id_of(key) for key in keys]

    async def _positions(self, queue: FlowQueue, limit: int) -> Sequence[Position]:
        """Positions are counted for each standing by itself."""
        numbers = {standing: count(1) for standing in StepState}
        return [
            Position(
                job_id=id_of(each.key),
                queue=queue.name,
                priority=each.priority,
                state=each.standing.value,
                position=next(numbers[each.standing]),
                ready_at=each.ready_at,
            )
            for each in await self._tables.in_queue(task_of(self.shape.name, queue), limit)
        ]

    def _key(self, job_id: str) -> str:
        """The key of the job's steps; for an id that no store could hold, a key that no job has."""
        return key_of(self.shape.name, job_id if is_storable(job_id) else "?")


def _lookup_value(value: str) -> str:
    """A lookup value as it is stored: indexes refuse long texts, and stores control characters."""
    if len(value) <= VALUE_LIMIT and value.isprintable():
        return value
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"
