"""``App.immediate``: a job is run when it is enqueued."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from stowhand import App, Context, State
from stowhand.errors import ConfigurationError
from tests.conftest import Run

app = App("postgresql://nobody@127.0.0.1:1/never")
done: list[str] = []


@app.task
async def note(word: str) -> str:
    done.append(word)
    return word.upper()


@app.task
def note_in_a_thread(word: str) -> None:
    done.append(f"before {word}")
    app.sync.enqueue(note, word)
    done.append(f"after {word}")


@app.task
async def note_twice(ctx: Context, word: str) -> None:
    await note.enqueue(word)
    ctx.enqueue_after(note.new_job(f"{word} again"))
    done.append("enqueued")


@app.task
async def broken() -> None:
    raise ValueError("it is broken")


@app.task(backoff=lambda attempt: 0)
async def soon_broken(ctx: Context) -> None:
    done.append(f"attempt {ctx.attempt}")
    raise ValueError("it is broken")


@app.task
async def again() -> None:
    await again.enqueue()


@app.task
def again_in_a_thread() -> None:
    app.sync.enqueue(again_in_a_thread)


@pytest.fixture(autouse=True)
def _immediate() -> None:
    done.clear()


def test_a_job_has_run_when_enqueue_comes_back(run: Run) -> None:
    async def scenario() -> None:
        with app.immediate():
            job = await note.enqueue("a")
            assert (done, job.state, job.attempts) == (["a"], State.COMPLETED, 1)
            assert await job.result() == "A"
            assert await note.enqueue_and_wait("b") == "B"
            assert await app.enqueue_many([note.new_job("c"), note.new_job("d")]) == [3, 4]
            assert [one.state for one in await app.add_jobs([note.new_job("e")])] == [State.COMPLETED]

    run(scenario())
    assert done == ["a", "b", "c", "d", "e"]


def test_without_a_loop_too() -> None:
    with app.immediate():
        job = app.sync.enqueue(note, "a")
        assert done == ["a"]
        assert job.result(timeout=1) == "A"
        assert app.sync.enqueue_and_wait(note, "b") == "B"


def test_what_a_task_enqueues_follows_it(run: Run) -> None:
    with app.immediate():
        run(lambda: note_twice.enqueue("x"))
    assert done == ["enqueued", "x", "x again"]


def test_what_a_thread_enqueues_follows_it_too(run: Run) -> None:
    with app.immediate():
        run(lambda: note_in_a_thread.enqueue("x"))
    assert done == ["before x", "after x", "x"]


def test_what_a_task_raises_is_raised_by_enqueue(run: Run) -> None:
    with app.immediate():
        with pytest.raises(ValueError, match="it is broken"):
            run(lambda: broken.enqueue())
        with pytest.raises(ValueError, match="it is broken"):
            app.sync.enqueue(broken)
        run(lambda: note.enqueue("x"))  # what has failed is not tried again
    assert done == ["x"]


def test_what_has_failed_is_not_tried_again_though_its_task_waits_for_nothing(run: Run) -> None:
    with app.immediate():
        with pytest.raises(ValueError, match="it is broken"):
            run(lambda: soon_broken.enqueue())
        run(lambda: note.enqueue("x"))
    assert done == ["attempt 1", "x"]


def test_many_are_no_jobs_that_follow_one(run: Run) -> None:
    with app.immediate():
        run(lambda: app.enqueue_many([note.new_job("x")] * 1001))
        instance = run(lambda: app.add_jobs([note.new_job("x")] * 1001))
    assert (len(done), {job.state for job in instance}) == (2002, {State.COMPLETED})


def test_what_is_due_later_waits(run: Run) -> None:
    with app.immediate():
        job = run(lambda: note.options(delay=60).enqueue("x"))
    assert (done, job.state) == ([], State.QUEUED)


def test_a_job_that_enqueues_itself_forever_is_an_error(run: Run) -> None:
    with app.immediate(), pytest.raises(RuntimeError, match="1000 jobs followed one"):
        run(lambda: again.enqueue())
    with app.immediate(), pytest.raises(RuntimeError, match="1000 jobs followed one"):
        run(lambda: again_in_a_thread.enqueue(), timeout=60)


def test_several_loops_at_once_run_their_own() -> None:
    async def scenario(word: str) -> str:
        return await (await note.enqueue(word)).result()

    async def both() -> list[str]:
        return list(await asyncio.gather(*(asyncio.to_thread(asyncio.run, scenario(one)) for one in "abc")))

    with app.immediate():
        assert asyncio.run(both()) == ["A", "B", "C"]
    assert sorted(done) == ["a", "b", "c"]


def test_what_is_part_of_a_transaction_is_refused_with_what_to_do_instead() -> None:
    with closing(sqlite3.connect(":memory:")) as connection, app.immediate():
        with pytest.raises(ConfigurationError, match=r"within app\.immediate.*call jobs\.drain.*after the commit:"):
            note.enqueue_in(connection, "x")
        with pytest.raises(ConfigurationError, match=r"within app\.immediate"):
            app.sync.enqueue_in(connection, note, "x")
    assert done == []
