"""The registry of tasks: functions by name, with their declared options."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType
from typing import Any, Literal, TypedDict, cast

import msgspec

from stowhand.errors import ConfigurationError, DuplicateTask, InvalidJob, UnknownTask, a_type, suggest
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import NewJob
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.jobs.task_limits import (
    NO_LIMITS,
    Concurrency,
    DeclaredLimits,
    LimitValues,
    Rate,
    TaskDeclarations,
    TaskLimits,
    merge,
    read_limits,
)
from stowhand.protocols.handler import innermost_function, is_async, not_a_function_reason
from stowhand.retry import AnyBackoff, resolve_backoff
from stowhand.tasks.middleware import MiddlewareChain
from stowhand.tasks.on_failure import Declared, OnFailure, read_on_failure
from stowhand.tasks.options import OPTION_NAMES as OPTIONS
from stowhand.tasks.options import EnqueueOptions, apply_options
from stowhand.tasks.resource import Factory, Resource
from stowhand.tasks.resources import SharedResources
from stowhand.tasks.result import read_result
from stowhand.tasks.retry_rules import Errors, RetryRules, read_retry_rules
from stowhand.tasks.shape import Shape, shape_of
from stowhand.tasks.unique import LimitKey, Unique, Uniqueness, read_unique

Executor = Literal["loop", "thread"]
Mismatch = Literal["retry", "poison"]


class RunOptions(TypedDict, total=False):
    """Options of how the attempts of a task run."""

    timeout: Duration | None
    """Maximum duration of one attempt (seconds, a timedelta, or a phrase: "30s")."""
    backoff: AnyBackoff | str | None
    """Delay before the next attempt: a function of the attempt's number, or of the number and the error; or the name
    ``natural`` or ``service``. The error is ``None`` if the attempt raised nothing."""
    retry_on: Errors | None
    """Exception types that are retried; any other fails the job at once. Causes count, as with ``NonRetryable``."""
    give_up_on: Errors | None
    """Exception types that fail the job at once, even if ``retry_on`` has them. Causes count."""
    executor: Executor | None
    """``"loop"`` or ``"thread"``. ``None`` runs an ``async def`` on the loop and a ``def`` in a thread. A ``def`` that
    never blocks may run on the loop."""
    mismatch: Mismatch | None
    """Effect of arguments that this version of the task cannot take. ``"retry"`` (the default) retries the job, because
    during a deploy another worker may take them. ``"poison"`` fails the job permanently."""


class JobRules(TypedDict, total=False):
    """Rules for every job of a task, wherever its declaration is known."""

    unique: Unique | None
    """At most one job waits or runs with the same ``"arguments"``, or with the same value of a function of some of
    them. Enqueueing it again returns that job unchanged, and restarts a failed one. Not together with ``key``."""
    unique_period: Duration | None
    """With ``unique``: for this long after its enqueue (seconds, a timedelta, or a phrase: "1h"), a completed job also
    counts, by the store's clock."""
    limits: Collection[Concurrency | Rate] | None
    """How many of its jobs run at the same time, and how many start in a period (``stowhand.limits``)."""
    on_failure: Declared | str | None
    """The task, or its name, whose job is enqueued when a job of this task has permanently failed. It takes a
    ``Failure``."""


class TaskOptions(EnqueueOptions, RunOptions, JobRules, total=False):
    """Options of a task declaration: defaults for its jobs, and how its attempts run."""


class TaskDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one task."""

    name: str
    function: Callable[..., Any]
    shape: Shape
    template: NewJob
    """A job with the task's options, without payload."""
    executor: Executor
    is_async: bool
    timeout: float | None = None
    backoff: AnyBackoff | None = None
    retry_rules: RetryRules | None = None
    unique: Uniqueness | None = None
    on_failure: OnFailure | None = None
    limits: TaskLimits = NO_LIMITS
    limit_values: Mapping[str, LimitValues] = {}
    """The values of the limits in the store, by name."""
    limit_key: LimitKey | None = None
    """Computes the key of a limit for each job, if it is a function."""
    file: str | None = None
    """File of the task, if it was loaded from a folder."""
    executable: bool = False
    """``function`` runs a program: it takes the attempt and the job's logger."""

    def with_job_rules(self, job: NewJob) -> NewJob:
        """Return the job with the key and the failure job that the task declares. Raises InvalidJob."""
        if self.unique is not None:
            job = self.unique.with_key(job)
        if self.limit_key is not None:
            job = self.limit_key.with_key(job)
        if self.on_failure is not None and job.on_failure is None:
            job = msgspec.structs.replace(job, on_failure=self.on_failure.job)
        return job

    def read_result(self, text: str | None) -> Any:
        """Return a result in the annotated return type of the function. Raises PayloadMismatch."""
        return read_result(self.function, text)

    @property
    def has_job_rules(self) -> bool:
        """Whether ``with_job_rules`` changes jobs."""
        return self.unique is not None or self.on_failure is not None or self.limit_key is not None

    @property
    def origin(self) -> str:
        """File or dotted name of the function, for messages."""
        if self.file is not None:
            return self.file
        return ".".join(_qualified_name(self.function))


_DEFAULT_JOB = NewJob(task="")
"""A job with the default values of all options."""


