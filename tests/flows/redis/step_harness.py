"""A harness for tests of a flow's queues in Redis: a real server, a store for each queue, and blocking calls."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from stowhand.flows.redis.address import read_address
from stowhand.flows.redis.heartbeats import RedisHeartbeats
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.settlements import NewChild, StepResult, encode_end
from stowhand.flows.redis.store import FlowRecord, FlowStore
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import AttemptOutcome, Cancel, Fail, Outcome, Retry, Settlement, Snooze, settle
from stowhand.protocols.flow_shape import FlowShape, Layout, Limiter, Queue
from stowhand.protocols.store import Claim, ClaimRequest, Pulse, Reply, Verdict
from tests.support.flow_keys import FlowKeys

T = TypeVar("T")
LEASE = 30.0
WINDOW = max(range(60_000, 86_401, 600), key=lambda seconds: seconds - time.time() % seconds)
"""Window of a limiter in seconds. Windows begin by the clock, and the next one must be far away."""
VARIANTS: dict[str, dict[str, Any]] = {
    "classic": {},
    "priority": {"layout": Layout.PRIORITY},
    "tagged": {"layout": Layout.PRIORITY, "hash_tag": "demo"},
}


def shape_of(variant: str) -> FlowShape:
    """Return a flow with a queue of every kind."""
    ranks = 1 if variant == "classic" else 3
    return FlowShape(
        name="demo",
        queues=(
            Queue("first", next_queue="second", attributes_to_get=("userId", "n"), max_retries=2, priorities=ranks),
            Queue("second", max_retries=2, priorities=ranks),
            Queue("once"),
            Queue("limited", limiter=Limiter(reservoir=3, interval=float(WINDOW), group_by="group")),
            Queue("parent", next_queue="second", max_retries=1, children=(Queue("kid", max_retries=1), Queue("other"))),
        ),
        **VARIANTS[variant],
    )


IGNORED_FIELDS = ("flowName", "priority", "correlationId", "endedAtTimestamp", "flow:state", "flow:passed")


class BlockingHeartbeats:
    """Heartbeats whose calls run on the harness's loop."""

    def __init__(self, harness: Harness, heartbeats: RedisHeartbeats) -> None:
        self._harness, self._heartbeats = harness, heartbeats

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        return self._harness.run(self._heartbeats.beat(leases, lease))

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return self._harness.run(self._heartbeats.release(leases))

    def abandon(self, token: str) -> bool:
        return self._harness.run(self._heartbeats.abandon(token))

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        return self._harness.run(self._heartbeats.reset_stalled(slack))

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        return self._harness.run(self._heartbeats.reset_worker(worker))

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        return self._harness.run(self._heartbeats.reset_lease(lease))


