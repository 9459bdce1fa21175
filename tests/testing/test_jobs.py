"""The fixture ``jobs``: an App's jobs in one test, in memory, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from stowhand import App, Context, State, resource
from stowhand.errors import InvalidJob, Poison, ResultNotKept
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Handler
from stowhand.testing import Jobs

done: list[object] = []
"""What the tasks of the test that runs have done."""


def noted(inner: Handler[Any]) -> Callable[[Attempt[Any], Any], Awaitable[object]]:
    async def handle(attempt: Attempt[Any], record: Any) -> object:
        done.append(f"begin {record.task}")
        return await inner.handle(attempt, record)

    return handle


@contextmanager
def open_mailer() -> Iterator[str]:
    done.append("open")
    yield "the real one"
    done.append("close")


app = App("sqlite:///never-made.db", middleware=[noted])


@app.task
async def send(to: str, subject: str = "Hello") -> str:
    done.append(to)
    return f"to {to}"


@app.task
def mail(to: str, *, mailer: str = resource(open_mailer)) -> None:
    done.append((to, mailer))


@app.task(backoff=lambda attempt: 60.0 * attempt)
async def flaky(ctx: Context) -> None:
    if ctx.attempt < 3:
        raise OSError(f"no answer {ctx.attempt}")


@app.task(max_attempts=1)
async def broken() -> None:
    raise ValueError("it is broken")


@app.task
async def send_all(number: int) -> None:
    for one in range(number):
        await send.enqueue(f"user{one}")


@app.task
async def again() -> None:
    await again.enqueue()


@app.task(timeout=0.01)
async def slow() -> None:
    await asyncio.sleep(60)


@app.task
async def hourly() -> None:
    done.append("hourly")


@app.task
async def at(moment: datetime) -> None: ...


app.cron("0 * * * *", hourly)


@pytest.fixture
def stowhand_app() -> App:
    done.clear()
    return app


def test_what_the_application_enqueues_waits_until_it_is_drained(jobs: Jobs) -> None:
    app.sync.enqueue(send_all, 2)
    assert done == []
    drained = jobs.drain()
    assert done == ["begin send_all", "begin send", "user0", "begin send", "user1"]
    assert (len(drained), drained.counts) == (3, {"ok": 3})
    assert drained.results == [None, "to user0", "to user1"]
    assert not jobs.enqueued


def test_no_file_is_made_and_the_store_is_put_back(jobs: Jobs, tmp_path: Path) -> None:
    assert app.any_store().description == "memory"
    assert not Path("never-made.db").exists()


def test_the_next_test_sees_nothing_of_the_one_before(jobs: Jobs) -> None:
    assert not jobs.enqueued
    assert app.sync.enqueue(send, "x").id == 1


def test_without_the_fixture_the_app_has_its_own_store() -> None:
    assert "never-made.db" in app.any_store().description


def test_in_an_event_loop_everything_is_awaited(jobs: Jobs) -> None:
    async def scenario() -> None:
        job = await send.options(delay="10m").enqueue("x")
        assert len(await jobs.adrain()) == 0
        assert jobs.assert_enqueued(send, to="x").id == job.id
        assert "to x" in (await jobs.aadvance("10m")).results
        assert await job.result() == "to x"
        with pytest.raises(RuntimeError, match=r"await jobs\.adrain\(…\)"):
            jobs.drain()

    asyncio.run(scenario())


async def enqueued(to: str) -> None:
    await send.enqueue(to)


def test_every_loop_and_thread_keeps_its_jobs_in_the_same_place(jobs: Jobs) -> None:
    asyncio.run(enqueued("a"))
    asyncio.run(enqueued("b"))
    other = Thread(target=lambda: app.sync.enqueue(send, "c"))
    other.start()
    other.join()
    assert [job.payload["to"] for job in jobs.enqueued] == ["a", "b", "c"]
    assert len(jobs.drain()) == 3


@app.task
def poisoned() -> None:
    raise Poison("it is gone")


def test_what_a_task_raises_is_raised_when_all_have_run(jobs: Jobs) -> None:
    app.sync.enqueue(broken)
    app.sync.enqueue(send, "x")
    with pytest.raises(ValueError, match="it is broken") as raised:
        jobs.drain()
    assert done[-1] == "x"
    (note,) = raised.value.__notes__
    assert note.startswith("raised by job 1: broken()")
    assert "attempt 1 of 1" in note
    assert raised.value.__context__ is None
    names = [entry.name for entry in raised.traceback]
    assert names[names.index("raise_first_failure") + 1] == "handle", "of the middleware: what comes before is ours"
    assert raised.traceback[-1].name == "broken"


def test_poison_is_raised_as_well(jobs: Jobs) -> None:
    app.sync.enqueue(poisoned)
    with pytest.raises(Poison, match="it is gone"):
        jobs.drain()


def test_without_raising_the_result_contains_failures(jobs: Jobs) -> None:
    app.sync.enqueue(broken)
    drained = jobs.drain(raises=False)
    assert drained.counts == {"failed": 1}
    assert repr(drained) == "<DrainResult: 1 attempts\n    job 1: broken() failed, ValueError: it is broken>"
    assert [(one.job.task, str(one.error)) for one in drained.failures] == [("broken", "it is broken")]


def test_a_task_that_takes_too_long_is_a_timeout(jobs: Jobs) -> None:
    app.sync.enqueue(slow)
    with pytest.raises(TimeoutError, match="longer than"):
        jobs.drain()


def test_retries_come_at_their_own_times(jobs: Jobs) -> None:
    began = jobs.now
    app.sync.enqueue(flaky)
    assert jobs.drain(raises=False).counts == {"retry": 1}
    assert "flaky" not in [one.job.task for one in jobs.advance("59s").ran]
    with pytest.raises(OSError, match="no answer 2"):
        jobs.advance(1)
    assert jobs.now == began + timedelta(seconds=60)
    (last,) = [one for one in jobs.advance(timedelta(minutes=2)).ran if one.job.task == "flaky"]
    assert (last.ended, last.job.attempts) == ("ok", 3)


def test_what_recurs_and_what_is_delayed_happen_in_the_order_of_time(jobs: Jobs) -> None:
    to_the_hour = 3600 - (jobs.now - jobs.now.replace(minute=0, second=0, microsecond=0)).total_seconds()
    app.sync.enqueue(send.options(delay=to_the_hour + 60), "after one")
    app.sync.enqueue(send.options(delay=to_the_hour + 3660), "after two")
    jobs.advance("3h")
    assert [one for one in done if not str(one).startswith("begin")] == [
        "hourly", "after one", "hourly", "after two", "hourly",
    ]  # fmt: skip
    assert jobs.advance("24h").counts == {"ok": 24}


@pytest.mark.stowhand(now="2030-01-01T12:17:04.000003+00:00")
def test_what_is_due_when_the_time_has_passed_runs_whatever_the_microsecond(jobs: Jobs) -> None:
    """From the last full hour it is a number of seconds that, times a million, is a bit more than whole."""
    app.sync.enqueue(send.options(delay="3h"), "in time")
    assert jobs.advance("3h").counts == {"ok": 4}
    assert "in time" in done


def test_what_the_application_wants_now_is_due(jobs: Jobs) -> None:
    app.sync.enqueue(send.options(run_at=datetime.now(UTC)), "x")
    app.sync.enqueue(send.options(run_at=datetime.now(UTC) + timedelta(minutes=1)), "y")
    assert jobs.drain().results == ["to x"]


def test_a_job_that_enqueues_itself_forever_is_an_error(jobs: Jobs) -> None:
    app.sync.enqueue(again)
    with pytest.raises(RuntimeError, match="20 of them were 'again', which may enqueue itself forever"):
        jobs.drain(limit=20)


def test_resources_are_opened_and_closed_unless_they_are_overridden(jobs: Jobs) -> None:
    app.sync.enqueue(mail, "x")
    jobs.drain()
    assert done == ["open", "begin mail", ("x", "the real one"), "close"]
    done.clear()
    jobs.override(open_mailer, "a fake")
    app.sync.enqueue(mail, "x")
    jobs.drain()
    assert done == ["begin mail", ("x", "a fake")]


def test_a_resource_that_no_job_asks_for_is_not_opened(jobs: Jobs) -> None:
    app.sync.enqueue(send, "x")
    jobs.drain()
    assert "open" not in done


def test_an_override_ends_with_its_test(jobs: Jobs) -> None:
    app.sync.enqueue(mail, "x")
    jobs.drain()
    assert ("x", "the real one") in done


def test_assert_enqueued_returns_the_matching_job(jobs: Jobs) -> None:
    app.sync.enqueue(send.options(serial="mail"), "a", "Hi")
    app.sync.enqueue(send, "b")
    assert jobs.assert_enqueued(send, subject="Hi").serial == "mail"
    assert jobs.assert_enqueued(send, to="b", subject="Hello").id == 2  # by its default
    assert jobs.assert_enqueued("send").id == 1
    jobs.assert_not_enqueued(send, to="c")
    when = datetime(2030, 1, 1, tzinfo=UTC)
    app.sync.enqueue(at, when)
    jobs.assert_enqueued(at, moment=when)


def test_the_nearest_job_is_shown_and_what_differs(jobs: Jobs) -> None:
    app.sync.enqueue(send, "bob")
    app.sync.enqueue(send, "carl", "Hi")
    with pytest.raises(AssertionError) as raised:
        jobs.assert_enqueued(send, to="ada", subject="Hi")
    lines = str(raised.value).splitlines()
    assert lines[:3] == [
        "no waiting job matches send(to='ada', subject='Hi')",
        "the nearest is job 2:",
        "    to: expected 'ada', is 'carl'",
    ]
    assert "job 1: send(to='bob'), queued" in lines[-2]
    with pytest.raises(AssertionError, match=r"a waiting job matches send\(to='bob'\)"):
        jobs.assert_not_enqueued(send, to="bob")


def test_the_difference_of_long_arguments_is_shown(jobs: Jobs) -> None:
    long = "word " * 100
    app.sync.enqueue(send, "bob", f"{long}x")
    with pytest.raises(AssertionError) as raised:
        jobs.assert_enqueued(send, subject=f"{long}y")
    before = f"…{long[-40:]}"
    assert f"    subject: expected {before}y', is {before}x'" in str(raised.value).splitlines()


def test_the_message_names_a_matching_job_that_has_run(jobs: Jobs) -> None:
    app.sync.enqueue(send, "bob")
    jobs.drain()
    with pytest.raises(AssertionError, match="job 1 matches, but is no longer waiting: it is completed"):
        jobs.assert_enqueued(send, to="bob")


def test_a_mistyped_argument_is_refused(jobs: Jobs) -> None:
    with pytest.raises(InvalidJob, match="no parameter 'too'; did you mean 'to'"):
        jobs.assert_enqueued(send, too="x")


def test_an_object_that_is_not_a_task_is_refused(jobs: Jobs) -> None:
    with pytest.raises(
        InvalidJob, match=r"assert_enqueued: a function is not a task; use a task declared with @app\.task"
    ):
        jobs.assert_enqueued(open_mailer)  # type: ignore[arg-type]


def test_a_mistyped_task_is_said(jobs: Jobs) -> None:
    with pytest.raises(AssertionError, match="the App has no task 'sned'; did you mean 'send'"):
        jobs.assert_enqueued("sned", to="x")
    with pytest.raises(AssertionError, match="the App has no task 'sned'; did you mean 'send'"):
        jobs.assert_not_enqueued("sned")
    jobs.assert_not_enqueued("declared_elsewhere")


def test_time_does_not_go_back(jobs: Jobs) -> None:
    with pytest.raises(ValueError, match="time does not go back"):
        jobs.advance(-1)


def test_what_has_ended_long_ago_is_gone(jobs: Jobs) -> None:
    job = app.sync.enqueue(send, "x")
    jobs.drain()
    assert app.sync.job(job.id).state is State.COMPLETED
    jobs.advance("25h")
    with pytest.raises(ResultNotKept):
        app.sync.job(job.id)
