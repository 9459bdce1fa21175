"""The first page: how many jobs there are, how fast they go, and what needs somebody's attention."""

from __future__ import annotations

from stowhand.web.asked import Asked, View
from stowhand.web.reading import Reading


async def show(_asked: Asked, reading: Reading) -> View:
    """Counts by state, and the age of the oldest due job."""
    figures = await reading.figures()
    values = {
        "page": "overview",
        "states": None if figures is None else figures.states(),
        "oldest_due": await reading.oldest_due(),
        "workers": await reading.workers(),
        "queues": await reading.queues(),
    }
    return View(template="lists.html", title="Overview", values=values)
