"""Steps of a flow as jobs: task names, keys and payloads. The functions have no side effects."""

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
"""JSON text by attribute. Values that no function requests are not decoded."""


class ParentLink(msgspec.Struct, frozen=True):
    """Link from a child to its parent."""

    id: str
    queue: str


class ChildSet(msgspec.Struct, frozen=True):
    """Children that a parent has created in one run. Their ids are computed, not stored."""

    stem: str
    """Prefix of their ids, which are numbered from 0 in the order of the parameters."""
    kinds: tuple[str, ...]
    """Full names of their queues."""
    runs: tuple[tuple[int, int], ...]
    """Runs of children of one kind: (index in ``kinds``, number of children)."""

    @classmethod
    def of(cls, stem: str, kinds: Sequence[str]) -> ChildSet:
        """Create the set of children. ``kinds``: the full queue name of each child."""
        indexes = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
        runs = tuple((indexes[kind], sum(1 for _ in group)) for kind, group in groupby(kinds))
        return cls(stem, tuple(indexes), runs)

    def ids(self, start: int = 0, limit: int = MAX_NUMBERED_IDS) -> list[str]:
        """Return a page of the ids, in order."""
        ids: list[str] = []
        first = 0
        for kind, length in self.runs:
            numbers = range(max(first, start), min(first + length, start + limit))
            ids += [f"{self.kinds[kind]}:{numbered(self.stem, number)}" for number in numbers]
            first += length
        return ids

    @property
    def all(self) -> tuple[str, ...]:
        """Prefixes of all ids, for the ``waits_for`` of the parent."""
        return tuple(f"{kind}:{self.stem}" for kind in self.kinds)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of a step."""

    id: str
    """Id of the job; of a child ``<parent>:<child>:<uuid>``."""
    flow: str
    correlation_id: str | None = msgspec.field(default=None, name="correlationId")
    values: Values = msgspec.field(default_factory=dict)
    """Attributes, and the results of the previous steps."""
    parent: ParentLink | None = None
    waits_for: tuple[str, ...] | None = None
    """Children for which a parent waits after it has fanned out (``ChildSet.all``).

    Empty: the parent has failed because of its children, and its retry creates the failed ones again."""
    apart: dict[str, str] = msgspec.field(default_factory=dict)
    """Ids of lists that are stored separately, by attribute (flow_tables.py)."""
    broods: dict[str, ChildSet] = msgspec.field(default_factory=dict)
    """The job's children, by the queue in which it created them."""

    def text(self) -> str:
        """Encode the payload."""
        return _encoder.encode(self).decode()

    def with_results(self, fields: Mapping[str, str], queue: str, apart: Mapping[str, str]) -> Step:
        """Return the step with the results of ``queue``, waiting for no children.

        ``apart``: ids of results that are stored separately.
        """
        values = {name: value for name, value in self.values.items() if name not in apart} | raw_values(fields)
        values[COMPLETED_QUEUE] = msgspec.Raw(msgspec.json.encode(queue))
        list_ids = {name: list_id for name, list_id in self.apart.items() if name not in fields} | dict(apart)
        broods = {queue: child_set for queue, child_set in self.broods.items() if jobs_at(queue) not in values}
        return msgspec.structs.replace(self, values=values, waits_for=None, apart=list_ids, broods=broods)

    @property
    def root(self) -> str:
        """Id of the created job: the step's own, or its parent's."""
        return self.id if self.parent is None else self.parent.id

    @property
    def names(self) -> list[str]:
        """Names of the attributes."""
        return [*self.values, *map(jobs_at, self.broods)]

    def children(self, queue: str, start: int = 0, limit: int = MAX_NUMBERED_IDS) -> list[str]:
        """Return a page of the ids of the children created in a queue."""
        child_set = self.broods.get(queue)
        return [] if child_set is None else child_set.ids(start, limit)

    def with_child_set(self, child_set: ChildSet, queue: str) -> Step:
        """Return the step, waiting for the children that it has created in ``queue``."""
        values = {name: value for name, value in self.values.items() if name != jobs_at(queue)}
        return msgspec.structs.replace(
            self, values=values, waits_for=child_set.all, broods={**self.broods, queue: child_set}
        )

    def awaits(self, child: str) -> bool:
        """Return whether the step waits for this child."""
        return any(child.startswith(name) for name in self.waits_for or ())

    def value(self, name: str) -> Any:
        """Decode one attribute; ``None`` if it is missing. Raise UndecodablePayload, which names it."""
        if name not in self.values:
            queue = name.removeprefix("children:").removesuffix(":jobs")
            child_set = self.broods.get(queue) if name == jobs_at(queue) else None
            return None if child_set is None else [f"job:{child}" for child in child_set.ids()]
        try:
            return msgspec.json.decode(self.values[name])
        except msgspec.DecodeError as error:
            raise UndecodablePayload(f"attribute {name!r}: {error}") from None


