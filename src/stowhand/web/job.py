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
from stowhand.protocols.options import whole
from stowhand.protocols.search import HISTORY
from stowhand.web.reader import Reader
from stowhand.web.request import Absent, Malformed, Reply, Request, Right, View, Who, read, text

SHOWN = 12_000
"""Bytes of markup, about, after which a payload is cut; all of it is in its text."""
LONGEST_TEXT = 2000
"""Characters of one text in it."""
LONGEST_ERROR = 12_000
"""Characters of the last error."""
COPIED = 3000
"""Bytes of a payload up to which the page has what enqueues it again; of a larger one it has links."""
FAILURE = {"job_id", "task", "arguments", "error_class", "error"}
"""The payload of a job that tells of another's failure."""

_LINKED = re.compile(r"\bjob (\d+)(?=, since| \()|([\d-]{10}) ([\d:]{8})Z|(?<=^a job of &#39;)([^&\\]+)(?=&#39; was)")
"""In a reason why a job does not run."""


async def show(request: Request, reader: Reader) -> View:
    """Everything about it that the visitor may see."""
    job = await job_of(request, reader, request.who)
    sees = request.may(Right.PAYLOADS) and bool(job.payload_text)  # a lent store may keep it to itself
    payload, result = read_exact(job.payload_text), read_exact(job.result_text)
    carried, is_dropped = read_carried(job.flags), job.result_text == DROPPED_RESULT
    values = {
        "page": "job",
        "job": job,
        "sees": sees,
        "facts": _facts(job),
        "tries": [*reversed(await reader.tries(request.who, job.id))],
        "explanation": [
            (_told(request, one.what, job), one.todo)
            for one in (() if job.state in HISTORY else await reader.explain(request.who, job.id))
        ],
        "payload": tree(payload) if sees else None,
        "result": "It could not be kept." if is_dropped else None if job.result_text is None else tree(result),
        "result_dropped": is_dropped,
        "error": (job.last_error or "")[:LONGEST_ERROR],
        "error_is_cut": len(job.last_error or "") > LONGEST_ERROR,
        "tells_of": payload["job_id"] if isinstance(payload, dict) and payload.keys() == FAILURE else None,
        "correlation": f"{CORRELATION_ID}={carried[CORRELATION_ID]}" if CORRELATION_ID in carried else None,
        "trace": "".join(carried.get(TRACE_PARENT, "").split("-")[1:2]),
        "flags": without_carried(job.flags),
        "is_step": is_step(job.task, job.key),
        "copies": _copies(job, reader) if sees and not is_step(job.task, job.key) else {},
        "is_short": len(job.payload_text) <= COPIED,
    }
    return View(template="jobs.html", title=f"Job {job.id}", values=values)


async def show_text(request: Request, reader: Reader) -> Reply:
    """A part of it as plain text, whole: to copy, or to save."""
    job, wanted = await job_of(request, reader, request.who), request.first("as")
    texts = {"result": redacted_text(job.result_text or ""), "error": job.last_error or ""}
    if job.payload_text:
        texts |= {"payload": redacted_text(job.payload_text)} | _copies(job, reader)
    if wanted not in texts:
        raise Malformed(f"as: {wanted!r} is no way to show a job; there are: {', '.join(texts)}")
    return text(200, texts[wanted] + "\n")


def read_id(given: str) -> int:
    """The id that a form or an address gives. Raises Malformed."""
    number = read("id", given, whole)
    if number is None or not 0 < number < 1 << 63:
        raise Malformed(f"id: {given!r} is no id of a job; an id is a whole number, as in /job?id=7")
    return number


def tree(value: Any) -> Markup:
    """A value as nested lists. Numbers are text, digit by digit: a browser's own have 53 bits."""
    return _node(redacted(value), [SHOWN])


async def job_of(request: Request, reader: Reader, who: Who) -> Job:
    """The job that the address names, as this visitor sees it. Raises Absent, Malformed."""
    job_id = read_id(request.first("id"))
    job = await reader.job(who, job_id)
    if job is None:
        raise Absent(f"There is no job {job_id}: it was removed, or its time in the history is over.")
    return job


def _told(request: Request, reason: str, job: Job) -> Markup:
    """With links to the jobs that are meant; and times, of which the script makes local ones."""

    def shown(found: re.Match[str]) -> Markup:
        if task := found[4]:
            return request.link(task, "/jobs", task=task, since=format_iso_time(job.finished_at or job.created_at))
        if found[1]:
            return request.link(found[0], "/job", id=found[1])
        return Markup('<time datetime="{}T{}Z" data-as="local">{}</time>').format(found[2], found[3], found[0])

    return Markup(_LINKED.sub(shown, str(escape(reason))))


def _facts(job: Job) -> list[tuple[Field, Any]]:
    """The fields that have a line of their own, but for those without a value."""
    facts = [(field, getattr(job, field.name)) for field in FIELDS if field.label]
    return [(field, value) for field, value in facts if value not in (None, 0)]


def _copies(job: Job, reader: Reader) -> dict[str, str]:
    return job_copies.copies(job, redacted_text(job.payload_text), without_carried(job.flags), reader.schema_name)


def _node(value: Any, left: list[int]) -> Markup:
    if not value or not isinstance(value, dict | list):
        words = write_exact(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
        return _plain("value", words, left)
    items = [*value.items()] if isinstance(value, dict) else [(None, one) for one in value]
    shown = []
    for number, (name, one) in enumerate(items):
        if left[0] <= 0:
            shown.append(Markup("<li>… {} more</li>").format(len(items) - number))
            break
        named = "" if name is None else _plain("name", json.dumps(name, ensure_ascii=False), left)
        shown.append(Markup("<li>{}{}</li>").format(named, _node(one, left)))
    return Markup("<ul>{}</ul>").format(Markup("").join(shown))


def _plain(kind: str, words: str, left: list[int]) -> Markup:
    words = words if len(words) <= LONGEST_TEXT else f"{words[:LONGEST_TEXT]}…"
    shown = Markup('<bdi class="{}">{}</bdi> ').format(kind, words)
    left[0] -= len(shown.encode("utf-8", "replace")) + len("<li></li>")
    return shown
