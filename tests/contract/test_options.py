"""Every declared option of a job survives each way to enqueue, the update of a key, and the history."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.fields import OPTION_FIELDS, Kind
from stowhand.jobs.job import Job, KeyMode, NewJob
from stowhand.jobs.limits import PURGE_TASK
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("jobs")

VALUES: dict[Kind, Any] = {Kind.TEXT: "north", Kind.WHOLE: 3, Kind.NAMES: ("north",), Kind.TRUTH: True, Kind.REAL: 0.5}
"""Of an option of each kind a value that is not a default. An option of another kind needs a line here."""


def options(*without: str) -> dict[str, Any]:
    return {option.name: VALUES[option.kind] for option in OPTION_FIELDS if option.name not in without}


def carried(job: Job | None, wanted: dict[str, Any]) -> bool:
    assert job is not None
    assert {name: getattr(job, name) for name in wanted} == wanted
    return True


@pytest.mark.parametrize("rule", [{}, {"expires": 3600.0}], ids=["plain", "with a rule"])
@pytest.mark.parametrize("with_key", [False, True], ids=["no key", "a key"])
async def test_a_job_has_every_option(harness: StoreHarness, rule: dict[str, Any], with_key: bool) -> None:
    wanted = options(*([] if with_key else ["key"]))
    job = await harness.store.jobs.enqueue(NewJob(task="t", **wanted, **rule))
    assert carried(job, wanted)
    assert carried(await harness.store.jobs.get(job.id), wanted)


async def test_each_of_many_jobs_has_every_option(harness: StoreHarness) -> None:
    wanted = options("key")
    ids = await harness.store.jobs.enqueue_many([NewJob(task="t", **wanted) for _ in range(3)])
    store = await harness.store.jobs.add_jobs([NewJob(task="t", **wanted), NewJob(task="t", key="k", **wanted)])
    for job_id in (*ids, *(job.id for job in store)):
        assert carried(await harness.store.jobs.get(job_id), wanted)


async def test_a_repeat_under_a_key_sets_every_option(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue(NewJob(task="t", key="north"))
    job = await harness.store.jobs.enqueue(NewJob(task="t", **options()))
    assert carried(await harness.store.jobs.get(job.id), options())


@needs("admin")
async def test_a_built_in_job_has_every_option_that_is_no_rule(harness: StoreHarness) -> None:
    job = await harness.store.admin.add_built_in(NewJob(task=PURGE_TASK, **options()))
    assert carried(job, options())
    assert carried(await harness.store.jobs.get(job.id), options())


@needs("admin")
@pytest.mark.parametrize(
    "rule",
    [
        {"expires": 3600.0},
        {"on_failure": NewJob(task="report")},
        {"unique_period": 60.0, "key": "k", "key_mode": KeyMode.UNIQUE},
        {"key": "k", "key_mode": KeyMode.UNIQUE},
        {"key": "k", "key_mode": KeyMode.UNSAFE_DEDUPE},
    ],
    ids=["expires", "on_failure", "unique_period", "unique", "unsafe_dedupe"],
)
async def test_a_built_in_job_with_a_rule_is_refused(harness: StoreHarness, rule: dict[str, Any]) -> None:
    """No function of a store carries it."""
    with pytest.raises(InvalidJob, match="built-in task 'jobs:purge_completed'"):
        await harness.store.admin.add_built_in(NewJob(task=PURGE_TASK, **rule))
    assert await harness.everything() == []


async def test_the_history_has_every_option(harness: StoreHarness) -> None:
    wanted = options("key")
    job = await harness.store.jobs.enqueue(NewJob(task="t", **wanted))
    (claim,) = await harness.claim()
    assert carried(claim.record, wanted)
    await harness.settle(claim.lease)
    ended = await harness.store.jobs.get(job.id)
    assert carried(ended, wanted)
