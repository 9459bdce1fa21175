"""Enqueueing and administration without a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack, cast

from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing, SchemaOutdated, StowhandError, a_type
from stowhand.jobs import limits
from stowhand.jobs.job import Job, KeyMode, NewJob
from stowhand.protocols.queue_store import Answer, QueueStore, Reschedule
from stowhand.protocols.validation import validate_ids, validate_workers
from stowhand.runner.options import RunnerOptions, find_store
from stowhand.tasks.options import TaskSpec, read_spec
from stowhand.tasks.registry import Registry


class JobSpec(TaskSpec, total=False):
    """One job of ``add_jobs``: its task, its payload, and the keywords of ``add_job``."""

    identifier: str
    payload: object


async def make_worker_utils(**options: Unpack[RunnerOptions]) -> WorkerUtils:
    """Connect to a store. A missing or older schema is not an error yet: see ``migrate``.

    Raises ConfigurationError, StoreUnreachable, SchemaTooNew.
    """
    return await _open("make_worker_utils", options)


async def quick_add_job(
    options: RunnerOptions, identifier: str, payload: object = None, **spec: Unpack[TaskSpec]
) -> Job:
    """Connect, enqueue one job, and close the connection. For more than one, ``make_worker_utils`` is cheaper.

    Raises ConfigurationError, StoreUnreachable, SchemaMissing, SchemaTooNew, InvalidJob, OutcomeUnknown.
    """
    async with await _open("quick_add_job", options) as utils:
        return await utils.add_job(identifier, payload, **spec)


async def _open(caller: str, options: object) -> WorkerUtils:
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"{caller}: got {a_type(options)} first; pass options first, as in {{'connection_string': …}}"
        )
    store = find_store(caller, options)
    try:
        await store.open()
    except (SchemaMissing, SchemaOutdated):
        pass  # ``migrate`` installs it, and enqueueing without it raises an error
    except BaseException:
        await store.close()
        raise
    return WorkerUtils(store)


class WorkerUtils:
    """Enqueueing and administration. Share one among all tasks of a loop. Release it, or use ``async with``."""

    def __init__(self, store: QueueStore) -> None:
        self._open_store = store
        self._registry = Registry()
        self._is_released = False

    async def add_job(self, identifier: str, payload: object = None, **spec: Unpack[TaskSpec]) -> Job:
        """Enqueue a job. Raises InvalidJob, SchemaMissing, OutcomeUnknown, StoreUnreachable."""
        return await self._store.jobs.enqueue(self._new_job(identifier, payload, spec))

    async def add_jobs(
        self,
        specs: Iterable[JobSpec | NewJob],
        job_key_preserve_run_at: bool = False,
    ) -> Sequence[Job]:
        """Enqueue several jobs in one transaction: all of them or none. Return them in the order of ``specs``.

        ``job_key_preserve_run_at``: keyed jobs without a ``job_key_mode`` keep the run time of the replaced job.
        """
        if isinstance(specs, str | bytes | Mapping) or not isinstance(specs, Iterable):
            raise InvalidJob(f"specs: got {a_type(specs)}; use a list of dicts or of NewJobs")
        mode = KeyMode.PRESERVE_RUN_AT if job_key_preserve_run_at else None
        jobs = [self._read_numbered(number, spec, mode) for number, spec in enumerate(specs, 1)]
        return await self._store.jobs.add_jobs(jobs)

    async def remove_job(self, job_key: str) -> Answer:
        """Delete the job with this key. A running job loses its key and will not run again."""
        if job_key is not None:
            limits.check_name("job_key", job_key, limits.MAX_KEY_CHARACTERS)
        return await self._store.admin.remove_key(job_key)

    async def complete_jobs(self, job_ids: Iterable[int]) -> Sequence[Job]:
        """Complete these jobs, except running ones. Return the changed jobs."""
        return await self._store.admin.complete_jobs(validate_ids(job_ids))

    async def permanently_fail_jobs(self, job_ids: Iterable[int], reason: str | None = None) -> Sequence[Job]:
        """Fail these jobs permanently, except running ones. Return the changed jobs."""
        return await self._store.admin.permanently_fail_jobs(validate_ids(job_ids), reason)

    async def reschedule_jobs(
        self,
        job_ids: Iterable[int],
        *,
        run_at: datetime | None = None,
        priority: int | None = None,
        attempts: int | None = None,
        max_attempts: int | None = None,
        work_queue: str | None = None,
    ) -> Sequence[Job]:
        """Change these jobs, except running ones. ``None`` leaves a value unchanged. Return the changed jobs."""
        changes = Reschedule(
            run_at=run_at, priority=priority, attempts=attempts, max_attempts=max_attempts, queue=work_queue
        )
        return await self._store.admin.reschedule_jobs(validate_ids(job_ids), changes)

    async def force_unlock_workers(self, worker_ids: Iterable[str]) -> Sequence[Job]:
        """Reset the jobs that these workers hold. If a worker still runs, its outcomes are not recorded."""
        return await self._store.admin.force_unlock_workers(validate_workers(worker_ids))

    async def migrate(self) -> None:
        """Install the schema, or upgrade it. Raises SchemaTooNew."""
        await self._store.schema.install()

    async def release(self) -> None:
        """Close the connections. Harmless when repeated."""
        self._is_released = True
        await self._open_store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.release()

    @property
    def _store(self) -> QueueStore:
        if self._is_released:
            raise StowhandError("this WorkerUtils has been released; make another one")
        return self._open_store

    def _new_job(self, identifier: str, payload: object, spec: TaskSpec) -> NewJob:
        return limits.check(self._registry.new_job(identifier, payload, read_spec(spec)))

    def _read_numbered(self, number: int, spec: JobSpec | NewJob, mode: KeyMode | None) -> NewJob:
        try:
            return limits.check(spec) if isinstance(spec, NewJob) else self._read_spec(spec, mode)
        except InvalidJob as error:
            raise InvalidJob(f"job {number} of the batch: {error}") from None

    def _read_spec(self, spec: JobSpec, mode: KeyMode | None) -> NewJob:
        if not isinstance(spec, Mapping):
            raise InvalidJob(f"got {a_type(spec)}; use a dict with identifier and payload, or a NewJob")
        options: dict[str, Any] = dict(spec)
        identifier, payload = options.pop("identifier", None), options.pop("payload", None)
        if identifier is None:
            raise InvalidJob("identifier: not given; it names the task")
        has_key = options.get("job_key") or options.get("key")
        if mode is not None and has_key and not (options.get("job_key_mode") or options.get("key_mode")):
            options["key_mode"] = mode
        return self._new_job(identifier, payload, cast("TaskSpec", options))
