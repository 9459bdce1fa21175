"""One job: what it carries, what became of its attempts, why it does not run, and the text that enqueues it again."""

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
"""Bytes of markup, about, after which a payload is cut; all of it is in its text."""
MAX_TEXT_LENGTH = 2000
"""Characters of one text in it."""
MAX_ERROR_LENGTH = 12_000
"""Characters of the last error."""
MAX_COPIED_BYTES = 3000
"""Bytes of a payload up to which the page has what enqueues it again; of a larger one it has links."""
FAILURE_PAYLOAD_FIELDS = {"job_id", "task", "arguments", "error_class", "error"}
"""The payload of a job that tells of another's failure."""

_LINK_TARGETS = re.compile(
    r"\bjob (\d+)(?=, since| \()|([\d-]{10}) ([\d:]{8})Z|(?<=^a job of &#39;)([^&\\]+)(?=&#39; was)"
)
"""In a reason why a job does not run."""


async def show(request: Request, reader: Reader) -> View:
    """Everything about it that the visitor may see."""
    job = await job_of(request, reader, request.visitor)
    can_see_payload = request.may(Permission.PAYLOADS) and bool(job.payload_text)  # a lent store may keep it to itself
    payload, result = read_exact(job.payload_text), read_exact(job.result_text)
    carried, is_dropped = read_carried(job.flags), job.result_text == DROPPED_RESULT
    values = {
        "page": "job",
        "job": job,
        "sees": can_see_payload,
        "facts": _detail_fields(job),
        "tries": [*reversed(await reader.tries(request.visitor, job.id))],
        "explanation": [
            (_linked_reason(request, one.text, job), one.advice)
            for one in (() if job.state in HISTORY_STATES else await reader.explain(request.visitor, job.id))
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
    """A part of it as plain text, whole: to copy, or to save."""
    job, kind = await job_of(request, reader, request.visitor), request.first("as")
    texts = {"result": redacted_text(job.result_text or ""), "error": job.last_error or ""}
    if job.payload_text:
        texts |= {"payload": redacted_text(job.payload_text)} | _copies(job, reader)
    if kind not in texts:
        raise InvalidField(f"as: {kind!r} is not a text of a job; there are: {', '.join(texts)}")
    return text(200, texts[kind] + "\n")


def read_id(text: str) -> int:
    """The id that a form or an address gives. Raises Malformed."""
    number = read("id", text, parse_integer)
    if number is None or not 0 < number < 1 << 63:
        raise InvalidField(f"id: {text!r} is not a job id, which is a whole number, such as /job?id=7")
    return number


def tree(value: Any) -> Markup:
    """A value as nested lists. Numbers are text, digit by digit: a browser's own have 53 bits."""
    return _node(redacted(value), [MAX_MARKUP_BYTES])


async def job_of(request: Request, reader: Reader, who: Visitor) -> Job:
    """The job that the address names, as this visitor sees it. Raises Absent, Malformed."""
    job_id = read_id(request.first("id"))
    job = await reader.job(who, job_id)
    if job is None:
        raise PageNotFound(f"There is no job {job_id}: it was removed, or its history has expired.")
    return job


def _linked_reason(request: Request, reason: str, job: Job) -> Markup:
    """With links to the jobs that are meant; and times, of which the script makes local ones."""

    def shown(match: re.Match[str]) -> Markup:
        if task := match[4]:
            return request.link(task, "/jobs", task=task, since=format_iso_time(job.finished_at or job.created_at))
        if match[1]:
            return request.link(match[0], "/job", id=match[1])
        return Markup('<time datetime="{}T{}Z" data-as="local">{}</time>').format(match[2], match[3], match[0])

    return Markup(_LINK_TARGETS.sub(shown, str(escape(reason))))


def _detail_fields(job: Job) -> list[tuple[Field, Any]]:
    """The fields that have a line of their own, but for those without a value."""
    facts = [(field, getattr(job, field.name)) for field in FIELDS if field.label]
    return [(field, value) for field, value in facts if value not in (None, 0)]


def _copies(job: Job, reader: Reader) -> dict[str, str]:
    return job_copies.copies(job, redacted_text(job.payload_text), without_carried(job.flags), reader.schema_name)


def _node(value: Any, remaining: list[int]) -> Markup:
    if not value or not isinstance(value, dict | list):
        words = write_exact(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
        return _plain("value", words, remaining)
    items = [*value.items()] if isinstance(value, dict) else [(None, one) for one in value]
    items_markup = []
    for number, (name, one) in enumerate(items):
        if remaining[0] <= 0:
            items_markup.append(Markup("<li>… {} more</li>").format(len(items) - number))
            break
        named = "" if name is None else _plain("name", json.dumps(name, ensure_ascii=False), remaining)
        items_markup.append(Markup("<li>{}{}</li>").format(named, _node(one, remaining)))
    return Markup("<ul>{}</ul>").format(Markup("").join(items_markup))


def _plain(kind: str, words: str, remaining: list[int]) -> Markup:
    words = words if len(words) <= MAX_TEXT_LENGTH else f"{words[:MAX_TEXT_LENGTH]}…"
    markup = Markup('<bdi class="{}">{}</bdi> ').format(kind, words)
    remaining[0] -= len(markup.encode("utf-8", "replace")) + len("<li></li>")
    return markup