class Registry:
    """Task definitions by name. ``middleware``: the middleware of their App."""

    def __init__(self, middleware: MiddlewareChain | None = None) -> None:
        self._definitions: dict[str, TaskDefinition] = {}
        self.find = self._definitions.get
        """Returns the definition of a name, or ``None``."""
        self.middleware = middleware or MiddlewareChain()
        self.resources = SharedResources()
        """The open resources of these tasks."""

    def add(self, definition: TaskDefinition) -> None:
        """Add a definition. Raises DuplicateTask if the name is taken, unless a notebook cell runs again."""
        existing = self._definitions.get(definition.name)
        if existing is not None and not _is_redeclaration(existing, definition):
            raise DuplicateTask(
                f"two tasks are named {definition.name!r}: {existing.origin} and {definition.origin};"
                " rename one of them"
            )
        self._link_on_failure(definition)
        self._refuse_other_values(definition)
        self._definitions[definition.name] = definition

    def _link_on_failure(self, definition: TaskDefinition) -> None:
        """Pass the task to the tasks that name it in ``on_failure``, which may be declared before it."""
        definitions = {**self._definitions, definition.name: definition}
        for other in definitions.values():
            if other.on_failure is None or definition.name not in (other.name, other.on_failure.name):
                continue
            if (handler := definitions.get(other.on_failure.name)) is not None:
                try:
                    other.on_failure.declare(handler, handler.template)
                except ConfigurationError as error:
                    raise ConfigurationError(f"task {other.name!r}: {error}") from None

    def _refuse_other_values(self, definition: TaskDefinition) -> None:
        """Raise ConfigurationError if another task declares one of the limits with other values."""
        for other in self:
            for name in () if other.name == definition.name else other.limit_values.keys() & definition.limit_values:
                try:
                    merge(other.limit_values[name], definition.limit_values[name])
                except ConfigurationError as error:
                    raise ConfigurationError(
                        f"limit {name!r} of the tasks {other.name!r} ({other.origin}) and {definition.name!r}"
                        f" ({definition.origin}): {error}"
                    ) from None

    def get(self, name: str) -> TaskDefinition:
        """Return the definition of a name. Raises UnknownTask with the nearest name."""
        try:
            return self._definitions[name]
        except KeyError:
            raise UnknownTask(f"no task {name!r}{suggest(name, self._definitions)}") from None

    def new_job(self, task: str, payload: object, options: EnqueueOptions) -> NewJob:
        """Return a job of a task by name, with the task's options if it is declared here. Raises InvalidJob.

        A payload of ``None`` becomes ``{}``.
        """
        definition = self.find(task)
        value = {} if payload is None else payload
        text = strict_json.encode_plain(value) if definition is None else definition.shape.write_value(value)
        return self._new_job(task, text, options)

    def new_job_of_text(self, task: str, payload: str, options: EnqueueOptions) -> NewJob:
        """Return a job like ``new_job``, with a payload that is JSON text already. Raises InvalidJob."""
        definition = self.find(task)
        if definition is not None:
            definition.shape.check(payload)
        return self._new_job(task, payload, options)

    def _new_job(self, task: str, payload: str, options: EnqueueOptions) -> NewJob:
        definition = self.find(task)
        template = NewJob(task=task) if definition is None else definition.template
        job = apply_options(msgspec.structs.replace(template, payload=payload), options)
        return job if definition is None else definition.with_job_rules(job)

    def apply_on_enqueue(self, job: NewJob) -> NewJob:
        """Apply the App's ``on_enqueue`` functions to a job and check it again. Jobs of built-in tasks stay unchanged.

        Raises the errors of these functions, and InvalidJob.
        """
        if job.task in limits.BUILT_IN_TASKS:
            return job
        if job.queue is None:
            job = self._with_queue(job)
        if not self.middleware.on_enqueue:
            return job
        changed_job = self._with_queue(limits.check(self.middleware.apply_on_enqueue(job)))
        task = self.find(changed_job.task)
        before, after = ((one.task, one.payload, one.key) for one in (job, changed_job))
        if task is not None and before != after:
            task.shape.check(changed_job.payload)
            changed_job = task.with_job_rules(changed_job)
        return changed_job

    def _with_queue(self, job: NewJob) -> NewJob:
        """Return the job. If it names no queue, it gets the queue that its task declares here."""
        task = self.find(job.task) if job.queue is None else None
        return job if task is None else msgspec.structs.replace(job, queue=task.template.queue)

    def with_declaration(self, job: NewJob) -> NewJob:
        """Return the job with the declared options of its task, where the job has the default value of an option.

        For jobs of enqueuers that may not know the task. Raises InvalidJob, also if the task does not take the payload.
        """
        if job.task not in self._definitions:
            return job
        changes = {name: value for name in OPTIONS if (value := getattr(job, name)) != getattr(_DEFAULT_JOB, name)}
        declared_job = self.new_job_of_text(job.task, job.payload, cast("EnqueueOptions", changes))
        if job.on_failure is None:
            return declared_job
        return msgspec.structs.replace(declared_job, on_failure=job.on_failure)

    def complete_foreign_job(self, job: NewJob) -> NewJob:
        """Apply the task's declaration and ``on_enqueue`` to a job from an enqueuer that may not know the task."""
        return self.apply_on_enqueue(self.with_declaration(job))

    def resources_of(self, tasks: Collection[str] | None = None) -> builtins.list[Resource]:
        """Return the resources of these tasks (``None``: of all tasks), in the order of their declaration."""
        definitions = [definition for definition in self if tasks is None or definition.name in tasks]
        return [resource for definition in definitions for _, resource in definition.shape.injected.resources]

    def resources_made_by(self, factory: Factory) -> builtins.list[Resource]:
        """Return the resources with this factory. Raises ConfigurationError if no task uses it."""
        resources = [resource for resource in self.resources_of() if resource.factory == factory]
        if not resources:
            names = {resource.name: None for resource in self.resources_of()}
            name = getattr(factory, "__qualname__", repr(factory))
            raise ConfigurationError(f"no task uses resource({name}); tasks use: {', '.join(names) or 'none'}")
        return resources

    def queues(self) -> dict[str, str]:
        """Return the queue of each task."""
        return {definition.name: definition.template.queue or DEFAULT_QUEUE for definition in self}

    def declarations(self) -> TaskDeclarations:
        """Return what the tasks declare for the store."""
        values: dict[str, LimitValues] = {}
        for definition in self:
            values |= {name: merge(values.get(name), own) for name, own in definition.limit_values.items()}
        limits_by_task = {definition.name: definition.limits for definition in self if definition.limits.names}
        return TaskDeclarations(queues=self.queues(), tasks=limits_by_task, limits=values)

    def limits_per_worker(self) -> dict[str, int]:
        """Return how many jobs of a task run at the same time in each worker, for tasks with such a limit."""
        return {task.name: task.limits.per_worker for task in self if task.limits.per_worker is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of their declaration."""
        return tuple(self._definitions)

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __iter__(self) -> Iterator[TaskDefinition]:
        return iter(self._definitions.values())

    def __len__(self) -> int:
        return len(self._definitions)


def _is_redeclaration(definition: TaskDefinition, other: TaskDefinition) -> bool:
    """Return whether the same function was declared again at the prompt or in a notebook."""
    if not (hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")):
        return False
    names = {_qualified_name(definition.function) for definition in (definition, other)}
    return len(names) == 1 and names.pop()[0] == "__main__"


def _qualified_name(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and qualified name of a function."""
    inner = innermost_function(function)
    return getattr(inner, "__module__", "") or "", getattr(inner, "__qualname__", str(inner))


def define(
    function: Callable[..., Any],
    name: str | None,
    options: TaskOptions,
    *,
    positional: bool = False,
    built_in: bool = False,
) -> TaskDefinition:
    """Make the definition of a task.

    Args:
        function: The function.
        name: Name of the task; ``None`` uses the function's name.
        options: Declared options.
        positional: Whether the function takes ``(payload, helpers)`` by position, as in a task folder.
        built_in: Whether the name may be reserved.

    Raises:
        ConfigurationError: The function cannot be a task, or an option is invalid.

    """
    if not callable(function):
        raise ConfigurationError(f"a task is a function; got {a_type(function)}")
    task_name = name if name is not None else _own_name(function)
    try:
        return _read_definition(function, task_name, options, positional=positional, built_in=built_in)
    except (ConfigurationError, InvalidJob) as error:
        raise ConfigurationError(f"task {task_name!r}: {error}") from error.__cause__


def _read_definition(
    function: Callable[..., Any], name: str, options: TaskOptions, *, positional: bool, built_in: bool
) -> TaskDefinition:
    if (reason := not_a_function_reason(function)) is not None:
        raise ConfigurationError(reason)
    _refuse_unknown(options)
    _refuse_method(function)
    if not built_in:
        limits.check_new_task("task", name)
    job_options = {option: value for option, value in options.items() if option in EnqueueOptions.__annotations__}
    for option in _STATIC_OPTIONS:
        if callable(job_options.get(option)):
            raise ConfigurationError(f"{option}: got a function; use text. {_dynamic_example(option, function)}")
    template = apply_options(NewJob(task=name, queue=DEFAULT_QUEUE), job_options)
    mismatch = _read_choice("mismatch", options.get("mismatch"), ("retry", "poison"))
    shape = shape_of(function, name, positional=positional, poison=mismatch == "poison")
    for option in _STATIC_OPTIONS:
        _refuse_pattern(option, getattr(template, option), function, shape)
    unique = read_unique(options.get("unique"), options.get("unique_period"), shape)
    if unique is not None and template.key is not None:
        raise ConfigurationError("unique computes the keys of the jobs; use key or unique, not both")
    declared_limits = read_limits(name, options.get("limits"))
    limit_key = _read_limit_key(declared_limits, template, shape)
    is_asynchronous = is_async(function)
    executor = _read_executor(options.get("executor"), is_async=is_asynchronous)
    if shape.injected.has_sync_context and executor != "thread":
        raise ConfigurationError("SyncContext is for a def task that runs in a thread; use Context in async def tasks")
    backoff = options.get("backoff")
    return TaskDefinition(
        name=name,
        function=function,
        shape=shape,
        template=template,
        executor=executor,
        is_async=is_asynchronous,
        timeout=limits.read_positive(options.get("timeout"), "timeout"),
        backoff=None if backoff is None else resolve_backoff(backoff),
        retry_rules=read_retry_rules(options.get("retry_on"), options.get("give_up_on")),
        unique=unique,
        on_failure=read_on_failure(options.get("on_failure")),
        limits=declared_limits.limits,
        limit_values=declared_limits.values,
        limit_key=limit_key,
    )


def _read_limit_key(declared: DeclaredLimits, template: NewJob, shape: Shape) -> LimitKey | None:
    """Return the function that computes keys. Raises ConfigurationError for a wrong key, or beside a serial key."""
    limit, key = declared.limits.key_limit, declared.limits.key
    if limit is None:
        return None
    if template.serial is not None:
        raise ConfigurationError("serial: a job has one key; use serial, or a limit with a key, not both")
    if declared.key_function is not None:
        return LimitKey(limit, shape, declared.key_function)
    assert key is not None
    if shape.whole is None and (argument := key.partition(".")[0]) not in shape.names:
        raise ConfigurationError(
            f"limits: key: {argument!r} is not an argument of the task{suggest(argument, shape.names)}"
        )
    return None


def _refuse_unknown(options: TaskOptions) -> None:
    options_of_app_task = ("cron", "name")
    known_options = (*EnqueueOptions.__annotations__, *RunOptions.__annotations__, *JobRules.__annotations__)
    for option in options:
        if option not in known_options:
            known_options = (*options_of_app_task, *known_options)
            raise ConfigurationError(f"no task option {option!r}{suggest(option, known_options)}")


_STATIC_OPTIONS = {
    "serial": "all jobs of the task would run one at a time",
    "key": "each job of the task would replace the waiting one",
}
"""Options with the same text for all jobs of a task, and the consequence if the text was meant to differ."""


def _refuse_pattern(option: str, text: str | None, function: Callable[..., Any], shape: Shape) -> None:
    """Raise ConfigurationError for a text with placeholders, because it is the same for all jobs."""
    if text is not None and (text in shape.names or "{" in text):
        argument_names = [name for name in shape.names if name == text or f"{{{name}}}" in text]
        raise ConfigurationError(
            f"{option}: placeholders in {text!r} are not replaced, so {_STATIC_OPTIONS[option]}."
            f" {_dynamic_example(option, function, *argument_names[:1])}"
        )


def _dynamic_example(option: str, function: Callable[..., Any], argument: str = "customer") -> str:
    name = getattr(innermost_function(function), "__name__", "task")
    example = f"For a different {option} per job: {name}.options({option}=f'{argument} {{{argument}}}').enqueue(…)"
    return f"{example}, or @app.task(unique=lambda {argument}: {argument})" if option == "key" else example


def _own_name(function: Callable[..., Any]) -> str:
    """Return the function's own name. Raises ConfigurationError if it has none."""
    name: str = getattr(function, "__name__", "<lambda>")
    if name != "<lambda>":
        return name
    kind = type(function)
    kind_name = {FunctionType: "lambda", functools.partial: "functools.partial"}.get(kind, kind.__qualname__)
    raise ConfigurationError(f"a {kind_name} has no name; write a def, or use a name: app.task(name='…')(…)")


def _refuse_method(function: Callable[..., Any]) -> None:
    """Raise ConfigurationError for a method without its object, because no payload has a ``self``."""
    inner = innermost_function(function)
    class_name = inspect.isfunction(inner) and inner.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), None) if class_name else None
    if class_name and not class_name.endswith("<locals>") and first in ("self", "cls"):
        raise ConfigurationError(
            f"a method of {class_name}, and a payload has no {first!r}; declare a function, the method of an object,"
            f" app.task(name='…')({class_name}().{inner.__name__}), or a staticmethod"
        )


def _read_executor(executor: Executor | None, *, is_async: bool) -> Executor:
    _read_choice("executor", executor, ("loop", "thread"))
    if is_async and executor == "thread":
        raise ConfigurationError("an async function runs on the loop; executor='thread' is for a def")
    return executor or ("loop" if is_async else "thread")


def _read_choice(option: str, value: str | None, known: Collection[str]) -> str | None:
    """Return the value of an option, which may be absent. Raises ConfigurationError for an unknown one."""
    if value is not None and value not in known:
        raise ConfigurationError(f"{option} {value!r}{suggest(value, known)}")
    return value
