"""Each recipe of docs/how-to/cookbook.md does what its heading says, in virtual time where it waits."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from stowhand import App, State
from stowhand.testing import Jobs
from tests.conftest import Run
from tests.docs.pages import DOCS

PAGE = (DOCS / "how-to" / "cookbook.md").read_text()
SHOP = re.findall(r"^<!-- file: shop.py -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RECIPES = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The App of the page's module, in a folder of its own."""
    (tmp_path / "shop.py").write_text("".join(SHOP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shop").app
    del sys.modules["shop"]


@pytest.fixture
def stowhand_app(app: App) -> App:
    return app


def recipe(heading: str, **replacements: str) -> dict[str, Any]:
    """The names that the recipe defines."""
    names: dict[str, Any] = {"__name__": "recipe"}
    code = RECIPES[heading]
    for name, value in replacements.items():
        code, count = re.subn(rf"{name}=[^,)]+", f"{name}={value}", code)
        assert count == 1
    exec(compile(code, heading, "exec"), names)
    return names


def test_there_are_twenty_recipes_of_at_most_fifteen_lines_and_a_test_for_each() -> None:
    assert len(RECIPES) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 20
    assert max(len(code.splitlines()) for code in RECIPES.values()) <= 15
    assert set(re.findall(r'recipe\("(.+?)"[,)]', Path(__file__).read_text())) == RECIPES.keys()


def test_a_fetch_is_tried_after_10_20_and_40_seconds(jobs: Jobs) -> None:
    recipe("Retry with backoff")["fetch"].enqueue_sync("https://example.com")
    assert jobs.drain(raises=False).counts == {"retry": 1}
    assert [jobs.advance(wait, raises=False).counts for wait in (9, 1, 20, 40)] == [
        {},
        {"retry": 1},
        {"retry": 1},
        {"failed": 1},
    ]


def test_a_reminder_comes_later(jobs: Jobs, run: Run) -> None:
    run(recipe("Run a job later")["plan"]())
    assert jobs.advance("9m").results == []
    assert jobs.advance("1m").results == ["reminded Ann"]
    (job,) = jobs.enqueued
    assert job.run_at.year == 2100


def test_a_page_has_one_job(jobs: Jobs, run: Run) -> None:
    edited = recipe("One job per argument")["edited"]
    first, again, other = run(edited("home")), run(edited("home")), run(edited("news"))
    assert first == again != other
    jobs.drain()
    assert run(edited("home")) != first


def test_a_waiting_job_is_canceled_and_a_running_one_is_asked_to_stop(app: App, run: Run) -> None:
    names = recipe("Cancel a job")

    async def scenario() -> list[str]:
        await app.open(install=True)
        waiting = await names["export"].options(delay="1h").enqueue()
        answers = [await names["stop"](waiting.id)]
        async with app.run_in_background():
            running = await names["export"].enqueue()
            async for job in running.watch():
                if job.state == "processing":
                    break
            answers.append(await names["stop"](running.id))
            await running.wait(timeout=30)
        answers += [str((await app.job(job.id)).state) for job in (waiting, running)]
        await app.close()
        return answers

    assert run(scenario()) == ["done", "asked", "canceled", "canceled"]


def test_a_caller_gets_the_result(app: App, run: Run) -> None:
    names = recipe("Wait for a result")
    assert run(with_worker(app, lambda: names["checkout"]([1.5, 2.5]))) == 4.0


async def with_worker(app: App, call: Any) -> Any:
    """What a coroutine returns while a worker runs beside it."""
    await app.open(install=True)
    try:
        async with app.run_in_background():
            return await call()
    finally:
        await app.close()


def test_charges_of_one_customer_have_one_serial_key(jobs: Jobs, run: Run) -> None:
    order = recipe("One at a time per customer")["order"]
    for customer in (1, 2, 1):
        run(order(customer))
    assert [job.serial for job in jobs.enqueued] == ["customer 1", "customer 2", "customer 1"]


def test_words_of_many_texts_are_counted(app: App, run: Run) -> None:
    names = recipe("Fan out, then gather the results")
    assert run(with_worker(app, lambda: names["count_all"](["one two", "three"]))) == 3


def test_progress_is_stored_while_rows_are_imported(app: App, run: Run) -> None:
    names = recipe("Report progress")
    assert run(with_worker(app, lambda: names["import_rows"].enqueue_and_wait(["a", "b"], timeout=30))) == 2


def test_a_fetch_has_a_timeout_and_a_second_attempt(jobs: Jobs) -> None:
    names = recipe("Limit the time of an attempt", timeout="0.05")
    job = names["fetch"].enqueue_sync("https://example.com")
    assert jobs.drain(raises=False).counts == {"retry": 1}
    assert job.refresh().last_error.startswith("timed out")
    assert jobs.advance("1h", raises=False).counts == {"failed": 1}


def test_a_log_line_names_the_job(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    names = recipe("Log with the job's id")
    with caplog.at_level("INFO"):
        job = names["ship"].enqueue_sync(7)
        jobs.drain()
    (line,) = [record for record in caplog.records if record.getMessage().startswith("shipped")]
    assert f"job_id={job.id}" in str(vars(line))


@pytest.mark.stowhand(now="2030-01-01T00:00")
def test_a_report_is_made_at_nine_in_berlin(jobs: Jobs) -> None:
    recipe("Cron in a time zone")
    assert jobs.advance("7h").results == []
    assert jobs.advance("1h").results == ["report for north"]


def test_a_user_and_a_job_are_committed_together(app: App, tmp_path: Path) -> None:
    names = recipe("Enqueue in a database transaction")
    app.sync.install()
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE users (email TEXT UNIQUE)"))
    names["sign_up"](engine, "ann@example.com")
    with pytest.raises(Exception, match="UNIQUE"):
        names["sign_up"](engine, "ann@example.com")
    assert [job.payload for job in app.sync.list()] == [{"email": "ann@example.com"}]
    app.sync.close()
    engine.dispose()


def test_a_week_passes_in_a_test(jobs: Jobs) -> None:
    recipe("Test in virtual time")["test_the_customer_is_asked_after_a_week"](jobs)


def test_a_permanent_failure_enqueues_an_alert(jobs: Jobs) -> None:
    job = recipe("Handle dead letters")["charge"].enqueue_sync(7)
    (said,) = jobs.drain(raises=False).results
    assert said == f"job {job.id} of charge failed: LookupError"


def test_jobs_share_a_client(jobs: Jobs, run: Run) -> None:
    names = recipe("Share a client among jobs")
    transport = httpx.MockTransport(lambda request: httpx.Response(204))
    jobs.override(names["open_client"], httpx.AsyncClient(transport=transport))
    names["fetch"].enqueue_sync("https://example.com")
    assert jobs.drain().results == [204]


def test_a_newsletter_is_one_transaction(jobs: Jobs, run: Run) -> None:
    assert run(recipe("Enqueue many jobs")["newsletter"](f"{n}@example.com" for n in range(1500))) == 1500
    assert len(jobs.drain(limit=2000)) == 1500


def test_a_password_mail_is_sent_first(jobs: Jobs, run: Run) -> None:
    names = recipe("Run urgent jobs first")
    names["send"].enqueue_sync("newsletter")
    run(names["reset_password"]("Ann"))
    assert jobs.drain().results == ["Ann", "newsletter"]


def test_no_mail_is_sent_during_maintenance(app: App, run: Run) -> None:
    names = recipe("Pause a queue")

    async def scenario() -> list[str]:
        await app.open(install=True)
        job = await names["send"].enqueue("Ann")
        states = []
        for begins in (True, False):
            await names["maintenance"](begins=begins)
            await app.worker(once=True).run()
            states.append(str((await job.refresh()).state))
        await app.close()
        return states

    assert run(scenario()) == ["queued", "completed"]


def test_a_code_is_not_sent_too_late(jobs: Jobs) -> None:
    send_code = recipe("Drop a job that comes too late")["send_code"]
    send_code.enqueue_sync("Ann")
    assert jobs.drain().results == ["sent to Ann"]
    late = send_code.enqueue_sync("Bob")
    jobs.app.sync.pause_queue("default")
    jobs.advance("6m")
    jobs.app.sync.resume_queue("default")
    assert jobs.drain().results == []
    assert late.refresh().state == "canceled"


def test_ten_calls_start_at_once_and_two_wait(app: App, run: Run) -> None:
    names = recipe("Limit the rate")

    async def scenario() -> int:
        await app.open(install=True)
        await names["call_partner"].enqueue_many([{"order": number} for number in range(12)])
        await app.worker(once=True).run()
        waiting = (await app.counts())[State.QUEUED]
        await app.close()
        return waiting

    assert run(scenario()) == 2
