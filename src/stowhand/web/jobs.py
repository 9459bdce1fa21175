"""Page of the job list, newest first. All filters are in the URL."""

from __future__ import annotations

from typing import Any

from stowhand.errors import suggest
from stowhand.jobs.durations import parse_past_time
from stowhand.jobs.job import State
from stowhand.protocols.options import parse_word
from stowhand.protocols.search import Search
from stowhand.web.reader import Reader
from stowhand.web.request import InvalidField, Reply, Request, Right, View, read, redirect

JOBS_PER_PAGE = 50
FILTER_NAMES = ("task", "queue", "serial", "error", "worker", "key", "flag")
TIME_FILTER_NAMES = ("since", "until")
FILTER_PLACEHOLDERS = {"error": "text in it", "since": "2h", "until": "2030-01-31T09:00Z"}
_RIGHT_BY_FILTER = {"key": Right.PAYLOADS, "error": Right.PAYLOADS}
"""Filters that need a right other than LOOK."""


async def show(request: Request, reader: Reader) -> View | Reply:
    """Show a page of jobs with a link to the next page. If the query has an ``id``, redirect to the page of that job.

    Raises InvalidField like ``search_of``, and Forbidden for a filter that the visitor may not use.
    """
    if job_id := request.query_value("id"):
        return redirect(request.href("/job", id=job_id))
    search = await search_of(request, reader)
    result = await reader.search(request.visitor, search)
    amounts = await reader.amounts()
    tabs = [("All", None, None)] + [(state.value, state.value, amounts and amounts[state]) for state in State]
    filters = {name: request.query_value(name) for name in (*FILTER_NAMES, *TIME_FILTER_NAMES)}
    allowed = [name for name in ("id", *filters) if request.may(_RIGHT_BY_FILTER.get(name, Right.LOOK))]
    search_without_filters = Search(limit=JOBS_PER_PAGE, states=search.states, position=search.position)
    values = {
        "page": "jobs",
        "result": result,
        "states": [*search.states],
        "tabs": [(name, request.href("/jobs", **filters, state=state), amount) for name, state, amount in tabs],
        "filters": [(name, filters.get(name, ""), FILTER_PLACEHOLDERS.get(name, "")) for name in allowed],
        "is_filtered": any(filters.values()),
        "next_url": request.same_page_href(go_on=result.next_position) if result and result.next_position else None,
        "is_full": result is not None and len(result.jobs) >= JOBS_PER_PAGE,
        "is_by_state": search == search_without_filters,
    }
    return View(template="jobs.html", title="Jobs", values=values)


async def search_of(request: Request, reader: Reader) -> Search:
    """Return the search for the query of the URL. Raises InvalidField for an unknown name or an invalid value.

    The field ``go_on`` is the position at which the previous page ended.
    """
    filters = ("id", "state", *FILTER_NAMES, *TIME_FILTER_NAMES)
    unknown = request.query.keys() - {*filters, "go_on"}
    if unknown:
        raise InvalidField(f"{', '.join(sorted(unknown))}: unknown filter{suggest(min(unknown), filters)}")
    names = [read("state", name, lambda name: parse_word(name, State)) for name in request.query.get("state", ())]
    states = tuple(State(name) for name in dict.fromkeys(names) if name)
    values: dict[str, Any] = {name: request.query_value(name) or None for name in FILTER_NAMES}
    for name in TIME_FILTER_NAMES:
        past = read(name, request.query_value(name), parse_past_time)
        values[name] = past and await past.by(reader.now)
    return Search(states=states, limit=JOBS_PER_PAGE, position=request.query_value("go_on"), **values)
