"""``stowhand web``, and ``stowhand worker --web``."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.cli.conftest import Stowhand, command
from tests.support import forked

DEADLINE = 60


def started(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """The process, and the address of its dashboard once it has said it."""
    process = forked.Popen(command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = ""
    while "Dashboard: " not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return process, said.partition("Dashboard: ")[2].split()[0]


def page(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=DEADLINE)
    connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
    with connection.getresponse() as response:
        found = response.status, response.read().decode()
    connection.close()
    return found


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    return process.returncode


@pytest.mark.usefixtures("folder")
def test_the_dashboard_shows_the_store_and_ends_at_a_signal(folder: Path, stowhand: Stowhand) -> None:
    process, url = started(folder, "web", "--port", "0", "--url-prefix", "/ops/")
    assert url.endswith("/ops/")
    status, said = page(url)
    assert (status, "stowhand migrate" in said) == (503, True), said
    assert stowhand("add", "hello", "{}").code == 4, "looking installs nothing"
    stowhand("migrate")
    stowhand("add", "hello", "{}")
    status, said = page(url + "jobs")
    assert (status, "/ops/job?id=1" in said) == (200, True), said
    assert ended(process) == 0


def test_a_port_in_use_is_said(stowhand: Stowhand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        alone = stowhand("web", "--port", port)
        assert alone.code == 1
        assert f"port {port} on 127.0.0.1 is in use" in alone.err
        beside = stowhand("worker", "--web", port)
        assert beside.code == 2
        assert f"port {port} on 127.0.0.1 is in use" in beside.err
        assert "the dashboard has not started" in beside.err


def test_a_dashboard_beside_a_worker_is_a_process_that_ends_with_it(folder: Path, stowhand: Stowhand) -> None:
    stowhand("migrate")
    process, url = started(folder, "worker", "--web", "0")
    try:
        (child,) = [one for one in psutil.Process(process.pid).children() if "web" in one.cmdline()]
        assert page(url)[0] == 200
        process.kill()
        process.communicate(timeout=DEADLINE)
        child.wait(DEADLINE)
    finally:
        process.kill()
