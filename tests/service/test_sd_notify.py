"""What a service manager hears: on a socket of the test, from a real worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowhand.job import NewJob
from stowhand.queue_store import QueueStore
from stowhand.service.notify_socket import notifier
from tests.service.manager import Manager
from tests.service.processes import Workers, with_store


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(f"sqlite:///{tmp_path}/queue.db", tmp_path)
    try:
        yield started
    finally:
        started.destroy()


def add(url: str, task: str, payload: str) -> None:
    async def enqueue(store: QueueStore) -> None:
        await store.enqueue(NewJob(task=task, payload=payload))

    with_store(url, enqueue)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_it_is_ready_when_the_first_claim_was_answered_and_stops_at_the_first_signal(
    here: Workers, processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify") if processes == "1" else f"@stowhand-test-{os.getpid()}")
    add(here.url, "innocent", '{"number": 1, "pause": 2.0}')
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    process = here.start("--processes", processes, "--log-level", "debug")
    manager.wait_for("READY=1")
    assert "Worker connected" in here.said()
    here.wait_for("Started task")
    manager.wait_for("STATUS=working")
    process.send_signal(signal.SIGTERM)
    heard = manager.wait_for("STOPPING=1")
    assert process.poll() is None, "said while the job still runs"
    assert not any(word.startswith("WATCHDOG") for word in heard), "nobody asked"
    assert process.wait(20) == 0
    assert not any("STOPPING" in word for word in manager.hear(0.1)), "once"


def test_a_reload_is_announced_and_its_end(here: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(f"@stowhand-test-reload-{os.getpid()}")
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    process = here.start()
    manager.wait_for("READY=1")
    process.send_signal(signal.SIGHUP)
    reloading = manager.wait_for("RELOADING=1")[-1]
    microseconds = int(reloading.partition("MONOTONIC_USEC=")[2])
    assert abs(microseconds / 1_000_000 - time.monotonic()) < 10
    manager.wait_for("READY=1")
    here.wait_for("Read the crontab again")


def test_the_variables_are_ours_alone() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    told = notifier(environ)
    assert told is not None
    assert told.watchdog == 3.0
    assert environ == {"HOME": "/"}
    told.tell(ready=1)  # nobody listens: no trouble


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "@"}, {"WATCHDOG_USEC": "1000"}],
)
def test_nobody_to_notify(environ: dict[str, str]) -> None:
    assert notifier(environ) is None


@pytest.mark.parametrize(
    "asked", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}]
)
def test_a_watchdog_that_is_not_meant_for_us_hears_nothing(asked: dict[str, str]) -> None:
    told = notifier({"NOTIFY_SOCKET": "/run/x", **asked})
    assert told is not None
    assert told.watchdog is None
