"""Queues of a flow in the clothes of a queue of ours, so that the suite can be run on them.

A task is a queue of the flow, made when it is first named. What a flow's store offers is its own (``claim``,
``settle``, the heart …); a job is created here by plain commands, as a producer of another program does it. Time passes
on the real server: what is to end later ends sooner.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
import redis

from stowhand.flows.redis.address import read_address
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.store import FlowStore
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.flow_shape import FlowShape, Queue
from stowhand.protocols.queue_store import ActionResult, Answer, JobFilter, QueueStore
from stowhand.protocols.store import Claim, ClaimRequest, Heartbeats, Pulse, RefusedChange, Reply, StoreOptions
from tests.contract.backends import Image, Secrets
from tests.contract.table_backend import NotOffered
from tests.support.flow_keys import FlowKeys

RETRIES = 24
FOREIGN = ("serial", "key", "flags", "max_resets", "max_attempts")
"""What a job of a queue of ours may have and a flow's has not."""

# Beside the time that the server's clock takes itself, which is little.
PASS = """
local back = ARGV[1]
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      redis.call('ZINCRBY', key, -back, id)
    end
  elseif kind == 'hash' then
    for _, field in ipairs(redis.call('HKEYS', key)) do
      if string.sub(field, 1, 8) == 'suspect:' then
        redis.call('HINCRBY', key, field, -back)
      end
    end
  elseif kind == 'string' and redis.call('PTTL', key) > 0 then
    redis.call('PEXPIRE', key, redis.call('PTTL', key) - back)
  end
end
"""


