"""``on_failure=``: the task whose job is enqueued when one of another has failed for good, by whatever fails it.

What that task declares is written down with every job: a sweep, or SQL, enqueues without knowing the app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, a_type
from stowhand.jobs import limits
from stowhand.jobs.failure import SAMPLES, Failure
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
    """The job that tells of the failures of ``task``: its name alone, until that task is declared."""

    def __init__(self, task: str, name: str) -> None:
        self.name = name
        self.job = NewJob(task=name)
        """But for its payload."""
        self._task = task
        self._is_declared = False

    def declare(self, definition: TaskDefinition, template: NewJob | None = None) -> None:
        """This is that task. Raises ConfigurationError where it cannot be told of a failure."""
        if self._is_declared:
            return
        told = f"task {self._task!r}: on_failure={self.name!r}"
        job = template or definition.template
        if definition.unique is not None or job.key is not None or job.expires is not None:
            raise ConfigurationError(
                f"{told}: its jobs have keys, or expire, and every failure is to be told; name another task"
            )
        for sample in SAMPLES:
            try:
                definition.shape.check(sample)
            except InvalidJob as error:
                raise ConfigurationError(
                    f"{told}: {error}; let it take (payload: Failure), or parameters of these names:"
                    f" {', '.join(Failure.__struct_fields__)}"
                ) from None
        self.job = msgspec.structs.replace(job, on_failure=None)
        self._is_declared = True


def read_on_failure(given: object, task: str) -> OnFailure | None:
    """What the declaration means. Raises ConfigurationError."""
    if given is None:
        return None
    if isinstance(given, Declared):
        found = OnFailure(task, given.template.task)
        found.declare(given.definition, given.template)
        return found
    if not isinstance(given, str):
        raise ConfigurationError(
            f"task {task!r}: on_failure={a_type(given)}; give what @app.task makes of a function, or a task's name"
        )
    try:
        limits.check_name("on_failure", given, limits.TASK_LIMIT)
    except InvalidJob as error:
        raise ConfigurationError(f"task {task!r}: {error}") from None
    if given in limits.RESERVED:
        raise ConfigurationError(f"task {task!r}: on_failure={given!r} is built in; name a task of yours")
    return OnFailure(task, given)
