"""Runs of a parent: it fans out and is parked; when its last child wakes it, it gathers or is parked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.flows.children import (
    check_unchanged,
    checked_params,
    children_failed,
    children_of,
    jobs_at,
    params_at,
    results_at,
    results_text,
)
from stowhand.flows.job import FlowJob
from stowhand.flows.redis.inspector import MAX_CHILD_KEYS_BYTES, Inspector
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.settlements import NewChild, StepResult
from stowhand.flows.redis.store import FlowRecord
from stowhand.flows.redis.values import (
    COMPLETED_QUEUE_FIELD,
    children_again,
    has_ended,
    has_failed,
    readable,
    requested_values,
)
from stowhand.jobs import strict_json
from stowhand.jobs.lifecycle import Fail, Outcome
from stowhand.protocols.flow_shape import FlowQueue

MAX_GATHERED_CHILDREN = 20_000
"""Children whose results are gathered: the results of more would rarely fit in one attribute."""
EXPIRED_MESSAGE = "its hash expired"
LOST_CHILD = {"done": True, "failed": True, "failedErrorMsg": EXPIRED_MESSAGE}


class Parents:
    """Steps of the parents of one flow: fan out and gather."""

    def __init__(self, keys: Keys, inspector: Inspector) -> None:
        self._keys = keys
        self._inspector = inspector

    def seen(self, queue: FlowQueue) -> FlowQueue:
        """Return the queue for its store: a parent's queue requests only the attributes that ``step`` reads."""
        if not queue.is_parent:
            return queue
        name = queue.name
        attributes = (params_at(name), jobs_at(name), results_at(name), COMPLETED_QUEUE_FIELD, children_again(queue))
        declared = msgspec.structs.replace(queue.declared, attributes_to_get=attributes)
        return msgspec.structs.replace(queue, declared=declared)

    async def step(self, queue: FlowQueue, job: FlowJob) -> StepResult | Outcome:
        """Fan out, gather if all children have ended, or keep waiting."""
        record: FlowRecord = job.ctx.record
        try:
            params, keys = requested_of(record, params_at(queue.name), jobs_at(queue.name))
        except UndecodablePayload as error:
            return Fail(str(error), poison=True)
        try:
            if keys is None or _has_come_again(queue, record):
                return self._fan_out(queue, job, params)
            if not isinstance(keys, list) or not all(self._keys.is_child(key) for key in keys):
                raise InvalidJob(f"{jobs_at(queue.name)} is not a list of children")
            if record.values.get(children_again(queue)) is not None:
                return await self._recreate_failed(queue, job, keys, params)
            return await self._gather(queue, job, keys)
        except InvalidJob as error:
            return Fail(str(error))

    def _fan_out(self, queue: FlowQueue, job: FlowJob, params: object) -> StepResult:
        name = jobs_at(queue.name)
        new_children = list(self._made(queue, job, checked_params(queue, job, params)))
        fields = {name: strict_json.encode([key for key, _ in new_children], what=name, limit=MAX_CHILD_KEYS_BYTES)}
        if new_children:
            return StepResult(fields=raw_values(fields), children=[child for _, child in new_children])
        return self._gathered(queue, job, [], fields)

    def _made(self, queue: FlowQueue, job: FlowJob, params: list[Any]) -> Iterator[tuple[str, NewChild]]:
        """Yield the new children with the keys of their hashes."""
        for kind, values, priority in children_of(queue, job, params):
            # Omit ``done``: with it, the parent would consider the child ended.
            texts = {name: strict_json.encode(value, what=name) for name, value in values.items() if name != "done"}
            child_id, key = self._keys.child(kind.name, self._keys.new_uuid())
            yield key, NewChild(kind.name, child_id, raw_values(texts | self._facts(job, kind.name, priority)))

    def _facts(self, job: FlowJob, queue: str, priority: int) -> dict[str, str]:
        correlation_id = job.ctx.record.correlation_id
        # Another application may have written a value that is not JSON.
        fields = {} if readable(correlation_id) is None else {"correlationId": correlation_id}
        if self._keys.is_lasting:
            fields |= {"flowName": strict_json.encode(queue), "priority": str(priority)}
        return fields

    async def _recreate_failed(self, queue: FlowQueue, job: FlowJob, hashes: list[str], params: object) -> StepResult:
        """Restart the failed children of a retried parent, with the same ids and parameters."""
        new_children = list(self._made(queue, job, params if isinstance(params, list) else []))
        check_unchanged(queue, len(hashes), len(new_children))
        ends = await self._inspector.ends(hashes)
        children = [
            msgspec.structs.replace(child, id=self._keys.listed(key))
            for key, end, (_, child) in zip(hashes, ends, new_children, strict=True)
            if _has_failed(end)
        ]
        return StepResult(children=children)

    async def _gather(self, queue: FlowQueue, job: FlowJob, hashes: list[str]) -> StepResult | Outcome:
        """Gather the results of all children, including failed ones, in the order of creation."""
        results: list[dict[str, Any]] = []
        if queue.declared.gather and len(hashes) <= MAX_GATHERED_CHILDREN:
            children = await self._inspector.children(hashes)
            ends = [fields for fields, _ in children]
            results = [child if fields else child | LOST_CHILD for fields, child in children]
        else:
            ends = await self._inspector.ends(hashes)
        return self._refused(queue, hashes, ends) or self._gathered(queue, job, results, {})

    def _refused(
        self, queue: FlowQueue, hashes: Sequence[str], ends: Sequence[Mapping[str, str]]
    ) -> StepResult | Outcome | None:
        """Return a result that keeps the parent waiting, or a failure where a child that must succeed has failed."""
        if not all(has_ended(end) for end in ends):
            return StepResult(children=[])
        failed = [(key, end) for key, end in zip(hashes, ends, strict=True) if _has_failed(end)]
        if not failed or not queue.declared.children_must_succeed:
            return None
        key, end = failed[0]
        reason = readable(end.get("failedErrorMsg")) if end else EXPIRED_MESSAGE
        return Fail(children_failed(len(failed), len(hashes), str(self._keys.public_id_of_hash(key)), reason))

    def _gathered(
        self, queue: FlowQueue, job: FlowJob, results: list[dict[str, Any]], also: Mapping[str, str]
    ) -> StepResult:
        """Return a result with which the parent goes on.

        The results attribute marks it as gathered, even if it contains no results because they must be read in pages.
        """
        fields = {**also, results_at(queue.name): results_text(job, results)}
        return StepResult(fields=raw_values(fields), next=queue.declared.next_for(job.flow))


def requested_of(record: FlowRecord, *names: str) -> tuple[Any, ...]:
    """Return decoded attributes of a claimed job. Raise UndecodablePayload."""
    return tuple(requested_values({name: record.values.get(name) for name in names}).values())


def raw_values(fields: Mapping[str, str]) -> dict[str, msgspec.Raw]:
    """Wrap JSON texts as raw values, without decoding them."""
    return {name: msgspec.Raw(text.encode()) for name, text in fields.items()}


def _has_failed(end: Mapping[str, str]) -> bool:
    """Return whether an ended child has failed. A child whose hash does not exist counts as failed."""
    return not end or has_failed(end)


def _has_come_again(queue: FlowQueue, record: FlowRecord) -> bool:
    """Return whether the parent has gathered before and has come back from another queue.

    Its list of children is then from the earlier run.
    """
    completed_queue = readable(record.values.get(COMPLETED_QUEUE_FIELD))
    has_gathered = record.values.get(results_at(queue.name)) is not None
    return has_gathered and isinstance(completed_queue, str) and completed_queue != queue.name
