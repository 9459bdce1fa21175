"""Changes of many jobs, such as all jobs that a filter matches, with an answer for each.

await store.admin.cancel_jobs(await ids_of(store, JobFilter(task="send", error="no such order")))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import msgspec

from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_tables import is_step
from stowhand.protocols.queue_store import ActionResult, Answer, JobFilter, QueueStore, Reschedule

JOBS_PER_PAGE = 500
"""Jobs read in one call; with their payloads at most 500 MiB."""
JobsChange = Callable[[QueueStore, Sequence[int]], Awaitable[Sequence[Job]]]
"""Changes the jobs with these ids, and returns the changed ones."""


async def ids_of(store: QueueStore, job_filter: JobFilter) -> list[int]:
    """Return the ids of all matching jobs, ascending. Ignores ``limit``, ``after`` and ``newest_first``."""
    ids: list[int] = []
    while True:
        after = ids[-1] if ids else 0
        page = await store.inspect.list(
            msgspec.structs.replace(job_filter, newest_first=False, after=after, limit=JOBS_PER_PAGE)
        )
        ids += [job.id for job in page]
        if len(page) < JOBS_PER_PAGE:
            return ids


def answer_for(job: Job) -> Answer:
    """Return the answer for a job that was changed."""
    return Answer(job.id, ActionResult.DONE, f"it is {job.state}")


async def answers_of(
    store: QueueStore, job_ids: Sequence[int], change: JobsChange, answer: Callable[[Job], Answer] = answer_for
) -> list[Answer]:
    """Change jobs; return an answer for each, in the order given. ``answer`` makes that of a changed job."""
    changed = {job.id: answer(job) for job in await change(store, job_ids)}
    return [changed.get(job_id) or _skipped(job_id, await store.jobs.get(job_id)) for job_id in job_ids]


async def fail(store: QueueStore, job_ids: Sequence[int], reason: str | None = None) -> list[Answer]:
    """Fail jobs. A job that had failed before gets the new error and keeps its ``finished_at``."""

    def answer(job: Job) -> Answer:
        is_new = job.finished_at == job.updated_at
        return Answer(
            job.id, ActionResult.DONE, "it is failed" if is_new else "it had already failed; its error was replaced"
        )

    return await answers_of(store, job_ids, lambda store, ids: store.admin.permanently_fail_jobs(ids, reason), answer)


async def retry_failed(store: QueueStore, job_ids: Sequence[int]) -> list[Answer]:
    """Retry jobs that are still failed. Others may have been retried or canceled while a user was confirming."""
    retried = set(await store.admin.retry_failed(job_ids))
    return [
        Answer(job_id, ActionResult.DONE) if job_id in retried else _not_failed(job_id, await store.jobs.get(job_id))
        for job_id in job_ids
    ]


async def reschedule(
    store: QueueStore, job_ids: Sequence[int], to: Reschedule, delay: float | None = None
) -> Sequence[Job]:
    """Reschedule jobs. ``delay``: seconds from now by the store's clock, instead of ``to.run_at``."""
    if delay is not None:
        to = msgspec.structs.replace(to, run_at=await store.timetable.now() + timedelta(seconds=delay))
    return await store.admin.reschedule_jobs(job_ids, to)


def _not_failed(job_id: int, job: Job | None) -> Answer:
    if job is None:
        return Answer(job_id, ActionResult.MISSING)
    return Answer(job_id, ActionResult.REFUSED, f"it is now {job.state.value}")


def _skipped(job_id: int, job: Job | None) -> Answer:
    """Explain why a job was not changed, by its state a moment later."""
    if job is None:
        return Answer(job_id, ActionResult.MISSING)
    if job.state is State.PROCESSING:
        return Answer(job_id, ActionResult.REFUSED, f"it is running, held by {job.worker}")
    if job.state in (State.COMPLETED, State.CANCELED):
        return Answer(job_id, ActionResult.REFUSED, f"it is {job.state} already")
    if is_step(job.task, job.key):
        refusal = "it is a step of a flow; completing it by hand would skip the next queue"
        return Answer(job_id, ActionResult.REFUSED, refusal)
    return Answer(job_id, ActionResult.REFUSED, "it was running; try again")
