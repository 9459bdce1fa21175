"""Steps and children on the page of a job, and the button that forks it."""

from __future__ import annotations

import uuid

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement, Wait
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest
from stowhand.protocols.workflows import NewStep
from stowhand.web.request import Right, Visitor
from tests.web.browser import Form
from tests.web.conftest import LOOKER, PageReader, Stores
from tests.web.test_actions import Desk, desk_at


async def start(store: QueueStore, task: str) -> Lease:
    await store.jobs.enqueue(NewJob(task=task))
    request = ClaimRequest(worker="w1", token=str(uuid.uuid4()), limit=1, lease=600.0)
    (claim,) = await store.claim(request)
    return claim.lease


async def record(store: QueueStore, lease: Lease, name: str, value: str) -> None:
    assert store.workflows is not None
    assert await store.workflows.record([(lease, NewStep(name, value))]) == [True]


async def test_a_workflow_shows_its_steps_and_children(store_at: Stores) -> None:
    async with store_at() as store:
        lease = await start(store, "order")
        await record(store, lease, "charge <b>", '{"paid":"by card","password":"hidden1"}')
        children = (NewJob(task="pack"), NewJob(task="pack"))
        wait = Wait(step="pack all", children=children, places=(0, 1), value='{"size": 2, "attempts": 1}')
        await store.settle([(lease, Settlement(State.QUEUED, AttemptOutcome.WAITING, wait=wait))])
        page = await PageReader(store).page(f"/job?id={lease.job_id}")
        assert "charge &lt;b&gt;" in page
        assert "by card" in page
        assert "hidden1" not in page
        assert "2 children have not ended" in page
        assert "it waits for 2 of 2 children of its step" in page
        assert page.count(">pack</bdi>") == 2
        child = lease.job_id + 1
        assert f'href="/job?id={lease.job_id}"' in await PageReader(store).page(f"/job?id={child}")
        page = await PageReader(store, LOOKER).page(f"/job?id={lease.job_id}")
        assert "charge &lt;b&gt;" in page
        assert "by card" not in page, "values need the right to payloads"


async def test_a_plain_job_has_no_steps(store_at: Stores) -> None:
    async with store_at() as store:
        job = await store.jobs.enqueue(NewJob(task="send"))
        assert "<h2>Steps</h2>" not in await PageReader(store).page(f"/job?id={job.id}")


async def test_a_button_forks_a_job_at_a_step(store_at: Stores) -> None:
    async with desk_at(store_at) as desk:
        lease = await start(desk.store, "order")
        for name in ("charge", "pack", "mail"):
            await record(desk.store, lease, name, "1")
        form = (await desk.browser.open(f"/job?id={lease.job_id}")).form("/fork")
        assert form.buttons == ["charge", "pack", "mail"]
        reply = await desk.browser.send(form, step="mail")
        (line,) = await desk.said(reply)
        fork_id = int(desk.told[-1].ids[1])
        assert line == f"Added job {fork_id}: job {lease.job_id} again, from step mail."
        assert [(event.action, event.user, event.answers) for event in desk.told] == [("fork", "ann", ("", "added"))]
        assert [step.name for step in await desk.store.workflows.read(fork_id)] == ["charge", "pack"]
        assert (await desk.browser.send(form, step="nothing")).status == 400
        assert (await desk.browser.send(form, step="mail", id="999999")).status == 404
        assert (await desk.browser.send(form, step="mail", token="forged")).status == 403
        assert len(desk.told) == 1


async def test_a_fork_needs_the_right_to_act(store_at: Stores) -> None:
    async with store_at() as store:
        lease = await start(store, "order")
        await record(store, lease, "charge", "1")
        desk = Desk(store, Visitor("lou", frozenset({Right.LOOK, Right.PAYLOADS})))
        page = await desk.browser.open(f"/job?id={lease.job_id}")
        assert "Fork" not in page.html
        form = Form("/fork", "POST", [("id", str(lease.job_id)), ("step", "charge")])
        assert (await desk.browser.send(form)).status == 403
