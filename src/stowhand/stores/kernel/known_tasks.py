"""Which tasks are known, and who can run them?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stowhand.protocols.figures import LiveCounts, Pauses
from stowhand.protocols.operating import ABLE_SHOWN, TaskRow, WorkerRow
from stowhand.protocols.throughput import HOUR, MOST_TASKS, OTHERS

COUNTED_FOR = HOUR
"""Seconds within which a task had jobs that is known for them alone."""


def known_tasks(
    standing: Sequence[LiveCounts], counted: Iterable[str], workers: Sequence[WorkerRow], pauses: Pauses
) -> list[TaskRow]:
    """By name. ``standing``: live jobs of the tasks with the most, and of the others together; ``counted``: tasks of
    which some ended lately."""
    alive = [row.card for row in workers if row.alive]
    live = {one.name: one for one in standing}
    names = {*live, *counted, *pauses.tasks, *(task for card in alive for task in card.tasks or ())} - {None, OTHERS}
    others = live.get(None, LiveCounts(name=None))
    if others.waiting.number or others.processing.number or others.failed.number:
        names &= live.keys()  # of which of the others there are jobs is not known
    rows = []
    for name in sorted(filter(None, names))[:MOST_TASKS]:
        able = [card.name for card in alive if card.tasks is None or name in card.tasks]
        one = live.get(name, others)
        rows.append(
            TaskRow(
                name=name,
                paused_since=pauses.tasks.get(name),
                waiting=one.waiting,
                due=one.due,
                running=one.processing,
                failed=one.failed,
                able=len(able),
                workers=tuple(able[:ABLE_SHOWN]),
            )
        )
    return rows
