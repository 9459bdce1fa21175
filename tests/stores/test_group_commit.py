"""Who waits for company, and on which loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from stowhand.jobs.job import Job, NewJob, State
from stowhand.stores.group_commit import GroupCommit, TakeJobs
from tests.conftest import Run

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


class Sent:
    """What a store is told to write; each statement takes until it is let go."""

    def __init__(self) -> None:
        self.statements: list[list[str]] = []
        self.go = asyncio.Event()
        self.commits = GroupCommit(self._alone, self._together, lambda _: True, lambda error, _: error)

    async def _alone(self, job: NewJob) -> Job:
        (made,) = await self._together(lambda: [job])
        return made

    async def _together(self, take_jobs: TakeJobs) -> Sequence[Job]:
        jobs = take_jobs()
        self.statements.append([job.task for job in jobs])
        await self.go.wait()
        return [
            Job(id=1, task=job.task, payload_text="", state=State.QUEUED, serial=None, priority=0, run_at=WHEN,
                attempts=0, max_attempts=1, created_at=WHEN)
            for job in jobs
        ]  # fmt: skip

    def call(self, task: str) -> asyncio.Task[Job]:
        return asyncio.create_task(self.commits.enqueue(NewJob(task=task)))


def test_a_single_caller_does_not_wait_for_a_loop_turn(run: Run) -> None:
    async def story() -> None:
        sent = Sent()
        sent.go.set()
        for task in ("a", "b"):
            with suppress(StopIteration):
                sent.commits.enqueue(NewJob(task=task)).send(None)
            assert sent.statements[-1] == [task]

    run(story())


def test_callers_of_one_loop_turn_share_the_next_commit(run: Run) -> None:
    async def story() -> None:
        sent = Sent()
        tasks = [sent.call(task) for task in "abc"]
        for _ in range(3):
            await asyncio.sleep(0)
        assert sent.statements == [["a"], ["b", "c"]]
        tasks += [sent.call(task) for task in "def"]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[4].cancel()
        assert len(sent.statements) == 2
        sent.go.set()
        instance = await asyncio.gather(*tasks, return_exceptions=True)
        assert sent.statements[2:] == [["d", "f"]]
        assert [one.task for one in instance if isinstance(one, Job)] == list("abcdf")

    run(story())


def test_a_loop_that_ends_during_a_commit_leaves_no_state_for_the_next(run: Run) -> None:
    held: list[Sent] = []

    async def cut_short() -> None:
        held.append(Sent())
        for task in "abc":
            held[0].call(task)
        for _ in range(3):
            await asyncio.sleep(0)
        held[0].call("d")
        await asyncio.sleep(0)

    async def afterwards() -> None:
        held[0].go = asyncio.Event()
        held[0].go.set()
        instance = await asyncio.gather(*map(held[0].call, "ef"))
        assert [one.task for one in instance] == ["e", "f"]

    run(cut_short())
    run(afterwards())
    assert held[0].statements == [["a"], ["b", "c"], ["e"], ["f"]]


def test_closing_does_not_wait_for_calls_of_an_ended_loop(run: Run) -> None:
    held: list[Sent] = []

    async def leave() -> None:
        held.append(Sent())
        for task in "abc":
            held[0].call(task)
        for _ in range(3):
            await asyncio.sleep(0)

    async def close() -> None:
        async with asyncio.timeout(5):
            await held[0].commits.close()

    loop = asyncio.new_event_loop()  # and its tasks are not canceled, as `run` would
    loop.run_until_complete(leave())
    left = asyncio.all_tasks(loop)
    run(close())
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


def test_a_call_on_another_loop_is_sent_by_itself(run: Run) -> None:
    async def story() -> None:
        sent = Sent()
        first = [sent.call(task) for task in "ab"]
        for _ in range(3):
            await asyncio.sleep(0)

        def elsewhere() -> None:
            async def call() -> None:
                with suppress(StopIteration, RuntimeError):  # the event is the other loop's
                    await sent.commits.enqueue(NewJob(task="c"))

            run(call())

        await asyncio.to_thread(elsewhere)
        assert sent.statements == [["a"], ["b"], ["c"]]
        sent.go.set()
        assert len(await asyncio.gather(*first)) == 2

    run(story())
