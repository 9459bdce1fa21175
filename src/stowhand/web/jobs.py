"""Page of the job list, newest first. All filters are in the address."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.errors import suggest
from stowhand.jobs.durations import parse_past_time
from stowhand.jobs.job import State
from stowhand.protocols.options import parse_word
from stowhand.protocols.search import Search
from stowhand.web.reader import Reader
from stowhand.web.request import InvalidField, Permission, Reply, Request, View, read, redirect

JOBS_PER_PAGE = 50
"""Jobs of one page."""
FILTER_NAMES = ("task", "queue", "serial", "error", "worker", "key", "flag")
TIME_FILTER_NAMES = ("since", "until")
PLACEHOLDERS = {"error": "text in it", "since": "2h", "until": "2030-01-31T09:00Z"}
_PERMISSIONS = {"key": Permission.PAYLOADS, "error": Permission.PAYLOADS}
"""Filters that need another right than LOOK."""


async def show(request: Request, reader: Reader) -> View | Reply:
    """Show a page of jobs with a link to the next, or redirect to the job of a requested id."""
    if job_id := request.first("id"):
        return redirect(request.href("/job", id=job_id))
    wanted = await search_of(request, reader)
    result = await reader.search(request.visitor, wanted)
    amounts = await reader.amounts()
    tabs = [("All", None, None)] + [(state.value, state.value, amounts and amounts[state]) for state in State]
    filters = {name: request.first(name) for name in (*FILTER_NAMES, *TIME_FILTER_NAMES)}
    shown = [name for name in ("id", *filters) if request.may(_PERMISSIONS.get(name, Permission.LOOK))]
    values = {
        "page": "jobs",
        "found": result,
        "states": [*wanted.states],
        "tabs": [(name, request.href("/jobs", **filters, state=state), amount) for name, state, amount in tabs],
        "filters": [(name, filters.get(name, ""), PLACEHOLDERS.get(name, "")) for name in shown],
        "is_filtered": any(filters.values()),
        "onward": request.again(go_on=result.next_position) if result and result.next_position else None,
        "is_full": result is not None and len(result.jobs) >= JOBS_PER_PAGE,
        "is_exact": wanted
        == msgspec.structs.replace(Search(limit=JOBS_PER_PAGE), states=wanted.states, position=wanted.position),
    }
    return View(template="jobs.html", title="Jobs", values=values)


async def search_of(request: Request, reader: Reader) -> Search:
    """Return the filters of the address. Raises InvalidField."""
    filters = ("id", "state", *FILTER_NAMES, *TIME_FILTER_NAMES)
    unknown = request.query.keys() - {*filters, "go_on"}
    if unknown:
        raise InvalidField(f"{', '.join(sorted(unknown))}: no such filter{suggest(min(unknown), filters)}")
    words = [read("state", word, lambda word: parse_word(word, State)) for word in request.query.get("state", ())]
    states = tuple(State(word) for word in dict.fromkeys(words) if word)
    values: dict[str, Any] = {name: request.first(name) or None for name in FILTER_NAMES}
    for name in TIME_FILTER_NAMES:
        past = read(name, request.first(name), parse_past_time)
        values[name] = past and await past.by(reader.now)
    return Search(states=states, limit=JOBS_PER_PAGE, position=request.first("go_on"), **values)
