"""Overviews of the steps of flows: counts, steps in the order of their queue, and failed steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stowhand.protocols.flow_tables import PARKED_FLAG, PlacedStep, StepCount, StepState
from stowhand.stores.kernel.question import Engine, Query, Question, Row

_WAITS = "count(*) FILTER (WHERE run_at <= :now), count(*) FILTER (WHERE run_at > :now AND {has_flag})"
_COUNTS = " UNION ALL ".join(
    f"SELECT '{index}', task, priority, count(*), {counts} FROM {{{index}}} AND task IN :tasks GROUP BY task, priority"
    for index, counts in {"ready": _WAITS, "suspects": _WAITS, "running": "0, 0", "failed": "0, 0"}.items()
)
# This form keeps planners from using the index of keys, which holds the steps of all tasks.
_OF_TASK = "AND task = :task AND coalesce(key, '') <> ''"
_RUNNING = f"SELECT key, priority FROM {{running}} {_OF_TASK} ORDER BY started_at, id LIMIT :limit"
_WAITING, _DELAYED = (
    " UNION ALL ".join(
        f"SELECT * FROM (SELECT key, priority, run_at, id, {{has_flag}} AS is_parked FROM {{{index}}}"
        f" {_OF_TASK} AND run_at {when} ORDER BY {order} LIMIT :limit) AS {index}"
        for index in ("ready", "suspects")
    )
    for when, order in (("<= :now", "priority, run_at, id"), ("> :now", "run_at, id"))
)
_FAILED = """
SELECT key FROM {failed} AND task IN :tasks AND key {byte_order} > :above ORDER BY key {byte_order} LIMIT :limit
"""


class FlowSteps:
    """Questions about the live steps of flows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        """Count the live steps by task, priority and state."""
        return await self._engine.answer(lambda: _count(tasks))

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        """Return the steps of a task: running ones first, then due ones, then the others."""
        return await self._engine.answer(lambda: _place(self._engine, task, limit))

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        """Return the keys of failed steps after a key, in key order."""
        return await self._engine.answer(lambda: _list_failed(tasks, after, limit))


def _count(tasks: Sequence[str]) -> Question[Sequence[StepCount]]:
    rows = yield Query(_COUNTS, {"tasks": list(tasks), "flag": PARKED_FLAG})
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


def _place(engine: Engine, task: str, limit: int) -> Question[Sequence[PlacedStep]]:
    values = {"task": task, "limit": limit, "flag": PARKED_FLAG}
    running = yield Query(_RUNNING, values)
    waiting = yield Query(_WAITING, values)
    delayed = yield Query(_DELAYED, values)
    return [
        *(PlacedStep(key, priority, StepState.PROCESSING, None) for key, priority in running),
        *(PlacedStep(row[0], row[1], StepState.WAITING, None) for row in sorted(waiting, key=_in_turn)[:limit]),
        *(_delayed_step(engine, row) for row in sorted(delayed, key=_by_time)[:limit]),
    ]


def _in_turn(row: Row) -> tuple[int, Any, int]:
    return row[1], row[2], row[3]


def _by_time(row: Row) -> tuple[Any, int]:
    return row[2], row[3]


def _delayed_step(engine: Engine, row: Row) -> PlacedStep:
    key, priority, run_at, _, is_parked = row
    state = StepState.PARKED if is_parked else StepState.DELAYED
    return PlacedStep(key, priority, state, engine.read_moment(run_at).timestamp())


def _list_failed(tasks: Sequence[str], after: str, limit: int) -> Question[Sequence[str]]:
    rows = yield Query(_FAILED, {"tasks": list(tasks), "above": after, "limit": limit})
    return [key for (key,) in rows]
