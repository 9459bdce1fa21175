"""The scenarios: small programs whose every call to the store is a kill point, and the rules of each."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import psycopg

from stowhand import Cancel, Context, Retry, Snooze
from stowhand.app.app import App
from stowhand.cron.crontab import parse_crontab
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import OutcomeUnknown, StoreUnreachable
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue
from stowhand.handler import Attempt
from stowhand.jobs.job import Job, NewJob, State
from stowhand.limits import Concurrency, Rate, RateLimited
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.retry import constant
from stowhand.table import TableOptions, TableStore
from stowhand.tasks.task import ContextTask
from stowhand.worker.worker import Worker
from tests.kill_points.points import ENGINES, Engine
from tests.kill_points.world import World
from tests.support.history import Transition
from tests.support.jobs_table import jobs_table

T = TypeVar("T")
Number = ContextTask[[int], int, Any]


class Result(msgspec.Struct, frozen=True):
    """How a run has ended, after the recovery."""

    world: World
    jobs: Sequence[Job]
    transitions: Sequence[Transition]

    @property
    def numbers(self) -> list[int]:
        """The arguments of the jobs, in their order."""
        return [job.payload["number"] for job in self.jobs]


class Scenario:
    """A scenario. ``run`` is executed in a process of its own, and everything else outside of it."""

    engines: tuple[Engine, ...] = ENGINES
    concurrency = 2
    limits: Sequence[Concurrency | Rate] | None = None
    """Limits of the task."""

    @asynccontextmanager
    async def app(self, world: World) -> AsyncIterator[tuple[App, Number]]:
        """Return an open app with one task, which notes its ends."""
        app = App(store=world.store())

        @app.task(name="step", backoff=constant(0), limits=self.limits)
        async def step(context: Context, number: int, customer: str = "") -> int:
            await self.handle(world, context, number)
            world.note_end(context.lease, number)
            return number

        async with app:
            yield app, step

    async def handle(self, world: World, context: Context, number: int) -> None:
        """Do the work of a job."""

    async def prepare(self, world: World) -> None:
        """Do what precedes the calls."""

    async def run(self, world: World) -> None:
        """Make the calls."""
        async with self.app(world) as (app, _):
            await world.work(app, concurrency=self.concurrency)

    async def recover(self, world: World) -> None:
        """Do what a new process does after the fault."""
        async with self.app(world) as (app, _):
            await world.recover(app)

    def check(self, result: Result) -> Iterator[str]:
        """Yield what is wrong."""
        yield from all_completed(result)


async def prepared(world: World, count: int, serials: Sequence[str | None] = (None,)) -> None:
    """Enqueue jobs, numbered from 1, whose serial keys take turns."""
    async with world.opened() as store:
        await store.jobs.enqueue_many(
            NewJob(task="step", payload=f'{{"number":{number}}}', serial=serials[number % len(serials)])
            for number in range(1, count + 1)
        )


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again until its outcome is known."""
    async with asyncio.timeout(20):
        while True:
            with suppress(StoreUnreachable, OutcomeUnknown):
                return await call()
            await asyncio.sleep(0.05)


def all_completed(result: Result) -> Iterator[str]:
    """Each job has completed in its first attempt, and its handler has ended once under the lease that settled it."""
    for job in result.jobs:
        if (job.state, job.attempts) != (State.COMPLETED, 1):
            yield f"job {job.id} is {job.state} after {job.attempts} attempts"
    yield from ends_once(result)


def ends_once(result: Result, *tasks: str) -> Iterator[str]:
    """Each completed job, of these tasks or of all, has ended once under the lease that settled it."""
    task_of = {job.id: job.task for job in result.jobs}
    ends = Counter((int(job), token) for job, token, *_ in result.world.notes("ended"))
    for one in result.transitions:
        if one.after is None or one.after.state is not State.COMPLETED:
            continue
        if not tasks or task_of[one.job] in tasks:
            count = ends[one.job, str(one.after.settled_token)]
            if count != 1:
                yield f"job {one.job}: its handler has ended {count} times under the lease that settled it"


