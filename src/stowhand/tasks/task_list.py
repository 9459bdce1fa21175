"""A dict of tasks: functions by name, without a folder or an ``App``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.tasks.registry import Registry, TaskDefinition, define
from stowhand.tasks.task import ConfiguredTask

TaskList = Mapping[str, Callable[..., Any]]
"""Functions ``(payload)`` or ``(payload, helpers)``, asynchronous or not, or tasks that an ``App`` declares."""


def read_task_list(tasks: object) -> Registry:
    """Return a registry of these tasks under the names of the dict. Raises ConfigurationError."""
    if not isinstance(tasks, Mapping) or not tasks:
        raise ConfigurationError("task_list: use functions by name, as in {'hello': hello}")
    registry = Registry()
    for name, task in tasks.items():
        registry.add(_definition(name, task))
    return registry


def _definition(name: str, task: Any) -> TaskDefinition:
    if isinstance(task, ConfiguredTask):
        template = msgspec.structs.replace(task.definition.template, task=name)
        return msgspec.structs.replace(task.definition, name=name, template=template)
    return define(task, name, {}, positional=True)
