"""Overviews of the steps of flows: counts, steps in the order of their queue, and failed steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stowhand.protocols.flow_tables import PARKED_FLAG, PlacedStep, StepCount, StepState
from stowhand.stores.kernel.question import Engine, Query, Question, Row

_WAITING_COUNTS = "count(*) FILTER (WHERE run_at <= :now), count(*) FILTER (WHERE run_at > :now AND {has_flag})"
_STEP_COUNTS = " UNION ALL ".join(
    f"SELECT '{index}', task, priority, count(*), {counts} FROM {{{index}}} AND task IN :tasks GROUP BY task, priority"
    for index, counts in {
        "ready": _WAITING_COUNTS,
        "suspects": _WAITING_COUNTS,
        "running": "0, 0",
        "failed": "0, 0",
    }.items()
)
# The expression keeps planners from using the index of keys, which holds the steps of all tasks.
_TASK_CONDITION = "AND task = :task AND coalesce(key, '') <> ''"
_RUNNING_STEPS = f"SELECT key, priority FROM {{running}} {_TASK_CONDITION} ORDER BY started_at, id LIMIT :limit"
_WAITING_STEPS, _DELAYED_STEPS = (
    " UNION ALL ".join(
        f"SELECT * FROM (SELECT key, priority, run_at, id, {{has_flag}} AS is_parked FROM {{{index}}}"
        f" {_TASK_CONDITION} AND run_at {when} ORDER BY {order} LIMIT :limit) AS {index}"
        for index in ("ready", "suspects")
    )
    for when, order in (("<= :now", "priority, run_at, id"), ("> :now", "run_at, id"))
)
_FAILED_STEPS = """
SELECT key FROM {failed} AND task IN :tasks AND key {byte_order} > :above ORDER BY key {byte_order} LIMIT :limit
"""


class FlowSteps:
    """Questions about the live steps of flows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        """Count the live steps by task, priority and state."""
        return await self._engine.answer(lambda: _count_steps(tasks))

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        """Return the steps of a task: running ones first, then due ones, then the others."""
        return await self._engine.answer(lambda: _list_steps(self._engine, task, limit))

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        """Return the keys of failed steps after a key, in key order."""
        return await self._engine.answer(lambda: _list_failed(tasks, after, limit))


def _count_steps(tasks: Sequence[str]) -> Question[Sequence[StepCount]]:
    rows = yield Query(_STEP_COUNTS, {"tasks": list(tasks), "flag": PARKED_FLAG})
    numbers: Counter[tuple[str, int, StepState]] = Counter()
    for index, task, priority, number, due, parked in rows:
        if index == "running":
            numbers[task, priority, StepState.PROCESSING] += number
        elif index == "failed":
            numbers[task, priority, StepState.FAILED] += number
        else:
            numbers[task, priority, StepState.WAITING] += due
            numbers[task, priority, StepState.PARKED] += parked
            numbers[task, priority, StepState.DELAYED] += number - due - parked
    return [StepCount(*kind, number) for kind, number in numbers.items() if number]


def _list_steps(engine: Engine, task: str, limit: int) -> Question[Sequence[PlacedStep]]:
    values = {"task": task, "limit": limit, "flag": PARKED_FLAG}
    running = yield Query(_RUNNING_STEPS, values)
    waiting = yield Query(_WAITING_STEPS, values)
    delayed = yield Query(_DELAYED_STEPS, values)
    return [
        *(PlacedStep(key, priority, StepState.PROCESSING, None) for key, priority in running),
        *(PlacedStep(row[0], row[1], StepState.WAITING, None) for row in sorted(waiting, key=_service_order)[:limit]),
        *(_delayed_step(engine, row) for row in sorted(delayed, key=_due_order)[:limit]),
    ]


def _service_order(row: Row) -> tuple[int, Any, int]:
    return row[1], row[2], row[3]


def _due_order(row: Row) -> tuple[Any, int]:
    return row[2], row[3]


def _delayed_step(engine: Engine, row: Row) -> PlacedStep:
    key, priority, run_at, _, is_parked = row
    state = StepState.PARKED if is_parked else StepState.DELAYED
    return PlacedStep(key, priority, state, engine.read_moment(run_at).timestamp())


def _list_failed(tasks: Sequence[str], after: str, limit: int) -> Question[Sequence[str]]:
    rows = yield Query(_FAILED_STEPS, {"tasks": list(tasks), "above": after, "limit": limit})
    return [key for (key,) in rows]
