"""Page of one job: its payload, its attempts, why it does not run, and the text that enqueues it again."""

from __future__ import annotations

import json
import re
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
from stowhand.web.reader import Reader
from stowhand.web.request import InvalidField, PageNotFound, Permission, Reply, Request, View, Visitor, read, text

MAX_MARKUP_BYTES = 12_000
"""Approximate bytes of markup after which a payload is cut; its plain text is complete."""
MAX_TEXT_LENGTH = 2000
"""Characters of one text in a payload."""
MAX_ERROR_LENGTH = 12_000
"""Characters of the last error."""
MAX_COPIED_BYTES = 3000
"""Bytes of the largest payload for which the page shows how to enqueue it again; larger ones have links."""
FAILURE_PAYLOAD_FIELDS = {"job_id", "task", "arguments", "error_class", "error"}
"""Payload fields of a job that reports the failure of another job."""

_LINK_TARGETS = re.compile(
    r"\bjob (\d+)(?=, since| \()|([\d-]{10}) ([\d:]{8})Z|(?<=^a job of &#39;)([^&\\]+)(?=&#39; was)"
)
"""Job ids, times and tasks in a reason why a job does not run."""


async def show(request: Request, reader: Reader) -> View:
    """Show all fields of a job that the visitor may see."""
    job = await job_of(request, reader, request.visitor)
    can_see_payload = request.may(Permission.PAYLOADS) and bool(job.payload_text)  # a remote store may hide it
    payload, result = read_exact(job.payload_text), read_exact(job.result_text)
    carried, is_dropped = read_carried(job.flags), job.result_text == DROPPED_RESULT
    values = {
        "page": "job",
        "job": job,
        "sees": can_see_payload,
        "facts": _detail_fields(job),
        "tries": [*reversed(await reader.tries(request.visitor, job.id))],
        "explanation": [
            (_linked_reason(request, reason.text, job), reason.advice)
            for reason in (() if job.state in HISTORY_STATES else await reader.explain(request.visitor, job.id))
        ],
        "payload": tree(payload) if can_see_payload else None,
        "result": "It could not be stored." if is_dropped else None if job.result_text is None else tree(result),
        "result_dropped": is_dropped,
        "error": (job.last_error or "")[:MAX_ERROR_LENGTH],
        "error_is_cut": len(job.last_error or "") > MAX_ERROR_LENGTH,
        "tells_of": payload["job_id"]
        if isinstance(payload, dict) and payload.keys() == FAILURE_PAYLOAD_FIELDS
        else None,
        "correlation": f"{CORRELATION_ID}={carried[CORRELATION_ID]}" if CORRELATION_ID in carried else None,
        "trace": "".join(carried.get(TRACE_PARENT, "").split("-")[1:2]),
        "flags": without_carried(job.flags),
        "is_step": is_step(job.task, job.key),
        "copies": _copies(job, reader) if can_see_payload and not is_step(job.task, job.key) else {},
        "is_short": len(job.payload_text) <= MAX_COPIED_BYTES,
    }
    return View(template="jobs.html", title=f"Job {job.id}", values=values)


async def show_text(request: Request, reader: Reader) -> Reply:
    """Show a part of a job as complete plain text, to copy or to save."""
    job, kind = await job_of(request, reader, request.visitor), request.first("as")
    texts = {"result": redacted_text(job.result_text or ""), "error": job.last_error or ""}
    if job.payload_text:
        texts |= {"payload": redacted_text(job.payload_text)} | _copies(job, reader)
    if kind not in texts:
        raise InvalidField(f"as: {kind!r} is not a text of a job; there are: {', '.join(texts)}")
    return text(200, texts[kind] + "\n")


def read_id(text: str) -> int:
    """Read the id of a form or an address. Raises InvalidField."""
    number = read("id", text, parse_integer)
    if number is None or not 0 < number < 1 << 63:
        raise InvalidField(f"id: {text!r} is not a job id, which is a whole number, such as /job?id=7")
    return number


def tree(value: Any) -> Markup:
    """Return a value as nested lists. Numbers are text with all digits, because a browser's numbers have 53 bits."""
    return _node(redacted(value), [MAX_MARKUP_BYTES])


async def job_of(request: Request, reader: Reader, visitor: Visitor) -> Job:
    """Return the job that the address names, as this visitor sees it. Raises PageNotFound, InvalidField."""
    job_id = read_id(request.first("id"))
    job = await reader.job(visitor, job_id)
    if job is None:
        raise PageNotFound(f"There is no job {job_id}: it was removed, or its history has expired.")
    return job


def _linked_reason(request: Request, reason: str, job: Job) -> Markup:
    """Return the reason with links to jobs, and with times that the script shows in local time."""

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
    if not value or not isinstance(value, dict | list):
        words = write_exact(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
        return _plain("value", words, remaining)
    items = [*value.items()] if isinstance(value, dict) else [(None, child) for child in value]
    items_markup = []
    for number, (name, child) in enumerate(items):
        if remaining[0] <= 0:
            items_markup.append(Markup("<li>… {} more</li>").format(len(items) - number))
            break
        named = "" if name is None else _plain("name", json.dumps(name, ensure_ascii=False), remaining)
        items_markup.append(Markup("<li>{}{}</li>").format(named, _node(child, remaining)))
    return Markup("<ul>{}</ul>").format(Markup("").join(items_markup))


def _plain(kind: str, words: str, remaining: list[int]) -> Markup:
    words = words if len(words) <= MAX_TEXT_LENGTH else f"{words[:MAX_TEXT_LENGTH]}…"
    markup = Markup('<bdi class="{}">{}</bdi> ').format(kind, words)
    remaining[0] -= len(markup.encode("utf-8", "replace")) + len("<li></li>")
    return markup
