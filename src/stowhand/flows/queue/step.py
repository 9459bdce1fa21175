"""Steps of a flow as jobs: task names, keys and payloads. Without side effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from stowhand.errors import UndecodablePayload
from stowhand.flows.children import jobs_at
from stowhand.flows.job import FlowJob
from stowhand.flows.new_job import MAX_NUMBERED_IDS, numbered
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lifecycle import Fail
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowQueue, FlowShape, Layout
from stowhand.protocols.flow_tables import FLOW_KEY_PREFIX

COMPLETED_QUEUE = "completed-queue"
Values = dict[str, msgspec.Raw]
"""JSON text by attribute: what only passes through is not decoded."""


class ParentLink(msgspec.Struct, frozen=True):
    """Link from a child to its parent."""

    id: str
    queue: str


class ChildSet(msgspec.Struct, frozen=True):
    """Children that a parent has created in one run. Their ids are computed, not stored."""

    stem: str
    """Start of their ids, which are numbered from 0 in the order of the parameters."""
    kinds: tuple[str, ...]
    """Full names of their queues."""
    runs: tuple[tuple[int, int], ...]
    """(which kind, how many in a row)."""

    @classmethod
    def of(cls, stem: str, kinds: Sequence[str]) -> ChildSet:
        """``kinds``: the full queue name of each child."""
        known = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
        runs = tuple((known[kind], sum(1 for _ in same)) for kind, same in groupby(kinds))
        return cls(stem, tuple(known), runs)

    def ids(self, start: int = 0, limit: int = MAX_NUMBERED_IDS) -> list[str]:
        """A page of the ids, in order."""
        ids: list[str] = []
        first = 0
        for kind, length in self.runs:
            numbers = range(max(first, start), min(first + length, start + limit))
            ids += [f"{self.kinds[kind]}:{numbered(self.stem, number)}" for number in numbers]
            first += length
        return ids

    @property
    def all(self) -> tuple[str, ...]:
        """Prefixes of all ids, which a parent waits for (``WAITS_FOR``)."""
        return tuple(f"{kind}:{self.stem}" for kind in self.kinds)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of a step."""

    id: str
    """A child's: ``<parent>:<child>:<uuid>``."""
    flow: str
    correlation_id: str | None = msgspec.field(default=None, name="correlationId")
    values: Values = msgspec.field(default_factory=dict)
    """Attributes and the results of the steps before."""
    parent: ParentLink | None = None
    waits_for: tuple[str, ...] | None = None
    """Of a parent that has fanned out, the children that it waits for: ``Brood.all``. Empty: it has failed because of
    its children, and its retry makes the failed ones anew."""
    apart: dict[str, str] = msgspec.field(default_factory=dict)
    """Attributes that are stored apart, with the ids of their lists (flow_tables.py)."""
    broods: dict[str, ChildSet] = msgspec.field(default_factory=dict)
    """The job's children, by the queue in which it made them."""

    def text(self) -> str:
        """The payload."""
        return _encoder.encode(self).decode()

    def with_results(self, fields: Mapping[str, str], queue: str, apart: Mapping[str, str]) -> Step:
        """The step with the results of ``queue``; ``apart``: those that are stored apart. It waits for no children."""
        values = {name: value for name, value in self.values.items() if name not in apart} | raw_values(fields)
        values[COMPLETED_QUEUE] = msgspec.Raw(msgspec.json.encode(queue))
        known = {name: list_id for name, list_id in self.apart.items() if name not in fields} | dict(apart)
        broods = {queue: child_set for queue, child_set in self.broods.items() if jobs_at(queue) not in values}
        return msgspec.structs.replace(self, values=values, waits_for=None, apart=known, broods=broods)

    @property
    def root(self) -> str:
        """The id of the job that was created: its own, or its parent's."""
        return self.id if self.parent is None else self.parent.id

    @property
    def names(self) -> list[str]:
        """The names of its attributes."""
        return [*self.values, *map(jobs_at, self.broods)]

    def children(self, queue: str, start: int = 0, limit: int = MAX_NUMBERED_IDS) -> list[str]:
        """A page of the ids of the children made in a queue."""
        child_set = self.broods.get(queue)
        return [] if child_set is None else child_set.ids(start, limit)

    def with_child_set(self, child_set: ChildSet, queue: str) -> Step:
        """The step, waiting for children that it made in ``queue``."""
        values = {name: value for name, value in self.values.items() if name != jobs_at(queue)}
        return msgspec.structs.replace(
            self, values=values, waits_for=child_set.all, broods={**self.broods, queue: child_set}
        )

    def awaits(self, child: str) -> bool:
        """Return whether the step waits for this child."""
        return any(child.startswith(name) for name in self.waits_for or ())

    def value(self, name: str) -> Any:
        """One attribute, decoded; ``None`` where it is missing. Raises UndecodablePayload, which names it."""
        if name not in self.values:
            queue = name.removeprefix("children:").removesuffix(":jobs")
            child_set = self.broods.get(queue) if name == jobs_at(queue) else None
            return None if child_set is None else [f"job:{child}" for child in child_set.ids()]
        try:
            return msgspec.json.decode(self.values[name])
        except msgspec.DecodeError as error:
            raise UndecodablePayload(f"attribute {name!r}: {error}") from None


