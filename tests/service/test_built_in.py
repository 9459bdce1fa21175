"""Built-in tasks, which every worker has and a crontab line may name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stowhand import App
from stowhand.app.built_in import with_built_in
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.operator import BUILT_IN_TASKS, PURGE_TASK
from stowhand.protocols.store import SECONDS_PER_DAY, ClaimRequest, StoreOptions
from stowhand.tasks.task_list import read_task_list
from stowhand.testing import FakeClock, MemoryStore
from tests.cli.conftest import HELLO, command
from tests.conftest import Run

FAILED = Settlement(State.FAILED, AttemptOutcome.FAILED, error="no")


async def filled(clock: FakeClock) -> tuple[MemoryStore, dict[str, int]]:
    """Jobs that ended 20 and 40 days ago, and one that waits since then."""
    store = MemoryStore(options=StoreOptions(history=1000 * SECONDS_PER_DAY, pinned=clock.now))
    ids = {}
    for days in (40, 20, 0):
        for task, settlement in (("completed", COMPLETED), ("failed", FAILED), ("pending", None)):
            ids[f"{task} {days}"] = (await store.jobs.enqueue(NewJob(task=task))).id
            if settlement is not None:
                request = ClaimRequest(worker="w", token=f"{task}{days}", limit=1, lease=30.0, tasks=(task,))
                (claim,) = await store.claim(request)
                await store.settle([(claim.lease, settlement)])
        await clock.advance(20 * SECONDS_PER_DAY if days else 0)
    return store, ids


async def left(payload: object) -> set[str]:
    """What is there after the task has run with this payload on an App's worker; the job's own result is checked."""
    clock = FakeClock()
    store, ids = await filled(clock)
    app = App(store=store)

    @app.task
    async def something_else() -> None:
        pass

    async with app:
        job = await store.admin.add_built_in(NewJob(task=PURGE_TASK, payload=json.dumps(payload)))
        worker = app.worker(once=True)
        await worker.run()
        done = await store.jobs.get(job.id)
        assert done is not None
        assert done.state is State.COMPLETED, done.last_error
        return {name for name, job_id in ids.items() if await store.jobs.get(job_id) is not None}


YOUNG = {"completed 0", "failed 0", "pending 0", "pending 20", "pending 40"}
BY_DEFAULT = YOUNG | {"failed 20"}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"completed_older_than_days": 14, "failed_older_than_days": 30}, BY_DEFAULT),
        ({}, BY_DEFAULT),
        ({"completed_older_than_days": 30, "failed_older_than_days": 10.5}, YOUNG | {"completed 20"}),
        ({"completed_older_than_days": "soon", "failed_older_than_days": -1}, BY_DEFAULT),
        ({"completed_older_than_days": True, "failed_older_than_days": None}, BY_DEFAULT),
        ({"completed_older_than_days": [14], "failed_older_than_days": 0}, BY_DEFAULT),
        # Whoever says less than an hour means something else.
        ({"completed_older_than_days": 1e-9, "failed_older_than_days": 1e-9}, YOUNG),
        (["nonsense"], BY_DEFAULT),
        ("nonsense", BY_DEFAULT),
        (
            {"completed_older_than_days": 1e300, "failed_older_than_days": 1e300},
            BY_DEFAULT | {"completed 40", "completed 20", "failed 40"},
        ),
    ],
)
def test_old_jobs_are_purged_pending_and_young_ones_stay_and_malformed_values_are_ignored(
    run: Run, payload: Any, expected: set[str]
) -> None:
    assert run(left(payload)) == expected


async def some_task(payload: dict[str, Any]) -> None:
    pass


def test_its_name_is_reserved_however_a_task_is_declared() -> None:
    app = App(store=MemoryStore())
    with pytest.raises(ConfigurationError, match="is a built-in task"):
        app.task(name=PURGE_TASK)(some_task)
    with pytest.raises(ConfigurationError, match="is a built-in task"):
        read_task_list({PURGE_TASK: some_task})


def test_a_worker_may_run_only_built_in_tasks(run: Run) -> None:
    async def go() -> None:
        app = App(store=MemoryStore())

        @app.task
        async def other() -> None:
            raise AssertionError

        async with app:
            await app.add_job("other")
            job = await (await app.open()).admin.add_built_in(NewJob(task=PURGE_TASK))
            await app.worker(once=True, tasks=[PURGE_TASK]).run()
            result = await (await app.open()).jobs.get(job.id)
        assert result is not None
        assert result.state is State.COMPLETED

    run(go())


def test_workers_claim_built_in_tasks_except_on_a_lent_store() -> None:
    assert with_built_in(("a",), is_remote=False) == ("a", *BUILT_IN_TASKS)
    assert with_built_in(("a",), is_remote=True) == ("a",)


def test_a_crontab_line_names_it_on_any_worker(tmp_path: Path, run: Run) -> None:
    """A whole program, with nothing but a folder of other tasks and that line."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "hello.py").write_text(HELLO)
    (tmp_path / "crontab").write_text('* * * * * jobs:purge_completed ?fill=2m {"completed_older_than_days": 1}\n')

    async def go() -> tuple[int, str]:
        program = await asyncio.create_subprocess_exec(
            *command("worker", "--once", "-c", "sqlite:///jobs.db"), cwd=tmp_path,
            stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await asyncio.wait_for(program.communicate(), 60)
        more = await asyncio.create_subprocess_exec(
            *command("cron", "run", PURGE_TASK, "-c", "sqlite:///jobs.db"), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        await asyncio.wait_for(more.communicate(), 60)
        last = await asyncio.create_subprocess_exec(
            *command("worker", "--once", "-c", "sqlite:///jobs.db"), cwd=tmp_path,
            stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, done = await asyncio.wait_for(last.communicate(), 60)
        return last.returncode or 0, said.decode() + done.decode()

    code, said = run(go(), 60)
    assert code == 0, said
    assert "no task 'jobs:purge_completed'" not in said
    assert "(jobs:purge_completed) with success" in said
