"""Views of a flow: its queues, their jobs, and single jobs, as text and JSON."""

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
COUNTED_STATES = ("waiting", "processing", "delayed", "parked", "failed")
NAME_WIDTH = 18
CHILDREN_ATTRIBUTE = re.compile(r"children:.*:jobs")
"""Attributes in which a parent keeps its children: their names, or the children themselves if requested."""


class QueueLine(msgspec.Struct, frozen=True):
    """A queue at one priority."""

    name: str
    next: str | None
    slots: int
    count: QueueCount


def queue_lines(shape: FlowShape, counts: Sequence[QueueCount], slots: Mapping[str, int]) -> list[QueueLine]:
    """Return a line for each queue and priority, children below their parent."""
    return [
        QueueLine(_queue_label(queue, count), queue.declared.next_for(shape.name), slots[queue.name], count)
        for queue in shape.all_queues()
        for count in _of_queue(counts, queue)
    ]


def sum_line(counts: Sequence[QueueCount]) -> QueueLine:
    """Return the sum of all queues."""
    sums = {state: sum(getattr(count, state) for count in counts) for state in COUNTED_STATES}
    return QueueLine("all", None, 0, QueueCount(queue="all", priority=0, **sums))


NAME_COLUMN: Column[QueueLine] = Column("name", "QUEUE", can_shrink=True)
DECLARED_COLUMNS: list[Column[QueueLine]] = [
    Column("next", "NEXT", can_shrink=True),
    Column("slots", "SLOTS", is_right_aligned=True),
]
PRIORITY_COLUMN: Column[QueueLine] = Column("count.priority", "PRIO", is_right_aligned=True)
COUNT_COLUMNS: list[Column[QueueLine]] = [
    Column(f"count.{state}", state.upper(), is_right_aligned=True) for state in COUNTED_STATES
]


def queue_columns(counts: Sequence[QueueCount], *, with_declaration: bool) -> list[Column[QueueLine]]:
    """Return the columns of queues. ``with_declaration`` adds what the program declares."""
    priority = [PRIORITY_COLUMN] if any(count.priority != 1 for count in counts) else []
    return [NAME_COLUMN, *(DECLARED_COLUMNS if with_declaration else []), *priority, *COUNT_COLUMNS]


def queue_object(shape: FlowShape, queue: FlowQueue, counts: Sequence[QueueCount], slots: int) -> dict[str, Any]:
    """Return a queue for JSON."""
    subject = {"queue": queue.name, "parent": queue.parent, "next": queue.declared.next_for(shape.name), "slots": slots}
    priorities = [msgspec.structs.asdict(count) for count in _of_queue(counts, queue)]
    for priority in priorities:
        del priority["queue"]
    return {**subject, "priorities": priorities}


def monitor_heading(flow: str, location: str, reset_count: int) -> str:
    """Return the flow, the time, and the number of jobs reset because their workers were lost."""
    reset = f"  {reset_count} reset (worker lost)" if reset_count else ""
    text = f"{escape(flow)}  {wall_clock():%H:%M:%S}Z{reset}  {escape(location)}"
    width = output_width()
    return text if width is None else fit(text, width)


def position_columns(positions: Sequence[Position], *, has_several_queues: bool) -> list[Column[Position]]:
    """Return the columns of jobs in their order. With several queues each line names its own."""
    visibility = {
        "queue": has_several_queues,
        "priority": any(position.priority != 1 for position in positions),
        "ready_at": any(position.ready_at is not None for position in positions),
    }
    return [
        column if visibility.get(column.key, True) else msgspec.structs.replace(column, heading="")
        for column in POSITION_COLUMNS
    ]


POSITION_COLUMNS: list[Column[Position]] = [
    Column("queue", "QUEUE", can_shrink=True),
    Column("state", "STATE"),
    Column("priority", "PRIO", is_right_aligned=True),
    Column("position", "POSITION", is_right_aligned=True),
    Column("ready_at", "READY AT", text=lambda position: _time_text(position.ready_at)),
    Column("job_id", "ID"),
]


def _attribute(name: str, heading: str, *, can_shrink: bool = False, is_multiline: bool = False) -> Column[Job]:
    return Column(name, heading, lambda job: job.get(name), can_shrink=can_shrink, is_multiline=is_multiline)


JOB_COLUMNS = [
    _attribute("id", "ID"),
    _attribute("completed-queue", "COMPLETED", can_shrink=True),
    _attribute("failedQueue", "FAILED IN", can_shrink=True),
    _attribute("failedErrorMsg", "ERROR", is_multiline=True),
]
"""Columns of jobs: the last completed queue, and the queue and message of a failure."""


class FlowJobDetails(msgspec.Struct, frozen=True):
    """Details of a job for ``show``."""

    view: FlowJobView
    job: Job
    position: Position | None
    """``None`` if no worker will run it, or if it was not found among the first jobs."""
    children: dict[str, Counter[str]]
    """Children by the parent's queue and state, shown instead of their attributes."""
    paused: bool = False
    """Whether the job waits in a paused queue."""


def state_text(details: FlowJobDetails) -> str:
    """Return the job's state and position in a sentence."""
    view, position = details.view, details.position
    text = f"{view.state} in {view.queue or '-'}"
    if position is not None:
        text += f", priority {position.priority}, position {position.position}"
    if view.ready_at is not None:
        text += f", ready at {format_time(view.ready_at)}"
    if details.paused:
        text += "; the queue is paused"
    return f"{text}: {view.failure}" if view.state is Stage.LOST else text


def child_state(child: Job) -> str:
    """Return the state of a child from its attributes."""
    if child.get("failed"):
        return "canceled" if child.get("canceled") else "failed"
    return "done" if child.get("done") else "not ended"


def job_object(details: FlowJobDetails) -> dict[str, Any]:
    """Return the job for JSON. ``job`` has all attributes. The key ``stands`` has the position, or ``null``."""
    view = details.view
    subject = {"state": view.state, "queue": view.queue, "failure": view.failure, "paused": details.paused}
    return {"job": details.job, **subject, "stands": details.position, "children": details.children}


def job_page(details: FlowJobDetails) -> str:
    """Return a line for each attribute as JSON, with a summary of the children."""
    lines = {"id": str(details.job["id"]), "state": state_text(details)}
    hidden = {"id"}
    for queue, states in details.children.items():
        summary = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        lines[f"children:{queue}"] = f"{summary} (--children shows them)"
        hidden |= {f"children:{queue}:{kind}" for kind in ("jobs", "params", "results")}
    for name, value in details.job.items():
        if name not in hidden:
            indent = 2 if CHILDREN_ATTRIBUTE.fullmatch(name) else None
            lines[name] = json.dumps(value, ensure_ascii=False, indent=indent)
    return "\n".join(f"{escape(name):<{NAME_WIDTH - 1}} {escape_lines(text)}" for name, text in lines.items())


def _of_queue(counts: Sequence[QueueCount], queue: FlowQueue) -> list[QueueCount]:
    """Return the counts of a queue by priority. A queue without counts is empty."""
    rows = sorted((count for count in counts if count.queue == queue.name), key=lambda count: count.priority)
    return rows or [QueueCount(queue=queue.name, priority=1)]


def _queue_label(queue: FlowQueue, count: QueueCount) -> str:
    name = queue.name if queue.parent is None else f"  {queue.name}"
    return f"{name} (paused)" if count.paused else name


def _time_text(seconds: float | None) -> str:
    return format_time(None if seconds is None else datetime.fromtimestamp(seconds, UTC))
