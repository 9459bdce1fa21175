"""The schema: installed by those who may, checked by everybody, gone without a trace."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.errors import SchemaMissing
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import SchemaStatus
from tests.contract.store_harness import StoreHarness


async def test_an_installed_schema_is_current(bare_bench: StoreHarness) -> None:
    await bare_bench.store.install()
    status = await bare_bench.store.status()
    assert status.installed == status.expected
    assert not status.breaking


async def test_installing_twice_changes_nothing_and_keeps_the_jobs(bare_bench: StoreHarness) -> None:
    first = await bare_bench.store.install()
    await bare_bench.store.open()
    job = await bare_bench.add()
    assert await bare_bench.store.install() == first
    assert await bare_bench.job(job.id) == job


async def test_many_may_install_at_once(bare_bench: StoreHarness) -> None:
    await bare_bench.store.uninstall()
    stores = [bare_bench.unopened() for _ in range(4)]
    statuses = await asyncio.gather(*(store.install() for store in stores))
    for store in stores:
        await store.close()
    assert {status.installed for status in statuses} == {statuses[0].expected}


async def test_without_a_schema_a_store_does_not_open(bare_bench: StoreHarness) -> None:
    await bare_bench.store.uninstall()
    with pytest.raises(SchemaMissing):
        await bare_bench.store.open()
    assert (await bare_bench.store.status()).installed is None


async def test_enqueueing_never_installs(bare_bench: StoreHarness) -> None:
    await bare_bench.store.uninstall()
    with pytest.raises(SchemaMissing):
        await bare_bench.store.enqueue(NewJob(task="t"))
    with pytest.raises(SchemaMissing):
        await bare_bench.store.enqueue_many([NewJob(task="t")])
    assert (await bare_bench.store.status()).installed is None


async def test_a_plan_is_read_and_not_run(bare_bench: StoreHarness) -> None:
    await bare_bench.store.uninstall()
    assert await bare_bench.store.plan()
    assert (await bare_bench.store.status()).installed is None
    await bare_bench.store.install()
    assert (await bare_bench.store.plan()).strip() == ""


async def test_uninstalling_takes_every_job_along(bare_bench: StoreHarness) -> None:
    await bare_bench.store.install()
    await bare_bench.store.open()
    await bare_bench.add(queue="q")
    await bare_bench.settle(await bare_bench.take())
    await bare_bench.add()
    await bare_bench.store.uninstall()
    assert await bare_bench.store.status() == SchemaStatus(
        installed=None, expected=(await bare_bench.store.status()).expected
    )
    await bare_bench.store.install()
    await bare_bench.store.open()
    assert list(await bare_bench.everything()) == []


async def test_uninstalling_what_is_not_there_is_harmless(bare_bench: StoreHarness) -> None:
    await bare_bench.store.uninstall()
    await bare_bench.store.uninstall()


async def test_closing_twice_is_harmless(bare_bench: StoreHarness) -> None:
    await bare_bench.store.install()
    store = bare_bench.unopened()
    await store.open()
    await store.close()
    await store.close()
