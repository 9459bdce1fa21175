"""The list of jobs: filters, all of them in the address; the newest first."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.errors import suggest
from stowhand.jobs.durations import parse_past_time
from stowhand.jobs.job import State
from stowhand.protocols.options import one_of
from stowhand.protocols.search import Search
from stowhand.web.reader import Reader
from stowhand.web.request import Malformed, Reply, Request, Right, View, read, redirect

PAGE = 50
"""Jobs of one page."""
NAMES = ("task", "queue", "serial", "error", "worker", "key", "flag")
TIMES = ("since", "until")
HINTS = {"error": "text in it", "since": "2h", "until": "2030-01-31T09:00Z"}
_OPEN = {"key": Right.PAYLOADS, "error": Right.PAYLOADS}
"""Filters that need a right of their own."""


async def show(request: Request, reader: Reader) -> View | Reply:
    """A page of jobs, and where it goes on; where an id is given, the way to that job."""
    if job_id := request.first("id"):
        return redirect(request.href("/job", id=job_id))
    wanted = await wanted_of(request, reader)
    found = await reader.search(request.who, wanted)
    amounts = await reader.amounts()
    tabs = [("All", None, None)] + [(state.value, state.value, amounts and amounts[state]) for state in State]
    given = {name: request.first(name) for name in (*NAMES, *TIMES)}
    shown = [name for name in ("id", *given) if request.may(_OPEN.get(name, Right.LOOK))]
    values = {
        "page": "jobs",
        "found": found,
        "states": [*wanted.states],
        "tabs": [(name, request.href("/jobs", **given, state=state), amount) for name, state, amount in tabs],
        "filters": [(name, given.get(name, ""), HINTS.get(name, "")) for name in shown],
        "is_filtered": any(given.values()),
        "onward": request.again(go_on=found.go_on) if found and found.go_on else None,
        "is_full": found is not None and len(found.jobs) >= PAGE,
        "is_exact": wanted == msgspec.structs.replace(Search(limit=PAGE), states=wanted.states, go_on=wanted.go_on),
    }
    return View(template="jobs.html", title="Jobs", values=values)


async def wanted_of(request: Request, reader: Reader) -> Search:
    """The filters of the address. Raises Malformed."""
    filters = ("id", "state", *NAMES, *TIMES)
    unknown = request.query.keys() - {*filters, "go_on"}
    if unknown:
        raise Malformed(f"{', '.join(sorted(unknown))}: there is no such filter{suggest(min(unknown), filters)}")
    words = [read("state", word, lambda word: one_of(word, State)) for word in request.query.get("state", ())]
    states = tuple(State(word) for word in dict.fromkeys(words) if word)
    given: dict[str, Any] = {name: request.first(name) or None for name in NAMES}
    for name in TIMES:
        past = read(name, request.first(name), parse_past_time)
        given[name] = past and await past.by(reader.now)
    return Search(states=states, limit=PAGE, go_on=request.first("go_on"), **given)
