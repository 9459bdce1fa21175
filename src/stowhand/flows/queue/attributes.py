"""Attributes of a job, read from its newest step. They equal those in a job's hash in Redis.

A long list of children's parameters is stored separately, so that not every step of the job contains it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stowhand.clock import wall_clock
from stowhand.errors import UndecodablePayload
from stowhand.flows.job import Stage
from stowhand.flows.new_job import lists_children
from stowhand.flows.queue.step import COMPLETED_QUEUE, Step, listed_ids, own_fields, queue_of, read_step, visible_fields
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_shape import FlowShape
from stowhand.protocols.flow_tables import PARKED_FLAG, FlowTables

VANISHED_MESSAGE = "it was removed, or its end was not kept long enough"
_STAGES_BY_STATE = {
    State.PROCESSING: Stage.PROCESSING,
    State.COMPLETED: Stage.COMPLETED,
    State.FAILED: Stage.FAILED,
    State.CANCELED: Stage.CANCELED,
}
_DECODE_ERRORS = (UndecodablePayload, msgspec.DecodeError)


def show(shape: FlowShape, job: Job, step: Step) -> dict[str, Any]:
    """Return the decoded attributes of a step, and the job's state. A value that cannot be decoded is ``None``."""
    attributes = {"id": step.id} | {name: _value(step, name) for name in step.names}
    attributes |= visible_fields(shape, own_fields(step, job.priority))
    queue = queue_of(job.task)
    if retries := _retries(job):
        attributes[f"retries:{queue}"] = retries
    if job.state is State.COMPLETED:
        attributes |= _results(job) | {COMPLETED_QUEUE: queue}
    if job.state in (State.FAILED, State.CANCELED):
        attributes |= failure(job.last_error or job.state.value, queue)
    if job.state is State.CANCELED:
        attributes["canceled"] = True
    if job.state is State.COMPLETED and step.parent is not None:
        attributes["done"] = True
    return attributes


def stage_of(job: Job) -> Stage:
    """Return the stage of a step's job. The local clock decides whether a delayed job is ready."""
    if job.state in _STAGES_BY_STATE:
        return _STAGES_BY_STATE[job.state]
    if job.run_at <= wall_clock():
        return Stage.WAITING
    return Stage.PARKED if PARKED_FLAG in job.flags else Stage.DELAYED


def failure(reason: str, queue: str | None = None) -> dict[str, Any]:
    """Return the attributes of a failed job."""
    queue_field = {} if queue is None else {"failedQueue": queue}
    return {"done": True, "failed": True, **queue_field, "failedErrorMsg": reason}


def child_attributes(shape: FlowShape, names: Sequence[str], jobs: Sequence[Job | None]) -> list[dict[str, Any]]:
    """Return the attributes of children, in the order of ``names``."""
    return [_child(shape, name, job) for name, job in zip(names, jobs, strict=True)]


def _child(shape: FlowShape, name: str, job: Job | None) -> dict[str, Any]:
    if job is None:
        return {"id": name} | failure(VANISHED_MESSAGE)
    try:
        return show(shape, job, read_step(job))
    except UndecodablePayload as error:
        return {"id": name} | failure(str(error), queue_of(job.task))


def children_ids(values: dict[str, Any]) -> dict[str, list[str]]:
    """Return the ids of children by the attribute that lists them."""
    return {
        name: listed_ids(value)
        for name, value in values.items()
        if name.startswith("children:") and name.endswith(":jobs") and isinstance(value, list)
    }


def _results(job: Job) -> dict[str, Any]:
    try:
        result = msgspec.json.decode(job.result_text or "{}")
    except msgspec.DecodeError:
        return {}
    return result if isinstance(result, dict) else {}


def _value(step: Step, name: str) -> Any:
    try:
        return step.value(name)
    except _DECODE_ERRORS:
        return None


def _retries(job: Job) -> int:
    """Return the number of retries: attempts before a running or final one, or all attempts of a waiting job."""
    return job.attempts if job.state in (State.QUEUED, State.ERRORED) else job.attempts - 1


MAX_INLINE_CHARS = 64 * 1024
"""Characters of the JSON text; longer lists are stored separately."""


def split_long_lists(
    fields: Mapping[str, str],
) -> tuple[Mapping[str, str], dict[str, str], tuple[tuple[str, str], ...]]:
    """Separate long lists from the fields that the step contains.

    Return the fields of the step, the ids of the lists by attribute, and the lists as (id, text).
    """
    long = [name for name, text in fields.items() if len(text) > MAX_INLINE_CHARS and lists_children(name)]
    if not long:
        return fields, {}, ()
    list_ids = {name: str(uuid.uuid4()) for name in long}
    step_fields = {name: text for name, text in fields.items() if name not in list_ids}
    return step_fields, list_ids, tuple((list_id, fields[name]) for name, list_id in list_ids.items())


async def read_lists(
    tables: FlowTables, apart: Mapping[str, str], names: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return the separate lists, decoded, by attribute. A list whose job was deleted is ``None``.

    ``apart``: ids of lists by attribute. ``names``: read only these attributes.
    """
    requested = apart if names is None else {name: apart[name] for name in names if name in apart}
    texts = {name: await tables.read_list(list_id) for name, list_id in requested.items()}
    return {name: None if text is None else msgspec.json.decode(text) for name, text in texts.items()}
