"""How often a job is tried: its call says, else its task, else the App or the preset, else the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stowhand import runner
from stowhand.app.app import App
from stowhand.cron.crontab import parse_crontab
from stowhand.jobs.job import State
from stowhand.protocols.queue_store import JobFilter, Tick
from stowhand.tasks.context import Context
from tests.conftest import Run


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in ("STOWHAND_PRESET", "STOWHAND_MAX_ATTEMPTS", "STOWHAND_CONNECTION", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/queue.db"


async def made_in_every_way(app: App) -> dict[str, int]:
    """The number of attempts of a job of each way in."""

    @app.task
    async def plain() -> None: ...

    @app.task(max_attempts=3)
    async def declared(context: Context) -> None:
        context.enqueue_after(plain.options(key="follow-up").new_job())

    async with app.run_in_background(concurrency=1):
        store = await app.open(install=True)
        later = plain.options(delay=1000)
        (many,) = await app.enqueue_many([later.new_job()])
        (added,) = await app.add_jobs([later.new_job()])
        item = parse_crontab("0 4 * * * plain")[0]
        at = (await store.timetable.now()).replace(second=0, microsecond=0)
        entered = await store.timetable.schedule(
            [Tick(identifier="i", at=at, job=item.job(at, backfilled=False), spec="")]
        )
        ids = {
            "call": (await later.options(max_attempts=2).enqueue()).id,
            "plain": (await later.enqueue()).id,
            "keyed": (await later.options(key="k").enqueue()).id,
            "by name": (await app.add_job("elsewhere")).id,
            "many": many,
            "added": added.id,
            "cron": entered[0].job_id,
            "declared": (await declared.enqueue()).id,
        }
        result: Any = None
        while result is None:
            await asyncio.sleep(0.01)
            listed = await store.inspect.list(JobFilter(states=tuple(State), task="plain"))
            result = next((job for job in listed if job.id not in ids.values()), None)
        jobs = {name: await store.jobs.get(one) for name, one in ids.items()} | {"follow-up": result}
    await app.close()
    return {name: job.max_attempts for name, job in jobs.items() if job is not None}


WAYS = ("plain", "keyed", "by name", "many", "added", "cron", "follow-up")


def test_absent_options_have_the_defaults_of_the_store(where: str, run: Run) -> None:
    result = run(made_in_every_way(App(where)))
    assert result == {"call": 2, "declared": 3} | dict.fromkeys(WAYS, 25)


@pytest.mark.parametrize("said", ["option", "preset", "environment", "file"])
def test_an_app_or_a_preset_is_between_the_task_and_the_store_on_every_way_in(
    where: str, run: Run, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {}
    if said == "option":
        options["max_attempts"] = 7
    elif said == "preset":
        options["preset"] = "service"
    if said == "environment":
        monkeypatch.setenv("STOWHAND_PRESET", "service")
    elif said == "file":
        (tmp_path / "stowhand.toml").write_text("preset = 'service'\nmax_attempts = 7\n")
    result = run(made_in_every_way(App(where, **options)))
    assert result == {"call": 2, "declared": 3} | dict.fromkeys(WAYS, 7 if said in ("option", "file") else 5)


@pytest.mark.parametrize("where", ["sqlite", "postgres"], indirect=True)
def test_the_library_of_functions_follows_the_environment_too(
    where: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWHAND_PRESET", "service")

    async def add() -> int:
        await runner.run_migrations(connection_string=where)
        return (await runner.quick_add_job({"connection_string": where}, "x")).max_attempts

    assert run(add()) == 5
