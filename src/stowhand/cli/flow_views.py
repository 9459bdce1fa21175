"""Queues of a flow, their jobs, and single jobs, for people and for programs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from stowhand.cli.columns import Column
from stowhand.cli.screen import output_width
from stowhand.clock import wall_clock
from stowhand.flows import FlowJobView, Position, QueueCount, Stage
from stowhand.jobs.durations import format_time
from stowhand.observe.safe_text import escape, escape_lines, fit
from stowhand.protocols.flow_shape import FlowQueue, FlowShape

Job = dict[str, Any]
STATES = ("waiting", "processing", "delayed", "parked", "failed")
NAME_WIDE = 18
CHILDREN = re.compile(r"children:.*:jobs")
"""The attributes under which a parent keeps its children: their names, or all of each where that was asked for."""


class QueueLine(msgspec.Struct, frozen=True):
    """A queue at one priority."""

    name: str
    next: str | None
    slots: int
    count: QueueCount


def queue_lines(shape: FlowShape, counts: Sequence[QueueCount], slots: Mapping[str, int]) -> list[QueueLine]:
    """Every queue, children below their parent; a line for each priority."""
    return [
        QueueLine(_shown(queue, count), queue.declared.next_for(shape.name), slots[queue.name], count)
        for queue in shape.all_queues()
        for count in _of_queue(counts, queue)
    ]


def sum_line(counts: Sequence[QueueCount]) -> QueueLine:
    """The sum of all queues."""
    sums = {state: sum(getattr(count, state) for count in counts) for state in STATES}
    return QueueLine("all", None, 0, QueueCount(queue="all", priority=0, **sums))


NAME: Column[QueueLine] = Column("name", "QUEUE", squeezed=True)
NEXT_AND_SLOTS: list[Column[QueueLine]] = [
    Column("next", "NEXT", squeezed=True),
    Column("slots", "SLOTS", right=True),
]
PRIORITY: Column[QueueLine] = Column("count.priority", "PRIO", right=True)
COUNTS: list[Column[QueueLine]] = [Column(f"count.{state}", state.upper(), right=True) for state in STATES]


def queue_columns(counts: Sequence[QueueCount], *, declared: bool) -> list[Column[QueueLine]]:
    """Priorities only where there are several. ``declared``: with what the program declares."""
    priority = [PRIORITY] if any(count.priority != 1 for count in counts) else []
    return [NAME, *(NEXT_AND_SLOTS if declared else []), *priority, *COUNTS]


def queue_object(shape: FlowShape, queue: FlowQueue, counts: Sequence[QueueCount], slots: int) -> dict[str, Any]:
    """A queue, for JSON."""
    about = {"queue": queue.name, "parent": queue.parent, "next": queue.declared.next_for(shape.name), "slots": slots}
    priorities = [msgspec.structs.asdict(count) for count in _of_queue(counts, queue)]
    for priority in priorities:
        del priority["queue"]
    return {**about, "priorities": priorities}


def look_heading(flow: str, where: str, returned: int) -> str:
    """The flow, the time, and how many jobs were reset because their workers were lost."""
    back = f"  {returned} reset (worker lost)" if returned else ""
    words, width = f"{escape(flow)}  {wall_clock():%H:%M:%S}Z{back}  {escape(where)}", output_width()
    return words if width is None else fit(words, width)


def position_columns(positions: Sequence[Position], *, several: bool) -> list[Column[Position]]:
    """The jobs of a queue in their order; ``several``: of several queues, so that each line names its own."""
    is_shown = {
        "queue": several,
        "priority": any(one.priority != 1 for one in positions),
        "ready_at": any(one.ready_at is not None for one in positions),
    }
    return [
        column if is_shown.get(column.key, True) else msgspec.structs.replace(column, heading="") for column in POSITION
    ]


POSITION: list[Column[Position]] = [
    Column("queue", "QUEUE", squeezed=True),
    Column("state", "STATE"),
    Column("priority", "PRIO", right=True),
    Column("position", "POSITION", right=True),
    Column("ready_at", "READY AT", text=lambda one: _moment(one.ready_at)),
    Column("job_id", "ID"),
]


def _attribute(name: str, heading: str, *, squeezed: bool = False, lines: bool = False) -> Column[Job]:
    return Column(name, heading, lambda job: job.get(name), squeezed=squeezed, lines=lines)


ENDED = [
    _attribute("id", "ID"),
    _attribute("completed-queue", "COMPLETED", squeezed=True),
    _attribute("failedQueue", "FAILED IN", squeezed=True),
    _attribute("failedErrorMsg", "ERROR", lines=True),
]
"""Jobs by how far they have come; of failed ones the queue and the message."""


class Shown(msgspec.Struct, frozen=True):
    """One job as ``show`` prints it."""

    view: FlowJobView
    job: Job
    position: Position | None
    """``None``: no worker will run it, or it was not found among the first ones."""
    children: dict[str, Counter[str]]
    """Children by the parent's queue and state, shown instead of their attributes."""
    paused: bool = False
    """Whether it waits in a queue that is paused."""


def state_text(shown: Shown) -> str:
    """The job's state and position, in a sentence."""
    view, position = shown.view, shown.position
    words = f"{view.state} in {view.queue or '-'}"
    if position is not None:
        words += f", priority {position.priority}, position {position.position}"
    if view.ready_at is not None:
        words += f", ready at {format_time(view.ready_at)}"
    if shown.paused:
        words += "; the queue is paused"
    return f"{words}: {view.failure}" if view.state is Stage.LOST else words


def child_state(child: Job) -> str:
    """Return the state of a child from its attributes."""
    if child.get("failed"):
        return "canceled" if child.get("canceled") else "failed"
    return "done" if child.get("done") else "not ended"


def shown_object(shown: Shown) -> dict[str, Any]:
    """Return the job for JSON. ``job``: all attributes; ``stands``: its position, ``null`` if it has none."""
    view = shown.view
    about = {"state": view.state, "queue": view.queue, "failure": view.failure, "paused": shown.paused}
    return {"job": shown.job, **about, "stands": shown.position, "children": shown.children}


def job_page(shown: Shown) -> str:
    """Every attribute on a line of its own, as JSON, and children as a summary."""
    lines = {"id": str(shown.job["id"]), "state": state_text(shown)}
    hidden = {"id"}
    for queue, states in shown.children.items():
        counted = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        lines[f"children:{queue}"] = f"{counted} (--children shows them)"
        hidden |= {f"children:{queue}:{kind}" for kind in ("jobs", "params", "results")}
    for name, value in shown.job.items():
        if name not in hidden:
            indent = 2 if CHILDREN.fullmatch(name) else None
            lines[name] = json.dumps(value, ensure_ascii=False, indent=indent)
    return "\n".join(f"{escape(name):<{NAME_WIDE - 1}} {escape_lines(text)}" for name, text in lines.items())


def _of_queue(counts: Sequence[QueueCount], queue: FlowQueue) -> list[QueueCount]:
    """Return the counts of a queue by priority; a queue that the engine does not mention is empty."""
    found = sorted((count for count in counts if count.queue == queue.name), key=lambda count: count.priority)
    return found or [QueueCount(queue=queue.name, priority=1)]


def _shown(queue: FlowQueue, count: QueueCount) -> str:
    name = queue.name if queue.parent is None else f"  {queue.name}"
    return f"{name} (paused)" if count.paused else name


def _moment(seconds: float | None) -> str:
    return format_time(None if seconds is None else datetime.fromtimestamp(seconds, UTC))
