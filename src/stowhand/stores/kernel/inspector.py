"""Lists, searches, counts and explanations for commands, dashboards and metrics: the part ``store.inspect``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from stowhand.jobs.job import Job, State
from stowhand.protocols.counts import MAX_EXACT_COUNT, BoundedCount, Figures, Pauses
from stowhand.protocols.operator import (
    MAX_SHOWN_HELD_JOBS,
    OVERDUE_SECONDS,
    AppVersion,
    BacklogRow,
    Explanation,
    HeldJobs,
    LimitRow,
    SerialRow,
    WorkerRow,
)
from stowhand.protocols.queue_store import NEWEST_JOBS, Failures, JobFilter
from stowhand.protocols.search import ALL_JOBS, EMPTY_RESULT, Search, SearchResult
from stowhand.protocols.throughput import Period
from stowhand.protocols.validation import validate_filter, validate_id, validate_search, validate_step
from stowhand.stores.kernel.counts import (
    UNLIMITED_COUNT,
    count_states,
    list_limits,
    list_pauses,
    list_queues,
    list_tasks,
    read_figures,
)
from stowhand.stores.kernel.due import find_overdue, oldest_due
from stowhand.stores.kernel.explanation import explain_job
from stowhand.stores.kernel.failures import group_failures
from stowhand.stores.kernel.lists import list_jobs
from stowhand.stores.kernel.question import Engine
from stowhand.stores.kernel.search import search
from stowhand.stores.kernel.serials import list_serials
from stowhand.stores.kernel.throughput import read_throughput
from stowhand.stores.kernel.workers import list_app_versions, list_held, list_workers
from stowhand.stores.periods import periods


class Inspector:
    """Reader of jobs, serial keys, queues, tasks and workers. It changes nothing.

    Arguments are checked first: an invalid one raises InvalidJob. Then the engine answers; its errors are StoreErrors.
    A read with ``is_long`` may read many rows, so the engine keeps it from delaying others.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, job_filter: JobFilter = NEWEST_JOBS) -> Sequence[Job]:
        """Return the jobs that match the filter, ordered by id: ascending, or descending with ``newest_first``."""
        job_filter = validate_filter(job_filter)
        return await self._engine.answer(lambda: list_jobs(self._engine, job_filter))

    async def search(self, query: Search = ALL_JOBS) -> SearchResult:
        """Search for a limited time. The result has the position at which the next search continues."""
        valid_query = validate_search(query)
        if valid_query is None:
            return EMPTY_RESULT  # No job can match.
        return await self._engine.answer(lambda: search(self._engine, valid_query), is_long=True)

    async def failures(self) -> Sequence[Failures]:
        """Return groups of failed jobs, by task and by the error class of the last attempt."""
        return await self._engine.answer(lambda: group_failures(self._engine), is_long=True)

    async def counts(self) -> dict[State, int]:
        """Count jobs by state exactly, which may take long. Every state is a key."""
        counts = await self._engine.answer(lambda: count_states(UNLIMITED_COUNT), is_long=True)
        return {state: count.number for state, count in counts.items()}

    async def amounts(self) -> dict[State, BoundedCount]:
        """Count jobs by state in bounded time: exactly up to a limit, else a lower bound. Every state is a key."""
        return await self._engine.answer(count_states, is_long=True)

    async def oldest_due(self) -> Mapping[str, float]:
        """Return, by queue, for how many seconds its oldest due job has been due. Paused jobs do not count."""
        return await self._engine.answer(lambda: oldest_due(self._engine))

    async def overdue(self, tasks: Sequence[str] | None, seconds: float = OVERDUE_SECONDS) -> Sequence[int]:
        """Return ids of jobs that have been due for at least this time, the oldest first.

        Jobs that a pause, a serial key or a limit blocks are left out. ``tasks``: the tasks of the jobs; ``None`` means
        all.
        """
        return await self._engine.answer(lambda: find_overdue(self._engine, tasks, seconds))

    async def serials(self, *, paused: bool = False) -> Sequence[SerialRow]:
        """Return the serial keys with live jobs or a pause, ordered by name. ``paused``: only the paused ones."""
        return await self._engine.answer(lambda: list_serials(self._engine, is_paused=paused), is_long=True)

    async def figures(self, max_count: int = MAX_EXACT_COUNT) -> Figures:
        """Count live jobs by state, task, serial key, queue and worker. ``max_count``: maximum of each count."""
        return await self._engine.answer(lambda: read_figures(self._engine, max_count), is_long=True)

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """Count attempts and jobs that ended between two times, by period and task.

        ``step``: length of a period, in seconds. ``task``: count only this one. ``by_task=False``: add up all tasks.
        """
        step_seconds = validate_step(since, until, step)
        rows = await self._engine.answer(
            lambda: read_throughput(self._engine, since, until, task, by_task=by_task), is_long=True
        )
        return periods(rows, step_seconds, by_task=by_task)

    async def pauses(self) -> Pauses:
        """Return the paused tasks and queues, each ordered by name."""
        return await self._engine.answer(lambda: list_pauses(self._engine))

    async def limits(self) -> Sequence[LimitRow]:
        """Return the limits of tasks, ordered by name."""
        return await self._engine.answer(lambda: list_limits(self._engine), is_long=True)

    async def tasks(self) -> Sequence[BacklogRow]:
        """Return the known tasks, ordered by name."""
        return await self._engine.answer(lambda: list_tasks(self._engine), is_long=True)

    async def queues(self) -> Sequence[BacklogRow]:
        """Return the known queues, ordered by name."""
        return await self._engine.answer(lambda: list_queues(self._engine), is_long=True)

    async def explain(self, job_id: int) -> Explanation | None:
        """Return the reasons why the job is not running; ``None`` if there is no such job."""
        valid_id = validate_id(job_id)
        return await self._engine.answer(lambda: explain_job(self._engine, valid_id))

    async def workers(self) -> Sequence[WorkerRow]:
        """Return the workers, ordered by name."""
        return await self._engine.answer(lambda: list_workers(self._engine))

    async def held(self, limit: int = MAX_SHOWN_HELD_JOBS) -> Sequence[HeldJobs]:
        """Return the jobs that each worker holds, ordered by worker. ``limit``: maximum number of jobs per worker."""
        return await self._engine.answer(lambda: list_held(self._engine, limit))

    async def app_versions(self) -> Sequence[AppVersion]:
        """Return the versions of the application, ordered by the start time of their first worker."""
        return await self._engine.answer(lambda: list_app_versions(self._engine))
