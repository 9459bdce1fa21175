"""Django's ``Task`` with further options of a job. Django 6.0 needs ``@task`` of this module. From 6.1 on, Django's
decorator takes the same options if the backend is Stowhand's.

A worker has the tasks of the module ``tasks`` of each installed app, and of the modules that the backend names. A path
from the database is looked up only among these tasks, so that no job can cause an import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from types import ModuleType
from typing import Any

from django.apps import apps
from django.tasks import base
from django.tasks.exceptions import InvalidTask
from django.utils.module_loading import autodiscover_modules

from stowhand.errors import InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import NewJob
from stowhand.tasks.loader import import_modules
from stowhand.tasks.options import apply_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(base.Task):
    """A Django task. Raises InvalidTask for options that no job can have."""

    key: str | None = None
    """Key that at most one waiting job has; a second job replaces it. Use ``using(key=…)`` for one call."""
    max_attempts: int | None = None
    """Maximum number of attempts; ``None``: the backend's default, or 25."""
    timeout: Duration | None = None
    """Maximum duration of one attempt: seconds, a timedelta, or a phrase ("30s")."""

    def __post_init__(self) -> None:
        options = {"key": self.key, "max_attempts": self.max_attempts}
        try:
            apply_options(NewJob(task="task"), {name: value for name, value in options.items() if value is not None})
            limits.read_positive(self.timeout, "timeout")
        except InvalidJob as error:
            raise InvalidTask(str(error)) from None
        base.Task.__post_init__(self)

    def using(
        self, *, key: str | None = None, max_attempts: int | None = None, timeout: Duration | None = None, **django: Any
    ) -> Task:
        """Return the task with other options, as in Django, including a job's further options. Raises InvalidTask."""
        options: dict[str, Any] = {"key": key, "max_attempts": max_attempts, "timeout": timeout}
        changed: Task = base.Task.using(self, **django)
        changes = {name: value for name, value in options.items() if value is not None}
        return replace(changed, **changes) if changes else changed


def refuse_misfit(task: base.Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, as the call would, for arguments that the task's function does not take."""
    try:
        parameters = signature(task.func)
    except ValueError:
        return  # Functions written in C have no signature.
    context = [None] if task.takes_context else []
    try:
        parameters.bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path}: {error}") from None


def task(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = base.DEFAULT_TASK_PRIORITY,
    queue_name: str = base.DEFAULT_TASK_QUEUE_NAME,
    backend: str = base.DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    key: str | None = None,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
) -> Any:
    """Declare a task as ``django.tasks.task`` does, with a job's further options. Raises InvalidTask."""

    def declare(declared: Callable[..., Any]) -> Task:
        return Task(
            func=declared,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            run_after=None,
            takes_context=takes_context,
            key=key,
            max_attempts=max_attempts,
            timeout=timeout,
        )

    return declare if function is None else declare(function)


TASKS_MODULE = "tasks"


def known_tasks(modules: Iterable[str] = ()) -> dict[str, base.Task]:
    """Return the tasks by path. Imports their modules, and reads them again at each call.

    ``modules``: further modules, ``"shop.jobs"`` or ``"shop.jobs.*"``. Raises ConfigurationError.
    """
    autodiscover_modules(TASKS_MODULE)
    import_modules(modules)
    tasks: dict[str, base.Task] = {}
    for module in _modules(modules):
        for value in vars(module).values():
            if isinstance(value, base.Task):
                tasks.setdefault(value.module_path, value)
    return tasks


def _modules(names: Iterable[str]) -> Iterator[ModuleType]:
    all_names = [f"{config.name}.{TASKS_MODULE}" for config in apps.get_app_configs()]
    for name in names:
        module_name = name.removesuffix(".*")
        submodules = [name for name in sys.modules if name.startswith(f"{module_name}.")] if module_name != name else []
        all_names += [module_name, *sorted(submodules)]
    for name in dict.fromkeys(all_names):
        if (module := sys.modules.get(name)) is not None:
            yield module
