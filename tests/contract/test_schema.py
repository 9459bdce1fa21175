"""The schema: installed by those who may, checked by everybody, gone without a trace."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.errors import SchemaMissing
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import SchemaStatus
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("schema")


async def test_an_installed_schema_is_current(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.install()
    status = await bare_harness.store.schema.status()
    assert status.installed == status.expected
    assert not status.breaking


async def test_installing_twice_changes_nothing_and_keeps_the_jobs(bare_harness: StoreHarness) -> None:
    first = await bare_harness.store.schema.install()
    await bare_harness.store.open()
    job = await bare_harness.add()
    assert await bare_harness.store.schema.install() == first
    assert await bare_harness.job(job.id) == job


async def test_many_may_install_at_once(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.uninstall()
    stores = [bare_harness.unopened() for _ in range(4)]
    statuses = await asyncio.gather(*(store.schema.install() for store in stores))
    for store in stores:
        await store.close()
    assert {status.installed for status in statuses} == {statuses[0].expected}


async def test_without_a_schema_a_store_does_not_open(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.uninstall()
    with pytest.raises(SchemaMissing):
        await bare_harness.store.open()
    assert (await bare_harness.store.schema.status()).installed is None


async def test_enqueueing_never_installs(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.uninstall()
    with pytest.raises(SchemaMissing):
        await bare_harness.store.jobs.enqueue(NewJob(task="t"))
    with pytest.raises(SchemaMissing):
        await bare_harness.store.jobs.enqueue_many([NewJob(task="t")])
    assert (await bare_harness.store.schema.status()).installed is None


async def test_a_plan_is_read_and_not_run(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.uninstall()
    assert await bare_harness.store.schema.plan()
    assert (await bare_harness.store.schema.status()).installed is None
    await bare_harness.store.schema.install()
    assert (await bare_harness.store.schema.plan()).strip() == ""


async def test_uninstalling_takes_every_job_along(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.install()
    await bare_harness.store.open()
    await bare_harness.add(serial="q")
    await bare_harness.settle(await bare_harness.take())
    await bare_harness.add()
    await bare_harness.store.schema.uninstall()
    assert await bare_harness.store.schema.status() == SchemaStatus(
        installed=None, expected=(await bare_harness.store.schema.status()).expected
    )
    await bare_harness.store.schema.install()
    await bare_harness.store.open()
    assert list(await bare_harness.everything()) == []


async def test_uninstalling_what_is_not_there_is_harmless(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.uninstall()
    await bare_harness.store.schema.uninstall()


async def test_closing_twice_is_harmless(bare_harness: StoreHarness) -> None:
    await bare_harness.store.schema.install()
    store = bare_harness.unopened()
    await store.open()
    await store.close()
    await store.close()
