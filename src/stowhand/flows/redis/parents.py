"""A parent's runs: it fans out and is parked; woken by its last child, it gathers, or is parked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.flows.job import FlowJob
from stowhand.flows.new_job import children_failed, children_of
from stowhand.flows.redis.claiming import FlowRecord
from stowhand.flows.redis.ending import NewChild, StepEnd
from stowhand.flows.redis.looking import CHILD_KEYS_LIMIT, Looking
from stowhand.flows.redis.naming import Naming
from stowhand.flows.redis.values import COMPLETED, children_again, has_ended, has_failed, readable, wanted
from stowhand.jobs import strict_json
from stowhand.jobs.lifecycle import Fail, Outcome
from stowhand.protocols.flow_shape import FlowQueue, Layout

MOST_TOGETHER = 20_000
"""Children whose results are looked at to be put together: more would hardly fit in one attribute."""
EXPIRED = "its hash expired"


class Parents:
    """What parents do in one flow."""

    def __init__(self, naming: Naming, looking: Looking) -> None:
        self._naming, self._keys, self._looking = naming, naming.keys, looking
        self._ranked = naming.keys.shape.layout is Layout.PRIORITY

    def seen(self, queue: FlowQueue) -> FlowQueue:
        """The queue as its store is to see it: of a parent only what it needs is fetched."""
        if not queue.is_parent:
            return queue
        looked_at = (*_fields(queue), _results(queue), COMPLETED, children_again(queue))
        declared = msgspec.structs.replace(queue.declared, attributes_to_get=looked_at)
        return msgspec.structs.replace(queue, declared=declared)

    async def step(self, queue: FlowQueue, job: FlowJob) -> StepEnd | Outcome:
        """Fan out; or gather, when all children have ended; or wait on."""
        record: FlowRecord = job.ctx.record
        params_at, jobs_at = _fields(queue)
        try:
            known = wanted({name: record.values.get(name) for name in (params_at, jobs_at)})
        except UndecodablePayload as error:
            return Fail(str(error), poison=True)
        keys = known[jobs_at]
        try:
            if keys is not None and not _has_come_again(queue, record):
                if record.values.get(children_again(queue)) is not None:
                    return await self._make_failed_anew(queue, job, keys, known[params_at])
                return await self._gather(queue, job, keys)
            return self._fan_out(queue, job, known[params_at])
        except InvalidJob as error:
            return Fail(str(error))

    def _fan_out(self, queue: FlowQueue, job: FlowJob, params: object) -> StepEnd:
        params_at, jobs_at = _fields(queue)
        if params is None:
            job.ctx.logger.warning(f"{params_at} is missing; there are no children")
        elif not isinstance(params, list):
            raise InvalidJob(f"{params_at} is no list of objects")
        made = list(self._made(queue, job, params or []))
        listed = strict_json.encode([key for key, _ in made], what=jobs_at, limit=CHILD_KEYS_LIMIT)
        if made:
            return StepEnd(fields=raw({jobs_at: listed}), children=[child for _, child in made])
        return self._gathered(queue, job, [], {jobs_at: listed})

    def _made(self, queue: FlowQueue, job: FlowJob, params: list[Any]) -> Iterator[tuple[str, NewChild]]:
        """With the keys of their hashes."""
        for kind, given, rank in children_of(queue, job, params):
            # By ``done`` its parent would take it for one that has ended.
            values = {
                name: msgspec.Raw(strict_json.encode(value, what=name))
                for name, value in given.items()
                if name != "done"
            }
            values |= self._facts(job, f"{queue.name}:{kind.name}", min(max(rank, 1), kind.priorities))
            child_id, key = self._keys.child(queue.name, kind.name, self._keys.new_uuid())
            yield key, NewChild(f"{queue.name}:{kind.name}", child_id, values)

    def _facts(self, job: FlowJob, queue: str, priority: int) -> dict[str, msgspec.Raw]:
        record: FlowRecord = job.ctx.record
        facts: dict[str, str] = {}
        if readable(record.correlation_id) is not None:  # another application may have written a value that is not JSON
            facts["correlationId"] = str(record.correlation_id)
        if self._ranked:
            facts |= {"flowName": strict_json.encode(queue), "priority": str(priority)}
        return raw(facts)

    def _checked(self, queue: FlowQueue, keys: object) -> list[str]:
        if not isinstance(keys, list) or not all(self._naming.is_child(key) for key in keys):
            raise InvalidJob(f"{_fields(queue)[1]} is no list of children")
        return keys

    async def _make_failed_anew(self, queue: FlowQueue, job: FlowJob, keys: object, params: object) -> StepEnd:
        """The parent was retried: its failed children begin again with their ids and parameters."""
        hashes = self._checked(queue, keys)
        made = list(self._made(queue, job, params if isinstance(params, list) else []))
        if len(made) != len(hashes):
            raise InvalidJob(f"{_fields(queue)[0]} has changed since the children were made")
        ends = await self._looking.ends(hashes)
        children = [
            msgspec.structs.replace(child, id=self._keys.listed(key))
            for key, end, (_, child) in zip(hashes, ends, made, strict=True)
            if _has_failed(end)
        ]
        return StepEnd(children=children)

    async def _gather(self, queue: FlowQueue, job: FlowJob, keys: object) -> StepEnd | Outcome:
        """Those that failed among them, in the order in which they were created."""
        hashes = self._checked(queue, keys)
        if not queue.declared.gather or len(hashes) > MOST_TOGETHER:
            ends = await self._looking.ends(hashes)
            return self._refused(queue, hashes, ends) or self._left_apart(queue, job)
        found = await self._looking.children(hashes)
        together = [child if fields else child | LOST for fields, child in found]
        return self._refused(queue, hashes, [fields for fields, _ in found]) or self._gathered(queue, job, together, {})

    def _refused(
        self, queue: FlowQueue, hashes: Sequence[str], ends: Sequence[Mapping[str, str]]
    ) -> StepEnd | Outcome | None:
        """The parent waits on for children that have not ended; it fails if one has failed that must succeed."""
        if not all(has_ended(end) for end in ends):
            return StepEnd(children=[])
        failed = [(key, end) for key, end in zip(hashes, ends, strict=True) if _has_failed(end)]
        if not failed or not queue.declared.children_must_succeed:
            return None
        key, end = failed[0]
        why = readable(end.get("failedErrorMsg")) if end else EXPIRED
        return Fail(children_failed(len(failed), len(hashes), str(self._naming.shown_of_hash(key)), why))

    def _left_apart(self, queue: FlowQueue, job: FlowJob, also: Mapping[str, str] | None = None) -> StepEnd:
        """They are read in pages; the attribute says that it has gathered."""
        return StepEnd(fields=raw({**(also or {}), _results(queue): "[]"}), next=queue.declared.next_for(job.flow))

    def _gathered(self, queue: FlowQueue, job: FlowJob, results: list[dict[str, Any]], also: dict[str, str]) -> StepEnd:
        name = _results(queue)
        try:
            text = strict_json.encode(results, what=name)
        except InvalidJob as error:
            job.ctx.logger.warning(f"{error}: its children are left apart, to be read by get_children")
            return self._left_apart(queue, job, also)
        return StepEnd(fields=raw({**also, name: text}), next=queue.declared.next_for(job.flow))


def raw(fields: Mapping[str, str]) -> dict[str, msgspec.Raw]:
    """JSON texts, not read."""
    return {name: msgspec.Raw(text.encode()) for name, text in fields.items()}


def _has_failed(end: Mapping[str, str]) -> bool:
    """Of a child that has ended. One that is gone has not succeeded."""
    return not end or has_failed(end)


LOST = {"done": True, "failed": True, "failedErrorMsg": EXPIRED}


def _fields(queue: FlowQueue) -> tuple[str, str]:
    """Where a parent finds what its children are to be given, and the keys of their hashes once there are some."""
    return f"children:{queue.name}:params", f"children:{queue.name}:jobs"


def _results(queue: FlowQueue) -> str:
    """Where it leaves what they have ended with."""
    return f"children:{queue.name}:results"


def _has_come_again(queue: FlowQueue, record: FlowRecord) -> bool:
    """It has gathered once, and another queue has led it back: what stands there is of that time."""
    before = readable(record.values.get(COMPLETED))
    return record.values.get(_results(queue)) is not None and isinstance(before, str) and before != queue.name
