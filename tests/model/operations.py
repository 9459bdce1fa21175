"""Random lives of jobs: operations drawn from a seed, and how to do the same one to any store."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, KeyMode, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Cancel, Complete, Fail, Outcome, Retry, Snooze, settle
from stowhand.jobs.queues import Queues
from stowhand.protocols.attempt import Progress, ProgressKeeper
from stowhand.protocols.operator import Ages, SerialRow
from stowhand.protocols.queue_store import QueueStore, Reschedule, Tick
from stowhand.protocols.store import Claim, ClaimRequest, Heartbeats
from stowhand.testing import FakeClock
from tests.model.engine.chaining import settle_and_claim
from tests.model.engine.store import ModelStore

LEASE = 10.0
WORKERS = ("w1", "w2", "w3")
TASKS = ("a", "b", "c")
OUTCOMES: tuple[Outcome, ...] = (
    Complete(),
    Complete(),
    Retry("no", 3.0),
    Retry("not yet", 0.0),
    Fail("never"),
    Snooze(3.0),
    Cancel("away"),
)

NO_ANSWER = "the model does not explain"
Ordinal = int
"""A job by the order of its birth: stores give different ids, because a failed insert may burn one."""


class Twin:
    """One store that lives the same life as the others."""

    def __init__(self, name: str, store: QueueStore, heartbeats: Heartbeats) -> None:
        self.name = name
        self.store = store
        self.heartbeats = heartbeats
        self.ids: list[int] = []
        """Ordinal to id."""
        self.ordinals: dict[int, Ordinal] = {}

    @property
    def model(self) -> ModelStore | None:
        """Its store, if that is the specification."""
        store: object = self.store
        return store if isinstance(store, ModelStore) else None

    def lease(self, held: tuple[Ordinal, str, int]) -> Lease:
        ordinal, token, epoch = held
        return Lease(self.ids[ordinal], token, epoch)

    def learn(self, ids: list[int]) -> None:
        """Ids never seen before are the youngest jobs."""
        for job_id in sorted(set(ids) - self.ordinals.keys()):
            self.ordinals[job_id] = len(self.ids)
            self.ids.append(job_id)

    def pairs(self, pairs: frozenset[tuple[int, str]]) -> set[tuple[Ordinal, str]]:
        return {(self.ordinals[job_id], token) for job_id, token in pairs}


Doing = Callable[[Twin], Awaitable[Callable[[], object]]]
"""Does something to a twin; what it gives, called once new ids are learnt, is an answer that all twins must share."""


class Operations:
    """Draws operations; knows what has been born and leased so far."""

    def __init__(self, seed: int, clock: FakeClock, *, chains: bool = False) -> None:
        """``chains``: some settlements claim too, which only two of the stores can be told to."""
        self._random = Random(seed)
        self._clock = clock
        self._chains = chains
        self.leases: list[tuple[Ordinal, str, int]] = []
        self.attempts: dict[tuple[Ordinal, str], tuple[int, int]] = {}
        self.born = 0

    def draw(self) -> tuple[str, Doing]:
        """What is done, in words, and the doing of it."""
        chances: dict[Callable[[], tuple[str, Doing]], int] = {
            self.enqueue: 6,
            self.enqueue_many: 1,
            self.claim: 7,
            self.settle: 7,
            self.beat: 2,
            self.progress: 1,
            self.wait: 2,
            self.release: 2,
            self.reset_lease: 2,
            self.abandon: 1,
            self.sweep: 2,
            self.act: 5,
            self.administer: 4,
            self.force_unlock: 1,
            self.schedule: 1,
            self.remove_key: 1,
            self.pause_or_resume: 2,
            self.pause_or_resume_queue: 1,
            self.explain: 2,
            self.purge: 1,
            self.pass_time: 3,
        }
        if self._chains:
            chances |= {self.enqueue: 30, self.claim: 20, self.settle_and_claim: 40}
        (chosen,) = self._random.choices(list(chances), list(chances.values()))
        return chosen()

    def enqueue(self) -> tuple[str, Doing]:
        new = self._new_job()

        async def do(twin: Twin) -> Callable[[], object]:
            try:
                job = await twin.store.jobs.enqueue(new)
            except InvalidJob:
                return lambda: "refused"
            return lambda: twin.ordinals[job.id]

        return f"enqueue {new}", do

    def enqueue_many(self) -> tuple[str, Doing]:
        drawn = [self._new_job() for _ in range(self._random.randint(2, 5))]
        drawn = self._alike(drawn)
        keyed = [job for job in drawn if job.key is not None]
        keys = [job.key for job in keyed]
        # At most two with keys, and last: in which order several are born is not promised.
        jobs = [job for job in drawn if job.key is None] + keyed[: 1 if len(set(keys[:2])) == 2 else 2]
        keys = [job.key for job in jobs if job.key is not None]

        async def do(twin: Twin) -> Callable[[], object]:
            try:
                ids = await twin.store.jobs.enqueue_many(jobs)
            except InvalidJob:
                assert len(keys) > len(set(keys))
                return lambda: "refused"
            return lambda: [twin.ordinals[job_id] for job_id in ids]

        return f"enqueue_many {jobs}", do

    def claim(self) -> tuple[str, Doing]:
        request = self._request(suspects=self._random.random() < 0.25)

        async def do(twin: Twin) -> Callable[[], object]:
            claims = await twin.store.claim(request)
            return lambda: self._claimed(twin, claims)

        return f"claim {request}", do

    def _queues(self) -> Queues:
        only = self._random.choice([None, None, None, ("mail",), ("default", "mail"), ("bulk",)])
        return Queues(only, self._random.choice([(), (), ("mail",), ("default",)]))

    def settle_and_claim(self) -> tuple[str, Doing]:
        leases = self.leases[-1:] if self._random.random() < 0.7 else self._some_leases(1)
        request = self._request(suspects=False)

        async def do(twin: Twin) -> Callable[[], object]:
            batch = [(twin.lease(held), COMPLETED) for held in leases]
            if (together := twin.store.capabilities.settle_and_claim) is not None:
                replies, claims = await together(batch, request)
            else:
                assert twin.model is not None
                replies, claims = settle_and_claim(twin.model, batch, request)
            return lambda: (list(replies), self._claimed(twin, claims))

        return f"settle_and_claim {leases} {request}", do

    def _request(self, *, suspects: bool) -> ClaimRequest:
        return ClaimRequest(
            worker=self._random.choice(WORKERS),
            token=self._stale_token() or str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            limit=self._random.randint(1, 4),
            lease=LEASE,
            tasks=self._random.choice([None, None, TASKS, ("a",), ("b", "c")]),
            forbidden_flags=self._random.choice([(), (), ("f",), ("f", "g")]),
            queues=self._queues(),
            suspects=suspects,
        )

    def _claimed(self, twin: Twin, claims: Sequence[Claim[Job]]) -> object:
        """What was claimed, in words that all twins share; remembered, so that it is settled, or lost, later."""
        for claim in claims:
            held = (twin.ordinals[claim.lease.job_id], claim.lease.token, claim.lease.epoch)
            if held not in self.leases:
                self.leases.append(held)
                self.attempts[held[:2]] = (claim.attempts, claim.max_attempts)
        return [
            (twin.ordinals[each.lease.job_id], each.lease.epoch, each.attempts, each.task, each.serial)
            for each in claims
        ]

    def settle(self) -> tuple[str, Doing]:
        leases = self._some_leases(3)
        if len({ordinal for ordinal, _, _ in leases}) < len(leases):
            leases = leases[:1]
        # What follows may meet the key of another job of the batch; which of them is written first is not promised.
        then = (self._new_job(),) if len(leases) == 1 and self._random.random() < 0.3 else ()
        repeat = self._random.random() < 0.3
        batch = []
        for held in leases:
            attempts, most = self.attempts[held[:2]]
            outcome = self._random.choice(OUTCOMES)
            follows = then if isinstance(outcome, Complete) else ()
            what = settle(outcome, attempts=attempts, max_attempts=most, backoff=lambda _: 2.0, then=follows)
            rest = self._random.choice([None, None, "[7]", "{}"])
            batch.append((held, msgspec.structs.replace(what, payload=rest)))

        async def do(twin: Twin) -> Callable[[], object]:
            verdicts = await twin.store.settle([(twin.lease(held), what) for held, what in batch], repeat=repeat)
            return lambda: list(verdicts)

        return f"settle {batch} repeat={repeat}", do

    def beat(self) -> tuple[str, Doing]:
        leases = self._some_leases(4)

        async def do(twin: Twin) -> Callable[[], object]:
            pulse = await twin.heartbeats.beat([twin.lease(held) for held in leases], LEASE)
            return lambda: [twin.pairs(pairs) for pairs in (pulse.lost, pulse.canceled, pulse.busy)]

        return f"beat {leases}", do

    def progress(self) -> tuple[str, Doing]:
        notes = [(held, self._random.choice([0.0, 0.5, 1.0])) for held in self._some_leases(3)]

        async def do(twin: Twin) -> Callable[[], object]:
            assert isinstance(twin.heartbeats, ProgressKeeper)
            await twin.heartbeats.keep_progress([Progress(twin.lease(held), done) for held, done in notes], 3.0)
            return lambda: None

        return f"progress {notes}", do

    def wait(self) -> tuple[str, Doing]:
        """Ask how those jobs stand that have ended."""
        if not self.born:
            return self.pass_time()
        ordinals = sorted({self._young() for _ in range(3)})

        async def do(twin: Twin) -> Callable[[], object]:
            assert twin.store.results is not None
            result = await twin.store.results.ask([twin.ids[ordinal] for ordinal in ordinals])
            seen = ("state", "attempts", "resets", "last_error", "revision", "replaced")
            stand = [(twin.ordinals[one.job_id], *(getattr(one, name) for name in seen)) for one in result]
            return lambda: sorted(stand, key=lambda one: one[0])

        return f"wait {ordinals}", do

    def release(self) -> tuple[str, Doing]:
        leases = self._some_leases(3)

        async def do(twin: Twin) -> Callable[[], object]:
            await twin.heartbeats.release([twin.lease(held) for held in leases])
            return lambda: None

        return f"release {leases}", do

    def reset_lease(self) -> tuple[str, Doing]:
        leases = self._some_leases(1)

        async def do(twin: Twin) -> Callable[[], object]:
            return resets(
                twin, [reset for held in leases for reset in await twin.heartbeats.reset_lease(twin.lease(held))]
            )

        return f"reset_lease {leases}", do

    def abandon(self) -> tuple[str, Doing]:
        leases = self._some_leases(1)

        async def do(twin: Twin) -> Callable[[], object]:
            for _, token, _ in leases:
                await twin.heartbeats.abandon(token)
            return lambda: None

        return f"abandon {leases}", do

    def sweep(self) -> tuple[str, Doing]:
        worker = self._random.choice([None, *WORKERS])
        slack = self._random.choice([0.0, 5.0])

        async def do(twin: Twin) -> Callable[[], object]:
            result = (
                await twin.heartbeats.reset_stalled(slack)
                if worker is None
                else await twin.heartbeats.reset_worker(worker)
            )
            return resets(twin, result)

        return f"sweep worker={worker} slack={slack}", do

    def act(self) -> tuple[str, Doing]:
        name = self._random.choice(["cancel", "retry", "remove"])
        if not self.born:
            return self.pass_time()
        ordinal = self._young()

        async def do(twin: Twin) -> Callable[[], object]:
            answer = await getattr(twin.store.admin, name)(twin.ids[ordinal])
            return lambda: (answer.result, answer.reason.replace(str(answer.job_id), "it"))

        return f"{name} {ordinal}", do

    def administer(self) -> tuple[str, Doing]:
        if not self.born:
            return self.pass_time()
        choose = self._random.choice
        ordinals = {
            max(self.born - 1 - int(self._random.expovariate(0.15)), 0) for _ in range(self._random.randint(1, 4))
        }
        to = Reschedule(
            run_at=choose([None, None, self._clock.now() + timedelta(seconds=choose([-5, 0, 5]))]),
            priority=choose([None, None, -1, 0]),
            attempts=choose([None, None, 0, 1, 30]),
            max_attempts=choose([None, None, None, 1, 2, 25]),
            queue=choose([None, None, "default", "mail"]),
        )
        name = choose(["complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "reschedule_jobs"])
        options: tuple[Any, ...] = {"reschedule_jobs": (to,), "permanently_fail_jobs": ("by hand",)}.get(name, ())

        async def do(twin: Twin) -> Callable[[], object]:
            changed = await getattr(twin.store.admin, name)([twin.ids[ordinal] for ordinal in ordinals], *options)
            return told(twin, changed)

        return f"{name} {ordinals} {options}", do

    def force_unlock(self) -> tuple[str, Doing]:
        workers = self._random.sample(WORKERS, self._random.randint(1, 2))

        async def do(twin: Twin) -> Callable[[], object]:
            return told(twin, await twin.store.admin.force_unlock_workers(workers))

        return f"force_unlock_workers {workers}", do

    def schedule(self) -> tuple[str, Doing]:
        minute = self._clock.now().replace(second=0, microsecond=0)
        # At most one with a key: in which order several are born is not promised.
        jobs = [self._new_job(), msgspec.structs.replace(self._new_job(), key=None, delay=None, unique_period=None)]
        jobs = self._alike(jobs)
        ticks = [
            Tick(identifier=self._random.choice("ab"), at=minute - timedelta(minutes=back), job=job, spec=job.task)
            for back, job in zip((self._random.randint(0, 1), 0), reversed(jobs), strict=True)
        ]

        async def do(twin: Twin) -> Callable[[], object]:
            entered = await twin.store.timetable.schedule(ticks)
            return lambda: [(one.is_own, one.spec) for one in entered]

        return f"schedule {ticks}", do

    def remove_key(self) -> tuple[str, Doing]:
        key = self._random.choice(["k", "l", "m"])

        async def do(twin: Twin) -> Callable[[], object]:
            answer = await twin.store.admin.remove_key(key)
            return lambda: (answer.result, answer.reason, answer.job_id and twin.ordinals[answer.job_id])

        return f"remove_key {key}", do

    def pause_or_resume(self) -> tuple[str, Doing]:
        name, pauses = self._random.choice("qr"), self._random.random() < 0.4

        async def do(twin: Twin) -> Callable[[], object]:
            change = await (twin.store.operate.pause_serial(name) if pauses else twin.store.operate.resume_serial(name))
            rows = await twin.store.inspect.serials()
            # Looked up afterwards: a job that a settlement has enqueued may be unknown still.
            return lambda: (change, [(twin.ordinals.get(row.held_by or 0), unheld(row)) for row in rows])

        return f"{'pause' if pauses else 'resume'} {name}", do

    def pause_or_resume_queue(self) -> tuple[str, Doing]:
        name, pauses = self._random.choice(["default", "mail"]), self._random.random() < 0.3

        async def do(twin: Twin) -> Callable[[], object]:
            change = await (twin.store.operate.pause_queue(name) if pauses else twin.store.operate.resume_queue(name))
            return lambda: change

        return f"{'pause' if pauses else 'resume'} queue {name}", do

    def explain(self) -> tuple[str, Doing]:
        ordinal = self._young()

        async def do(twin: Twin) -> Callable[[], object]:
            if twin.model is not None:
                return lambda: NO_ANSWER
            result = await twin.store.inspect.explain(twin.ids[ordinal]) if twin.ids else None
            return lambda: None if result is None else [reason.code for reason in result.reasons]

        return f"explain {ordinal}", do

    def purge(self) -> tuple[str, Doing]:
        choose = self._random.choice
        ages = Ages(completed=choose([None, 5.0]), failed=choose([None, 20.0]), canceled=choose([None, 5.0]))

        async def do(twin: Twin) -> Callable[[], object]:
            would = await twin.store.operate.purge(ages, dry_run=True)
            purged = await twin.store.operate.purge(ages)
            return lambda: (would, purged)

        return f"purge {ages}", do

    def pass_time(self) -> tuple[str, Doing]:
        moment = self._clock.monotonic() + self._random.choice([0.5, 2.0, 4.0, 11.0])

        async def do(twin: Twin) -> Callable[[], object]:
            await self._clock.advance(max(moment - self._clock.monotonic(), 0.0))
            return lambda: None

        return f"until {moment}", do

    def _young(self) -> Ordinal:
        """The young are the lively ones."""
        return max(self.born - 1 - int(self._random.expovariate(0.15)), 0)

    def _new_job(self) -> NewJob:
        choose = self._random.choice
        key, mode = choose([None, None, "k", "l", "m"]), choose(list(KeyMode))
        return NewJob(
            task=choose(TASKS),
            payload=choose(["{}", '{"n": 1}', "[1]", "[2, 3]", "null"]),
            serial=choose(["q", "q", "q", "r"] if self._chains else [None, None, "q", "r"]),
            queue=choose([None, None, "default", "mail", "bulk"]),
            priority=choose([0, 0, -1, 2**31 - 1]),
            run_at=choose([None, None, None, self._clock.now() - timedelta(seconds=7)]) if key is None else None,
            delay=choose([None, 4.0]) if key is not None else None,
            max_attempts=choose([1, 2, 25]),
            max_resets=choose([None, None, 0, 1]),
            key=key,
            key_mode=mode,
            unique_period=choose([None, 5.0, 20.0]) if key is not None and mode is KeyMode.UNIQUE else None,
            flags=choose([(), (), ("f",), ("g", "f")]),
            # What a claim of the next job of a serial key passes over is not part of its specification.
            expires=None if self._chains else choose([None, None, None, 1.0, 5.0]),
            on_failure=choose([None, None, NewJob(task=choose(TASKS), priority=1, flags=choose([(), ("f",)]))]),
        )

    def _alike(self, jobs: list[NewJob]) -> list[NewJob]:
        """All with rules, or none: those without are written together, and before or after the others."""
        ruled = not self._chains and self._random.random() < 0.5
        rules: dict[str, Any] = {"expires": 5.0} if ruled else dict.fromkeys(("expires", "on_failure", "unique_period"))
        return [msgspec.structs.replace(job, **rules) for job in jobs]

    def _some_leases(self, limit: int) -> list[tuple[Ordinal, str, int]]:
        """Mostly fresh ones, some zombies."""
        fresh, stale = self.leases[-6:], self.leases[:-6]
        count = min(self._random.randint(1, limit), len(fresh))
        chosen = self._random.sample(fresh, count)
        if stale and self._random.random() < 0.3:
            chosen[-1:] = [self._random.choice(stale)]
        return list({held[:2]: held for held in chosen}.values())

    def _stale_token(self) -> str | None:
        if self.leases and self._random.random() < 0.05:
            return self._random.choice(self.leases)[1]
        return None


def unheld(row: SerialRow) -> SerialRow:
    """A queue without the id of the job that runs: stores give different ones."""
    return msgspec.structs.replace(row, held_by=None)


def told(twin: Twin, jobs: Sequence[Job]) -> Callable[[], object]:
    """What an administrator was given back."""
    seen = ("state", "attempts", "max_attempts", "resets", "run_at", "key", "last_error", "finished_at", "worker")
    return lambda: [(twin.ordinals[job.id], *(getattr(job, name) for name in seen)) for job in jobs]


def resets(twin: Twin, found: Any) -> Callable[[], object]:
    """Who was taken back from whom, and what became of it."""
    return lambda: [(twin.ordinals[each.job_id], each.task, each.state, each.worker) for each in found]
