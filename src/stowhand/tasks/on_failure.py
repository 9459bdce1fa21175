"""``on_failure=``: the task whose job is enqueued when a job of another task has permanently failed.

Each job stores what that task declares, because a sweep, or SQL, enqueues the failure job without knowing the app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, a_type
from stowhand.jobs import limits
from stowhand.jobs.failure import SAMPLE_PAYLOADS, Failure
from stowhand.jobs.job import NewJob

if TYPE_CHECKING:
    from stowhand.tasks.registry import TaskDefinition


@runtime_checkable
class Declared(Protocol):
    """A task that an App declares, also one with options: ``notify``, ``notify.options(serial="mail")``."""

    @property
    def definition(self) -> TaskDefinition: ...
    @property
    def template(self) -> NewJob: ...


class OnFailure:
    """The job that reports a failure. It has only the name of its task until that task is declared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.job = NewJob(task=name)
        """The job without its payload."""
        self._is_declared = False

    def declare(self, definition: TaskDefinition, template: NewJob) -> None:
        """Take the options of that task's jobs. Raises ConfigurationError if it cannot report every failure."""
        if self._is_declared:
            return
        if definition.unique is not None or template.key is not None or template.expires is not None:
            raise ConfigurationError(
                f"on_failure={self.name!r}: its jobs have keys, or expire, so some failures would go unreported;"
                " use another task"
            )
        for sample in SAMPLE_PAYLOADS:
            try:
                definition.shape.check(sample)
            except InvalidJob as error:
                raise ConfigurationError(
                    f"on_failure={self.name!r}: {error}; declare it with (payload: Failure), or with parameters of"
                    f" these names: {', '.join(Failure.__struct_fields__)}"
                ) from None
        self.job = msgspec.structs.replace(template, on_failure=None)
        self._is_declared = True


def read_on_failure(task: object) -> OnFailure | None:
    """Read the option of a declaration. Raises ConfigurationError, InvalidJob."""
    if task is None:
        return None
    if isinstance(task, Declared):
        on_failure = OnFailure(task.template.task)
        on_failure.declare(task.definition, task.template)
        return on_failure
    if not isinstance(task, str):
        raise ConfigurationError(f"on_failure={a_type(task)}; use a task declared with @app.task, or a task's name")
    limits.check_new_task("on_failure", task)
    return OnFailure(task)
