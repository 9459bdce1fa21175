"""A flow: its declaration, and the creation, inspection and execution of its jobs in Redis or on any queue store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stowhand.app.portal import Portal, SyncMethod
from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.events import Events, Settled, WorkerStarted
from stowhand.flows.engine import Engine, NewFlowJob
from stowhand.flows.job import FlowJobFailed, FlowJobView, Stage
from stowhand.flows.monitor import FlowMonitor
from stowhand.flows.new_job import Correlate, lookup_text, new_job, read_id, read_ids
from stowhand.flows.new_job import correlate as bound_or_new
from stowhand.flows.step_handler import ChildHandler, StepHandler, WorkerFunction
from stowhand.flows.worker import FlowWorker
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.task_limits import refuse_limits
from stowhand.observe.job_logger import core_logger
from stowhand.observe.listener import LogListener
from stowhand.observe.logs import configure_unless_configured
from stowhand.observe.propagation import bound_correlation_id
from stowhand.protocols.flow_shape import DEFAULT_KEY_LIFE_SECONDS, FlowQueue, FlowShape, Layout, Queue
from stowhand.protocols.handler import not_a_function_reason
from stowhand.protocols.options import DEFAULT_LEASE_SECONDS
from stowhand.protocols.queue_store import Answer, QueueStore
from stowhand.stores.kernel.results import LoopPolls, SharedPoll
from stowhand.stores.url import URL_PREFIXES

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

R = TypeVar("R")
REDIS_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
"""Schemes of Redis URLs; a kind of deployment may follow, as in ``redis+cluster``."""
URL_FORMS = "redis://, rediss://, unix:///, redis+sentinel://, redis+cluster://, postgresql://, sqlite:///"
DEFAULT_CHILDREN_LIMIT, MAX_CHILDREN_LIMIT = 1000, 10_000
LOCK_TIME_SECONDS = 180.0
WAIT_TIMEOUT_SECONDS = 3.0
GRACE_SECONDS = 25.0
MAX_SLOTS = 10_000
MIN_LEASE_SECONDS = 2.0
"""Seconds. A lease is at most as long as the lock time, but never shorter than this: a process may pause briefly."""
RESULT_SPACING_SECONDS = 200e-6
"""Seconds to wait after a poll for ended jobs, for each job in it: checking one job takes several reads."""


class Flow:
    """Jobs that pass through a series of queues.

        flow = Flow("demo", "redis://localhost", queues=[
            Queue("first", next_queue="second", attributes_to_get=["userId"]),
            Queue("second"),
        ], lookup_attributes=["userId"])

        async def greet(job: FlowJob) -> dict: return {"greeting": f"hello {job['userId']}"}

        flow.create_workers("first", greet, count=2)
        async with flow:
            await flow.create_job({"userId": 1})
            await flow.start_all()

    ``place``: ``redis://…`` (also rediss, unix, redis+sentinel, redis+cluster), ``postgresql://…``, ``sqlite:///…``,
    or a queue store. ``correlate``: returns the correlation id of a new job created without one; by default the bound
    id, else a new one. ``traces``: create spans for the creation and execution of jobs. The flow connects on first use.
    Raises ConfigurationError.
    """

    def __init__(
        self,
        name: str,
        place: str | QueueStore,
        queues: Sequence[Queue],
        lookup_attributes: Sequence[str] = (),
        *,
        layout: Layout | str = Layout.CLASSIC,
        hash_tag: str | None = None,
        key_life: Duration = DEFAULT_KEY_LIFE_SECONDS,
        correlate: Correlate | None = None,
        events: Events | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.shape = FlowShape(
            name=name,
            queues=tuple(queues) if isinstance(queues, list | tuple) else queues,
            lookup_attributes=lookup_attributes,
            layout=layout,
            hash_tag=hash_tag,
            key_life=_read("key_life", key_life),
        )
        self.events = events or Events()
        self.workers: list[FlowWorker] = []
        self.engine: Engine = _engine_at(place, self.shape)
        self.monitor = FlowMonitor(self.engine)
        self._correlate = correlate or bound_or_new
        self._polls = LoopPolls[SharedPoll[str, FlowJobView | None]]()
        self.events.on(Settled, lambda _: self._polls.ask_now())
        self.sync = FlowSync(lambda: self._twin(place))
        self._logs = events is None
        self._opened = False
        self._stop = asyncio.Event()
        self._now = False
        self.traces: Traces | None = None
        if traces is not None:
            self.trace(traces)

    @property
    def name(self) -> str:
        """The flow's name."""
        return self.shape.name

    def _twin(self, place: str | QueueStore) -> Flow:
        """Return the same flow with its own connections and without workers."""
        shape = self.shape
        return Flow(
            shape.name,
            place,
            queues=shape.queues,
            lookup_attributes=shape.lookup_attributes,
            layout=shape.layout,
            hash_tag=shape.hash_tag,
            key_life=shape.key_life,
            correlate=self._correlate,
            events=self.events,
            traces=self.traces,
        )

    def trace(self, traces: Traces) -> None:
        """Create spans for the creation and execution of jobs. Call it before the flow starts. May be repeated."""
        if self.traces is None:
            self.traces = traces
            self.engine = traces.engine(self.engine)
            traces.of(self.events)

    # -- connecting ------------------------------------------------------------------------------

    async def open(self, *, quiet: bool = False) -> None:
        """Connect and check the store. Raise StoreUnreachable or SchemaError.

        ``quiet``: do not log the store's warnings.
        """
        if not self._opened:
            if self._logs and not self.events.wants(WorkerStarted):
                configure_unless_configured()
                LogListener(self.events)
            self._logs = False  # one listener, however often the flow is opened
            # A job may open the flow: its correlation id must not be bound in tasks that outlive the job.
            with bound_correlation_id(None):
                warnings = await self.engine.open()
            for text in () if quiet else warnings:
                core_logger().warning(text)
            self._opened = True

    async def close(self) -> None:
        """Stop the workers, and close every connection. May be repeated."""
        await self.halt()
        await self._polls.close()
        self._opened = False
        await self.engine.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- jobs ------------------------------------------------------------------------------------

    async def create_job(
        self,
        attributes: Mapping[str, object] | None = None,
        *,
        priority: int = 1,
        correlation_id: str | None = None,
        delay: Duration | None = None,
        key: str | None = None,
    ) -> str:
        """Create a job in the first queue, indexed by its lookup attributes, and return its id.

        Attributes are any JSON values; null values are not stored. ``key``: if a job of the flow with this key has not
        ended, create nothing and return that job's id. Raises InvalidJob, StoreUnreachable and OutcomeUnknown.
        """
        job = self._new(attributes, priority, correlation_id, delay, key)
        await self.open()
        return await self.engine.create(job)

    async def create_jobs(
        self,
        jobs: Iterable[Mapping[str, object]],
        *,
        priority: int = 1,
        correlation_id: str | None = None,
        delay: Duration | None = None,
    ) -> list[str]:
        """Create several jobs and return their ids in order. All jobs are checked before the first is written."""
        new_jobs = [self._new(attributes, priority, correlation_id, delay) for attributes in jobs]
        await self.open()
        return list(await self.engine.create_many(new_jobs)) if new_jobs else []

    def _new(
        self,
        attributes: Mapping[str, object] | None,
        priority: int,
        correlation_id: str | None,
        delay: Duration | None,
        key: str | None = None,
    ) -> NewFlowJob:
        known = self._correlate() if correlation_id is None else correlation_id
        return new_job(self.shape, attributes, priority=priority, correlation_id=known, delay=delay, key=key)

    async def delete_job(self, job_id: str) -> bool:
        """Delete a job, its children and its lookups. Return ``False`` if it does not exist.

        A running job is not interrupted. A child cannot be deleted without its parent, which would treat the missing
        result as a failure.
        """
        await self.open()
        return await self.engine.delete(read_id(job_id))

    async def get_jobs(self, job_ids: Sequence[str], *, resolve_children: bool = False) -> list[dict[str, Any] | None]:
        """Return all attributes of each job, in the order of ``job_ids``; ``None`` for a job that does not exist."""
        ids = read_ids(job_ids)
        await self.open()
        return list(await self.engine.read(ids, resolve_children=resolve_children)) if ids else []

    async def get_job(self, job_id: str) -> FlowJobView | None:
        """Return a job's state, queue, times and failure; ``None`` if it does not exist."""
        await self.open()
        (view,) = await self.engine.views([read_id(job_id)])
        return view

    async def result(self, job_id: str, timeout: Duration | None = None) -> dict[str, Any]:
        """Wait until the job has ended, and return all its attributes.

        One poll of the store serves all waiting callers. The interval is a tenth of the time that a caller has waited,
        from 10 ms to 500 ms. A settlement in this process, or a commit on SQLite, starts a poll at once.

        Raises FlowJobFailed if the job has failed, was canceled or does not exist, and TimeoutError after ``timeout``.
        """
        name = read_id(job_id)
        async with asyncio.timeout(None if timeout is None else seconds(timeout)):
            await self.open()
            job = await self._polls.here(self._poll).answer(name)
        if job is None:
            raise FlowJobFailed(f"there is no job {job_id}, or it is not kept any more", None)
        if job.state is Stage.COMPLETED:
            return dict(job.attributes)
        raise FlowJobFailed(f"job {job_id} {job.state} in {job.queue}: {job.failure}", job)

    def _poll(self) -> SharedPoll[str, FlowJobView | None]:
        return SharedPoll(
            self._ended, SystemClock(), spacing=RESULT_SPACING_SECONDS, wait_for_commit=self.engine.wait_for_commit
        )

    async def _ended(self, job_ids: Sequence[str]) -> dict[str, FlowJobView | None]:
        """Return those of the jobs that have ended or do not exist."""
        views = zip(job_ids, await self.engine.views(job_ids), strict=True)
        return {job_id: view for job_id, view in views if view is None or view.state.has_ended}

    async def get_children(
        self, job_id: str, queue: str, *, start: int = 0, limit: int = DEFAULT_CHILDREN_LIMIT
    ) -> list[dict[str, Any]]:
        """Return a page of the attributes of a parent's children in the order of creation; empty after the last one."""
        if not self.shape.find_queue(queue).is_parent:
            raise ConfigurationError(f"queue {queue!r} has no children")
        if type(start) is not int or type(limit) is not int or start < 0 or not 1 <= limit <= MAX_CHILDREN_LIMIT:
            raise ConfigurationError(f"use a start from 0, and a limit of 1 to {MAX_CHILDREN_LIMIT}")
        await self.open()
        return list(await self.engine.children(read_id(job_id), queue, start, limit))

    async def get_jobs_by_key(self, key: str, value: object, resolve_children: bool = False) -> list[dict[str, Any]]:
        """Return the jobs with that value of a lookup attribute (a text or a number), oldest first."""
        if key not in self.shape.lookup_attributes:
            known = ", ".join(self.shape.lookup_attributes) or "none"
            raise ConfigurationError(f"flow {self.name!r}: {key!r} is not a lookup attribute; it has: {known}")
        text = lookup_text(key, value)
        await self.open()
        jobs = await self.engine.read(await self.engine.ids(key, text), resolve_children=resolve_children)
        return [job for job in jobs if job is not None]

    async def retry_jobs(self, job_ids: Sequence[str]) -> list[Answer]:
        """Put failed jobs back into the queue in which they failed, with all their retries."""
        ids = read_ids(job_ids)
        await self.open()
        return list(await self.engine.retry(ids))

    async def cancel_job(self, job_id: str) -> Answer:
        """Cancel a waiting job at once. Request a running job to stop; it does not go on to another queue.

        A job that meanwhile completes its last queue, or fails, is recorded as such. Children are not canceled with
        their parent.
        """
        await self.open()
        return await self.engine.cancel(read_id(job_id))

    async def pause(self, queue: str) -> bool:
        """Stop all processes from claiming jobs of a queue until ``resume``. Return ``False`` if it was paused already.

        Running jobs continue, and new jobs are accepted. Raises ConfigurationError for an unknown queue.
        """
        flow_queue = self.shape.find_queue(queue)
        await self.open()
        return await self.engine.pause(flow_queue)

    async def resume(self, queue: str) -> bool:
        """Allow all processes to claim jobs of a queue again. Return ``False`` if it was not paused."""
        flow_queue = self.shape.find_queue(queue)
        await self.open()
        return await self.engine.resume(flow_queue)

    # -- workers ---------------------------------------------------------------------------------

    def create_workers(
        self,
        queue: str,
        function: WorkerFunction,
        count: int = 1,
        lock_time: Duration = LOCK_TIME_SECONDS,
        wait_timeout: Duration = WAIT_TIMEOUT_SECONDS,
        *,
        grace: Duration = GRACE_SECONDS,
        lease: Duration = DEFAULT_LEASE_SECONDS,
    ) -> FlowWorker:
        """Create a worker with ``count`` slots for a queue; ``start_all`` or its own ``start`` starts it.

        ``function(job)``, asynchronous or not, returns nothing or a dict of the attributes to keep, in which
        ``next_queue`` selects the next queue. ``lock_time``: maximum seconds of one execution. ``wait_timeout``:
        seconds for which an idle worker blocks before it claims again. ``grace``: seconds that running jobs have to end
        when the worker stops. ``lease``: seconds after which the jobs of a worker without a heartbeat are reset; at
        most the ``lock_time``, and at least 2 s.
        """
        flow_queue = self.shape.find_queue(queue)
        if flow_queue.is_parent:
            raise ConfigurationError(
                f"queue {queue!r} is a parent: use create_parent_workers, and create_child_workers"
            )
        refuse_limits(function, f"workers of {queue!r}")
        if not callable(function):
            raise ConfigurationError(f"workers of {queue!r}: got {function!r}; use a function of (job)")
        if (problem := not_a_function_reason(function)) is not None:
            raise ConfigurationError(f"workers of {queue!r}: {problem}")
        kind = ChildHandler if flow_queue.parent is not None and self.engine.handles_child_end else StepHandler
        lock = _positive("lock_time", lock_time)
        make_handler = partial(kind, self.engine, flow_queue, function, lock)
        return self._add(flow_queue, make_handler, count, lock, wait_timeout, grace, lease)

    def create_parent_workers(
        self,
        queue: str,
        count: int = 1,
        lock_time: Duration = LOCK_TIME_SECONDS,
        wait_timeout: Duration = WAIT_TIMEOUT_SECONDS,
        *,
        grace: Duration = GRACE_SECONDS,
        lease: Duration = DEFAULT_LEASE_SECONDS,
    ) -> FlowWorker:
        """Create a worker for a parent's queue, which fans out and gathers. A waiting parent occupies no slot."""
        flow_queue = self.shape.find_queue(queue)
        if not flow_queue.is_parent:
            raise ConfigurationError(f"queue {queue!r} has no children; use create_workers")
        make_handler = partial(StepHandler, self.engine, flow_queue)
        lock = _positive("lock_time", lock_time)
        return self._add(flow_queue, make_handler, count, lock, wait_timeout, grace, lease)

    def create_child_workers(
        self,
        parent: str,
        child: str,
        function: WorkerFunction,
        count: int = 1,
        lock_time: Duration = LOCK_TIME_SECONDS,
        wait_timeout: Duration = WAIT_TIMEOUT_SECONDS,
        *,
        grace: Duration = GRACE_SECONDS,
        lease: Duration = DEFAULT_LEASE_SECONDS,
    ) -> FlowWorker:
        """Create a worker for a child's queue; otherwise as ``create_workers``."""
        return self.create_workers(
            f"{parent}:{child}", function, count, lock_time, wait_timeout, grace=grace, lease=lease
        )

    def _add(
        self,
        queue: FlowQueue,
        make_handler: Callable[[], StepHandler],
        count: object,
        lock_time: float,
        wait_timeout: Duration,
        grace: Duration,
        lease: Duration,
    ) -> FlowWorker:
        if type(count) is not int or not 1 <= count <= MAX_SLOTS:
            raise ConfigurationError(f"workers of {queue.name!r}: count: got {count!r}; use 1 to {MAX_SLOTS}")
        worker = FlowWorker(
            self.engine,
            queue,
            make_handler,
            count=count,
            lock_time=lock_time,
            wait_timeout=_positive("wait_timeout", wait_timeout),
            grace=_read("grace", grace),
            lease=min(_positive("lease", lease), max(lock_time, MIN_LEASE_SECONDS)),
            events=self.events,
        )
        self.workers.append(worker)
        return worker

    @property
    def grace(self) -> float:
        """Seconds that running jobs have to end when all workers stop: the longest grace of a worker."""
        return max((worker.grace for worker in self.workers), default=GRACE_SECONDS)

    async def start_all(self) -> None:
        """Connect, and start every worker. Raise ConfigurationError if a queue belongs to another flow."""
        await self.open()
        with suppress(StoreError):  # every worker takes its queue too, and waits until an outage ends
            await self.engine.claim_queues()
        for worker in self.workers:
            worker.start()

    async def stop_all(self, *, now: bool = False) -> None:
        """Stop every worker, wait for them, and disconnect. They may be started again."""
        await self.halt(now=now)
        await self.close()

    async def halt(self, *, now: bool = False) -> None:
        """Stop every worker, and wait for them."""
        for worker in self.workers:
            worker.request_stop(now=now)
        await asyncio.gather(*(worker.ended() for worker in self.workers))

    def quiet(self, *, on: bool) -> None:
        """Pause claiming in this process, or resume it. Running jobs continue."""
        for worker in self.workers:
            worker.quiet(on=on)

    async def run(self) -> None:
        """Start all workers, and run them until ``stop``. ``run_all(flow)`` calls this, and ``stop`` at a signal.

        Raises the error that ended a worker.
        """
        self._stop.clear()
        await self.start_all()
        stopping = asyncio.ensure_future(self._stop.wait())
        ends = [asyncio.ensure_future(worker.ended()) for worker in self.workers]
        try:
            await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, *ends):
                task.cancel()
            await self.stop_all(now=self._now)
        for worker in self.workers:
            if worker.error is not None:
                raise worker.error

    def stop(self, *, now: bool = False) -> None:
        """Stop ``run``. ``now``: return running jobs to the queue instead of waiting for them."""
        self._now = self._now or now
        self._stop.set()
        for worker in self.workers:
            worker.request_stop(now=now)


