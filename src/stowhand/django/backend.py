"""The task backend. It writes jobs on Django's own connection, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.tasks import base
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json

from stowhand.django.database import Database
from stowhand.django.results import TIMEOUT_KEY, result_of, written_timeout
from stowhand.django.task import Task, known_tasks, refuse_misfit
from stowhand.errors import ConfigurationError, InvalidJob, UndecodablePayload, a_type
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.limits import MAX_TASK_CHARACTERS
from stowhand.jobs.strict_json import find_loss, is_plain
from stowhand.protocols.store import StoreOptions
from stowhand.tasks.loader import read_modules

OPTION_DESCRIPTIONS = {
    "database": "the alias of DATABASES that stores the jobs: 'default'",
    "modules": "modules that declare tasks besides the apps' own: ['shop.jobs', 'shop.reports.*']",
    "cron": "recurring tasks: {'nightly': ('0 3 * * *', 'shop.tasks.report')}, then arguments by name, a time zone",
    "max_attempts": "attempts of a task that declares none: 25",
    "schema": "the schema in PostgreSQL: 'stowhand'",
}


class StowhandBackend(BaseTaskBackend):
    """``TASKS = {"default": {"BACKEND": "stowhand.django.StowhandBackend", "QUEUES": [...], "OPTIONS": {...}}}``."""

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        self.settings_error: ConfigurationError | None = None
        """Why the backend is unusable: reported by ``manage.py check`` and raised at its use, not at Django's start."""
        self.modules: tuple[str, ...] = ()
        options = StoreOptions()
        try:
            _check_settings(alias, params)
            super().__init__(alias, params)
            self.modules, options = self._read_options()
        except ConfigurationError as error:
            self.settings_error = error
            super().__init__(alias, {"QUEUES": [], "OPTIONS": {}})
        self.cron: Mapping[str, object] = self.options.get("cron", {})
        self._database = Database(self.options.get("database", "default"), options)
        self._known: dict[str, base.Task] | None = None

    @property
    def database(self) -> Database:
        """The database of the jobs. Raises ConfigurationError if the settings are invalid."""
        if self.settings_error is not None:
            raise self.settings_error
        return self._database

    def known(self) -> Mapping[str, base.Task]:
        """Return the tasks of its workers, by path. The first call imports the modules that declare them.

        Raises ConfigurationError.
        """
        if self.settings_error is not None:
            raise self.settings_error
        if self._known is None:
            self._known = known_tasks(self.modules)
        return self._known

    def enqueue(self, task: base.Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> base.TaskResult:
        """Write a job, and send ``task_enqueued``. Raises InvalidTask, InvalidJob, SchemaMissing."""
        self.validate_task(task)
        job = self.new_job(task, args, kwargs)
        written = self.database.enqueue(job)
        result = result_of(written, (), task, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> base.TaskResult:
        """Return the result of a job. ``result_id``: the job's id, as text.

        Raises TaskResultDoesNotExist for an unknown job, and for a job whose task is not of this project.
        """
        job = self._job(result_id)
        if job is None or (task := self.known().get(job.task)) is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            return result_of(job, self.database.jobs.tries(job.id) if job.attempts else (), task, self.alias)
        except UndecodablePayload as error:
            raise TaskResultDoesNotExist(result_id) from error

    def new_job(self, task: base.Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """Return the job without writing it.

        Raises InvalidTask if no worker knows the task, TypeError for arguments that the function does not take, and
        TypeError or InvalidJob for arguments that JSON would change.
        """
        declared = self._declared(task)
        refuse_misfit(task, args, kwargs)
        arguments = {"args": list(args), "kwargs": dict(kwargs)}
        payload: dict[str, Any] = normalize_json(arguments)
        own_task = task if isinstance(task, Task) else None
        if (
            own_task is not None
            and own_task.timeout is not None
            and own_task.timeout != getattr(declared, "timeout", None)
        ):
            payload[TIMEOUT_KEY] = written_timeout(own_task.timeout)
        text = strict_json.encode(payload)
        if (
            not is_plain(arguments)
            and (loss := find_loss(arguments, strict_json.decode(text), is_typed=True)) is not None
        ):
            raise InvalidJob(f"{task.module_path}: {loss.path.removeprefix('.')}: {loss}; use {loss.decoded_type}")
        return NewJob(
            task=task.module_path,
            payload=text,
            queue=task.queue_name,
            priority=-int(task.priority),
            run_at=_aware(task.run_after),
            key=None if own_task is None else own_task.key,
            max_attempts=None if own_task is None else own_task.max_attempts,
        )

    def check(self, **kwargs: Any) -> list[Any]:
        from stowhand.django.checks import check_backend

        return check_backend(self)

    def _declared(self, task: base.Task) -> base.Task:
        """Return the task as it is declared. Raises InvalidTask."""
        path: str = task.module_path
        declared = self.known().get(path)
        if declared is None:
            module = task.func.__module__
            raise InvalidTask(
                f"{path} would never run: a worker knows the tasks of the modules 'tasks' of INSTALLED_APPS, and of"
                f" the modules in TASKS[{self.alias!r}]['OPTIONS']['modules']. Import it in one of them, or add"
                f" {module!r} to the latter."
            )
        if len(path) > MAX_TASK_CHARACTERS:
            raise InvalidTask(
                f"{path}: a task's path has at most {MAX_TASK_CHARACTERS} characters (this one has {len(path)})."
            )
        return declared

    def _job(self, result_id: str) -> Job | None:
        id_text = str(result_id)  # A view may pass a number.
        if not (id_text.isascii() and id_text.isdigit() and len(id_text) < 19):
            return None
        with self.database.explained():
            return self.database.jobs.get(int(id_text))

    def _read_options(self) -> tuple[tuple[str, ...], StoreOptions]:
        """Return ``modules`` and the options of the store. Raises ConfigurationError."""
        location = f"TASKS[{self.alias!r}]['OPTIONS']"
        for name in self.options:
            if name not in OPTION_DESCRIPTIONS:
                descriptions = "; ".join(
                    f"{option}: {description}" for option, description in OPTION_DESCRIPTIONS.items()
                )
                raise ConfigurationError(f"{location}: no option {name!r}; available: {descriptions}")
        store_options = {name: self.options[name] for name in ("schema", "max_attempts") if name in self.options}
        try:
            if not isinstance(cron := self.options.get("cron", {}), Mapping):
                raise ConfigurationError(
                    f"cron: got {a_type(cron)}; use {OPTION_DESCRIPTIONS['cron'].partition(': ')[2]}"
                )
            if not isinstance(database := self.options.get("database", ""), str):
                raise ConfigurationError(f"database: got {a_type(database)}; use an alias of DATABASES: 'default'")
            return read_modules(self.options.get("modules", ()), "modules"), StoreOptions(**store_options)
        except ConfigurationError as error:
            raise ConfigurationError(f"{location}: {error}") from None


def _check_settings(alias: str, params: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for settings on which Django itself would fail without naming them."""
    queues, options = params.get("QUEUES", ()), params.get("OPTIONS", {})
    if isinstance(queues, str) or not isinstance(queues, Collection):
        example = [queues] if isinstance(queues, str) else ["default"]
        raise ConfigurationError(f"TASKS[{alias!r}]['QUEUES']: got {a_type(queues)}; use a list: {example}")
    for queue in queues:
        if not isinstance(queue, str) or not queue:
            raise ConfigurationError(f"TASKS[{alias!r}]['QUEUES']: {queue!r} is not a queue name; write 'default'")
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"TASKS[{alias!r}]['OPTIONS']: got {a_type(options)}; use {{'database': 'default'}}")


def _aware(local_time: Any) -> Any:
    """Return an aware time. With USE_TZ off, Django's times are in its own time zone."""
    from django.utils import timezone

    return timezone.make_aware(local_time) if local_time is not None and timezone.is_naive(local_time) else local_time
