"""``unique=``: at most one job of a task waits or runs with the same arguments, by a computed key.

Enqueueing it again returns that job unchanged, and restarts a failed one. The key does not reveal the arguments,
because it is visible to users who may not see payloads.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, PayloadMismatch, UndecodablePayload, a_type, suggest
from stowhand.jobs import limits, strict_json
from stowhand.jobs.job import KeyMode, NewJob
from stowhand.jobs.task_limits import stored_key
from stowhand.tasks.shape import ABSENT, Shape

Unique = Literal["arguments"] | Callable[..., object]
"""All arguments, or a function of some of them by name, whose value no two jobs may share."""
_ALL_ARGUMENTS = "arguments"


class Uniqueness:
    """Makes the keys of one task's jobs: from all arguments, or from what ``key_function`` returns for some."""

    def __init__(
        self,
        shape: Shape,
        period_seconds: float | None,
        key_function: Callable[..., object] | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        """``period_seconds``: time after its enqueue during which a completed job is still found."""
        self._shape = shape
        self._period_seconds = period_seconds
        self._key_function = key_function
        self._names = names
        optional_parameters = (parameter for parameter in shape.parameters if parameter.default is not ABSENT)
        self._defaults = {
            parameter.name: _as_read(parameter.default, parameter.annotation) for parameter in optional_parameters
        }

    def refuse_key(self, job: NewJob) -> None:
        """Raise InvalidJob for a key that ``unique`` of this task has not computed."""
        if job.key is not None and not (job.key_mode is KeyMode.UNIQUE and job.key.startswith(_prefix(job))):
            raise InvalidJob(f"key: unique computes the keys of task {job.task!r}; use key or unique, not both")

    def with_key(self, job: NewJob) -> NewJob:
        """Return the job with the key of its payload. Raises InvalidJob."""
        self.refuse_key(job)
        digest = hashlib.sha256(strict_json.canonical(self.value(job, "unique"))).hexdigest()[:32]
        return msgspec.structs.replace(
            job, key=_prefix(job) + digest, key_mode=KeyMode.UNIQUE, unique_period=self._period_seconds
        )

    def value(self, job: NewJob, option: str) -> object:
        """Return the arguments of the job, or what the function returns for them. Raises InvalidJob."""
        try:
            arguments = self._defaults | self._shape.read(job.payload)
        except (UndecodablePayload, PayloadMismatch) as error:
            raise InvalidJob(str(error)) from None
        whole = arguments.get(self._shape.whole or "")
        if isinstance(whole, dict):
            whole.pop("_cron", None)  # the scheduler adds it: with it no two jobs would be equal
        if self._key_function is None:
            return arguments
        try:
            value = self._key_function(**{name: arguments[name] for name in self._names})
        except Exception as error:  # the application's function
            raise InvalidJob(f"task {job.task!r}: the function of {option} raised {error!r}") from error
        if value is None:
            raise InvalidJob(
                f"task {job.task!r}: the function of {option} returned None; return a value that identifies the job"
            )
        return value


class LimitKey:
    """Computes the key of a limit from some arguments of a job."""

    def __init__(self, limit: str, shape: Shape, key_function: Callable[..., object]) -> None:
        """Raise ConfigurationError for a function that takes anything else."""
        self._limit = limit
        self._arguments = Uniqueness(shape, None, key_function, _argument_names(key_function, shape, "limits: key"))

    def with_key(self, job: NewJob) -> NewJob:
        """Return the job with its key. Raises InvalidJob."""
        value = self._arguments.value(job, "limits: key")
        key = value if isinstance(value, str) else strict_json.encode(value, what="the key of the limit")
        return msgspec.structs.replace(job, serial=stored_key(self._limit, key))


def _prefix(job: NewJob) -> str:
    return f"unique:{job.task}:"


def _as_read(default: object, annotation: Any) -> object:
    """Return a default as a payload would give it: 1 becomes 1.0 if the parameter is a float."""
    try:
        return msgspec.json.decode(strict_json.encode(default), type=annotation)
    except (msgspec.MsgspecError, InvalidJob, TypeError):
        return default


def read_unique(unique: object, period: object, shape: Shape) -> Uniqueness | None:
    """Read the options of a declaration. Raises ConfigurationError, InvalidJob."""
    period_seconds = limits.read_positive(period, "unique_period")
    if unique is None:
        if period_seconds is not None:
            raise ConfigurationError("unique_period has no effect without unique; use unique too")
        return None
    if isinstance(unique, str) and unique == _ALL_ARGUMENTS:
        _refuse_defaults(shape)
        return Uniqueness(shape, period_seconds)
    if not callable(unique):
        description = f"{unique!r}{suggest(unique, (_ALL_ARGUMENTS,))}" if isinstance(unique, str) else a_type(unique)
        raise ConfigurationError(f"unique={description}; use 'arguments', or a function of some of them")
    return Uniqueness(shape, period_seconds, unique, _argument_names(unique, shape))


def _refuse_defaults(shape: Shape) -> None:
    for parameter in shape.parameters:
        try:
            strict_json.encode(
                None if parameter.default is ABSENT else parameter.default, what=f"the default of {parameter.name!r}"
            )
        except InvalidJob as error:
            raise ConfigurationError(f"unique='arguments': {error}; use a function instead") from None


def _argument_names(key_function: Callable[..., Any], shape: Shape, option: str = "unique") -> tuple[str, ...]:
    """Return the names of the arguments that the function takes."""
    names = []
    for parameter in inspect.signature(key_function).parameters.values():
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if by_name and parameter.name in shape.names:
            names.append(parameter.name)
        elif not by_name or parameter.default is parameter.empty:
            raise ConfigurationError(
                f"{option}: the function takes {parameter}, which is not an argument of the task; it may take:"
                f" {', '.join(shape.names)}"
            )
    return tuple(names)
