"""The poll that callers share: when a handle is asked about, how many questions that is, and what ends a wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from stowhand import App
from stowhand.clock import SystemClock
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.stores.kernel.results import LoopPolls, ResultPoll, SharedPoll
from stowhand.stores.sqlite.queue import SqliteStore
from stowhand.testing import FakeClock, MemoryStore
from tests.conftest import Run

HEARD = 60.0


class Questions:
    """A store that answers what ``ended`` has."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.asked: list[tuple[float, list[int]]] = []
        self.ended: dict[int, str] = {}
        self.error: Exception | None = None
        self.poll = SharedPoll(self.ask, self.clock)

    async def ask(self, keys: Sequence[int]) -> dict[int, str]:
        self.asked.append((self.clock.monotonic(), list(keys)))
        if self.error is not None:
            raise self.error
        return {key: self.ended[key] for key in keys if key in self.ended}

    def wait(self, *keys: int, age: float | None = None) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.poll.answer(key, age=age)) for key in keys]

    @property
    def pauses(self) -> list[float]:
        times = [time for time, _ in self.asked]
        return [later - earlier for earlier, later in pairwise(times)]


async def settled(tasks: Sequence[asyncio.Task[str]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_the_pause_of_a_handle_is_a_tenth_of_its_wait_within_limits(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        waiting = questions.wait(1)
        await questions.clock.advance(30.0)
        assert questions.asked[0][0] == 0.0
        assert min(questions.pauses) == pytest.approx(0.01)
        assert max(questions.pauses) == pytest.approx(0.5)
        for (time, _), pause in zip(questions.asked, questions.pauses, strict=False):
            assert pause == pytest.approx(min(max(time / 10, 0.01), 0.5), abs=0.001)
        assert len(questions.asked) < 110
        questions.ended[1] = "done"
        await questions.clock.advance(0.5)
        assert [task.result() for task in waiting] == ["done"]
        count = len(questions.asked)
        await questions.clock.advance(10.0)
        assert len(questions.asked) == count

    run(scenario())


def test_handles_that_arrived_one_after_another_share_requests(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        waiting: list[asyncio.Task[str]] = []
        for number in range(1000):
            waiting += questions.wait(number, age=0.0)
            await questions.clock.advance(0.002)
        await questions.clock.advance(28.0)
        assert len(questions.asked) < 500
        assert len(questions.asked[-1][1]) == 1000
        await settled(waiting)

    run(scenario())


def test_ten_thousand_handles_are_requested_less_often(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        waiting = questions.wait(*range(10_000))
        await questions.clock.advance(2.0)
        assert all(len(keys) == 10_000 for _, keys in questions.asked)
        assert min(questions.pauses) >= 0.199
        questions.ended = dict.fromkeys(range(10_000), "done")
        await questions.clock.advance(0.5)
        assert {task.result() for task in waiting} == {"done"}

    run(scenario())


def test_a_settlement_of_the_same_process_requests_its_jobs_at_once(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        waiting = questions.wait(1, 2)
        await questions.clock.advance(60.0)
        count = len(questions.asked)
        questions.ended[2] = "done"
        questions.poll.ask_now([2, 3])
        await questions.clock.settle()
        assert [keys for _, keys in questions.asked[count:]] == [[2]]
        assert [task.done() for task in waiting] == [False, True]
        await questions.clock.advance(0.001)
        questions.poll.ask_now()
        await questions.clock.settle()
        assert questions.asked[-1] == (questions.clock.monotonic(), [1])
        await settled(waiting)

    run(scenario())


def test_each_loop_has_its_own_poll_and_all_send_requests_at_once(run: Run) -> None:
    polls = LoopPolls[SharedPoll[int, str]]()
    request = threading.Semaphore(0)
    ended: dict[int, str] = {}

    async def ask(keys: Sequence[int]) -> dict[int, str]:
        request.release()
        return ended

    async def wait() -> str:
        poll = polls.here(lambda: SharedPoll(ask, SystemClock(), min_pause=600.0))
        assert polls.here(lambda: SharedPoll(ask, SystemClock())) is poll
        async with asyncio.timeout(HEARD):
            return await poll.answer(1)

    async def scenario() -> None:
        here, elsewhere = asyncio.create_task(wait()), asyncio.create_task(asyncio.to_thread(asyncio.run, wait()))
        for _ in range(2):
            await asyncio.to_thread(request.acquire)
        ended[1] = "done"
        polls.ask_now()
        assert [await here, await elsewhere] == ["done", "done"]

    run(scenario())


def test_repeated_callers_do_not_postpone_the_request(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        waiting: list[asyncio.Task[str]] = []
        for _ in range(100):
            waiting += questions.wait(1, age=0.0)
            await questions.clock.advance(0.005)
        assert len(questions.asked) >= 40
        questions.ended[1] = "done"
        await questions.clock.advance(0.02)
        assert {task.result() for task in waiting} == {"done"}

    run(scenario())


def test_requests_are_repeated_while_the_store_is_unreachable_and_callers_may_leave(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        questions.error = StoreUnreachable("the store is away")
        waiting = questions.wait(1, 2)
        await questions.clock.advance(60.0)
        assert 10 < len(questions.asked) < 30
        assert not any(task.done() for task in waiting)
        waiting[0].cancel()  # as its timeout does
        await questions.clock.settle()
        assert waiting[0].cancelled()
        questions.error, questions.ended[2] = None, "done"
        await questions.clock.advance(6.0)
        assert waiting[1].result() == "done"

    run(scenario())


def test_a_refusal_ends_each_wait_and_the_next_wait_sends_a_request(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        questions.error = StoreError("access denied")
        waiting = questions.wait(1, 2)
        await questions.clock.advance(1.0)
        assert [str(task.exception()) for task in waiting] == ["access denied"] * 2
        questions.error, questions.ended[1] = None, "done"
        again = questions.wait(1)
        await questions.clock.advance(1.0)
        assert again[0].result() == "done"

    run(scenario())


def test_closing_a_poll_ends_every_wait_and_it_can_be_used_again(run: Run) -> None:
    async def scenario() -> None:
        questions = Questions()
        waiting = questions.wait(1)
        await questions.clock.advance(1.0)
        await questions.poll.close()
        await questions.clock.settle()
        assert "closed while a caller waited for a job" in str(waiting[0].exception())
        assert not questions.poll.is_waiting
        questions.ended[1] = "done"
        again = questions.wait(1)
        await questions.clock.advance(0.1)
        assert again[0].result() == "done"

    run(scenario())


def test_a_commit_on_sqlite_causes_a_request_at_once(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.stores.sqlite.queue.results.Results.min_pause", 600.0)

    async def scenario() -> None:
        store, other = SqliteStore(tmp_path / "jobs.db"), SqliteStore(tmp_path / "jobs.db")
        await store.schema.install()
        poll = ResultPoll(store.results, SystemClock())
        job = await store.jobs.enqueue(NewJob(task="t"))
        waiting = asyncio.create_task(poll.end(job.id, 0))
        await asyncio.sleep(0.1)
        await other.admin.cancel(job.id)
        async with asyncio.timeout(HEARD):
            assert (await waiting).state is State.CANCELED
        await poll.close()
        await store.close()
        await other.close()

    run(scenario())


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_a_settlement_in_the_same_process_causes_a_request_at_once(
    kind: str, request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(store=MemoryStore()) if kind == "memory" else App(request.getfixturevalue("postgres_url"))
    results = "postgres.queue.results.Results" if kind == "postgres" else "sqlite.queue.results.Results"
    monkeypatch.setattr(f"stowhand.stores.{results}.min_pause", 600.0)

    @app.task
    async def add(one: int, other: int) -> int:
        return one + other

    async def scenario() -> None:
        async with asyncio.timeout(HEARD), app.run_in_background():
            assert await add.enqueue_and_wait(1, 2) == 3
            assert await (await add.enqueue(3, 4)).result() == 7
        await app.close()

    run(scenario())
