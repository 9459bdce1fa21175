"""What is changed from the dashboard: each action from the form to the row, its answer, and its audit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from stowhand.errors import InvalidJob, SchemaMissing, StoreRefused, StoreUnreachable
from stowhand.events import DashboardChanged, Events
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.task_limits import LimitValues
from stowhand.observe.propagation import CORRELATION_ID, TRACE_PARENT
from stowhand.observe.redacted_json import redacted_text, restored_text
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest
from stowhand.testing import MemoryStore
from stowhand.web import actions
from stowhand.web.actions import JOB_ACTIONS, ActionPages
from stowhand.web.board import Board
from stowhand.web.jobs import JOBS_PER_PAGE
from stowhand.web.reader import Reader
from stowhand.web.request import Reply, Right, Visitor
from tests.web.browser import Browser, Page
from tests.web.conftest import Stores
from tests.web.test_lists import declare_limit


def _veiled(payload: str) -> str:
    return msgspec.json.format(redacted_text(payload), indent=2)


ANN = Visitor("ann", frozenset(Right))


class Desk:
    """A person at a dashboard over this store, and what the audit says of them."""

    def __init__(self, store: Any, who: Visitor = ANN, declared: Callable[[NewJob], NewJob] = lambda job: job) -> None:
        self.store = store
        self.told: list[DashboardChanged] = []
        events = Events()
        events.on(DashboardChanged, self.told.append)

        async def opened() -> QueueStore:
            return self.store  # type: ignore[no-any-return]

        self.browser = Browser(
            Board(Reader(opened), actions=ActionPages(events, declared)), visitor=who, peer="10.0.0.1"
        )

    async def add(self, task: str = "send", **details: Any) -> int:
        return int((await self.store.jobs.enqueue(NewJob(task=task, **details))).id)

    async def job(self, job_id: int) -> Job:
        result = await self.store.jobs.get(job_id)
        assert result is not None
        return result  # type: ignore[no-any-return]

    async def running(self) -> int:
        request = ClaimRequest(worker="w1", token="6c5f0b1e-0000-4000-8000-000000000001", limit=1, lease=600.0)
        (claim,) = await self.store.claim(request)
        return int(claim.lease.job_id)

    async def act(self, action: str, *job_ids: int, at: str = "/jobs", **fields: str) -> Reply:
        """By the form of the list, answering what is asked once more."""
        form = (await self.browser.open(at)).form("/act")
        assert action in form.buttons
        reply = await self.browser.send(form, action=action, id=[str(one) for one in job_ids], **fields)
        if reply.status == 200:
            request = Page(reply)
            assert "Are you sure?" in request.html
            reply = await self.browser.send(request.form("/act"), **fields)
        return reply

    async def said(self, reply: Reply) -> list[str]:
        page = await self.browser.follow(reply)
        return _said(page)


def _said(page: Page) -> list[str]:
    result = page.html.partition('<ul class="messages"')[2].partition("</ul>")[0]
    return [line.partition("</li>")[0] for line in result.split("<li>")[1:]]


@asynccontextmanager
async def desk_at(store_at: Stores, **options: Any) -> AsyncIterator[Desk]:
    async with store_at() as store:
        yield Desk(store, **options)


async def test_each_action_changes_the_job(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        later = datetime.now(UTC) + timedelta(hours=1)
        ids = {name: await desk.add(run_at=later) for name in JOB_ACTIONS}
        await desk.store.admin.permanently_fail_jobs([ids["retry"]])
        fields = {"reschedule": {"priority": "7", "when": "+3h"}}
        lines = {
            name: await desk.said(await desk.act(name, job_id, **fields.get(name, {}))) for name, job_id in ids.items()
        }
        assert lines["retry"] == [f"Retry {ids['retry']}: done"]
        assert lines["cancel"] == [f"Cancel {ids['cancel']}: done"]
        assert lines["fail"] == [f"Fail {ids['fail']}: done (it is failed)"]
        (line,) = await desk.said(await desk.act("fail", ids["fail"]))
        assert line == f"Fail {ids['fail']}: done (it had already failed; its error was replaced)"
        desk.told.pop()
        assert lines["reschedule"] == [f"Reschedule {ids['reschedule']}: done (it is queued)"]
        rows = {name: await desk.store.jobs.get(job_id) for name, job_id in ids.items()}
        assert rows.pop("remove") is None
        states = {name: job.state for name, job in rows.items()}
        assert states == {
            "reschedule": State.QUEUED,
            "run": State.QUEUED,
            "retry": State.QUEUED,
            "cancel": State.CANCELED,
            "complete": State.COMPLETED,
            "fail": State.FAILED,
        }
        assert rows["reschedule"].priority == 7
        assert rows["reschedule"].run_at > later + timedelta(hours=1)
        assert rows["run"].run_at < later - timedelta(minutes=30)
        assert rows["retry"].run_at < later - timedelta(minutes=30)
        assert [(event.action, event.user, event.ids, event.address) for event in desk.told] == [
            (name, "ann", (str(job_id),), "10.0.0.1") for name, job_id in ids.items()
        ]
        assert {event.answers for event in desk.told} == {("done",)}


async def test_a_selection_gets_an_answer_for_each_job(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        await desk.add()
        running = await desk.running()
        done, waiting = await desk.add(), await desk.add()
        await desk.store.admin.complete_jobs([done])
        lines = await desk.said(await desk.act("retry", running, done, waiting, 999_999))
        assert f"Retry {waiting}: done" in lines
        assert f"Retry {running}: refused (it is running; cancel it first, or wait until it has ended)" in lines
        assert f"Retry {done}: refused (it completed; enqueue it again instead)" in lines
        assert any(line.startswith("Retry 999999: missing") for line in lines)
        assert dict(zip(desk.told[0].ids, desk.told[0].answers, strict=True))[str(running)] == "refused"
        lines = await desk.said(await desk.act("complete", running, waiting))
        assert f"Complete {waiting}: done (it is completed)" in lines
        assert f"Complete {running}: refused (it is running, held by w1)" in lines
        (line,) = await desk.said(await desk.act("cancel", running))
        assert line.startswith(f"Cancel {running}: asked (it is running")


async def test_run_now_keeps_attempts_and_refuses_failed_jobs_with_advice(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        failed = await desk.add()
        await desk.store.admin.permanently_fail_jobs([failed])
        (line,) = await desk.said(await desk.act("run", failed))
        assert line == f"Run now {failed}: refused (it has failed; retry it)"
        (line,) = await desk.said(await desk.act("reschedule", failed, priority="3"))
        assert line == f"Reschedule {failed}: done (it has failed; retry it)"
        assert (await desk.job(failed)).state is State.FAILED


async def test_queues_and_tasks_are_paused_and_resumed(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        await desk.add(serial="a/b <mail>")
        form = (await desk.browser.open("/jobs")).form("/act")
        for word, name in (("serial", "a/b <mail>"), ("task", "send")):
            for verb, seen in (("pause", True), ("resume", False)):
                lines = [
                    _said(await desk.browser.follow(await desk.browser.send(form, **{f"{verb} {word}": name})))
                    for _ in range(2)
                ]
                shown = f" {name}".rstrip().replace("<", "&lt;").replace(">", "&gt;")
                assert lines[0] == [f"{verb.capitalize()} {word}{shown}: done"]
                assert lines[1] == [f"{verb.capitalize()} {word}{shown}: unchanged"]
                paused = [one.name for one in await desk.store.inspect.serials() if one.paused_since]
                pauses = await desk.store.inspect.pauses()
                paused += pauses.tasks
                assert paused == ([name] if seen else [])
        assert desk.told[0] == DashboardChanged("pause serial", "ann", ("a/b <mail>",), ("done",), "10.0.0.1")


async def test_a_limit_is_overridden_and_reset(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        values = LimitValues(concurrency=2, rate=5, rate_seconds=1.0, burst=3, key_concurrency=1)
        await declare_limit(desk.store, "send", "a/b <api>", values)
        page = await desk.browser.open("/limit?name=a%2Fb+%3Capi%3E")
        form = page.form("/limit")
        shown = dict(form.fields)
        del shown["token"]
        assert shown == {"concurrency": "2", "rate": "5/1s", "burst": "3", "key_concurrency": "1"}
        (line,) = await desk.said(await desk.browser.send(form, concurrency="0", rate="100/1m"))
        result = "done (concurrency 0, rate 100/1m, burst 3, key concurrency 1)"
        assert line == f"Set limit a/b &lt;api&gt;: {result}"
        (row,) = await desk.store.inspect.limits()
        assert row.override == LimitValues(concurrency=0, rate=100, rate_seconds=60.0)
        assert desk.told[0] == DashboardChanged("set limit", "ann", ("a/b <api>",), (result,), "10.0.0.1")
        form = (await desk.browser.open("/limits")).form("/act")
        lines = [
            _said(await desk.browser.follow(await desk.browser.send(form, **{"reset limit": "a/b <api>"})))
            for _ in range(2)
        ]
        assert lines == [["Reset limit a/b &lt;api&gt;: done"], ["Reset limit a/b &lt;api&gt;: unchanged"]]
        assert (await desk.store.inspect.limits())[0].override == LimitValues()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"concurrency": "-1"}, "got -1; use a whole number"),
        ({"concurrency": "many"}, "not a whole number"),
        ({"concurrency": "2"}, "No value differs from the one in effect."),
        ({"concurrency": ""}, "No value differs from the one in effect."),
        ({"rate": "5"}, "is not a rate; write for example 5/1s"),
        ({"rate": "0/1s"}, "got 0; use a whole number"),
    ],
)
async def test_an_invalid_limit_is_shown_again_with_the_error(fields: dict[str, str], words: str) -> None:
    desk = Desk(MemoryStore())
    await declare_limit(desk.store, "send", "api", LimitValues(concurrency=2, rate=5, rate_seconds=1.0))
    page = Page(await desk.browser.send((await desk.browser.open("/limit?name=api")).form("/limit"), **fields))
    assert page.status == 400
    assert words in page.html
    assert dict(page.form("/limit").fields) | fields == dict(page.form("/limit").fields)
    assert not desk.told
    assert (await desk.browser.open("/limit?name=other", 404)).status == 404


async def test_an_irreversible_action_asks_on_a_page_first() -> None:
    desk = Desk(MemoryStore())
    ids = [await desk.add() for _ in range(7)]
    form = (await desk.browser.open("/jobs?task=send")).form("/act")
    for action in ("remove", "fail", "complete"):
        page = Page(await desk.browser.send(form, action=action, id=[str(one) for one in ids]))
        assert page.status == 200
        assert f"{ids[0]} (send, queued)" in page.html
        assert "and 2 more" in page.html
    assert {(await desk.job(one)).state for one in ids} == {State.QUEUED}
    assert not desk.told
    page = Page(await desk.browser.send(form, action="fail", id=[str(ids[0])]))
    reply = await desk.browser.send(page.form("/act"), reason="a <wrong> order")
    assert dict(reply.headers)["location"] == "/jobs?task=send"
    assert (await desk.job(ids[0])).last_error == "a <wrong> order"
    page = Page(await desk.browser.send(form, action="remove", id=[str(ids[1])], back=f"/job?id={ids[1]}"))
    reply = await desk.browser.send(page.form("/act"))
    assert dict(reply.headers)["location"] == "/jobs", "its own page is gone"


async def test_a_form_sent_twice_acts_once() -> None:
    desk = Desk(MemoryStore())
    for action in JOB_ACTIONS:
        job_id = await desk.add()
        form = (await desk.browser.open(f"/job?id={job_id}")).form("/act")
        rows = []
        for _ in range(2):
            options = {"priority": "3"} if action == "reschedule" else {}
            assert (await desk.browser.send(form, action=action, sure="yes", **options)).status == 303
            job = await desk.store.jobs.get(job_id)
            rows.append(job and (job.state, job.priority, job.attempts, job.finished_at, job.last_error))
        assert rows[0] == rows[1], action


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"action": "explode"}, "unknown action"),
        ({"action": ""}, "unknown action"),
        ({"action": "cancel", "id": "x"}, "not a whole number"),
        ({"action": "cancel", "id": "-1"}, "is not a job id"),
        ({"action": "cancel", "id": "٣"}, "not a whole number"),
        ({"action": "cancel", "id": str(2**63)}, "is not a job id"),
        ({"action": "cancel", "id": "0" * 19 + "1" + "9" * 5000}, "not a whole number"),
        (
            {"action": "cancel", "id": [str(one) for one in range(1, JOBS_PER_PAGE + 2)]},
            f"the maximum is {JOBS_PER_PAGE}",
        ),
        ({"action": "reschedule", "id": "1"}, "use a time"),
        ({"action": "reschedule", "id": "1", "when": "soon"}, "neither a time"),
        ({"action": "reschedule", "id": "1", "when": "2030-01-01T09:00"}, "has no time zone"),
        ({"action": "reschedule", "id": "1", "when": "+9999999w"}, "longer than a hundred years"),
        ({"action": "reschedule", "id": "1", "priority": "1.5"}, "not a whole number"),
        ({"action": "reschedule", "id": "1", "priority": str(2**40)}, "the limits are"),
        ({"action": "retry", "id": "1", "when": "+1h"}, "only Reschedule takes them; leave them empty for Retry"),
        ({"action": "run", "id": "1", "priority": "0"}, "leave them empty for Run now"),
        ({"pause serial": ""}, "empty"),
        ({"pause serial": "a\nb"}, "control character"),
        ({"pause task": "x" * 129}, "the limit is 128"),
    ],
)
async def test_an_invalid_form_is_refused_with_the_field(fields: dict[str, Any], words: str) -> None:
    desk = Desk(MemoryStore())
    await desk.add()
    form = (await desk.browser.open("/jobs")).form("/act")
    page = Page(await desk.browser.send(form, **fields))
    assert page.status == 400
    assert words in page.html
    assert not desk.told


async def test_an_empty_selection_is_reported() -> None:
    desk = Desk(MemoryStore())
    await desk.add()
    assert await desk.said(await desk.act("cancel")) == ["No job was selected."]


async def test_a_change_without_a_reply_is_audited_as_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(ids: Sequence[int]) -> None:
        raise StoreUnreachable("the connection broke at (17, a secret row)")

    desk = Desk(MemoryStore(), Visitor("ann", frozenset({Right.LOOK, Right.ACT})))
    job_id = await desk.add()
    form = (await desk.browser.open("/jobs")).form("/act")
    monkeypatch.setattr(desk.store.admin, "cancel_jobs", lost)
    reply = await desk.browser.send(form, action="cancel", id=[str(job_id)])
    assert reply.status == 503
    assert isinstance(reply.body, bytes)
    assert b"Result unknown" in reply.body
    assert b"secret row" not in reply.body
    assert "refresh" not in dict(reply.headers)
    assert desk.told == [DashboardChanged("cancel", "ann", (str(job_id),), ("not known",), "10.0.0.1")]
    desk.browser.visitor = ANN
    monkeypatch.setattr(desk.store.jobs, "enqueue", lost)
    assert (await again(desk, job_id)).status == 503
    assert desk.told[1:] == [DashboardChanged("run again", "ann", (str(job_id),), ("not known",), "10.0.0.1")]


async def test_a_change_that_the_store_refuses_is_shown_and_audited_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(ids: Sequence[int]) -> None:
        raise StoreRefused("permission denied for table live")

    desk = Desk(MemoryStore())
    job_id = await desk.add()
    form = (await desk.browser.open("/jobs")).form("/act")
    monkeypatch.setattr(desk.store.admin, "cancel_jobs", refused)
    page = Page(await desk.browser.send(form, action="cancel", id=[str(job_id)]))
    assert page.status == 502
    assert "The store refused the request" in page.html
    assert "permission denied" in page.html
    assert "Not known" not in page.html
    assert [one.answers for one in desk.told] == [("refused",)]


async def test_a_form_without_a_schema_changes_nothing_and_is_not_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(ids: Sequence[int]) -> None:
        raise SchemaMissing("nothing is installed")

    desk = Desk(MemoryStore())
    job_id = await desk.add()
    form = (await desk.browser.open("/jobs")).form("/act")
    monkeypatch.setattr(desk.store.admin, "cancel_jobs", missing)
    page = Page(await desk.browser.send(form, action="cancel", id=[str(job_id)]))
    assert (page.status, desk.told) == (503, [])
    assert "Not done" in page.html
    assert "stowhand migrate" in page.html


async def test_an_error_page_links_back_to_the_form() -> None:
    desk = Desk(MemoryStore())
    desk.browser.prefix = "/admin"
    job_id = await desk.add()
    form = (await desk.browser.open("/admin/jobs?task=send")).form("/admin/act")
    for action, fields in (("reschedule", {"when": "tomorow"}), ("remove", {})):
        page = Page(await desk.browser.send(form, action=action, id=[str(job_id)], **fields))
        assert '<a href="/admin/jobs?task=send">Back to the previous page</a>' in page.html
    page = Page(await desk.browser.send(form, action="resched", back="//evil.example"))
    assert '<a href="/admin/">To the overview</a>' in page.html


def _exact(text: str) -> Any:
    return json.loads(text, parse_float=str, parse_int=str)


# -- run again with changes ------------------------------------------------------------------------

PAYLOAD = '{"n":123456789012345678901234567890,"x":0.1234567890123456789,"e":1e5,"to":"ä<b>","token":"s3cret-1"}'


async def again(desk: Desk, job_id: int, **fields: str | Sequence[str]) -> Reply:
    page = await desk.browser.open(f"/again?id={job_id}")
    return await desk.browser.send(page.form("/again"), **fields)


async def test_a_job_is_run_again_with_an_identical_payload(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        old = await desk.add(payload=PAYLOAD, serial="q", priority=3, max_attempts=7, flags=("f",), key="k")
        kept = (await desk.job(old)).payload_text
        page = await desk.browser.open(f"/again?id={old}")
        assert "s3cret-1" not in page.html
        reply = await desk.browser.send(page.form("/again"))
        shown = await desk.browser.follow(reply)
        assert _said(shown) == [f"Added job {old + 1}, as job {old} with changes."]
        assert f"<h1>Job {old + 1}</h1>" in shown.html
        new = await desk.job(old + 1)
        assert _exact(new.payload_text) == _exact(kept) | ({"e": "1E+5"} if "1e5" in kept else {})
        assert (new.task, new.serial, new.priority, new.max_attempts, new.flags) == ("send", "q", 3, 7, ("f",))
        assert (await desk.job(old)).key == "k"
        assert desk.told == [DashboardChanged("run again", "ann", (str(old), str(old + 1)), ("", "added"), "10.0.0.1")]


async def test_a_job_that_is_run_again_leaves_the_old_trace() -> None:
    desk = Desk(MemoryStore())
    carried = f"{TRACE_PARENT}=00-{'a' * 32}-{'b' * 16}-01", f"{CORRELATION_ID}=order-7"
    old = await desk.add(flags=("f", *carried))
    await again(desk, old)
    assert (await desk.job(old + 1)).flags == ("f",)


async def test_changed_fields_are_checked_and_used(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        old = await desk.add(payload='{"n":1}')
        await again(desk, old, payload='{"n": 2}', serial=" mail ", priority="-5", max_attempts="2", when="+1h")
        new = await desk.job(old + 1)
        assert (new.payload, new.serial, new.priority, new.max_attempts) == ({"n": 2}, "mail", -5, 2)
        assert new.run_at > (await desk.job(old)).run_at + timedelta(minutes=50)
        for fields, words in (
            ({"payload": "{"}, "payload: Input data was truncated"),
            ({"payload": '"\\u0000"'}, "NUL"),
            ({"payload": "[" * 65 + "]" * 65}, "nested deeper"),
            ({"payload": '{"a": 1e999}'}, "exponent"),
            ({"payload": '"' + "x" * (1 << 20) + '"'}, "the limit is"),
            ({"serial": "a\x1bb"}, "control character"),
            ({"max_attempts": "0"}, "the limits are"),
            ({"when": "soon"}, "neither a time"),
            ({"payload": '{"password": "***"}'}, "hides a value that the original lacks"),
        ):
            reply = await again(desk, old, **fields)
            page = Page(reply)
            assert (reply.status, words in page.html) == (400, True), (words, page.html[:4000])
            sent = dict(page.form("/again").fields)
            if (value := fields.get("payload")) is not None and len(value) < 1000:
                assert sent["payload"].strip() == value, "what was typed is not lost"
        assert await desk.store.jobs.get(old + 2) is None or len(await desk.store.inspect.list()) == 2


async def test_a_large_payload_is_kept_unless_another_is_entered() -> None:
    desk = Desk(MemoryStore())
    large = json.dumps({"token": "s3cret", "rows": ["x" * 100] * 2000})
    old = await desk.add(payload=large)
    page = await desk.browser.open(f"/again?id={old}")
    assert len(page.html) < 10_000
    assert f"/job/text?id={old}&as=payload" in page.links
    assert (await again(desk, old)).status == 303
    assert (await desk.job(old + 1)).payload == json.loads(large)
    await again(desk, old, payload="[7]")
    assert (await desk.job(old + 2)).payload == [7]


async def test_a_form_sent_twice_adds_one_job(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        old = await desk.add()
        form = (await desk.browser.open(f"/again?id={old}")).form("/again")
        first = await desk.browser.send(form)
        new = await desk.running() if (await desk.job(old)).state is not State.QUEUED else old + 1
        others = Desk(desk.store)
        others.browser.cookies = desk.browser.cookies  # another process of the same application, after a lost reply
        for browser in (desk.browser, others.browser):
            second = await browser.send(form)
            assert dict(first.headers)["location"] == dict(second.headers)["location"]
        assert len(await desk.store.inspect.list()) == 2
        await desk.store.admin.complete_jobs([new])
        third = await desk.browser.send(form)
        assert dict(first.headers)["location"] == dict(third.headers)["location"]
        assert [job.id for job in await desk.store.inspect.list()] == [old]


async def test_a_form_changed_after_it_was_sent_adds_another_job() -> None:
    """Back in the browser, another number, and sent once more: the form has the name that it had."""
    desk = Desk(MemoryStore())
    old = await desk.add(payload='{"n":1}')
    form = (await desk.browser.open(f"/again?id={old}")).form("/again")
    for payload in ('{"n":2}', '{"n":3}', '{"n":2}'):
        assert (await desk.browser.send(form, payload=payload)).status == 303
    assert sorted(job.payload_text for job in await desk.store.inspect.list()) == ['{"n":1}', '{"n":2}', '{"n":3}']


async def test_without_the_right_to_payloads_the_form_does_not_show_the_original() -> None:
    store = MemoryStore()
    desk = Desk(store, Visitor("bob", frozenset({Right.LOOK, Right.ADD})))
    old = await desk.add(payload=PAYLOAD, key="k3y-of-it")
    page = await desk.browser.open(f"/again?id={old}")
    for secret in ("s3cret-1", "123456789012345678901234567890", "ä", "k3y-of-it"):
        assert secret not in page.html
    assert f"The payload of job {old} is not shown." in page.html
    desk.browser.visitor = Visitor("ann", frozenset(Right))
    assert "is not shown here" not in (await desk.browser.open(f"/again?id={old}")).html
    desk.browser.visitor = Visitor("bob", frozenset({Right.LOOK, Right.ADD}))
    reply = await again(desk, old, payload='{"token": "***"}')
    assert reply.status == 303
    assert (await desk.job(old + 1)).payload == {"token": "***"}, "nobody learns of it by having it sent on"


async def test_without_the_right_to_look_an_action_reveals_no_task() -> None:
    desk = Desk(MemoryStore())
    job_id = await desk.add("h1dden-task", serial="h1dden-queue")
    form = (await desk.browser.open(f"/job?id={job_id}")).form("/act")
    again = (await desk.browser.open(f"/again?id={job_id}")).form("/again")
    desk.browser.visitor = Visitor("ann", frozenset({Right.ACT, Right.ADD}))
    request = Page(await desk.browser.send(form, action="remove"))
    assert (request.status, "h1dden" in request.html) == (200, False)
    assert "h1dden" not in (await desk.browser.open(f"/again?id={job_id}", 403)).html
    assert (await desk.browser.send(again)).status == 403


async def test_forms_without_an_id_add_a_job_each() -> None:
    desk = Desk(MemoryStore())
    first, second = await desk.add("first"), await desk.add("second")
    for old in (first, second):
        await again(desk, old, once="")
    assert sorted(job.task for job in await desk.store.inspect.list()) == ["first", "first", "second", "second"]


async def test_a_built_in_job_cannot_be_run_again() -> None:
    desk = Desk(MemoryStore())
    job = await desk.store.admin.add_built_in(NewJob(task="jobs:purge_completed"))
    page = Page(await again(desk, job.id))
    assert page.status == 400
    assert "is built in" in page.html
    assert len(await desk.store.inspect.list()) == 1


async def test_a_step_of_a_flow_cannot_be_run_again() -> None:
    desk = Desk(MemoryStore())
    step = await desk.add("orders/price", key="flow:orders:1", payload='{"id":"1"}')
    shown = await desk.browser.open(f"/job?id={step}")
    assert not any(words in shown.html for words in ("/again?", "Enqueue a similar job"))
    page = Page(await again(desk, step))
    assert (page.status, "a step of a flow runs within its flow" in page.html) == (400, True)
    assert len(await desk.store.inspect.list()) == 1


async def test_options_of_the_task_apply_to_added_jobs() -> None:
    def declared(job: NewJob) -> NewJob:
        if "n" not in job.payload:
            raise InvalidJob("payload: n is missing")
        return NewJob(task=job.task, payload=job.payload, flags=("declared",))

    desk = Desk(MemoryStore(), declared=declared)
    old = await desk.add(payload='{"n":1}')
    await again(desk, old)
    assert (await desk.job(old + 1)).flags == ("declared",)
    page = Page(await again(desk, old, payload="{}"))
    assert (page.status, "n is missing" in page.html) == (400, True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a":1.0,"a":2}', '{\n  "a": 1.0,\n  "a": 2\n}'),
        ('{"a":[{"api_key":[1,2]}]}', '{\n  "a": [\n    {\n      "api_key": "***"\n    }\n  ]\n}'),
        ('"postgres://u:pw@h/d"', '"postgres://u:***@h/d"'),
    ],
)
def test_secrets_are_hidden_in_the_form_and_restored_in_the_job(text: str, shown: str) -> None:
    assert _veiled(text) == shown
    assert _veiled(restored_text(shown, text)) == shown


def test_an_edit_beside_a_secret_is_kept() -> None:
    old = '{"token":"t","deep":{"password":"p","n":1},"list":[{"secret":"s"}],"url":"x://u:pw@h"}'
    changed = json.loads(_veiled(old)) | {"new": [1.5], "text": "*** x://h ***"}
    changed["deep"]["n"] = 2
    assert json.loads(restored_text(json.dumps(changed), old)) == {
        "token": "t",
        "deep": {"password": "p", "n": 2},
        "list": [{"secret": "s"}],
        "url": "x://u:pw@h",
        "new": [1.5],
        "text": "*** x://h ***",
    }
    deep = '{"a":' * 60 + '{"token":"t"}' + "}" * 60
    assert json.loads(restored_text(_veiled(deep), deep)) == json.loads(deep)
    with pytest.raises(InvalidJob, match="hides a value"):
        restored_text('{"moved": {"token": "***"}}', '{"token":"t"}')


@pytest.mark.parametrize("changed", ['"x://u:***@other"', '["x://u:***@h", 2]', '"a user=ann password=***"'])
def test_an_edit_of_the_text_around_a_secret_is_refused(changed: str) -> None:
    with pytest.raises(InvalidJob, match="lacks; write the value"):
        restored_text(f'{{"at":{changed}}}', '{"at":"x://u:pw@h"}')


def test_asterisks_of_the_original_are_kept() -> None:
    assert restored_text('{"text":"new x://u:***@h"}', '{"text":"x://u:***@h"}') == '{"text":"new x://u:***@h"}'


def _bulk(page: Page) -> str:
    """The buttons for all jobs that match."""
    return page.html.partition('aria-label="Change all jobs that match"')[2].partition("</form>")[0]


async def test_all_jobs_that_match_are_retried_after_one_question(
    store_at: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "JOBS_PER_CALL", 25)
    async with desk_at(store_at) as desk:
        failed = [await desk.add() for _ in range(60)]
        other = [await desk.add("other"), await desk.add(run_at=datetime.now(UTC) + timedelta(hours=1))]
        await desk.store.admin.permanently_fail_jobs([*failed, other[0]], "Boom: no disk")
        page = await desk.browser.open("/jobs?state=failed&task=send&error=no+disk")
        assert "that match" in _bulk(page), "60 are more than a page"
        request = Page(await desk.browser.send(page.form("/act/matching"), action="retry"))
        assert "Retry 60 failed jobs with task send, error no disk?" in request.html
        assert {job.state for job in [await desk.job(one) for one in failed]} == {State.FAILED}, "asked first"
        reply = await desk.browser.send(request.form("/act/matching"))
        assert await desk.said(reply) == ["Retry 60 jobs: done"]
        assert [len(one.ids) for one in desk.told] == [25, 25, 10], "each call is audited"
        assert {one for told in desk.told for one in told.ids} == set(map(str, failed))
        assert {(await desk.job(one)).state for one in failed} == {State.QUEUED}
        assert (await desk.job(other[0])).state is State.FAILED
        again = await desk.browser.send(request.form("/act/matching"))
        assert await desk.said(again) == ["No job matches anymore."]


async def test_all_matching_jobs_are_canceled_up_to_the_maximum(
    store_at: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_MATCHING_JOBS", 3)
    monkeypatch.setattr(actions, "MAX_SEARCH_RESULTS", 3)
    async with desk_at(store_at) as desk:
        ids = [await desk.add("a", serial="q") for _ in range(5)]
        page = await desk.browser.open("/jobs?serial=q&state=queued")
        assert "Cancel all 5" in _bulk(page)
        assert "Retry" not in _bulk(page)
        request = Page(await desk.browser.send(page.form("/act/matching"), action="cancel"))
        assert "Cancel 3 queued jobs with serial q?" in request.html
        assert "More jobs match" in request.html
        lines = await desk.said(await desk.browser.send(request.form("/act/matching")))
        assert lines == ["Cancel 3 jobs: done", "More jobs match; repeat the action to change them."]
        assert [(await desk.job(one)).state for one in ids].count(State.CANCELED) == 3


async def test_a_list_without_filters_has_no_button_for_all(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        await desk.add()
        assert _bulk(await desk.browser.open("/jobs")) == ""


async def test_a_job_has_buttons_for_the_actions_of_its_state(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        job_id = await desk.add()
        buttons = {}
        buttons["queued"] = (await desk.browser.open(f"/job?id={job_id}")).form("/act").buttons
        assert await desk.running() == job_id
        buttons["processing"] = (await desk.browser.open(f"/job?id={job_id}")).form("/act").buttons
        await desk.store.admin.force_unlock_workers(["w1"])
        await desk.store.admin.permanently_fail_jobs([job_id])
        buttons["failed"] = (await desk.browser.open(f"/job?id={job_id}")).form("/act").buttons
        await desk.store.admin.complete_jobs([job_id])
        over = await desk.browser.open(f"/job?id={job_id}")
        assert buttons == {
            "queued": [*JOB_ACTIONS],
            "processing": ["cancel"],
            "failed": ["retry", "complete", "remove"],
        }
        assert "Change this job" not in over.html
