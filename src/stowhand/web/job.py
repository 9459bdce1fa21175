"""Page of one job: its payload, its attempts, why it does not run, and texts that enqueue a similar job."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from markupsafe import Markup, escape

from stowhand.jobs import job_copies
from stowhand.jobs.durations import format_iso_time
from stowhand.jobs.fields import FIELDS, Field
from stowhand.jobs.job import DROPPED_RESULT, Job
from stowhand.observe.propagation import CORRELATION_ID, TRACE_PARENT, read_carried, without_carried
from stowhand.observe.redacted_json import read_exact, redacted, redacted_text, write_exact
from stowhand.protocols.flow_tables import is_step
from stowhand.protocols.options import parse_integer
from stowhand.protocols.search import HISTORY_STATES
from stowhand.protocols.workflows import STEP_OF_CHILDREN, RecordedStep
from stowhand.web.reader import MAX_CHILDREN, Reader
from stowhand.web.request import InvalidField, PageNotFound, Reply, Request, Right, View, Visitor, read, text

MAX_MARKUP_BYTES = 12_000
"""Approximate maximum size of a payload on the page. The plain text is complete."""
MAX_TEXT_LENGTH = 2000
"""Maximum number of characters of one text in a payload."""
MAX_ERROR_LENGTH = 12_000
"""Maximum number of characters of the last error."""
MAX_COPIED_BYTES = 3000
"""Maximum size of a payload for which the page shows how to enqueue a similar job; larger ones have links."""
MAX_STEPS = 200
"""Maximum number of steps on the page: the latest ones."""
MAX_STEP_LENGTH = 200
"""Maximum number of characters of the value or the error of a step."""
FAILURE_PAYLOAD_FIELDS = {"job_id", "task", "arguments", "error_class", "error"}
"""Payload fields of a job that reports the failure of another job."""

_LINK_TARGETS = re.compile(
    r"\bjob (\d+)(?=, since| \()|([\d-]{10}) ([\d:]{8})Z|(?<=^a job of &#39;)([^&\\]+)(?=&#39; was)"
)
"""Job ids, times and tasks in a reason why a job does not run."""


async def show(request: Request, reader: Reader) -> View:
    """Show all fields of a job that the visitor may see."""
    job = await job_of(request, reader, request.visitor)
    can_see_payload = request.may(Right.PAYLOADS) and bool(job.payload_text)  # A remote store may hide it.
    payload = read_exact(job.payload_text)
    carried = read_carried(job.flags)
    is_failure_report = isinstance(payload, dict) and payload.keys() == FAILURE_PAYLOAD_FIELDS
    steps = own_steps(await reader.steps(request.visitor, job.id))
    has_children = any(step.remaining is not None for step in steps)
    children = await reader.children(request.visitor, job.id) if has_children else ()
    values = {
        "page": "job",
        "job": job,
        "can_see_payload": can_see_payload,
        "details": _detail_fields(job),
        "tries": [*reversed(await reader.tries(request.visitor, job.id))],
        "explanation": [
            (_linked_reason(request, reason.text, job), reason.advice)
            for reason in (() if job.state in HISTORY_STATES else await reader.explain(request.visitor, job.id))
        ],
        "steps": [(step, _step_text(step)) for step in steps[-MAX_STEPS:]],
        "hidden_steps": len(steps[:-MAX_STEPS]),
        "children": children[:MAX_CHILDREN],
        "are_children_cut": len(children) > MAX_CHILDREN,
        "child_states": Counter(child.state.value for child in children[:MAX_CHILDREN]),
        "payload": tree(payload) if can_see_payload else None,
        "result": _result_markup(job),
        "is_result_dropped": job.result_text == DROPPED_RESULT,
        "error": (job.last_error or "")[:MAX_ERROR_LENGTH],
        "is_error_cut": len(job.last_error or "") > MAX_ERROR_LENGTH,
        "failed_job_id": payload["job_id"] if is_failure_report else None,
        "correlation_flag": f"{CORRELATION_ID}={carried[CORRELATION_ID]}" if CORRELATION_ID in carried else None,
        "trace_id": "".join(carried.get(TRACE_PARENT, "").split("-")[1:2]),
        "flags": without_carried(job.flags),
        "is_step": is_step(job.task, job.key),
        "copies": _copies(job, reader) if can_see_payload and not is_step(job.task, job.key) else {},
        "is_short": len(job.payload_text) <= MAX_COPIED_BYTES,
    }
    return View(template="jobs.html", title=f"Job {job.id}", values=values)


def own_steps(steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Return the steps of a job without the values of its children, which are on the children's pages."""
    with_children = {step.name for step in steps if step.place == STEP_OF_CHILDREN}
    return [step for step in steps if step.place == STEP_OF_CHILDREN or step.name not in with_children]


