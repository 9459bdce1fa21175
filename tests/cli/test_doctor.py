"""``stowhand doctor`` finds what is wrong, and its exit code says how wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from stowhand.app.settings.resolver import read_settings
from stowhand.cli.doctor import Server, examine_server, examine_waiting, examine_work
from stowhand.cli.stats import Stats, WorkerLine, read_stats
from stowhand.jobs.job import State
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.counts import BoundedCount, Figures, LiveCounts
from stowhand.protocols.operator import WorkerDescription, WorkerRow
from stowhand.protocols.queue_store import Reschedule
from stowhand.stores.sqlite.queue import SqliteStore
from tests.cli.conftest import Ended as CommandEnd
from tests.cli.conftest import Stowhand


def marks(ended: CommandEnd) -> dict[str, str]:
    """The worst mark of each thing that was looked at."""
    worst = ["ok", "warn", "FAIL"]
    result: dict[str, str] = {}
    for line in ended.out.splitlines():
        if line.startswith(" "):
            continue
        mark, what, _ = line.split(maxsplit=2)
        result[what] = max(result.get(what, "ok"), mark, key=worst.index)
    return result


def test_a_working_installation_has_only_ok_findings(call: Stowhand) -> None:
    call("migrate")
    ended = call("doctor")
    assert ended.code == 0, ended.out + ended.err
    assert set(marks(ended).values()) == {"ok"}
    assert {"Python", "stowhand", "store", "reached", "schema", "jobs", "wake-ups", "tasks"} <= marks(ended).keys()


def test_due_jobs_without_a_live_worker_are_reported_with_advice(call: Stowhand) -> None:
    call("migrate")
    call("enqueue", "hello", '{"name": "a"}')
    call("serials", "pause", "mail")
    ended = call("doctor")
    assert ended.code == 0
    assert "none is alive, and 1 jobs are due" in ended.out
    assert "start one that has their tasks: " in ended.out
    assert "stowhand worker" in ended.out
    assert "paused: mail" in ended.out
    assert marks(ended)["pauses"] == "warn"


def stats_of(*workers: WorkerLine, tasks: Sequence[LiveCounts] = ()) -> Stats:
    figures = Figures(
        states=dict.fromkeys(State, BoundedCount()), tasks=tasks, serials=[], queues=[], workers=[], paused={}
    )
    now = datetime(2030, 1, 1, tzinfo=UTC)
    return Stats(figures=figures, oldest_due=90.0, workers=workers, now=now)


def a_worker(*tasks: str, held: int = 0, alive: bool = True) -> WorkerLine:
    card = WorkerDescription(name="w", host="h", pid=1, version="1", tasks=tasks or None, concurrency=4)
    then = datetime(2030, 1, 1, tzinfo=UTC)
    return WorkerLine(WorkerRow(description=card, started_at=then, seen_at=then, is_alive=alive), BoundedCount(held))


def said(stats: Stats) -> list[str]:
    return [finding.text for finding in examine_work(stats) if finding.level == "warn"]


def test_a_task_that_no_live_worker_has_is_named() -> None:
    due = [
        LiveCounts(name="send", queued=BoundedCount(3), due=BoundedCount(3)),
        LiveCounts(name="a", queued=BoundedCount(1)),
    ]
    assert said(stats_of(a_worker("a"), tasks=due)) == [
        "due, but no live worker claims it (missing, or excluded by --task or --exclude-task): send (3)"
    ]
    assert said(stats_of(a_worker(), tasks=due)) == [], "it has any"
    assert said(stats_of(a_worker("a"), a_worker("send"), tasks=due)) == []


def test_a_queue_that_no_live_worker_serves_is_named() -> None:
    stats = stats_of(a_worker())
    due = LiveCounts(name="mail", queued=BoundedCount(3), due=BoundedCount(3))
    serials = [LiveCounts(name="mail", queued=BoundedCount(3))]
    stats = msgspec.structs.replace(
        stats, figures=msgspec.structs.replace(stats.figures, queues=[due], serials=serials)
    )
    assert said(stats) == [
        "serial keys with the name of a queue: mail; a serial key (queue_name in SQL) runs its jobs one at a time"
    ]
    row = stats.workers[0].row
    card = msgspec.structs.replace(row.description, queues=Queues(("bulk",)))
    busy = WorkerLine(msgspec.structs.replace(row, description=card), BoundedCount())
    assert said(msgspec.structs.replace(stats, workers=[busy]))[0].startswith(
        "no live worker claims from: mail (3); start one with --queue NAME"
    )


def test_busy_slots_and_lost_workers_are_reported() -> None:
    rows = list(examine_work(stats_of(a_worker(held=9), a_worker(held=1), a_worker(alive=False))))
    assert rows[0].text == "2 alive, 5 of 8 slots busy, 0 jobs due"
    assert [finding.text for finding in rows if finding.level == "warn"] == ["lost in the last day: w"]


def test_a_missing_schema_is_a_warning_and_is_not_installed(call: Stowhand, folder: Path) -> None:
    ended = call("doctor")
    assert ended.code == 0
    assert marks(ended)["schema"] == "warn"
    assert not (folder / "stowhand.db").exists()


def test_an_unreachable_store_is_code_3_and_other_checks_continue(call: Stowhand) -> None:
    ended = call("doctor", "-c", "postgresql://me:hunter2@127.0.0.1:1/nothing")
    assert ended.code == 3, ended.out
    assert marks(ended)["reached"] == "FAIL"
    assert marks(ended)["tasks"] == "ok"
    assert "hunter2" not in ended.out + ended.err


def test_tasks_that_cannot_be_loaded_are_code_1(call: Stowhand, folder: Path) -> None:
    call("migrate")
    (folder / "tasks" / "broken.py").write_text("def broken(:\n")
    ended = call("doctor")
    assert ended.code == 1
    assert marks(ended)["tasks"] == "FAIL"
    assert "broken.py" in ended.out


def test_ignored_settings_are_warnings(call: Stowhand, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWHAND_CONCURENCY", "3")
    monkeypatch.setenv("DATABASE_URL", "mysql://u:hunter2@h/d")
    (folder / "stowhand.toml").write_text("jobs = 2\n")
    (folder / "pyproject.toml").write_text("[tool.stowhand]\njobs = 3\n")
    ended = call("doctor")
    assert marks(ended)["settings"] == "warn"
    assert "did you mean 'STOWHAND_CONCURRENCY'?" in ended.out
    assert "pyproject.toml" in ended.out
    assert "DATABASE_URL" in ended.out
    assert "hunter2" not in ended.out


def test_postgres_wakes_the_worker_and_its_pool_is_added_up(call: Stowhand, postgres_url: str) -> None:
    assert call("migrate", "-c", postgres_url).code == 0
    ended = call("doctor", "-c", postgres_url)
    assert ended.code == 0, ended.out + ended.err
    assert marks(ended)["wake-ups"] == "ok"
    assert {"server", "connections"} <= marks(ended).keys()
    assert "1 x 9 = 9 at most" in ended.out


def test_connections_of_all_processes_are_compared_with_the_servers_limit() -> None:
    settings = read_settings({"connection": "my_db", "concurrency": "8", "processes": "6"}, environ={})
    *_, roomy = examine_server(Server(18, 97, used=10), settings)
    *_, full = examine_server(Server(18, 90, used=10), settings)
    assert (roomy.level, full.level) == ("ok", "warn")
    assert "6 x 13 + 3 of the supervisor = 81 at most" in full.text


def test_a_read_only_server_is_a_failure() -> None:
    settings = read_settings({"connection": "my_db"}, environ={})
    findings = examine_server(Server(18, 100, 1, read_only=True), settings)
    (found,) = [finding for finding in findings if finding.level == "FAIL"]
    assert (found.topic, found.code) == ("writes", 3)
    assert "target_session_attrs=read-write" in found.text


@pytest.mark.parametrize(
    ("server", "what", "words"),
    [
        (Server(12, 100, 1), "server", "13 is the oldest"),
        (Server(18, 100, 95), "connections", "others use 95"),
    ],
)
def test_a_server_that_is_old_or_full_is_a_warning(server: Server, what: str, words: str) -> None:
    settings = read_settings({"connection": "my_db"}, environ={})
    (warning,) = [finding for finding in examine_server(server, settings) if finding.level == "warn"]
    assert warning.topic == what
    assert words in warning.text


def test_a_job_that_waits_despite_a_free_slot_is_named(call: Stowhand) -> None:
    """Whatever keeps its worker from claiming it."""
    call("migrate")
    call("enqueue", "hello")
    (line,) = asyncio.run(waiting(a_card("hello")))
    assert line.startswith("job 1: it has been due for 5m while 4 of 4 slots that could claim it are free")
    assert "job 1: it has been due" in call("doctor").out


def test_a_task_whose_workers_do_not_serve_the_queue_of_its_jobs_is_named(call: Stowhand) -> None:
    """Each of the two has a live worker; no worker has both."""
    call("migrate")
    call("enqueue", "hello")
    call("enqueue", "hello")
    cards = a_card("hello", queues=Queues(("bulk",))), a_card("other", queues=Queues(("default",)))
    assert asyncio.run(waiting(*cards)) == ["no live worker that has the task hello claims from the queue default"]


def test_due_jobs_of_tasks_that_are_not_listed_by_name_are_others() -> None:
    """Whether a live worker has their tasks is not known."""
    due = [LiveCounts(name=None, queued=BoundedCount(3), due=BoundedCount(3))]
    assert said(stats_of(a_worker("a"), tasks=due)) == []
    (line,) = said(stats_of(tasks=due))
    assert "start one that has their tasks: (others) (3)" in line


def a_card(task: str, queues: Queues = ALL_QUEUES) -> WorkerDescription:
    return WorkerDescription(
        name=f"of {task}", host="h", pid=1, version="1", tasks=(task,), queues=queues, concurrency=4
    )


async def waiting(*cards: WorkerDescription) -> list[str]:
    """What is found with these workers when every job has been due for five minutes."""
    store = SqliteStore("stowhand.db")
    try:
        jobs = [job.id for job in await store.inspect.list()]
        past = datetime.now(UTC) - timedelta(minutes=5)
        await store.admin.reschedule_jobs(jobs, Reschedule(run_at=past))
        heartbeats = store.heartbeats()
        for card in cards:
            await heartbeats.worker_seen(card, NO_DECLARATIONS)
        await heartbeats.close()
        return [finding.text for finding in await examine_waiting(store, await read_stats(store))]
    finally:
        await store.close()
