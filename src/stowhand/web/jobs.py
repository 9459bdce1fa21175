"""The list of jobs: filters, all of them in the address; the newest first."""

from __future__ import annotations

import msgspec

from stowhand.errors import suggest
from stowhand.jobs.job import State
from stowhand.protocols.queue_store import JobFilter
from stowhand.web.asked import Asked, Malformed, View
from stowhand.web.reading import Reading

PAGE = 50
"""Jobs of one page."""


async def show(asked: Asked, reading: Reading) -> View:
    """A page of jobs, and where it goes on."""
    wanted = wanted_of(asked)
    found = await reading.jobs(asked.who, wanted)
    values = {
        "page": "jobs",
        "jobs": found,
        "states": list(State),
        "wanted": wanted,
        "onward": asked.href("/jobs", **kept(asked), after=found[-1].id) if found and len(found) == PAGE else None,
    }
    return View(template="jobs.html", title="Jobs", values=values)


def wanted_of(asked: Asked) -> JobFilter:
    """The filter in the address. Raises Malformed."""
    states = tuple(_state(word) for word in asked.query.get("state", ()) if word)
    given = {name: asked.first(name) or None for name in ("task", "queue", "worker", "error")}
    after = asked.first("after") or "0"
    if not after.isdecimal() or len(after) > 18:
        raise Malformed(f"after: {after!r} is no id; an id is a whole number")
    return msgspec.structs.replace(JobFilter(newest_first=True, limit=PAGE), states=states, after=int(after), **given)


def kept(asked: Asked) -> dict[str, object]:
    """The fields of the address that another page of the same list has too."""
    return {name: list(values) for name, values in asked.query.items() if name != "after"}


def _state(word: str) -> State:
    try:
        return State(word)
    except ValueError:
        raise Malformed(f"state: {word!r} is none{suggest(word, State)}") from None