class StepJob(FlowJob):
    """A flow's job with its whole step, beyond the attributes that its function gets."""

    __slots__ = ("step",)

    step: Step

    def add(self, values: Mapping[str, Any]) -> None:
        """Add attributes for the worker function."""
        self._values = {**self._values, **values}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Step)


def listed_ids(listed: object) -> list[str]:
    """The ids in the attribute that lists children."""
    names = listed if isinstance(listed, list) else []
    return [name.removeprefix("job:") for name in names if isinstance(name, str)]


def raw_values(fields: Mapping[str, str]) -> Values:
    """JSON texts as raw values."""
    return {name: msgspec.Raw(text) for name, text in fields.items()}


def read_step(job: Job) -> Step:
    """The step of a job. Raises UndecodablePayload."""
    step: Step = strict_json.decode_with(_decoder, job.payload_text)
    return step


def step_of(job: Job) -> Step | None:
    """The step of a job; ``None``: its payload was changed by others, and is no step."""
    try:
        return read_step(job)
    except UndecodablePayload:
        return None


def size_failure(text: str) -> Fail | None:
    """A failure, where the payload is larger than stores accept."""
    problem = strict_json.find_problem(text, strict_json.SIZE_LIMIT)
    return Fail(f"the job's attributes together: {problem}") if problem else None


def task_of(flow: str, queue: FlowQueue) -> str:
    """The task name of a queue's jobs."""
    return f"{flow}/{queue.name}"


def queue_of(task: str) -> str:
    """The full queue name in a task name."""
    return task.partition("/")[2]


def key_of(flow: str, job_id: str) -> str:
    """The key of all steps of a job."""
    return f"{FLOW_KEY_PREFIX}{job_id}" if ":" in job_id else f"{FLOW_KEY_PREFIX}{flow}:{job_id}"


def id_of(key: str) -> str:
    """The job's id of a key: of a child the key without its prefix, else the last part."""
    name = key.removeprefix(FLOW_KEY_PREFIX)
    return name if name.count(":") > 1 else name.rpartition(":")[2]


def new_step(
    queue: FlowQueue, step: Step, priority: int, *, delay: float | None = None, flags: tuple[str, ...] = ()
) -> NewJob:
    """The job of a step in a queue, at that queue's nearest priority."""
    return NewJob(
        task=task_of(step.flow, queue),
        payload=step.text(),
        key=key_of(step.flow, step.id),
        priority=min(max(priority, 1), queue.declared.priorities),
        max_attempts=queue.max_attempts,
        max_resets=queue.declared.max_resets,
        delay=delay,
        flags=flags,
    )


def own_fields(step: Step, priority: int) -> dict[str, Any]:
    """The facts of a job beside its attributes."""
    flow = step.flow if step.parent is None else step.id.rpartition(":")[0]
    return {"flowName": flow, "priority": priority, "correlationId": step.correlation_id}


def read_job(shape: FlowShape, queue: FlowQueue, ctx: Attempt[Any], record: Job) -> StepJob:
    """The job for its worker function. Raises UndecodablePayload."""
    step = read_step(record)
    fields = own_fields(step, record.priority)
    requested = queue.declared.attributes_to_get
    if queue.is_parent:
        values: dict[str, Any] = {}  # the engine reads what it needs when it fans out
    elif requested is None:
        values = {name: step.value(name) for name in step.names} | visible_fields(shape, fields)
    else:
        values = {name: fields[name] if name in fields else step.value(name) for name in requested}
    if shape.layout is Layout.PRIORITY:
        values |= fields
    job = StepJob(
        step.id,
        step.flow,
        queue.name,
        {"id": step.id} | values,
        ctx,
        priority=record.priority,
        correlation_id=step.correlation_id,
        retries=max(record.attempts - 1, 0),
    )
    job.step = step
    return job


def visible_fields(shape: FlowShape, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that are shown among all attributes of a job."""
    names = ("correlationId",) if shape.layout is Layout.CLASSIC else tuple(fields)
    return {name: fields[name] for name in names if fields[name] is not None}
