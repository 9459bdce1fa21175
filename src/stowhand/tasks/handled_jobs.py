"""Access to the jobs of an App, for handles. All callers on one event loop share one poll for results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, InvalidJob, Misuse, ResultNotKept, UnknownJob, a_type
from stowhand.events import Settled
from stowhand.jobs import strict_json
from stowhand.jobs.durations import Duration
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.queue_store import Answer, QueueStore, require_part
from stowhand.stores.kernel.results import LoopPolls, ResultPoll
from stowhand.tasks.job_handle import JobHandle
from stowhand.tasks.registry import Registry, TaskDefinition
from stowhand.tasks.workflow import check_event_name, encode_payload


class HandledJobs:
    """Jobs of an App, for its handles. ``open_store`` returns the store on the loop of the caller.

    ``enqueue`` and ``enqueue_in`` write one job: by themselves, and in the transaction of a caller's connection.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[QueueStore]],
        enqueue: Callable[[NewJob], Awaitable[Job]],
        enqueue_in: Callable[[object, NewJob], Job | Awaitable[Job]],
        registry: Registry,
    ) -> None:
        self._open, self._registry = open_store, registry
        self._enqueue, self._enqueue_in = enqueue, enqueue_in
        self._polls = LoopPolls[ResultPoll]()

    async def poll(self) -> ResultPoll:
        """Return the poll of this loop. Raises ConfigurationError if the store does not report the ends of jobs."""
        store = await self._open()
        return self._polls.here(lambda: ResultPoll(require_part(store, "results", store.results), SystemClock()))

    def settled(self, event: Settled) -> None:
        """Poll at once for jobs whose outcome a worker of this process has recorded. From any thread."""
        self._polls.ask_now(event.job_ids)

    async def get(self, job_id: int) -> Job | None:
        """Return the job as it is now."""
        return await (await self._open()).jobs.get(job_id)

    async def cancel(self, job_id: int) -> Answer:
        """Cancel the job: at once, or by its worker. Raises ConfigurationError if the store cannot change jobs."""
        return await (await self._open()).admin.cancel(job_id)

    async def emit(self, event: str, payload: object, job_id: int | None) -> bool:
        """Emit an event, for one job or for all. Return whether it is the first with this name. Raises InvalidJob."""
        check_event_name("emit" if job_id is None else "send", event)
        store = await self._open()
        workflows = require_part(store, "workflows", store.workflows)
        return await workflows.emit(event, encode_payload(event, payload), job_id)

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the recorded attempts that did not complete."""
        return await (await self._open()).jobs.tries(job_id)

    async def find(self, job_id: int, task: TaskDefinition | None) -> JobHandle[Any]:
        """Return a handle of the job.

        Raises UnknownJob; ResultNotKept for a job that is not kept any more or is not committed; InvalidJob for a job
        of another task.
        """
        if type(job_id) is int and not 0 < job_id < 2**63:  # PostgreSQL would refuse the query.
            raise UnknownJob(f"there never was a job {job_id}")
        while (job := await self.get(job_id)) is None:
            # The answer is empty if the job has appeared meanwhile.
            for status in await (await self.poll()).results.ask([job_id]):
                if not status.is_known:
                    raise UnknownJob(f"there never was a job {job_id}")
                raise ResultNotKept(
                    f"job {job_id} is not in the store: it has finished or was removed, or was never committed", job_id
                )
        if task is not None and task.name != job.task:
            raise InvalidJob(f"job {job_id} is of task {job.task!r}, not of {task.name!r}")
        return self.handle_of(job, task)

    async def result(self, job: object, timeout: Duration | None) -> Any:
        """Return the result of a handle, a job or an id.

        Raises Misuse for anything else, and as ``find`` and ``JobHandle.result``.
        """
        match job:
            case JobHandle():
                handle = job
            case Job():
                handle = self.handle_of(job)
            case int() if not isinstance(job, bool):
                handle = await self.find(job, None)
            case _:
                raise Misuse(f"app.gather: got {a_type(job)}; use handles, jobs or ids, as enqueue calls return them")
        return await handle.result(timeout)

    def handle_of(self, job: Job, task: TaskDefinition | None = None, *, is_open: bool = False) -> JobHandle[Any]:
        """Return a handle. Its result has the type of ``task``, else that of its own task if declared here.

        ``is_open``: as of ``JobHandle``.
        """
        definition = task or self._registry.find(job.task)
        return JobHandle(job, self, _read_plain if definition is None else definition.read_result, is_open=is_open)

    async def enqueue(self, job: NewJob, task: TaskDefinition | None = None) -> JobHandle[Any]:
        """Commit a job; return its handle."""
        return self.handle_of(await self._enqueue(job), task)

    def enqueue_in(
        self, connection: object, job: NewJob, task: TaskDefinition | None = None
    ) -> JobHandle[Any] | Awaitable[JobHandle[Any]]:
        """Enqueue a job in the connection's transaction; return its handle, or an awaitable of it."""
        result = self._enqueue_in(connection, job)
        return (
            self.handle_of(result, task, is_open=True)
            if isinstance(result, Job)
            else self._open_handle_of(result, task)
        )

    async def _open_handle_of(self, job: Awaitable[Job], task: TaskDefinition | None) -> JobHandle[Any]:
        return self.handle_of(await job, task, is_open=True)

    async def enqueue_awaited(self, job: NewJob, task: TaskDefinition) -> JobHandle[Any]:
        """Commit a job whose result will be awaited; return its handle.

        Raises ConfigurationError if the store keeps no results.
        """
        if await (await self.poll()).results.retention() is None:
            raise ConfigurationError(
                f"enqueue_and_wait of task {job.task!r}: this store keeps no results (history = none); set a history,"
                " for example history='1h'"
            )
        return await self.enqueue(job, task)

    def leave(self) -> None:
        """End the waits of every loop, when the App leaves its store."""
        self._polls.leave()

    async def close(self) -> None:
        """End the waits of this loop."""
        await self._polls.close()


def _read_plain(text: str | None) -> Any:
    """Return the result of a task that is not declared here, as plain JSON values."""
    return None if text is None else strict_json.decode(text)