class StepJob(FlowJob):
    """A flow's job with its whole step. The worker function may receive fewer attributes."""

    __slots__ = ("step",)

    step: Step

    def add(self, values: Mapping[str, Any]) -> None:
        """Add attributes for the worker function."""
        self._values = {**self._values, **values}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Step)


def listed_ids(listed: object) -> list[str]:
    """Return the ids in an attribute that lists children."""
    names = listed if isinstance(listed, list) else []
    return [name.removeprefix("job:") for name in names if isinstance(name, str)]


def raw_values(fields: Mapping[str, str]) -> Values:
    """Wrap JSON texts as raw values."""
    return {name: msgspec.Raw(text) for name, text in fields.items()}


def read_step(job: Job) -> Step:
    """Decode the step of a job. Raise UndecodablePayload."""
    step: Step = strict_json.decode_with(_decoder, job.payload_text)
    return step


def step_of(job: Job) -> Step | None:
    """Return the step of a job; ``None`` if another program has changed its payload and it is not a step."""
    try:
        return read_step(job)
    except UndecodablePayload:
        return None


def size_failure(text: str) -> Fail | None:
    """Return a failure if the payload is larger than stores accept."""
    problem = strict_json.find_problem(text, strict_json.MAX_WRITTEN_BYTES)
    return Fail(f"the job's attributes together: {problem}") if problem else None


def task_of(flow: str, queue: FlowQueue) -> str:
    """Return the task name of a queue's jobs."""
    return f"{flow}/{queue.name}"


def queue_of(task: str) -> str:
    """Return the full queue name from a task name."""
    return task.partition("/")[2]


def key_of(flow: str, job_id: str) -> str:
    """Return the key of all steps of a job."""
    return f"{FLOW_KEY_PREFIX}{job_id}" if ":" in job_id else f"{FLOW_KEY_PREFIX}{flow}:{job_id}"


def id_of(key: str) -> str:
    """Return the job's id from a key: for a child the key without its prefix, else the last part."""
    name = key.removeprefix(FLOW_KEY_PREFIX)
    return name if name.count(":") > 1 else name.rpartition(":")[2]


def new_step(
    queue: FlowQueue, step: Step, priority: int, *, delay: float | None = None, flags: tuple[str, ...] = ()
) -> NewJob:
    """Create the job of a step in a queue, at the nearest priority of that queue."""
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
    """Return the fields of a job that are not attributes."""
    flow = step.flow if step.parent is None else step.id.rpartition(":")[0]
    return {"flowName": flow, "priority": priority, "correlationId": step.correlation_id}


def read_job(shape: FlowShape, queue: FlowQueue, ctx: Attempt[Any], record: Job) -> StepJob:
    """Return the job for its worker function. Raise UndecodablePayload."""
    step = read_step(record)
    fields = own_fields(step, record.priority)
    requested = queue.declared.attributes_to_get
    if queue.is_parent:
        values: dict[str, Any] = {}  # the engine reads the parameters when it fans out
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
    """Return the fields that appear among the attributes of a job."""
    names = ("correlationId",) if shape.layout is Layout.CLASSIC else tuple(fields)
    return {name: fields[name] for name in names if fields[name] is not None}
