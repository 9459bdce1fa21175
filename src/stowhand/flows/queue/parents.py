"""Runs of a parent: the first fans out and parks the parent in one settlement; the second gathers or keeps waiting.

The end of the last child wakes the parent (``Parents.child_ended``). If that fails, the parent checks by itself after
2 s, and then at growing intervals of at most 30 s. It occupies no slot while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from stowhand.clock import SystemClock
from stowhand.errors import InvalidJob, StoreError, UndecodablePayload
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
from stowhand.flows.new_job import Ids, numbered
from stowhand.flows.queue.attributes import VANISHED_MESSAGE, child_attributes, read_lists
from stowhand.flows.queue.step import ChildSet, ParentLink, Step, StepJob, key_of, new_step, size_failure
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import Complete, Fail, Outcome, Snooze
from stowhand.observe.propagation import bound_correlation_id
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.flow_tables import PARKED_FLAG, FlowTables, ParentWakeup

PAGE_SIZE = 1000
"""Children whose results are read in one query."""
MAX_GATHERED_BYTES = strict_json.MAX_WRITTEN_BYTES // 2
"""Bytes of the children's results in one attribute: half of the limit for all attributes of a job."""
FIRST_CHECK_SECONDS, MAX_CHECK_SECONDS = 2.0, 30.0
QUICK_QUERY_SECONDS, PAUSE_FACTOR = 0.002, 10
"""A query up to this duration follows each child; after a slower one comes a pause, its duration times the factor."""
WAKE_RETRY_SECONDS = 0.05
MAX_WAKE_ATTEMPTS = 40
"""Attempts to wake a running parent, ``WAKE_RETRY_SECONDS`` apart."""


