"""Queues of a flow, their jobs, and single jobs, as tables and JSON. Escaped: no text of a job drives a terminal."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from stowhand.cli.screen import output_width
from stowhand.cli.text_table import table
from stowhand.clock import wall_clock
from stowhand.flows import FlowJobView, Position, QueueCount, Stage
from stowhand.observe.safe_text import escape, escape_lines, fit, telling_line
from stowhand.protocols.flow_shape import FlowQueue, FlowShape

Job = dict[str, Any]
STATES = ("waiting", "processing", "delayed", "parked", "failed")
NUMBERS = frozenset({"SLOTS", "PRIO", "POSITION", *(state.upper() for state in STATES)})
NAME_WIDE = 18
CHILDREN = re.compile(r"children:.*:jobs")
"""The attributes under which a parent keeps its children: their names, or all of each where that was asked for."""


def queue_table(shape: FlowShape, counts: Sequence[QueueCount], slots: Mapping[str, int]) -> list[str]:
    """Every queue, children below their parent; a line for each priority."""
    rows = []
    for queue in shape.all_queues():
        following = queue.declared.next_for(shape.name) or "-"
        declared = [_shown(queue, counts), following, str(slots.get(queue.name, 0))]
        for count in _of_queue(counts, queue):
            rows.append([*declared, *_numbers(count)])
            declared = ["", "", ""]
    return _counted(("QUEUE", "NEXT", "SLOTS"), rows, counts)


def queue_json(shape: FlowShape, queue: FlowQueue, counts: Sequence[QueueCount], slots: int) -> str:
    """One line for each queue."""
    about = {"queue": queue.name, "parent": queue.parent, "next": queue.declared.next_for(shape.name), "slots": slots}
    found = [msgspec.structs.asdict(count) for count in _of_queue(counts, queue)]
    return plain_json({**about, "priorities": [{k: v for k, v in one.items() if k != "queue"} for one in found]})


def look_table(shape: FlowShape, counts: Sequence[QueueCount]) -> list[str]:
    """The figures of one look, with their sum."""
    rows = []
    for queue in shape.all_queues():
        name = _shown(queue, counts)
        for count in _of_queue(counts, queue):
            rows.append([name, *_numbers(count)])
            name = ""
    sums = {state: sum(getattr(count, state) for count in counts) for state in STATES}
    rows.append(["all", "", *(str(each) for each in sums.values())])
    return _counted(("QUEUE",), rows, counts)


def look_heading(flow: str, where: str, returned: int) -> str:
    """Which flow, when, and how many jobs the looks have brought back."""
    back = f"  {returned} taken back from dead workers" if returned else ""
    words, width = f"{escape(flow)}  {_clock(wall_clock())}{back}  {escape(where)}", output_width()
    return words if width is None else fit(words, width)


def look_json(flow: str, counts: Sequence[QueueCount], returned: int) -> str:
    """One look, one line."""
    about = {"flow": flow, "at": wall_clock().isoformat(), "returned": returned}
    return plain_json({**about, "queues": list(counts)})


def position_table(positions: Sequence[Position], *, several: bool) -> list[str]:
    """The jobs of a queue in their order; ``several``: of several queues, so that each line names its own."""
    rows = [
        [
            one.queue,
            one.state,
            str(one.priority),
            str(one.position),
            "-" if one.ready_at is None else _moment(one.ready_at),
            one.job_id,
        ]
        for one in positions
    ]
    hidden = {
        *(() if several else ("QUEUE",)),
        *(() if any(one.priority != 1 for one in positions) else ("PRIO",)),
        *(() if any(one.ready_at is not None for one in positions) else ("READY AT",)),
    }
    return _without(hidden, ("QUEUE", "STATE", "PRIO", "POSITION", "READY AT", "ID"), rows)


def ended_table(jobs: Sequence[Job]) -> list[str]:
    """Jobs by how far they have come; of failed ones the queue and the message."""
    rows = [
        [
            str(job["id"]),
            _text(job.get("completed-queue")),
            _text(job.get("failedQueue")),
            telling_line(_text(job.get("failedErrorMsg"))),
        ]
        for job in jobs
    ]
    return _without((), ("ID", "COMPLETED", "FAILED IN", "ERROR"), rows)


def plain_json(value: object) -> str:
    """One line. ASCII only, so that it may be looked at in a terminal as well."""
    return json.dumps(value, default=_plain)


class Shown(msgspec.Struct, frozen=True):
    """One job as ``show`` prints it."""

    view: FlowJobView
    job: Job
    position: Position | None
    """``None``: no worker will run it, or it was not found among the first ones."""
    children: dict[str, Counter[str]]
    """By parent's queue: how many of its children are in each state; these are shown instead of their attributes."""
    paused: bool = False
    """It waits in a queue that is paused."""


