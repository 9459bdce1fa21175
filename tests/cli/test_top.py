"""``stowhand top``, and the page that it has in common with ``stowhand stats``."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stowhand.cli.stats import Stats, read_stats, stats_lines
from stowhand.cli.top import pause_after
from stowhand.jobs.job import NewJob
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.counts import BoundedCount, Figures, LiveCounts
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.kernel.inspector import Inspector
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.service.processes import with_store
from tests.support import subprocesses

PROGRAM = (sys.executable, "-m", "stowhand.cli")


def fill(url: str) -> None:
    async def enqueue(store: QueueStore) -> None:
        await store.jobs.enqueue_many([NewJob(task="send")] * 3 + [NewJob(task="stuck", serial="mail")])
        await store.operate.pause_serial("mail")

    with_store(url, enqueue)


def test_the_page_shows_states_tasks_paused_serial_keys_and_workers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    fill(url)
    done = subprocesses.run([*PROGRAM, "stats", "-c", url], capture_output=True, text=True, check=True)
    assert "4 queued, 0 processing" in done.stdout
    assert "paused: mail" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["send", "3", "3", "0", "0"] in rows
    assert ["mail", "1", "1", "0", "0", "paused"] in rows
    assert "No workers." in done.stdout


def test_on_a_terminal_the_page_is_updated_in_place_until_ctrl_c(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    fill(url)
    ours, theirs = pty.openpty()
    process = subprocesses.Popen([*PROGRAM, "top", "-c", url, "--interval", "0.1"], stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    deadline = time.monotonic() + 60
    while output.count(b"\x1b[H") < 3:
        assert time.monotonic() < deadline, output
        output += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)
    assert b"4 queued" in output
    assert b"Traceback" not in output


def test_on_eighty_columns_names_are_cut_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "a_task_with_a_name_that_is_longer_than_anybody_would_write_it"
    amount = BoundedCount(123_456_789)
    line = LiveCounts(name=long, queued=amount, due=amount, processing=amount, failed=amount)
    figures = Figures(states={}, tasks=[line], serials=[], queues=[], workers=[], paused={})
    stats = Stats(figures=figures, oldest_due=0.0, workers=[], now=datetime(2030, 1, 1, tzinfo=UTC))
    rows = list(stats_lines(stats))
    assert all(len(row) <= 80 for row in rows)
    (row,) = [row for row in rows if row.startswith("a_task")]
    assert row.count("123456789") == 4


def test_with_more_running_jobs_than_counted_no_worker_counts_as_idle(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = Inspector.figures
    monkeypatch.setattr(Inspector, "figures", lambda self: figures(self, 2))

    async def scenario() -> Stats:
        store = MemoryStore()
        await store.open()
        await store.jobs.enqueue_many([NewJob(task="t")] * 3)
        workers = store.heartbeats()
        assert isinstance(workers, WorkerList)
        for name in ("busy", "unseen"):
            card = WorkerDescription(name=name, host="h", pid=1, version="1", tasks=None, concurrency=1)
            await workers.worker_seen(card, NO_DECLARATIONS)
        await store.claim(ClaimRequest(worker="busy", token=str(uuid.uuid4()), limit=3, lease=30.0))
        return await read_stats(store)

    stats = run(scenario())
    assert [(line.row.description.name, str(line.busy), str(line.ahead)) for line in stats.workers] == [
        ("busy", "1", ">1"),
        ("unseen", ">0", ">0"),
    ]
    assert "more than 2 processing (more than 1 of them claimed ahead)" in " ".join(stats_lines(stats))


def test_a_page_in_a_pipe_is_as_wide_as_columns_says(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with_store(url, lambda store: store.jobs.enqueue_many([NewJob(task="send_" * 25)]))

    def widest(**said: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | said
        command = [*PROGRAM, "stats", "-c", url]
        done = subprocesses.run(command, capture_output=True, text=True, check=True, env=environment)
        return max(len(line) for line in done.stdout.splitlines()[2:])

    assert widest(COLUMNS="80") <= 80
    assert widest() > 80
    assert widest(COLUMNS="0") > 80, "no number of columns"


def test_after_a_slow_update_the_pause_is_longer() -> None:
    assert pause_after(duration=0.01, interval=2.0) == 2.0
    assert pause_after(duration=3.0, interval=2.0) == 12.0, "a fifth of the time at most"


def test_an_interval_of_zero_is_refused() -> None:
    done = subprocesses.run([*PROGRAM, "top", "--interval", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--interval" in done.stderr
