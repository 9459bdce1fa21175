"""The attributes of a job from its newest step, as Redis has them in the job's hash.

A long list of children's parameters is stored apart, so that not every step of the job carries it.
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
from stowhand.flows.queue.step import COMPLETED_QUEUE, Step, facts_of, facts_shown, listed_ids, queue_of, read_step
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_shape import FlowShape
from stowhand.protocols.flow_tables import PARKED, FlowTables

VANISHED = "it was removed, or its end was not kept long enough"
_STAGES = {
    State.PROCESSING: Stage.PROCESSING,
    State.COMPLETED: Stage.COMPLETED,
    State.FAILED: Stage.FAILED,
    State.CANCELED: Stage.CANCELED,
}
_BROKEN = (UndecodablePayload, msgspec.DecodeError)


def show(shape: FlowShape, job: Job, step: Step) -> dict[str, Any]:
    """Every attribute that the step carries, decoded, and the job's state. What cannot be decoded is ``None``."""
    shown = {"id": step.id} | {name: _value(step, name) for name in step.names}
    shown |= facts_shown(shape, facts_of(step, job.priority))
    queue = queue_of(job.task)
    if retries := _retries(job):
        shown[f"retries:{queue}"] = retries
    if job.state is State.COMPLETED:
        shown |= _results(job) | {COMPLETED_QUEUE: queue}
    if job.state in (State.FAILED, State.CANCELED):
        shown |= failure(job.last_error or job.state.value, queue)
    if job.state is State.CANCELED:
        shown["canceled"] = True
    if job.state is State.COMPLETED and step.parent is not None:
        shown["done"] = True
    return shown


def stage_of(job: Job) -> Stage:
    """The stage of a step's job; whether a delayed one is ready is decided by this machine's clock."""
    if job.state in _STAGES:
        return _STAGES[job.state]
    if job.run_at <= wall_clock():
        return Stage.WAITING
    return Stage.PARKED if PARKED in job.flags else Stage.DELAYED


def failure(why: str, queue: str | None = None) -> dict[str, Any]:
    """The attributes of a job that has failed."""
    known = {} if queue is None else {"failedQueue": queue}
    return {"done": True, "failed": True, **known, "failedErrorMsg": why}


def gathered(shape: FlowShape, names: Sequence[str], jobs: Sequence[Job | None]) -> list[dict[str, Any]]:
    """The attributes of children, in their order."""
    return [_child(shape, name, job) for name, job in zip(names, jobs, strict=True)]


def _child(shape: FlowShape, name: str, job: Job | None) -> dict[str, Any]:
    if job is None:
        return {"id": name} | failure(VANISHED)
    try:
        return show(shape, job, read_step(job))
    except UndecodablePayload as error:
        return {"id": name} | failure(str(error), queue_of(job.task))


def children_named(values: dict[str, Any]) -> dict[str, list[str]]:
    """Ids of the children, by the attribute that lists them."""
    return {
        name: listed_ids(value)
        for name, value in values.items()
        if name.startswith("children:") and name.endswith(":jobs") and isinstance(value, list)
    }


def _results(job: Job) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(job.result_text or "{}")
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _value(step: Step, name: str) -> Any:
    try:
        return step.value(name)
    except _BROKEN:
        return None


def _retries(job: Job) -> int:
    """The running or last attempt is not counted as a retry of a later one."""
    return job.attempts if job.state in (State.QUEUED, State.ERRORED) else job.attempts - 1


LONG = 64 * 1024
"""Characters of the JSON text."""


def long_apart(
    fields: Mapping[str, str],
) -> tuple[Mapping[str, str], dict[str, str], tuple[tuple[str, str], ...]]:
    """The fields that the step carries; the list ids of the others, by attribute; and these lists: (id, text)."""
    long = [name for name, text in fields.items() if len(text) > LONG and lists_children(name)]
    if not long:
        return fields, {}, ()
    apart = {name: str(uuid.uuid4()) for name in long}
    rest = {name: text for name, text in fields.items() if name not in apart}
    return rest, apart, tuple((list_id, fields[name]) for name, list_id in apart.items())


async def read_lists(
    tables: FlowTables, apart: Mapping[str, str], names: Iterable[str] | None = None
) -> dict[str, Any]:
    """Decoded, by attribute; ``names``: only these. A list whose job was deleted is ``None``."""
    wanted = apart if names is None else {name: apart[name] for name in names if name in apart}
    found = {name: await tables.kept(list_id) for name, list_id in wanted.items()}
    return {name: None if text is None else msgspec.json.decode(text) for name, text in found.items()}
