"""A store as it looks in the afternoon of a working day: for pictures, and for tests of whole screens.

clock = morning()
store = MemoryStore(clock)
await populate(store, clock)
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from stowhand.clock import wall_clock
from stowhand.jobs.histogram import bucket_of
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lifecycle import COMPLETED, Cancel, Fail, Outcome, Retry, settle
from stowhand.jobs.task_limits import NO_DECLARATIONS, LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.attempt import Progress, ProgressKeeper
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.protocols.throughput import OutcomeCounts, TaskMinute, ThroughputKeeper
from stowhand.testing import FakeClock

HOURS = 3
STEP = 5
"""Minutes between two looks at the clock."""
RIGHT_TO_LEFT = "שלח_הודעה"
LONG = "reports.quarterly_revenue_by_region_channel_and_product_line"
RATES = {
    "send_mail": (46, 0.02, 0.08),
    "resize_image": (21, 0.01, 0.9),
    "sync_crm": (9, 0.11, 2.4),
    "charge_card": (6, 0.03, 0.6),
    "billing/invoice.v2": (3, 0.0, 1.7),
    LONG: (0.3, 0.05, 95.0),
    RIGHT_TO_LEFT: (2, 0.0, 0.2),
}
"""By task: attempts a minute, the share that fails, seconds that one takes."""
CRM_DOWN = 22
"""Minutes ago."""
ERRORS = {
    "sync_crm": ("httpx.ConnectTimeout", "timed out after 5 s: https://crm.example.com/v3/contacts"),
    "charge_card": ("billing.CardDeclined", "card declined: insufficient_funds"),
    "resize_image": ("PIL.UnidentifiedImageError", "cannot identify image file <_io.BytesIO object at 0x7f3d5c1e>"),
}
TRACE = """{kind}: {words}
Traceback (most recent call last):
  File "/app/shop/jobs.py", line 88, in {task}
    await push(record, timeout=5)
  File "/app/shop/clients.py", line 41, in push
    raise {kind}(message)
{kind}: {words}"""


def morning() -> FakeClock:
    """A clock that ``populate`` moves up to now."""
    return FakeClock(wall_clock() - timedelta(hours=HOURS))


async def populate(store: QueueStore, clock: FakeClock) -> int:
    """Make jobs of every state, workers, and what they have counted in the last hours. Returns a job that runs."""
    heartbeats = store.heartbeats()
    try:
        assert isinstance(heartbeats, WorkerList)
        assert isinstance(heartbeats, ThroughputKeeper)
        assert isinstance(heartbeats, ProgressKeeper)
        chance = random.Random(7)
        for minute in range(152, 0, -STEP):
            await _to(clock, minute)
            await heartbeats.write_throughput("host-a:1:x", _counted(clock.now(), minute))
            for card in _cards("2.9.0" if minute <= 30 else "2.8.1"):
                if minute > 20 or card.host != "host-c":
                    await heartbeats.worker_seen(card, NO_DECLARATIONS)
            await _work(store, clock, chance, minute)
        await heartbeats.declare_tasks(_limits())
        running = await _standing(store, clock)
        await _to(clock, 0)
        for card in _cards("2.9.0"):
            if card.host != "host-c":
                await heartbeats.worker_seen(card, NO_DECLARATIONS)
        notes = [(0.62, "page 310 of 500"), (0.18, "reading orders"), (0.0, "waiting for the printer")]
        await heartbeats.keep_progress(
            [Progress(claim.lease, done, text) for claim, (done, text) in zip(running, notes, strict=False)], 60.0
        )
        await store.operate.pause_serial("newsletter")
        await store.operate.pause_task("charge_card")
        return running[0].record.id
    finally:
        await heartbeats.close()


async def _to(clock: FakeClock, minutes: float) -> None:
    """Move to so many minutes ago."""
    await clock.advance(max((wall_clock() - timedelta(minutes=minutes) - clock.now()).total_seconds(), 0))


async def _work(store: QueueStore, clock: FakeClock, chance: random.Random, minute: int) -> None:
    """What has ended since."""
    for task in RATES:
        for _ in range(chance.randint(1, 2)):
            await store.jobs.enqueue(_job(task, chance))
    for claim in await _claim(store, f"host-{chance.choice('ab')}:shop-{chance.randint(1, 3)}", 40):
        await clock.advance(chance.random() * 2)
        broken = claim.task == "sync_crm" and minute < CRM_DOWN
        fails = broken or (claim.task in ("charge_card", "resize_image") and chance.random() < 0.15)
        await _settle(store, claim, _failure(claim.record, chance) if fails else None)


async def _standing(store: QueueStore, clock: FakeClock) -> Sequence[Claim[Job]]:
    """What stands now: jobs that run, that wait for another attempt, and that wait."""
    chance = random.Random(11)
    for task in ("sync_crm", "sync_crm", "charge_card"):
        await store.jobs.enqueue(_job(task, chance))
    for claim in await _claim(store, "host-a:shop-1", 3):
        await _settle(store, claim, _failure(claim.record, chance, again=True))
    (gone,) = [await store.jobs.enqueue(_job("send_mail", chance))]
    await store.admin.cancel(gone.id)
    await store.jobs.enqueue(NewJob(task=LONG, payload='{"quarter": "2026-Q3", "pages": 500}', serial="reports"))
    await store.jobs.enqueue(_job("resize_image", chance))
    await store.jobs.enqueue(
        NewJob(task="billing/invoice.v2", payload='{"invoice": 90071992547409931}', serial="eu/west.1")
    )
    running = [*await _claim(store, "host-a:shop-1", 2), *await _claim(store, "host-b:shop-3", 2)]
    for number in range(38):
        await store.jobs.enqueue(_job("send_mail", chance, serial="newsletter" if number % 3 else None))
        await store.jobs.enqueue(_job("resize_image", chance))
    for number in range(6):
        await store.jobs.enqueue(_job("charge_card", chance))
        await store.jobs.enqueue(_job(LONG, chance, serial="reports"))
        await store.jobs.enqueue(_job("send_mail", chance, delay=3600.0 * (number + 1)))
    for _ in range(4):
        await store.jobs.enqueue(NewJob(task="import_legacy_orders", payload='{"file": "orders-2019.csv"}'))
    await clock.advance(1.0)
    return running


def _job(task: str, chance: random.Random, serial: str | None = None, delay: float | None = None) -> NewJob:
    number = chance.randint(1000, 99999)
    return NewJob(
        task=task,
        payload=f'{{"customer": {number}, "address": "ann{number}@example.com", "template": "welcome"}}',
        serial=serial,
        delay=delay,
        priority=chance.choice((0, 0, 0, 10)),
        key=f"{task}:{number}" if chance.random() < 0.2 else None,
    )


def _failure(job: Job, chance: random.Random, *, again: bool = False) -> Outcome:
    kind, words = ERRORS.get(job.task, ("ValueError", "no such template: welcome"))
    text = TRACE.format(task=job.task, kind=kind, words=words)
    if not again and chance.random() < 0.1:
        return Cancel("the customer left")
    return Retry(text, 900.0, error_class=kind) if again else Fail(text, error_class=kind)


async def _claim(store: QueueStore, worker: str, limit: int) -> Sequence[Claim[Job]]:
    return await store.claim(ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=limit, lease=86_400.0))


async def _settle(store: QueueStore, claim: Claim[Job], outcome: Outcome | None) -> None:
    settlement = COMPLETED
    if outcome is not None:
        settlement = settle(outcome, attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=lambda _: 900.0)
    await store.settle([(claim.lease, settlement)])


def _cards(version: str) -> list[WorkerDescription]:
    tasks = (*RATES, "cleanup_sessions")
    return [
        WorkerDescription("host-a:shop-1", "host-a", 4107, "0.1.0", tasks, 4, app_version=version),
        WorkerDescription("host-a:shop-2", "host-a", 4108, "0.1.0", tasks, 4, app_version=version),
        WorkerDescription(
            "host-b:shop-3", "host-b", 812, "0.1.0", ("send_mail", LONG, "billing/invoice.v2"), 2, stopping=True
        ),
        WorkerDescription("host-c:shop-4", "host-c", 77, "0.1.0", tasks, 8, app_version=version),
    ]


def _limits() -> TaskDeclarations:
    """Of tasks that call a partner, and of one that needs memory. The latter is full."""
    own = {
        "send_mail": TaskLimits(concurrency="partner-api", rate="partner-api"),
        "resize_image": TaskLimits(concurrency="images"),
    }
    limits = {
        "partner-api": LimitValues(concurrency=10, rate=5, rate_seconds=1.0, burst=100),
        "images": LimitValues(concurrency=1),
    }
    return TaskDeclarations(dict.fromkeys(own, "default"), own, limits)


def _counted(until: datetime, minutes_ago: int) -> list[TaskMinute]:
    """Since the last look, up to this minute."""
    chance = random.Random(minutes_ago)
    last = int(until.timestamp()) // 60
    rows = []
    for minute in range(last - STEP + 1, last + 1):
        ago = minutes_ago + last - minute
        for task, (rate, failing, takes) in RATES.items():
            ended = round(rate * chance.uniform(0.6, 1.4) * (1.6 if 35 < ago < 50 else 1))
            share = 0.85 if task == "sync_crm" and ago < CRM_DOWN else failing
            bad = sum(chance.random() < share for _ in range(ended))
            if ended:
                rows.append(
                    TaskMinute(minute, task, _tally(chance, ended, bad, takes, waited=12 if 35 < ago < 48 else 0.4))
                )
    return rows


def _tally(chance: random.Random, ended: int, bad: int, takes: float, waited: float) -> OutcomeCounts:
    waits: dict[int, int] = {}
    runs: dict[int, int] = {}
    for _ in range(ended):
        for into, around in ((waits, waited), (runs, takes)):
            bucket = bucket_of(around * chance.lognormvariate(0, 0.7))
            into[bucket] = into.get(bucket, 0) + 1
    return OutcomeCounts(ok=ended - bad, retry=bad - bad // 3, failed=bad // 3, waits=waits, runs=runs)