class Enqueue(Scenario):
    """One job, three in one call, and one in a transaction of the caller."""

    async def prepare(self, world: World) -> None:
        world.ask("create table if not exists effects (number bigint not null)")

    async def run(self, world: World) -> None:
        async with self.app(world) as (app, step):
            await world.acknowledged(1, step.enqueue(1))
            await world.acknowledged(2, app.enqueue_many([step.new_job(number) for number in (2, 3, 4)]))
            await world.acknowledged(5, self._enqueue_in(world, step))

    async def _enqueue_in(self, world: World, step: Number) -> Any:
        if world.is_sqlite:
            with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"), isolation_level=None)) as file:
                file.execute("BEGIN IMMEDIATE")
                file.execute("insert into effects values (5)")
                job = step.enqueue_in(file, 5)
                try:
                    file.execute("COMMIT")
                except sqlite3.OperationalError as error:
                    raise StoreUnreachable(str(error)) from error
                return job
        try:
            async with await psycopg.AsyncConnection.connect(world.url) as connection:
                await connection.execute("insert into effects values (5)")
                return await step.enqueue_in(connection, 5)
        except psycopg.OperationalError as error:
            raise StoreUnreachable(str(error)) from error

    def check(self, result: Result) -> Iterator[str]:
        yield from all_completed(result)
        found = Counter(result.numbers)
        if max(found.values(), default=0) > 1:
            yield f"a job was enqueued twice: {found}"
        if len({found[number] for number in (2, 3, 4)}) > 1:
            yield f"a call has enqueued some of its jobs: {found}"
        effects = len(result.world.ask("select number from effects"))
        if effects != found[5]:
            yield f"{effects} effects of the transaction that enqueued {found[5]} jobs"
        ids = {job.id for job in result.jobs}
        for number, *acknowledged in result.world.notes("enqueued"):
            if not set(map(int, acknowledged)) <= ids:
                yield f"job {number} was confirmed and is lost"


class Claim(Scenario):
    """A worker claims a few plain jobs and completes them."""

    async def prepare(self, world: World) -> None:
        await prepared(world, 5)


class Settle(Scenario):
    """One job of each outcome."""

    EXPECTED = (
        (State.COMPLETED, 1),
        (State.COMPLETED, 2),
        (State.FAILED, 1),
        (State.COMPLETED, 1),
        (State.CANCELED, 1),
    )

    async def prepare(self, world: World) -> None:
        async with world.opened() as store:
            report = NewJob(task="report")
            await store.jobs.enqueue_many(
                NewJob(
                    task="step",
                    payload=f'{{"number":{number}}}',
                    max_attempts=1 if number == 3 else 3,
                    max_resets=9,
                    on_failure=report if number == 3 else None,
                )
                for number in range(1, 6)
            )

    @asynccontextmanager
    async def app(self, world: World) -> AsyncIterator[tuple[App, Number]]:
        async with super().app(world) as (app, step):

            @app.task(name="report")
            async def report(context: Context, payload: Any) -> None:
                world.note_end(context.lease)

            yield app, step

    async def handle(self, world: World, context: Context, number: int) -> None:
        match number:
            case 2 if context.attempt == 1:
                raise Retry("the first attempt fails")
            case 3:
                raise ValueError("it always fails")
            case 4 if not world.notes("snoozed"):
                world.note("snoozed")
                raise Snooze(0)
            case 5:
                raise Cancel("it cancels itself")

    def check(self, result: Result) -> Iterator[str]:
        steps = {job.payload["number"]: job for job in result.jobs if job.task == "step"}
        ends = tuple((steps[number].state, steps[number].attempts) for number in sorted(steps))
        if ends != self.EXPECTED:
            yield f"the jobs have ended as {ends}"
        reports = [job.state for job in result.jobs if job.task == "report"]
        if reports != [State.COMPLETED]:
            yield f"the failure was reported by {reports}"
        yield from ends_once(result)


class SerialKey(Scenario):
    """Jobs of two serial keys."""

    concurrency = 3

    async def prepare(self, world: World) -> None:
        await prepared(world, 6, serials=("a", "b"))

    def check(self, result: Result) -> Iterator[str]:
        yield from all_completed(result)
        order: dict[str, list[int]] = defaultdict(list)
        for one in result.transitions:
            if one.after is not None and one.after.state is State.COMPLETED:
                order[str(one.after.serial)].append(one.job)
        for name, ids in order.items():
            if ids != sorted(ids):
                yield f"serial key {name}: completed in the order {ids}"


class Limit(Scenario):
    """Jobs of a task that limits how many run at once, and how many start in a period."""

    concurrency = 4
    limits = (Concurrency(2), Rate(2, per=1.0, burst=4))

    async def prepare(self, world: World) -> None:
        await prepared(world, 5)