class FlowSync:
    """Synchronous flow (``flow.sync``) for scripts, Django views and tests.

    One thread with its own connections serves all callers.
    """

    opened = "flow"

    def __init__(self, make: Callable[[], Flow]) -> None:
        self._make = make
        self._flow: Flow | None = None
        self._portal = Portal(self._close_flow)

    async def _close_flow(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            await flow.close()

    def wait_for(self, ask: Callable[[Flow], Awaitable[R]], instead: str) -> R:
        """Return or raise what ``ask`` does. Raise Misuse in a running event loop, which must await ``instead``."""

        async def call() -> R:
            if self._flow is None:
                self._flow = self._make()
            return await ask(self._flow)

        return self._portal.run(call, instead)

    def close(self) -> None:
        """Close the connections. May be repeated; the end of the program closes them too."""
        self._portal.close()

    create_job = SyncMethod(Flow.create_job)
    create_jobs = SyncMethod(Flow.create_jobs)
    delete_job = SyncMethod(Flow.delete_job)
    get_job = SyncMethod(Flow.get_job)
    get_jobs = SyncMethod(Flow.get_jobs)
    get_children = SyncMethod(Flow.get_children)
    get_jobs_by_key = SyncMethod(Flow.get_jobs_by_key)
    retry_jobs = SyncMethod(Flow.retry_jobs)
    cancel_job = SyncMethod(Flow.cancel_job)
    result = SyncMethod(Flow.result)
    pause = SyncMethod(Flow.pause)
    resume = SyncMethod(Flow.resume)


def _engine_at(place: str | QueueStore, shape: FlowShape) -> Engine:
    """Return the engine for a URL or a store, not connected yet. Raise ConfigurationError."""
    if isinstance(place, str) and place.partition(":")[0].partition("+")[0] in REDIS_SCHEMES:
        try:
            from stowhand.flows.redis import RedisEngine
        except ImportError as error:
            raise ConfigurationError(f"Redis needs a driver: pip install 'stowhand[redis]' ({error})") from error
        return RedisEngine(place, shape)
    if isinstance(place, str) and not place.startswith(URL_PREFIXES):
        scheme = place.partition(":")[0]
        raise ConfigurationError(
            f"flow {shape.name!r}: no place at {scheme!r}; its URL begins with one of: {URL_FORMS}"
        )
    from stowhand.flows.queue import QueueEngine

    return QueueEngine(place, shape)


def _positive(field: str, duration: Duration) -> float:
    value = _read(field, duration)
    if not 0 < value <= DEFAULT_KEY_LIFE_SECONDS:
        raise ConfigurationError(f"{field}: got {duration!r}; use more than 0 s and at most a day")
    return value


def _read(field: str, value: Duration) -> float:
    try:
        return seconds(value)
    except ValueError as error:
        raise ConfigurationError(f"{field}: {error}") from None