class Parents:
    """Steps of the parents of one flow: fan out, gather, and wake up."""

    def __init__(self, shape: FlowShape, tables: FlowTables, ids: Ids) -> None:
        self._shape = shape
        self._tables = tables
        self._ids = ids
        self._clock = SystemClock()
        self._waking: dict[str, asyncio.Task[None]] = {}
        self._pending_checks: set[str] = set()

    async def fan_out(self, queue: FlowQueue, job: StepJob) -> Outcome | None:
        """Enqueue the children and the parent's second run. Return ``None`` if there are no children."""
        try:
            params = checked_params(queue, job, await self._params(queue, job))
        except UndecodablePayload as error:
            return Fail(str(error), poison=True)
        except InvalidJob as error:
            return Fail(str(error))
        stem = self._ids.stem()
        children = list(self._children_steps(queue, job, params, stem))
        if not children:
            return None
        child_set = ChildSet.of(stem, [kind for kind, _ in children])
        return self._park(queue, job, child_set, [step for _, step in children])

    def _park(self, queue: FlowQueue, job: StepJob, child_set: ChildSet, children: list[NewJob]) -> Outcome:
        """Enqueue children, and the parent's next run."""
        waiting = job.step.with_child_set(child_set, queue.name)
        parked = new_step(queue, waiting, job.priority, delay=FIRST_CHECK_SECONDS, flags=(PARKED_FLAG,))
        if refused := size_failure(parked.payload):
            return refused
        job.ctx.then += [*children, parked]
        return Complete()

    async def recreate_failed(self, queue: FlowQueue, job: StepJob) -> Outcome | None:
        """Restart the failed children of a retried parent, with the same ids and parameters.

        Return ``None`` if none has failed.
        """
        child_set = job.step.broods[queue.name]
        params = await self._params(queue, job)
        steps = list(self._children_steps(queue, job, params if isinstance(params, list) else [], child_set.stem))
        names = child_set.ids()
        try:
            check_unchanged(queue, len(names), len(steps))
        except InvalidJob as error:
            return Fail(str(error))
        failed = {name async for name, state in self._states(job, names) if state is not State.COMPLETED}
        children = [step for name, (_, step) in zip(names, steps, strict=True) if name in failed]
        return self._park(queue, job, child_set, children) if children else None

    async def _params(self, queue: FlowQueue, job: StepJob) -> Any:
        name = params_at(queue.name)
        apart = await read_lists(self._tables, job.step.apart, [name])
        return apart[name] if apart else job.step.value(name)

    async def _states(self, job: StepJob, names: Sequence[str]) -> AsyncIterator[tuple[str, State | None]]:
        """Yield the state of each child; ``None`` if it does not exist."""
        for start in range(0, len(names), PAGE_SIZE):
            page = names[start : start + PAGE_SIZE]
            children = await self._tables.latest([key_of(job.flow, name) for name in page])
            for name, child in zip(page, children, strict=True):
                yield name, None if child is None else child.state

    async def _children_failure(self, queue: FlowQueue, job: StepJob) -> Fail | None:
        """Return a failure if children must succeed and one has not."""
        if not queue.declared.children_must_succeed:
            return None
        names = job.step.children(queue.name)
        failed = [name async for name, state in self._states(job, names) if state is not State.COMPLETED]
        if not failed:
            return None
        (first,) = await self._tables.latest([key_of(job.flow, failed[0])])
        reason = VANISHED_MESSAGE if first is None else first.last_error or first.state
        step = msgspec.structs.replace(job.step, waits_for=())
        return Fail(children_failed(len(failed), len(names), failed[0], reason), payload=step.text())

    def _children_steps(
        self, queue: FlowQueue, job: StepJob, params: list[Any], stem: str
    ) -> Iterator[tuple[str, NewJob]]:
        """Yield the full queue name of each child, and its step."""
        for number, (kind, values, priority) in enumerate(children_of(queue, job, params)):
            child = Step(
                id=f"{kind.name}:{numbered(stem, number)}",
                flow=job.step.flow,
                correlation_id=job.step.correlation_id,
                values={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()},
                parent=ParentLink(job.step.id, queue.name),
            )
            yield kind.name, new_step(kind, child, priority)

    async def gather(self, queue: FlowQueue, job: StepJob) -> dict[str, str] | Outcome:
        """Return the children's results as attributes of the parent, or an outcome (it waits or has failed)."""
        if job.step.waits_for is None:
            return {results_at(queue.name): "[]", jobs_at(queue.name): "[]"}
        if await self._tables.wake(key_of(job.flow, job.id)) is ParentWakeup.OPEN:
            return Snooze(_pause(job.ctx))
        if refused := await self._children_failure(queue, job):
            return refused
        results = await self._gathered_results(job, queue.name) if queue.declared.gather else []
        return {results_at(queue.name): results_text(job, results, MAX_GATHERED_BYTES)}

    async def _gathered_results(self, job: StepJob, queue: str) -> list[dict[str, Any]]:
        """Read results page by page until they exceed the limit of one attribute: all may not fit into memory."""
        names = job.step.children(queue)
        results: list[dict[str, Any]] = []
        size = 0
        for start in range(0, len(names), PAGE_SIZE):
            page = names[start : start + PAGE_SIZE]
            jobs = await self._tables.latest([key_of(job.flow, name) for name in page])
            page_results = child_attributes(self._shape, page, jobs)
            size += sum(len(msgspec.json.encode(result)) for result in page_results)
            results += page_results
            if size > MAX_GATHERED_BYTES:
                break
        return results

    async def close(self) -> None:
        """Stop waking parents, which check their children by themselves."""
        waking, self._waking = self._waking, {}
        for task in waking.values():
            task.cancel()
        await asyncio.gather(*waking.values(), return_exceptions=True)

    async def child_ended(self, parent: ParentLink) -> None:
        """Wake the parent if this child was the last.

        The query reads all children, so it is slow for a parent with many. After a slow query there is a pause of ten
        times its duration, and then one query for all children that ended in the pause.
        """
        if parent.id in self._waking:
            self._pending_checks.add(parent.id)
            return
        started_at = self._clock.monotonic()
        await self._ask(parent)
        seconds = self._clock.monotonic() - started_at
        if seconds > QUICK_QUERY_SECONDS and parent.id not in self._waking:
            with bound_correlation_id(None):
                self._waking[parent.id] = asyncio.create_task(self._check_later(parent, seconds), name="flow parent")

    async def _check_later(self, parent: ParentLink, seconds: float) -> None:
        try:
            await self._clock.sleep(min(PAUSE_FACTOR * seconds, FIRST_CHECK_SECONDS))
            while parent.id in self._pending_checks:
                self._pending_checks.discard(parent.id)
                started_at = self._clock.monotonic()
                with suppress(StoreError):  # the parent checks by itself
                    await self._ask(parent)
                await self._clock.sleep(min(PAUSE_FACTOR * (self._clock.monotonic() - started_at), FIRST_CHECK_SECONDS))
        finally:
            self._waking.pop(parent.id, None)

    async def _ask(self, parent: ParentLink) -> None:
        """Wake the parent. Repeat this while the parent runs: its own check may have missed this child."""
        for _ in range(MAX_WAKE_ATTEMPTS):
            if await self._tables.wake(key_of(self._shape.name, parent.id)) is not ParentWakeup.RUNNING:
                return
            await self._clock.sleep(WAKE_RETRY_SECONDS)


def _pause(ctx: Attempt[Job]) -> float:
    """Return the seconds until the next check: a quarter of the time that the parent has waited, within the limits."""
    record = ctx.record
    waited = 0.0 if record.started_at is None else (record.started_at - record.created_at).total_seconds()
    return min(max(waited / 4, FIRST_CHECK_SECONDS), MAX_CHECK_SECONDS)