class KeyLimit(Scenario):
    """Jobs of three customers, one of which has more than may run. The first one raises RateLimited once."""

    concurrency = 4
    limits = (Concurrency(3), Concurrency(2, key="customer"), Rate(20, per=1.0, burst=4, key="customer"))
    CUSTOMERS = ("full", "full", "a", "full", "full", "b", "full")

    async def prepare(self, world: World) -> None:
        async with world.opened() as store:
            await store.jobs.enqueue_many(
                NewJob(task="step", payload=f'{{"number":{number},"customer":"{customer}"}}', max_resets=9)
                for number, customer in enumerate(self.CUSTOMERS, 1)
            )

    async def handle(self, world: World, context: Context, number: int) -> None:
        if number == 1 and not world.notes("refused"):
            world.note("refused")
            raise RateLimited(for_=0.1)

    def check(self, result: Result) -> Iterator[str]:
        yield from all_completed(result)
        if len(result.jobs) != len(self.CUSTOMERS):
            yield f"{len(result.jobs)} jobs are left"


class KeyedEnqueue(Scenario):
    """A key is enqueued, replaced and found; after its job has run, it is enqueued again.

    A call whose outcome is not known is repeated.
    """

    async def run(self, world: World) -> None:
        async with self.app(world) as (app, step):
            for number, mode in ((1, "replace"), (2, "replace"), (3, "unique")):
                await self._enqueue(world, step, number, mode)
            await world.work(app)
            await self._enqueue(world, step, 4, "unique")
            await world.work(app)

    async def _enqueue(self, world: World, step: Number, number: int, mode: Any) -> None:
        handle = await repeated(lambda: step.options(key="k", key_mode=mode).enqueue(number))
        world.note("enqueued", number, handle.id)

    def check(self, result: Result) -> Iterator[str]:
        yield from all_completed(result)
        ids = {int(number): int(job) for number, job in result.world.notes("enqueued")}
        by_id = dict(zip([job.id for job in result.jobs], result.numbers, strict=True))
        if not set(ids.values()) <= by_id.keys():
            yield f"confirmed: {ids}, found: {by_id}"
        if len({ids[number] for number in (1, 2, 3) if number in ids}) > 1:
            yield f"the key had several jobs: {ids}"
        if 2 in ids and by_id.get(ids[2]) != 2:
            yield f"the job was not replaced: {by_id}"
        if len(by_id) != (2 if 4 in ids else len(by_id)) or max(Counter(result.numbers).values(), default=0) > 1:
            yield f"too many jobs: {by_id}"


class Cron(Scenario):
    """A scheduler enters the ticks of five minutes, as two schedulers of one crontab do one after the other."""

    CRONTAB = "* * * * * tick ?fill=1h"
    BEGIN = datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)
    END = BEGIN + timedelta(minutes=5)

    async def prepare(self, world: World) -> None:
        await self._schedule(world, self.BEGIN)

    async def run(self, world: World) -> None:
        await self._schedule(world, self.END)

    async def recover(self, world: World) -> None:
        # The second scheduler reads the same clock.
        await self._schedule(msgspec.structs.replace(world, is_recovery=False), self.END)

    async def _schedule(self, world: World, at: datetime) -> None:
        async with msgspec.structs.replace(world, clock=at).opened() as store:
            await repeated(lambda: Scheduler(store, parse_crontab(self.CRONTAB), Events()).run_once())

    def check(self, result: Result) -> Iterator[str]:
        ticks = sorted(job.payload["_cron"]["ts"] for job in result.jobs)
        expected = [f"2030-01-01T00:0{minute}:00.000Z" for minute in range(6)]
        if ticks != expected:
            yield f"the ticks with jobs are {ticks}"


