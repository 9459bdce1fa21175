"""A harness for tests of a flow's queues in Redis: one real server, a store for each queue, and the verbs."""

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
"""Seconds, of a limiter. Its windows begin by the clock, and the next one is to be far away."""
VARIANTS: dict[str, dict[str, Any]] = {
    "classic": {},
    "priority": {"layout": Layout.PRIORITY},
    "tagged": {"layout": Layout.PRIORITY, "hash_tag": "demo"},
}


def shape_of(variant: str) -> FlowShape:
    """A flow with a queue of every kind."""
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


GIVEN = ("flowName", "priority", "correlationId", "endedAtTimestamp", "flow:state", "flow:passed")


class Blocking:
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
    """Blocking; its coroutines run on one loop of its own."""

    def __init__(self, url: str, client: Any, variant: str = "classic") -> None:
        self.url, self.client, self.variant = url, client, variant
        self.shape = shape_of(variant)
        self.keys = FlowKeys(self.shape)
        self._runner = asyncio.Runner()
        self._stores: dict[str, FlowStore] = {}
        self._hearts: list[RedisHeartbeats] = []
        self._served: dict[str, Blocking] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, 20))

    def close(self) -> None:
        for heartbeats in self._hearts:
            self.run(heartbeats.close())
        for store in self._stores.values():
            self.run(store.close())
        self._runner.close()

    def another(self, queue: str, *, url: str = "", **options: Any) -> FlowStore:
        """A store of that queue, closed with the harness. It connects when it is first used."""
        server = Server(read_address(url or self.url))
        store = FlowStore(server, self.shape, self.shape.find_queue(queue), **options)
        self._stores[str(uuid.uuid4())] = store
        return store

    def store(self, queue: str = "first") -> FlowStore:
        if queue not in self._stores:
            self._stores[queue] = self.another(queue)
        return self._stores[queue]

    def heartbeats(self, queue: str = "first") -> Blocking:
        if queue not in self._served:
            self._served[queue] = self.heartbeats_of(self.store(queue))
        return self._served[queue]

    def heartbeats_of(self, store: FlowStore) -> Blocking:
        """Closed with the harness."""
        self._hearts.append(store.heartbeats())
        return Blocking(self, self._hearts[-1])

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
        """A job as a producer leaves it: its hash, its id at the tail."""
        job_id = self.keys.new_id()
        told = {"flowName": "demo", "priority": priority, "correlationId": "c-1"} | more | (values or {})
        self.client.hset(self.hash(queue, job_id), mapping={name: json.dumps(value) for name, value in told.items()})
        if push:
            self.client.rpush(self.keys.waiting(queue, priority), job_id)
        return job_id

    def add_many(self, number: int, queue: str = "first", **values: Any) -> list[str]:
        """The same in one round trip."""
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
        """The hash, decoded; without what ``add`` has put there, and when it ended."""
        told = {name: json.loads(text) for name, text in self.client.hgetall(self.hash(queue, job_id)).items()}
        return {name: value for name, value in told.items() if name not in GIVEN}

    def ids(self, queue: str = "first", kind: str = "waiting", priority: int = 1) -> list[str]:
        """Of one of its lists, or sorted sets."""
        name = getattr(self.keys, kind)(queue) if kind == "suspects" else getattr(self.keys, kind)(queue, priority)
        return list(
            self.client.lrange(name, 0, -1) if self.client.type(name) == "list" else self.client.zrange(name, 0, -1)
        )

    def where(self, job_id: str) -> list[str]:
        """Every list that has it, as ``queue kind``."""
        found = []
        for queue in self.shape.all_queues():
            for kind in ("waiting", "processing", "delayed", "parked", "suspects"):
                for priority in range(1, queue.declared.priorities + 1) if kind != "suspects" else (1,):
                    found += [f"{queue.name} {kind}" for one in self.ids(queue.name, kind, priority) if one == job_id]
        return found

    def lock(self, queue: str, job_id: str) -> str | None:
        found: str | None = self.client.get(self.keys.lock(queue, job_id))
        return found

    def image(self) -> dict[str, Any]:
        """Everything in the database but times to live, whose the queues are, leases, and what a look has noted."""
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
        """A new job, at work."""
        job_id = self.add(queue, **values)
        lease = self.take(queue)
        assert lease.job_id == job_id
        return lease

    def settle(self, lease: Lease, settlement: Settlement, queue: str = "first", *, repeat: bool = False) -> Reply:
        (verdict,) = self.run(self.store(queue).settle([(lease, settlement)], repeat=repeat))
        return verdict

    def sweep(self, queue: str = "first", *, looks: int = 2) -> list[ResetJob]:
        """So many looks, each as if it were more than a second after the one before."""
        found: list[ResetJob] = []
        for _ in range(looks):
            for priority in range(1, self.shape.find_queue(queue).declared.priorities + 1):
                name = self.keys.unlocked(queue, priority)
                for job_id in self.client.zrange(name, 0, -1):
                    self.client.zincrby(name, -1001, job_id)
            found += self.run(self.store(queue).sweep())
        return found

    def die(self, lease: Lease, queue: str = "first") -> list[ResetJob]:
        """The worker of this lease dies in silence, and it is found."""
        self.client.delete(self.keys.lock(queue, lease.job_id))
        return self.sweep(queue)


def new_token() -> str:
    return str(uuid.uuid4())


def ended(next_queue: str | None = None, **fields: Any) -> Settlement:
    """A step that ended well."""
    raw = {name: raw_of(value) for name, value in fields.items()}
    return Settlement(State.COMPLETED, AttemptOutcome.OK, result=encode_end(StepResult(fields=raw, next=next_queue)))


def raw_of(value: Any) -> Any:
    """A value as it stands in a step's end."""
    return msgspec.Raw(json.dumps(value).encode())


def judged(outcome: Outcome, attempts: int = 1) -> Settlement:
    return settle(outcome, attempts=attempts, max_attempts=3, backoff=lambda attempt: 0.0)


ERRORED = judged(Retry("it failed"))
LATER = judged(Retry("it failed", 60.0))
FAILED = judged(Fail("it is broken"))
SNOOZED = judged(Snooze(60.0))
CANCELED = judged(Cancel("not wanted"))
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
    """The parent fans out; gives (queue, id) of its children. ``recorded``: the state, where that is another."""
    made = [(f"parent:{kid}", *harness.keys.child(f"parent:{kid}", f"u{number}")) for number, kid in enumerate(kids)]
    children = [
        NewChild(queue, child_id, {"flowName": raw_of(queue), "n": raw_of(number), "nothing": raw_of(None)})
        for number, (queue, child_id, _) in enumerate(made)
    ]
    fields = {"children:parent:jobs": raw_of([key for _, _, key in made])}
    end = Settlement(
        State.COMPLETED, AttemptOutcome.OK, result=encode_end(StepResult(fields=fields, children=children))
    )
    told: object = harness.settle(lease, end, "parent")
    assert getattr(told, "state", told) is recorded
    return [(queue, child_id) for queue, child_id, _ in made]
