"""The handler of a worker that calls the task of a claimed job. The worker turns errors into outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from stowhand.errors import suggest
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import RaisableOutcome, RateLimited, Retry
from stowhand.jobs.outcomes import from_raised
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.attempt import Attempt, known_control_of
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Claim
from stowhand.tasks.batch import awaited, judge_batch
from stowhand.tasks.context import (
    BlockingHelpers,
    Connect,
    Context,
    Enqueue,
    Helpers,
    LoggerFactory,
    SyncContext,
    no_connection,
)
from stowhand.tasks.middleware import AroundThread, OnEnqueue
from stowhand.tasks.registry import Registry, TaskDefinition
from stowhand.tasks.resource import Factory
from stowhand.tasks.resources import WorkerResources
from stowhand.tasks.threads import Threads
from stowhand.tasks.workflow import StepRecorder, refuse_caught_wait, requested_wait
from stowhand.worker.policy import Policy

OpenStore = Callable[[], Awaitable[QueueStore]]
AttemptRunner = Callable[[Attempt[Job]], Awaitable[object]]


class TaskHandler:
    """Handler that runs the tasks of a registry. Everything independent of the job is prepared once per task."""

    def __init__(
        self,
        registry: Registry,
        *,
        enqueue: Enqueue,
        logger_factory: LoggerFactory,
        default: Policy | None = None,
        connect: Connect = no_connection,
        built_in: Registry | None = None,
        open_resources: Mapping[Factory, object] | None = None,
        open_store: OpenStore | None = None,
    ) -> None:
        """``enqueue`` commits a job of ``helpers.add_job``. ``open_resources``: values of the host, by factory.

        ``open_store``: returns the store in which workflows record their steps; ``None``: they cannot.
        """
        self._registry = registry
        self.declarations = registry.declarations()
        self.limits_per_worker = registry.limits_per_worker()
        self._resources = WorkerResources(
            registry.resources, lambda tasks: self._registry.resources_of(tasks), open_resources
        )
        self._built_in = built_in or Registry()
        """Tasks that every worker has; a task of the registry with the same name wins."""
        self._enqueue = enqueue
        self._new_logger = logger_factory
        self._connect = connect
        self._recorder = None if open_store is None else StepRecorder(open_store)
        self._default = default or Policy()
        """Policy of tasks that set none."""
        self._removed_tasks: dict[str, TaskDefinition] = {}
        """Tasks that ``replace`` removed."""
        self._runs: dict[str, AttemptRunner] = {}
        self._policies: dict[str, Policy] = {}
        self._threads = Threads()

    async def handle(self, attempt: Attempt[Job], job: Job) -> object:
        """Call the task. Middleware sees a raised outcome as a returned one.

        Raises UndecodablePayload or PayloadMismatch if the task cannot be called with the payload.
        """
        task = attempt.claim.task
        run = self._runs.get(task)
        if run is None:
            definition = self._find(task)
            if definition is None:
                suggestion = suggest(task, self._registry.names)
                return Retry(f"unsupported task {task!r}: this worker has no such task{suggestion}")
            run = self._runs[task] = self._prepare(definition)
        try:
            returned = await run(attempt)
        except RaisableOutcome as raised:
            returned = from_raised(raised)
        except BaseException as error:
            if (waiting := requested_wait(attempt, error)) is None:
                raise
            return waiting
        if (control := known_control_of(attempt)) is not None and control.workflow is not None:
            refuse_caught_wait(control.workflow)
        if type(returned) is RateLimited and task not in self.declarations.tasks:
            return Retry(f"RateLimited: task {task!r} has no limit in the store; declare limits=[…], or raise Snooze")
        if type(returned) is list:
            return await judge_batch(
                attempt.claim,
                self.policy(attempt.claim),
                returned,
                lambda message: self._new_logger(job).warning(message),
            )
        return returned

    def policy(self, claim: Claim[Job]) -> Policy:
        """Return timeout and backoff of the job's task."""
        policy = self._policies.get(claim.task)
        if policy is None:
            policy = self._policies[claim.task] = self._policy_of(self._find(claim.task))
        return policy

    @property
    def on_enqueue(self) -> OnEnqueue | None:
        """Function applied to the jobs of ``enqueue_after``; ``None``: they stay unchanged."""
        names_queues = any(queue != DEFAULT_QUEUE for queue in self._registry.queues().values())
        return self._registry.apply_on_enqueue if self._registry.middleware.on_enqueue or names_queues else None

    @property
    def resources(self) -> WorkerResources | None:
        """Resources that the worker opens before its first job; ``None`` if no task uses any."""
        return self._resources if self._registry.resources_of() else None

    def replace(self, registry: Registry) -> None:
        """Run these tasks from now on. Running attempts continue, and claimed jobs of removed tasks still run."""
        self._removed_tasks |= {definition.name: definition for definition in self._registry}
        for name in registry.names:
            for definitions_by_name in (self._removed_tasks, self._runs, self._policies):
                definitions_by_name.pop(name, None)
        self._registry = registry

    def is_program(self, task: str) -> bool:
        """Return whether the task runs in a process of its own."""
        definition = self._find(task)
        return definition is not None and definition.executable

    def encode(self, result: object) -> str | None:
        """Return a result as JSON text. Raises ValueError if it cannot be stored."""
        return None if result is None else strict_json.encode(result, what="result")

    def close(self) -> None:
        """End the threads of synchronous tasks. Idempotent."""
        self._threads.close()

    def _find(self, task: str) -> TaskDefinition | None:
        return self._registry.find(task) or self._removed_tasks.get(task) or self._built_in.find(task)

    def _policy_of(self, definition: TaskDefinition | None) -> Policy:
        if definition is None:
            return self._default
        return Policy(
            timeout=definition.timeout if definition.timeout is not None else self._default.timeout,
            backoff=definition.backoff or self._default.backoff,
            gives_up=None if definition.retry_rules is None else definition.retry_rules.final_reason,
        )

    def _prepare(self, definition: TaskDefinition) -> AttemptRunner:
        function, read = definition.function, definition.shape.read
        if definition.executable:
            return lambda attempt: function(attempt, self._new_logger(attempt.record))
        if definition.shape.by_position:
            function = _by_position(function, definition.shape.by_position)
        if definition.is_async and not definition.shape.injects:
            return lambda attempt: function(**read(attempt.claim.record.payload_text))
        arguments = self._arguments(definition)
        if definition.executor == "thread":
            return lambda attempt: self._in_thread(attempt, partial(function, **arguments(attempt)))
        if not definition.is_async:
            return lambda attempt: _on_loop(partial(function, **arguments(attempt)))
        return lambda attempt: function(**arguments(attempt))

    def _arguments(self, definition: TaskDefinition) -> Callable[[Attempt[Job]], dict[str, Any]]:
        shape = definition.shape
        is_threaded = definition.executor == "thread"
        resources = shape.injected.resources
        needs_context = shape.injected.context is not None or shape.injected.helpers is not None

        def arguments(attempt: Attempt[Job]) -> dict[str, Any]:
            values = shape.read(attempt.claim.record.payload_text)
            for name, resource in resources:
                values[name] = self._resources.value(resource)
            if needs_context:
                context = Context(attempt, self._new_logger, self._connect, self._recorder)
                if shape.injected.context is not None and shape.injected.has_sync_context:
                    loop = asyncio.get_running_loop()
                    values[shape.injected.context] = SyncContext(attempt, self._new_logger, self._recorder, loop)
                elif shape.injected.context is not None:
                    values[shape.injected.context] = context
                if shape.injected.helpers is not None:
                    helpers = Helpers(context, self._enqueue, self._registry.new_job)
                    values[shape.injected.helpers] = BlockingHelpers(helpers) if is_threaded else helpers
            return values

        return arguments

    async def _in_thread(self, attempt: Attempt[Job], call: Callable[[], object]) -> object:
        if (around := self._registry.middleware.thread) is not None:
            call = partial(_call_within, around, call)
        return await awaited(await self._threads.run_handler(attempt, call))


def _by_position(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    def call(**arguments: object) -> Any:
        return function(*[arguments.pop(name) for name in names], **arguments)

    return call


def _call_within(enter: AroundThread, call: Callable[[], object]) -> object:
    with enter():
        try:
            return call()
        except RaisableOutcome as raised:
            return from_raised(raised)


async def _on_loop(call: Callable[[], object]) -> object:
    return await awaited(call())