class TransactionalHandler(Scenario):
    """Handlers in the transaction of their record, in a table of the user. SQLite has none."""

    engines = ("postgres",)
    OPTIONS: TableOptions[dict[str, Any]] = TableOptions(
        name="kill_points", table_name="records", transactional=True, max_num_retries=9, retry_after=0.01, max_resets=9
    )

    async def prepare(self, world: World) -> None:
        world.ask("create table if not exists effects (number bigint not null)")
        if not world.ask("select from pg_class where relname = 'records'"):
            world.ask(jobs_table("records"))
        world.ask("insert into records (state) select 'queued' from generate_series(1, 3)")

    async def run(self, world: World) -> None:
        async def handle(ctx: Attempt[Any], record: dict[str, Any]) -> None:
            await ctx.connection.execute("insert into effects values (%s)", (record["id"],))

        async with TableStore(world.url, self.OPTIONS) as store:
            options = WorkerOptions(concurrency=2, once=True, poll_interval=0.05)
            await Worker(store, handle, options, events=Events()).run()

    async def recover(self, world: World) -> None:
        async with asyncio.timeout(60):
            while world.ask("select from records where state not in ('completed', 'failed')"):
                # Make every lease of the lost worker look old.
                world.ask(
                    "update records set last_heartbeat_at = last_heartbeat_at - interval '1 day'"
                    " where state = 'processing'"
                )
                async with TableStore(world.url, self.OPTIONS) as store:
                    heartbeats = store.heartbeats()
                    while await heartbeats.reset_stalled(0):
                        pass
                    await heartbeats.close()
                await self.run(world)

    def check(self, result: Result) -> Iterator[str]:
        # A handler whose connection is cut fails, so a record may have a failure.
        records = result.world.ask("select id, state from records order by id")
        if records != [(number, "completed") for number in (1, 2, 3)]:
            yield f"the records are {records}"
        effects = result.world.ask("select number from effects order by number")
        if effects != [(1,), (2,), (3,)]:
            yield f"the effects are {effects}"


class FlowWithChildren(Scenario):
    """A parent fans out into three children, gathers their results, and goes on to the next queue."""

    async def run(self, world: World) -> None:
        params = [{"childName": "kid", "n": n} for n in range(3)]
        async with world.opened() as store, self._flow(world, store) as flow:
            job = await repeated(lambda: flow.create_job({"children:parent:params": params}, key="k"))
            await flow.start_all()
            await flow.result(job, timeout=20)

    async def recover(self, world: World) -> None:
        async with world.opened() as store, self._flow(world, store) as flow, asyncio.timeout(60):
            heartbeats = store.heartbeats()
            await flow.start_all()
            while await world.unended(store):
                await heartbeats.reset_stalled(0)
                await asyncio.sleep(0.02)
            await heartbeats.close()

    def _flow(self, world: World, store: QueueStore) -> Flow:
        kids = (Queue("kid", max_resets=9),)
        queues = [Queue("parent", next_queue="after", children=kids, max_resets=9), Queue("after", max_resets=9)]
        flow = Flow("kp", store, queues=queues, events=Events())

        async def end(job: FlowJob) -> dict[str, Any]:
            world.note_end(job.ctx.lease, job.queue)
            return {"seen": job.queue}

        flow.create_parent_workers("parent", wait_timeout=0.2)
        flow.create_child_workers("parent", "kid", end, count=2, wait_timeout=0.2)
        flow.create_workers("after", end, wait_timeout=0.2)
        return flow

    def check(self, result: Result) -> Iterator[str]:
        steps = {
            task: [job.state for job in result.jobs if job.task == task] for task in {job.task for job in result.jobs}
        }
        # The parent has two steps: it creates its children, and goes on with their results.
        expected = {"kp/parent": 2, "kp/parent:kid": 3, "kp/after": 1}
        if steps and steps != {task: [State.COMPLETED] * count for task, count in expected.items()}:
            yield f"the steps are {steps}"
        yield from ends_once(result, "kp/parent:kid", "kp/after")


class HandBack(Scenario):
    """A worker that stops at once returns its running jobs to the queue, without using their attempts."""

    async def prepare(self, world: World) -> None:
        await prepared(world, 4)

    async def run(self, world: World) -> None:
        async with self.app(world) as (app, _):
            worker = app.worker(concurrency=2, grace=0, poll_interval=0.05, events=Events())
            self._running = asyncio.Semaphore(0)
            working = asyncio.create_task(worker.run())
            async with asyncio.timeout(20):
                for _ in range(2):
                    await self._running.acquire()
            worker.stop(now=True)
            await working

    async def handle(self, world: World, context: Context, number: int) -> None:
        if not world.is_recovery:
            self._running.release()
            await asyncio.Event().wait()


SCENARIOS: dict[str, Scenario] = {
    "enqueue": Enqueue(),
    "claim": Claim(),
    "settle": Settle(),
    "serial-key": SerialKey(),
    "limit": Limit(),
    "key-limit": KeyLimit(),
    "keyed-enqueue": KeyedEnqueue(),
    "cron": Cron(),
    "transactional-handler": TransactionalHandler(),
    "flow": FlowWithChildren(),
    "hand-back": HandBack(),
}