def _step_text(step: RecordedStep) -> str:
    """Return the start of the step's error or value. The value of a step with children is the store's own."""
    value = None if step.place == STEP_OF_CHILDREN or step.value is None else redacted_text(step.value)
    text = step.error or value or ""
    return text if len(text) <= MAX_STEP_LENGTH else f"{text[:MAX_STEP_LENGTH]}…"


def _result_markup(job: Job) -> Markup | str | None:
    if job.result_text == DROPPED_RESULT:
        return "It could not be stored."
    return None if job.result_text is None else tree(read_exact(job.result_text))


async def show_text(request: Request, reader: Reader) -> Reply:
    """Show a part of a job as complete plain text."""
    job = await job_of(request, reader, request.visitor)
    kind = request.query_value("as")
    texts = {"result": redacted_text(job.result_text or ""), "error": job.last_error or ""}
    if job.payload_text:
        texts |= {"payload": redacted_text(job.payload_text)} | _copies(job, reader)
    if kind not in texts:
        raise InvalidField(f"as: unknown text {kind!r}. Available: {', '.join(texts)}")
    return text(200, texts[kind] + "\n")


def read_id(text: str) -> int:
    """Read a job id from a form or a URL. Raises InvalidField."""
    number = read("id", text, parse_integer)
    if number is None or not 0 < number < 1 << 63:
        raise InvalidField(f"id: {text!r} is not a job id; write a positive whole number, as in /job?id=7")
    return number


def tree(value: Any) -> Markup:
    """Return a value as nested lists. Numbers have all digits."""
    return _node(redacted(value), [MAX_MARKUP_BYTES])


async def job_of(request: Request, reader: Reader, visitor: Visitor) -> Job:
    """Return the job that the URL names, as this visitor sees it. Raises PageNotFound, InvalidField."""
    job_id = read_id(request.query_value("id"))
    job = await reader.job(visitor, job_id)
    if job is None:
        raise PageNotFound(f"There is no job {job_id}. It may have been removed, or its history has expired.")
    return job


def _linked_reason(request: Request, reason: str, job: Job) -> Markup:
    """Return the reason with links to jobs and tasks. The script shows its times as local times."""

    def rendered(match: re.Match[str]) -> Markup:
        if task := match[4]:
            return request.link(task, "/jobs", task=task, since=format_iso_time(job.finished_at or job.created_at))
        if match[1]:
            return request.link(match[0], "/job", id=match[1])
        return Markup('<time datetime="{}T{}Z" data-as="local">{}</time>').format(match[2], match[3], match[0])

    return Markup(_LINK_TARGETS.sub(rendered, str(escape(reason))))


def _detail_fields(job: Job) -> list[tuple[Field, Any]]:
    """Return the labelled fields that have a value."""
    fields = [(field, getattr(job, field.name)) for field in FIELDS if field.label]
    return [(field, value) for field, value in fields if value not in (None, 0)]


def _copies(job: Job, reader: Reader) -> dict[str, str]:
    return job_copies.copies(job, redacted_text(job.payload_text), without_carried(job.flags), reader.schema_name)


def _node(value: Any, remaining: list[int]) -> Markup:
    """Return a value as markup. ``remaining`` holds the number of bytes left for the whole tree."""
    if not value or not isinstance(value, dict | list):
        text = write_exact(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
        return _leaf("value", text, remaining)
    items = [*value.items()] if isinstance(value, dict) else [(None, child) for child in value]
    items_markup = []
    for number, (name, child) in enumerate(items):
        if remaining[0] <= 0:
            items_markup.append(Markup("<li>… {} more</li>").format(len(items) - number))
            break
        name_markup = "" if name is None else _leaf("name", json.dumps(name, ensure_ascii=False), remaining)
        items_markup.append(Markup("<li>{}{}</li>").format(name_markup, _node(child, remaining)))
    return Markup("<ul>{}</ul>").format(Markup("").join(items_markup))


def _leaf(css_class: str, text: str, remaining: list[int]) -> Markup:
    text = text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…"
    markup = Markup('<bdi class="{}">{}</bdi> ').format(css_class, text)
    remaining[0] -= len(markup.encode("utf-8", "replace")) + len("<li></li>")
    return markup
