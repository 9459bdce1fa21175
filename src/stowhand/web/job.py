"""One job: what it carries, what became of its attempts, and why it does not run."""

from __future__ import annotations

from stowhand.web.asked import Absent, Asked, Malformed, View
from stowhand.web.reading import Reading


async def show(asked: Asked, reading: Reading) -> View:
    """Everything about it that the visitor may see."""
    job_id = id_of(asked)
    job = await reading.job(asked.who, job_id)
    if job is None:
        raise Absent(f"There is no job {job_id}: it was removed, or its time in the history is over.")
    values = {
        "page": "job",
        "job": job,
        "tries": await reading.tries(asked.who, job_id),
        "explanation": None if job.state.terminal else await reading.explain(job_id),
    }
    return View(template="jobs.html", title=f"Job {job_id}", values=values)


def id_of(asked: Asked) -> int:
    """The id in the address. Raises Malformed."""
    given = asked.first("id")
    if not given.isdecimal() or not given.isascii() or not 0 < int(given[:20]) < 1 << 63:
        raise Malformed(f"id: {given!r} is no id of a job; an id is a whole number, as in /job?id=7")
    return int(given)
