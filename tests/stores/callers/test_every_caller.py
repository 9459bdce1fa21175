"""``enqueue_in`` with a connection or session of every library: whose transaction it is, and what arrives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
import pydantic
import pytest

from stowhand.app.app import App
from stowhand.errors import JobNotVisible
from stowhand.jobs.failure import Failure
from stowhand.jobs.job import Job, KeyMode
from stowhand.tasks.task import Task
from tests.conftest import Run
from tests.stores.callers.conftest import Count
from tests.support import callers
from tests.support.callers import Opens, settled
from tests.support.spans import Spans

ALL = callers.POSTGRES | callers.SQLITE

pytestmark = pytest.mark.parametrize(
    "opens",
    [pytest.param(one, id=name, marks=[] if name in callers.OFTEN else pytest.mark.rare) for name, one in ALL.items()],
)


@pytest.fixture
def spans() -> Spans:
    return Spans()


@dataclass
class Line:
    item: str
    price: Decimal


class Address(msgspec.Struct):
    street: str


class Customer(pydantic.BaseModel):
    id: UUID
    since: datetime


LINE = Line("a lamp: 100 % ü", Decimal("12.30"))
CUSTOMER = Customer(id=UUID(int=7), since=datetime(2026, 1, 2, tzinfo=UTC))
GIVEN = (LINE, Address("Nørre Allé 1"), CUSTOMER, datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC))


def declared(app: App) -> Task[..., bool, object]:
    @app.task
    async def confirm(line: Line, address: Address, customer: Customer, at: datetime) -> bool:
        return (line, address, customer, at) == GIVEN

    return confirm


@pytest.mark.parametrize("commits", [True, False])
def test_the_job_exists_if_and_only_if_the_caller_commits(
    opens: Opens, url: str, app: App, count: Count, run: Run, commits: bool
) -> None:
    confirm = declared(app)

    async def story() -> None:
        async with app, opens(url) as held:
            await held.execute("insert into orders values ('a lamp')")
            job = await settled(confirm.enqueue_in(held.given, *GIVEN))
            assert count("jobs") == count("orders") == 0
            with pytest.raises(JobNotVisible):
                await job.refresh()
            await (held.commit() if commits else held.rollback())
            assert count("jobs") == count("orders") == int(commits)
            if commits:
                assert (await job.refresh()).id == job.id

    run(story())


def test_a_rollback_to_a_savepoint_drops_its_jobs(opens: Opens, url: str, app: App, count: Count, run: Run) -> None:
    confirm = declared(app)

    async def story() -> None:
        async with opens(url) as held:
            await held.execute("insert into orders values ('a lamp')")
            await settled(confirm.enqueue_in(held.given, *GIVEN))
            await held.execute("savepoint one")
            await settled(confirm.enqueue_in(held.given, *GIVEN))
            await held.execute("rollback to savepoint one")
            await held.commit()

    run(story())
    assert (count("jobs"), count("orders")) == (1, 1)


def test_options_apply_and_the_written_job_is_returned(opens: Opens, url: str, app: App, run: Run) -> None:
    confirm = declared(app)

    @app.task
    async def tell(payload: Failure) -> None: ...

    @app.task(unique="arguments", unique_period="2h", on_failure=tell, expires="1h", priority=4)
    async def once(item: str) -> None: ...

    later = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    chosen = [
        confirm.options(key="order 7", key_mode="unique", priority=-3, max_attempts=2, max_resets=0, flags=["b", "a"]),
        confirm.options(key="order 7", key_mode=KeyMode.UNIQUE, priority=9),
        confirm.options(run_at=later, serial="orders", expires="1h"),
        confirm.options(delay=60),
    ]

    async def story() -> tuple[list[Job], list[Job | None]]:
        async with opens(url) as held:
            jobs = [(await settled(one.enqueue_in(held.given, *GIVEN))).job for one in chosen]
            jobs += [(await settled(once.enqueue_in(held.given, "a lamp"))).job for _ in range(2)]
            await held.commit()
        async with app:
            rows = [await (await app.open()).jobs.get(job.id) for job in jobs]
        return jobs, rows

    jobs, rows = run(story())
    assert jobs == rows
    first, again, third, last, *both = jobs
    assert (first.id, first.priority, first.max_attempts, first.max_resets) == (again.id, -3, 2, 0)
    assert (first.key, first.flags, third.serial, third.run_at) == ("order 7", ("b", "a"), "orders", later)
    assert (last.run_at - last.created_at).total_seconds() == 60
    assert [job.id for job in both] == [both[0].id] * 2, "unique"
    assert both[0].priority == 4


def test_a_commit_wakes_a_sleeping_worker_and_the_arguments_arrive(opens: Opens, url: str, app: App, run: Run) -> None:
    confirm = declared(app)

    async def story() -> object:
        async with app, app.run_in_background(poll_interval=60.0, concurrency=1):
            await confirm.enqueue_and_wait(*GIVEN)
            async with opens(url) as held:
                job = await settled(confirm.enqueue_in(held.given, *GIVEN))
                await held.commit()
                async with asyncio.timeout(30):  # half of a poll: somebody woke it
                    return await job.result()

    assert run(story(), timeout=90) is True


def test_hooks_run_and_the_span_ends_before_the_commit(
    opens: Opens, url: str, app: App, run: Run, spans: Spans
) -> None:
    hooked = App(url, traces=spans.traces(), on_enqueue=[lambda job: msgspec.structs.replace(job, priority=7)])
    confirm = declared(hooked)

    async def story() -> Job:
        async with opens(url) as held:
            instance = await settled(confirm.enqueue_in(held.given, *GIVEN))
            span = spans.one("enqueue confirm")
            assert span.attributes is not None
            assert span.attributes["messaging.message.id"] == str(instance.id)
            await held.commit()
            job: Job = instance.job
            return job

    instance = run(story())
    assert instance.priority == 7
    assert any(flag.startswith("stowhand") or "trace" in flag for flag in instance.flags), instance.flags
