"""What a step's job carries, and what it is called: names, keys and the payload. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand import strict_json
from stowhand.errors import UndecodablePayload
from stowhand.flow_shape import FlowShape, Layout, Line
from stowhand.flow_tables import PREFIX
from stowhand.flows.job import FlowJob
from stowhand.handler import Attempt
from stowhand.job import Job, NewJob

COMPLETED_QUEUE = "completed-queue"
Values = dict[str, msgspec.Raw]
"""JSON text by attribute: nothing that only passes through is read and written anew."""


class Above(msgspec.Struct, frozen=True):
    """The parent of a child."""

    id: str
    queue: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The payload."""

    id: str
    """A child's: ``<parent>:<child>:<uuid>``."""
    flow: str
    correlation_id: str | None = msgspec.field(default=None, name="correlationId")
    values: Values = msgspec.field(default_factory=dict)
    """Attributes and the results of the steps before."""
    parent: Above | None = None
    waits_for: tuple[str, ...] | None = None
    """Ids of its children: it has fanned out, and waits for them."""

    def text(self) -> str:
        """As it is stored."""
        return _encoder.encode(self).decode()

    def with_results(self, fields: Mapping[str, str], queue: str) -> Step:
        """As it goes on from ``queue``. What it waited for is over."""
        values = self.values | raw(fields) | {COMPLETED_QUEUE: msgspec.Raw(msgspec.json.encode(queue))}
        return msgspec.structs.replace(self, values=values, waits_for=None)

    @property
    def root(self) -> str:
        """The job that was created: itself, or its parent."""
        return self.id if self.parent is None else self.parent.id

    def value(self, name: str) -> Any:
        """One attribute, decoded; ``None`` if it is not there. Raises UndecodablePayload that names it."""
        if name not in self.values:
            return None
        try:
            return msgspec.json.decode(self.values[name])
        except msgspec.DecodeError as error:
            raise UndecodablePayload(f"attribute {name!r}: {error}") from None


class StepJob(FlowJob):
    """A flow's job with all that its step carries, wanted or not."""

    __slots__ = ("step",)

    step: Step


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Step)


def raw(fields: Mapping[str, str]) -> Values:
    """JSON texts, not read."""
    return {name: msgspec.Raw(text) for name, text in fields.items()}


def read_step(job: Job) -> Step:
    """What a job carries. Raises UndecodablePayload."""
    step: Step = strict_json.decode_with(_decoder, job.payload_text)
    return step


def task_of(flow: str, line: Line) -> str:
    """What the jobs of a queue are called."""
    return f"{flow}/{line.name}"


def queue_of(task: str) -> str:
    """The queue's full name."""
    return task.partition("/")[2]


def key_of(flow: str, job_id: str) -> str:
    """The key of all steps of a job."""
    return f"{PREFIX}{job_id}" if ":" in job_id else f"{PREFIX}{flow}:{job_id}"


def id_of(key: str) -> str:
    """The other way round: a child's id is its key without the prefix, another's the last part."""
    name = key.removeprefix(PREFIX)
    return name if name.count(":") > 1 else name.rpartition(":")[2]


def new_step(
    line: Line, step: Step, priority: int, *, delay: float | None = None, flags: tuple[str, ...] = ()
) -> NewJob:
    """The job of a step in a queue, at that queue's nearest priority."""
    return NewJob(
        task=task_of(step.flow, line),
        payload=step.text(),
        key=key_of(step.flow, step.id),
        priority=min(max(priority, 1), line.queue.priorities),
        max_attempts=line.max_attempts,
        max_resets=line.queue.max_resets,
        delay=delay,
        flags=flags,
    )


def facts_of(step: Step, priority: int) -> dict[str, Any]:
    """What is known of a job beside its attributes."""
    flow = step.flow if step.parent is None else step.id.rpartition(":")[0]
    return {"flowName": flow, "priority": priority, "correlationId": step.correlation_id}


def read_job(shape: FlowShape, line: Line, ctx: Attempt[Any], record: Job) -> StepJob:
    """As its worker function sees it. Raises UndecodablePayload."""
    step = read_step(record)
    facts = facts_of(step, record.priority)
    wanted = line.queue.attributes_to_get
    if line.is_parent:
        given: dict[str, Any] = {}  # what it needs is looked at when it is needed
    elif wanted is None:
        given = {name: step.value(name) for name in step.values} | facts_shown(shape, facts)
    else:
        given = {name: facts[name] if name in facts else step.value(name) for name in wanted}
    if shape.layout is Layout.PRIORITY:
        given |= facts
    job = StepJob(
        step.id,
        step.flow,
        line.name,
        {"id": step.id} | given,
        ctx,
        priority=record.priority,
        correlation_id=step.correlation_id,
        retries=max(record.attempts - 1, 0),
    )
    job.step = step
    return job


def facts_shown(shape: FlowShape, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a job shows to whoever asks for everything."""
    shown = ("correlationId",) if shape.layout is Layout.CLASSIC else tuple(facts)
    return {name: facts[name] for name in shown if facts[name] is not None}