class Harness:
    """Harness with blocking calls, which run on a loop of its own."""

    def __init__(self, url: str, client: Any, variant: str = "classic") -> None:
        self.url, self.client, self.variant = url, client, variant
        self.shape = shape_of(variant)
        self.keys = FlowKeys(self.shape)
        self._runner = asyncio.Runner()
        self._stores: dict[str, FlowStore] = {}
        self._hearts: list[RedisHeartbeats] = []
        self._served: dict[str, BlockingHeartbeats] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, 20))

    def close(self) -> None:
        for heartbeats in self._hearts:
            self.run(heartbeats.close())
        for store in self._stores.values():
            self.run(store.close())
        self._runner.close()

    def new_store(self, queue: str, *, url: str = "", **options: Any) -> FlowStore:
        """Return another store of the queue, which the harness closes. It connects at its first use."""
        server = Server(read_address(url or self.url))
        store = FlowStore(server, self.shape, self.shape.find_queue(queue), **options)
        self._stores[str(uuid.uuid4())] = store
        return store

    def store(self, queue: str = "first") -> FlowStore:
        if queue not in self._stores:
            self._stores[queue] = self.new_store(queue)
        return self._stores[queue]

    def heartbeats(self, queue: str = "first") -> BlockingHeartbeats:
        if queue not in self._served:
            self._served[queue] = self.heartbeats_of(self.store(queue))
        return self._served[queue]

    def heartbeats_of(self, store: FlowStore) -> BlockingHeartbeats:
        """Return heartbeats of the store, which the harness closes."""
        self._hearts.append(store.heartbeats())
        return BlockingHeartbeats(self, self._hearts[-1])

    # -- jobs ------------------------------------------------------------------------------------

    def add(
        self,
        queue: str = "first",
        *,
        priority: int = 1,
        push: bool = True,
        values: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Add a job as a producer does: its hash, and its id at the end of the list. Return the id."""
        job_id = self.keys.new_id()
        fields = {"flowName": "demo", "priority": priority, "correlationId": "c-1"} | more | (values or {})
        self.client.hset(self.hash(queue, job_id), mapping={name: json.dumps(value) for name, value in fields.items()})
        if push:
            self.client.rpush(self.keys.waiting(queue, priority), job_id)
        return job_id

    def add_many(self, number: int, queue: str = "first", **values: Any) -> list[str]:
        """Add several jobs in one round trip."""
        ids = [self.keys.new_id() for _ in range(number)]
        with self.client.pipeline() as pipe:
            for job_id in ids:
                pipe.hset(
                    self.hash(queue, job_id), mapping={name: json.dumps(v) for name, v in ({"n": 1} | values).items()}
                )
            pipe.rpush(self.keys.waiting(queue), *ids)
            pipe.execute()
        return ids

    def hash(self, queue: str, job_id: str) -> str:
        return f"{self.keys.hashes(self.shape.find_queue(queue))}{job_id}"

    def values(self, job_id: str, queue: str = "first") -> dict[str, Any]:
        """Return the decoded hash without the fields that ``add`` and the scripts write."""
        fields = {name: json.loads(text) for name, text in self.client.hgetall(self.hash(queue, job_id)).items()}
        return {name: value for name, value in fields.items() if name not in IGNORED_FIELDS}

    def ids(self, queue: str = "first", kind: str = "waiting", priority: int = 1) -> list[str]:
        """Return the ids in a list or sorted set of a queue."""
        name = getattr(self.keys, kind)(queue) if kind == "suspects" else getattr(self.keys, kind)(queue, priority)
        return list(
            self.client.lrange(name, 0, -1) if self.client.type(name) == "list" else self.client.zrange(name, 0, -1)
        )

    def where(self, job_id: str) -> list[str]:
        """Return the lists that contain the job, as ``queue kind``."""
        places = []
        for queue in self.shape.all_queues():
            for kind in ("waiting", "processing", "delayed", "parked", "suspects"):
                for priority in range(1, queue.declared.priorities + 1) if kind != "suspects" else (1,):
                    places += [f"{queue.name} {kind}" for id_ in self.ids(queue.name, kind, priority) if id_ == job_id]
        return places

    def lock(self, queue: str, job_id: str) -> str | None:
        result: str | None = self.client.get(self.keys.lock(queue, job_id))
        return result

    def snapshot(self) -> dict[str, Any]:
        """Return the database without times to live, owners of queues, leases, and notes of sweeps."""
        reads = {
            "hash": self.client.hgetall,
            "string": self.client.get,
            "list": lambda name: self.client.lrange(name, 0, -1),
            "zset": lambda name: self.client.zrange(name, 0, -1, withscores=True),
        }
        return {
            name: reads[self.client.type(name)](name)
            for name in sorted(self.client.keys("*"))
            if not name.endswith((":flow", ":renewed")) and not name.startswith(self.keys.lease(""))
        }

    def now_ms(self) -> int:
        seconds, micro = self.client.time()
        return int(seconds * 1000 + micro // 1000)

    # -- work ------------------------------------------------------------------------------------

    def claim(
        self, queue: str = "first", limit: int = 10, *, token: str | None = None, worker: str = "w", **asked: Any
    ) -> Sequence[Claim[FlowRecord]]:
        request = ClaimRequest(worker=worker, token=token or new_token(), limit=limit, lease=LEASE, **asked)
        return self.run(self.store(queue).claim(request))

    def take(self, queue: str = "first", **asked: Any) -> Lease:
        (claim,) = self.claim(queue, 1, **asked)
        return claim.lease

    def start(self, queue: str = "first", **values: Any) -> Lease:
        """Add a job and claim it."""
        job_id = self.add(queue, **values)
        lease = self.take(queue)
        assert lease.job_id == job_id
        return lease

    def settle(self, lease: Lease, settlement: Settlement, queue: str = "first", *, repeat: bool = False) -> Reply:
        (verdict,) = self.run(self.store(queue).settle([(lease, settlement)], repeat=repeat))
        return verdict

    def sweep(self, queue: str = "first", *, sweeps: int = 2) -> list[ResetJob]:
        """Sweep several times, as if each sweep were more than a second after the previous one."""
        reset_jobs: list[ResetJob] = []
        for _ in range(sweeps):
            for priority in range(1, self.shape.find_queue(queue).declared.priorities + 1):
                name = self.keys.unlocked(queue, priority)
                for job_id in self.client.zrange(name, 0, -1):
                    self.client.zincrby(name, -1001, job_id)
            reset_jobs += self.run(self.store(queue).sweep())
        return reset_jobs

    def die(self, lease: Lease, queue: str = "first") -> list[ResetJob]:
        """Remove the lock, as if the worker of this lease had died, and sweep."""
        self.client.delete(self.keys.lock(queue, lease.job_id))
        return self.sweep(queue)


def new_token() -> str:
    return str(uuid.uuid4())


def ended(next_queue: str | None = None, **fields: Any) -> Settlement:
    """Return the settlement of a completed step."""
    raw = {name: raw_of(value) for name, value in fields.items()}
    return Settlement(State.COMPLETED, AttemptOutcome.OK, result=encode_end(StepResult(fields=raw, next=next_queue)))


def raw_of(value: Any) -> Any:
    """Return a value as in the result of a step."""
    return msgspec.Raw(json.dumps(value).encode())


def settlement_of(outcome: Outcome, attempts: int = 1) -> Settlement:
    return settle(outcome, attempts=attempts, max_attempts=3, backoff=lambda attempt: 0.0)


ERRORED = settlement_of(Retry("it failed"))
LATER = settlement_of(Retry("it failed", 60.0))
FAILED = settlement_of(Fail("it is broken"))
SNOOZED = settlement_of(Snooze(60.0))
CANCELED = settlement_of(Cancel("not wanted"))
SETTLEMENTS = {
    "complete": ended("second", x=1),
    "retry": ERRORED,
    "later": LATER,
    "fail": FAILED,
    "snooze": SNOOZED,
    "cancel": CANCELED,
}

KIDS = ("kid", "kid", "other")


def park(
    harness: Harness, lease: Lease, kids: Sequence[str] = KIDS, *, recorded: object = Verdict.SETTLED
) -> list[tuple[str, str]]:
    """Let a parent fan out, and return (queue, id) of its children. ``recorded``: the expected reply."""
    jobs = [(f"parent:{kid}", *harness.keys.child(f"parent:{kid}", f"u{number}")) for number, kid in enumerate(kids)]
    children = [
        NewChild(queue, child_id, {"flowName": raw_of(queue), "n": raw_of(number), "nothing": raw_of(None)})
        for number, (queue, child_id, _) in enumerate(jobs)
    ]
    fields = {"children:parent:jobs": raw_of([key for _, _, key in jobs])}
    end = Settlement(
        State.COMPLETED, AttemptOutcome.OK, result=encode_end(StepResult(fields=fields, children=children))
    )
    reply: object = harness.settle(lease, end, "parent")
    assert getattr(reply, "state", reply) is recorded
    return [(queue, child_id) for queue, child_id, _ in jobs]