def state_text(shown: Shown) -> str:
    """The job's state and position, in a sentence."""
    view, position = shown.view, shown.position
    words = f"{view.state} in {_text(view.queue)}"
    if position is not None:
        words += f", priority {position.priority}, position {position.position}"
    if view.ready_at is not None:
        words += f", ready at {_moment(view.ready_at.timestamp())}"
    if shown.paused:
        words += "; the queue is paused"
    return f"{words}: {view.failure}" if view.state is Stage.LOST else words


def child_state(child: Job) -> str:
    """What a child has come to, from its attributes."""
    if child.get("failed"):
        return "canceled" if child.get("canceled") else "failed"
    return "done" if child.get("done") else "not ended"


def shown_json(shown: Shown) -> str:
    """One line. ``job``: all attributes; ``stands``: its position, ``null`` if it has none."""
    view = shown.view
    about = {"state": view.state, "queue": view.queue, "failure": view.failure, "paused": shown.paused}
    return plain_json({"job": shown.job, **about, "stands": shown.position, "children": shown.children})


def job_page(shown: Shown) -> str:
    """Every attribute on a line of its own, as JSON; children below."""
    lines = [
        f"{'id':<{NAME_WIDE}}{escape(str(shown.job['id']))}",
        f"{'state':<{NAME_WIDE}}{escape(state_text(shown))}",
    ]
    hidden = {f"children:{queue}:{kind}" for queue in shown.children for kind in ("jobs", "params", "results")}
    for queue, states in shown.children.items():
        counted = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        lines.append(f"{escape(f'children:{queue}'):<{NAME_WIDE - 1}} {counted} (--children shows them)")
    return "\n".join([*lines, *_attributes({k: v for k, v in shown.job.items() if k not in hidden}, "")])


def _attributes(job: Job, indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in job.items():
        if name == "id":
            continue
        if CHILDREN.fullmatch(name) and isinstance(value, list) and all(isinstance(one, dict) for one in value):
            lines.append(f"{indent}{escape(name)}")
            for child in value:
                lines.append(f"{indent}  - {escape(str(child.get('id', '-')))}")
                lines += _attributes(child, f"{indent}    ")
        else:
            text = json.dumps(value, ensure_ascii=False)
            lines.append(f"{indent}{escape(name):<{NAME_WIDE - 1}} {escape_lines(text)}")
    return lines


def _of_queue(counts: Sequence[QueueCount], queue: FlowQueue) -> list[QueueCount]:
    """By priority; a queue that the engine does not mention is empty."""
    found = sorted((count for count in counts if count.queue == queue.name), key=lambda count: count.priority)
    return found or [QueueCount(queue=queue.name, priority=1)]


def _shown(queue: FlowQueue, counts: Sequence[QueueCount]) -> str:
    paused = any(count.paused for count in counts if count.queue == queue.name)
    return f"{'' if queue.parent is None else '  '}{queue.name}{' (paused)' if paused else ''}"


def _numbers(count: QueueCount) -> list[str]:
    return [str(count.priority), *(str(getattr(count, state)) for state in STATES)]


def _counted(names: tuple[str, ...], rows: list[list[str]], counts: Sequence[QueueCount]) -> list[str]:
    """With a column for priorities only where there are several."""
    headings = [*names, "PRIO", *(state.upper() for state in STATES)]
    return _without(() if any(count.priority != 1 for count in counts) else ("PRIO",), headings, rows)


def _without(hidden: Collection[str], headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of the other columns, as wide as the terminal if names can give way."""
    kept = [at for at, heading in enumerate(headings) if heading not in hidden]
    shown = [[row[at] for at in kept] for row in rows]
    names = [headings[at] for at in kept]
    squeezed = [name for name in ("QUEUE", "NEXT", "COMPLETED", "FAILED IN") if name in names]
    return table(names, shown, right=NUMBERS, squeezed=squeezed, width=output_width())


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M:%S}Z"


def _plain(value: object) -> dict[str, Any]:
    assert isinstance(value, msgspec.Struct)
    return msgspec.structs.asdict(value)