class FlowBackend:
    """An empty database of a server as a home of jobs."""

    name = "redis"

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)
        self.tasks = ["t"]
        self.known: dict[str, Job] = {}
        """What a producer knows of the jobs that it has made."""

    def close(self) -> None:
        self.client.close()

    @property
    def shape(self) -> FlowShape:
        return FlowShape(name="f", queues=tuple(Queue(task, max_retries=RETRIES) for task in self.tasks))

    def store(self, options: StoreOptions) -> QueueStore:
        return cast("QueueStore", AdaptedStore(self, options))

    def image(self, job_id: Any) -> Image | None:
        """The hash, its lock, and where its id stands."""
        keys = FlowKeys(self.shape)
        result: Image = {}
        for task in self.tasks:
            for name in (keys.waiting(task), keys.processing(task), keys.suspects(task)):
                result[name] = self.client.lpos(name, job_id)
            result[keys.delayed(task)] = self.client.zscore(keys.delayed(task), job_id)
            result[keys.lock(task, job_id)] = self.client.get(keys.lock(task, job_id))
        return {**result, **self.client.hgetall(keys.job(job_id))}

    def refuse(self, job_id: int, *states: State) -> None:
        raise NotOffered("a server without triggers")

    def secrets(self) -> dict[int, Secrets]:
        raise NotOffered("there are no columns")

    def ticks(self, identifier: str) -> list[datetime]:
        raise NotOffered("there is no crontab")

    def passed(self, seconds: float) -> None:
        self.client.eval(PASS, 0, round(seconds * 1000))

    def milliseconds(self) -> int:
        seconds, micro = self.client.time()
        return int(seconds * 1000 + micro // 1000)

    def place_of(self, job_id: str) -> tuple[str, str, float | None]:
        """Queue, list, score."""
        keys = FlowKeys(self.shape)
        for task in self.tasks:
            for kind in ("waiting", "processing", "suspects"):
                if self.client.lpos(f"{keys.root(task)}:{kind}", job_id) is not None:
                    return task, kind, None
            score = self.client.zscore(keys.delayed(task), job_id)
            if score is not None:
                return task, "delayed", score
        return "", "", None


class AdaptedStore:
    """The stores of the flow's queues as one; a queue's is made when its task is named for the first time."""

    is_listening = False

    def __init__(self, backend: FlowBackend, given: StoreOptions) -> None:
        assert given.pinned is not None
        self._backend, self._now = backend, given.pinned
        self.jobs = self.inspect = self.admin = self
        self._made: dict[str, FlowStore] = {}

    @property
    def inner(self) -> dict[str, FlowStore]:
        """By task."""
        for task in self._backend.tasks:
            if task not in self._made:
                shape = self._backend.shape
                server = Server(read_address(self._backend.url))
                self._made[task] = FlowStore(server, shape, shape.find_queue(task))
        return self._made

    def of(self, job_id: Any) -> str:
        """The task of a job."""
        known = self._backend.known.get(job_id)
        return self._backend.tasks[0] if known is None else known.task

    async def open(self) -> None:
        for store in self.inner.values():
            await store.open()

    async def close(self) -> None:
        for store in self._made.values():
            await store.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        claims: list[Claim[Any]] = []
        for store in self.inner.values():
            if room := request.limit - len(claims):
                claims += await store.claim(msgspec.structs.replace(request, limit=room))
        return [
            Claim(one.lease, self._job(one.lease.job_id), one.task, one.attempts, one.max_attempts, None, one.resets)
            for one in claims
        ]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        replies: dict[int, Reply] = {}
        for task, store in self.inner.items():
            places = [place for place, (lease, _) in enumerate(batch) if self.of(lease.job_id) == task]
            if places:
                own = [(batch[place][0], as_step(batch[place][1])) for place in places]
                replies |= dict(zip(places, await store.settle(own, repeat=repeat), strict=True))
        return [replies[place] for place in range(len(batch))]

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        due = [await store.next_due(tasks) for store in self.inner.values()]
        return min((seconds for seconds in due if seconds is not None), default=None)

    async def wait(self, timeout: float) -> bool:
        waits = [asyncio.ensure_future(store.wait(timeout)) for store in self.inner.values()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return any(wait.done() and wait.result() for wait in waits)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def heartbeats(self) -> Heartbeats:
        return cast("Heartbeats", AdaptedHeartbeats(self))

    # -- as a producer does it -------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        return self._create(job)

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Any]:
        return [self._create(job).id for job in jobs]

    async def get(self, job_id: Any) -> Job | None:
        return self._job(job_id) if self._backend.client.exists(FlowKeys(self._backend.shape).job(job_id)) else None

    async def list(self, job_filter: JobFilter) -> Sequence[Job]:
        jobs = [self._job(job_id) for job_id in self._backend.known]
        return [job for job in jobs if job.state in (job_filter.states or tuple(State))]

    async def counts(self) -> dict[State, int]:
        states = [self._job(job_id).state for job_id in self._backend.known]
        return {state: states.count(state) for state in State}

    async def remove(self, job_id: Any) -> Answer:
        self._backend.client.delete(FlowKeys(self._backend.shape).job(job_id))
        return Answer(job_id, ActionResult.DONE)

    def __getattr__(self, name: str) -> Any:
        raise NotOffered(name)

    def _create(self, job: NewJob) -> Job:
        plain = NewJob(task=job.task)
        strange = [name for name in FOREIGN if getattr(job, name) != getattr(plain, name)]
        if strange:
            raise NotOffered(", ".join(strange))
        backend = self._backend
        if job.task not in backend.tasks:
            backend.tasks.append(job.task)
        keys = FlowKeys(backend.shape)
        job_id: Any = keys.new_id()
        due = job.run_at or self._now() + timedelta(seconds=job.delay or 0.0)
        wait = round((due - self._now()).total_seconds() * 1000)
        with backend.client.pipeline() as pipe:
            pipe.hset(keys.job(job_id), mapping={"payload": job.payload} | ({"delay": "true"} if wait > 0 else {}))
            if wait > 0:
                pipe.zadd(keys.delayed(job.task), {job_id: backend.milliseconds() + wait})
            else:
                pipe.rpush(keys.waiting(job.task), job_id)
            pipe.execute()
        backend.known[job_id] = made_job(job_id, job, due, self._now())
        return self._job(job_id)

    def _job(self, job_id: Any) -> Job:
        backend = self._backend
        values = backend.client.hgetall(FlowKeys(backend.shape).job(job_id))
        task, kind, score = backend.place_of(job_id)
        known = backend.known[job_id]
        state = state_of(kind, values)
        lock = backend.client.get(FlowKeys(backend.shape).lock(task, job_id)) if kind == "processing" else None
        began = state not in (State.QUEUED, State.ERRORED)
        return msgspec.structs.replace(
            known,
            state=state,
            run_at=known.run_at if score is None else self._moment(score),
            attempts=int(values.get(f"retries:{known.task}", 0)) + began,
            resets=int(values.get(f"resets:{known.task}", 0)),
            last_error=json.loads(values.get("failedErrorMsg", "null")),
            result_text=values.get("result"),
            worker=lock.rpartition(":")[0] if lock is not None else None,
        )

    def _moment(self, score: float) -> datetime:
        """On the harness's clock, which stands still while the server's goes on: to the second."""
        due = self._now() + timedelta(milliseconds=score - self._backend.milliseconds())
        return (due + timedelta(seconds=0.5)).replace(microsecond=0)


class AdaptedHeartbeats:
    """The hearts of the flow's queues as one, whose sweep takes its two looks at once."""

    def __init__(self, store: AdaptedStore) -> None:
        self._store, self._backend = store, store._backend
        self._made: dict[str, Heartbeats] = {}

    def inner(self) -> dict[str, Heartbeats]:
        """By task."""
        for task, store in self._store.inner.items():
            if task not in self._made:
                self._made[task] = store.heartbeats()
        return self._made

    def own(self, task: str, leases: Sequence[Lease]) -> list[Lease]:
        return [lease for lease in leases if self._store.of(lease.job_id) == task]

    async def close(self) -> None:
        for heartbeats in self._made.values():
            await heartbeats.close()

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        pulses = [await heart.beat(self.own(task, leases), lease) for task, heart in self.inner().items()]
        return Pulse(lost=frozenset(pair for pulse in pulses for pair in pulse.lost))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return [one for task, heart in self.inner().items() for one in await heart.release(self.own(task, leases))]

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        return await self.inner()[self._store.of(lease.job_id)].reset_lease(lease)

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        return [one for heart in self.inner().values() for one in await heart.reset_worker(worker)]

    async def abandon(self, token: str) -> bool:
        return all([await heart.abandon(token) for heart in self.inner().values()])

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        keys, client = FlowKeys(self._backend.shape), self._backend.client
        swept = [keys.swept(task) for task in self._backend.tasks]
        client.delete(*swept)
        result = await self._sweep(slack)
        for task in self._backend.tasks:
            for job_id in client.zrange(keys.unlocked(task), 0, -1):
                client.zincrby(keys.unlocked(task), -1000, job_id)
        client.delete(*swept)
        return [*result, *await self._sweep(slack)]

    async def _sweep(self, slack: float) -> list[ResetJob]:
        """One heart sweeps the other queues too, if it is the first to look."""
        return [one for heart in self.inner().values() for one in await heart.reset_stalled(slack)]

    def __getattr__(self, name: str) -> Any:
        """The same for every queue."""

        async def call(*args: Any) -> Any:
            return await getattr(self.inner()[self._backend.tasks[0]], name)(*args)

        return call

    def refused(self) -> Sequence[RefusedChange]:
        return ()


def as_step(settlement: Settlement) -> Settlement:
    """A result is what a step leaves behind."""
    if settlement.state is not State.COMPLETED:
        return settlement
    fields = "{}" if settlement.result is None else f'{{"result": {settlement.result}}}'
    return msgspec.structs.replace(settlement, result=f'{{"fields": {fields}}}')


def state_of(kind: str, values: dict[str, str]) -> State:
    """By the list that has it, and by what its hash says."""
    match kind:
        case "processing":
            return State.PROCESSING
        case "delayed":
            return State.QUEUED if "delay" in values else State.ERRORED
        case "waiting" | "suspects":
            return State.QUEUED
    if "canceled" in values:
        return State.CANCELED
    return State.FAILED if "failed" in values else State.COMPLETED


def made_job(job_id: Any, job: NewJob, due: datetime, now: datetime) -> Job:
    """As it was made."""
    return Job(
        id=job_id,
        task=job.task,
        payload_text=job.payload,
        state=State.QUEUED,
        serial=None,
        priority=job.priority,
        run_at=due,
        attempts=0,
        max_attempts=RETRIES + 1,
        created_at=now,
    )
