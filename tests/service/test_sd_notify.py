"""What a service manager hears: on a socket of the test, from a real worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stowhand.service.notifier import notifier
from tests.service.manager import Manager
from tests.service.processes import Workers, add


@pytest.mark.parametrize("processes", ["1", "2"])
def test_it_is_ready_when_the_first_claim_was_answered_and_stops_at_the_first_signal(
    sqlite_workers: Workers, processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify") if processes == "1" else f"@stowhand-test-{os.getpid()}")
    gate = tmp_path / "gate"
    add(sqlite_workers.url, "gated", f'{{"gate": "{gate}"}}')
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    process = sqlite_workers.start("--processes", processes, "--log-level", "debug")
    manager.wait_for("READY=1")
    assert "Worker connected" in sqlite_workers.output()
    sqlite_workers.wait_for("Started task")
    manager.wait_for("STATUS=working")
    process.send_signal(signal.SIGTERM)
    heard = manager.wait_for("STOPPING=1")
    assert "EXTEND_TIMEOUT_USEC=35000000" in heard[-1].splitlines(), "the grace and ten seconds"
    assert process.poll() is None, "said while the job still runs"
    assert not any(word.startswith("WATCHDOG") for word in heard), "nobody asked"
    gate.touch()
    assert process.wait(60) == 0
    assert not any("STOPPING" in word for word in manager.hear(0.1)), "once"


def test_child_processes_do_not_inherit_the_variables() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    message = notifier(environ)
    assert message is not None
    assert message.watchdog == 3.0
    assert environ == {"HOME": "/"}
    message.send(ready=1)  # nobody listens: no trouble


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "@"}, {"WATCHDOG_USEC": "1000"}],
)
def test_without_a_service_manager_there_is_no_notifier(environ: dict[str, str]) -> None:
    assert notifier(environ) is None


@pytest.mark.parametrize(
    "asked", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}]
)
def test_a_watchdog_for_another_process_receives_nothing(asked: dict[str, str]) -> None:
    message = notifier({"NOTIFY_SOCKET": "/run/x", **asked})
    assert message is not None
    assert message.watchdog is None
