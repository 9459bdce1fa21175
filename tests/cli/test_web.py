"""``stowhand web``, and ``stowhand worker --web``."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import pytest

from tests.cli.conftest import Stowhand, command
from tests.support import subprocesses

DEADLINE = 60
DIES_ONCE = """
import os, signal, sys
from pathlib import Path

if "--beside" in sys.orig_argv and not Path("died").exists():
    Path("died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def started(folder: Path, *arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """The process, and the address of its dashboard once it has said it."""
    process = subprocesses.Popen(
        command(*arguments),
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    while "Dashboard: " not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    return process, output.partition("Dashboard: ")[2].split()[0]


def page(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=DEADLINE)
    connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
    with connection.getresponse() as response:
        result = response.status, response.read().decode()
    connection.close()
    return result


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
    assert stowhand("enqueue", "hello", "{}").code == 4, "looking installs nothing"
    stowhand("migrate")
    stowhand("enqueue", "hello", "{}")
    deadline = time.monotonic() + DEADLINE
    while (result := page(url + "jobs"))[0] == 503 and time.monotonic() < deadline:
        time.sleep(0.1)  # one answer of the store serves all viewers for a second
    assert (result[0], "/ops/job?id=1" in result[1]) == (200, True), result[1]
    assert ended(process) == 0


def test_an_open_page_does_not_keep_it_from_stopping(folder: Path, stowhand: Stowhand) -> None:
    """Its stream ends as it should, and is not cut off after the grace: a browser would say that something is wrong."""
    stowhand("migrate")
    process, url = started(folder, "web", "--port", "0")
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=DEADLINE) as browser:
        lines = ("GET /jobs HTTP/1.1", f"Host: {address.netloc}", "Accept: text/event-stream", "", "")
        browser.sendall("\r\n".join(lines).encode())
        with browser.makefile("rb") as reply:
            assert any(b"event: now" in line for line in reply)
            process.send_signal(signal.SIGTERM)
            assert reply.read().endswith(b"0\r\n\r\n")
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 0


def test_a_used_port_names_another_option(stowhand: Stowhand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        alone = stowhand("web", "--port", port)
        assert alone.code == 2
        assert f"port {port} on 127.0.0.1 is in use" in alone.err
        beside = stowhand("worker", "--web", port)
        assert beside.code == 2
        assert f"port {port} on 127.0.0.1 is in use" in beside.err
        assert "the dashboard did not start; see the error above" in beside.err


def test_a_missing_extra_is_reported_in_one_line(folder: Path) -> None:
    (folder / "starlette.py").write_text("raise ImportError('not installed')\n")
    result = subprocesses.run(
        command("web", "--port", "0"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr == ("error: the dashboard needs more packages: pip install 'stowhand[web]' (not installed)\n")


def test_a_missing_driver_is_reported_at_once(folder: Path) -> None:
    (folder / "psycopg.py").write_text("raise ImportError('not installed')\n")
    result = subprocesses.run(
        command("web", "--port", "0", "--connection", "postgresql://localhost/none"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert result.returncode == 2, result.stderr
    assert "PostgreSQL needs a driver: pip install 'stowhand[binary]'" in result.stderr


@pytest.mark.parametrize(
    ("options", "said", "path"),
    [
        (("--url-prefix", "/jobs admin"), "/jobs%20admin/", "/jobs%20admin/"),
        (("--public-url", "https://example.com/jobs%20admin"), "https://example.com/jobs%20admin/", "/jobs%20admin/"),
    ],
)
def test_a_prefix_with_a_blank_works(
    folder: Path, stowhand: Stowhand, options: tuple[str, str], said: str, path: str
) -> None:
    stowhand("migrate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process, url = started(folder, "web", "--port", str(port), *options)
    try:
        assert url.endswith(said)
        status, found = page(f"http://127.0.0.1:{port}{path}")
        assert (status, 'href="/jobs%20admin/jobs"' in found) == (200, True)
    finally:
        assert ended(process) == 0


def test_a_dashboard_beside_a_worker_is_a_process_that_stops_with_it(folder: Path, stowhand: Stowhand) -> None:
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


def test_a_dashboard_beside_a_worker_is_restarted_when_it_dies(folder: Path, stowhand: Stowhand) -> None:
    stowhand("migrate")
    process, url = started(folder, "worker", "--web", "0")
    try:
        (child,) = [one for one in psutil.Process(process.pid).children() if "web" in one.cmdline()]
        child.kill()
        assert process.stdout is not None
        while "Dashboard: " not in (line := process.stdout.readline()):
            assert line
            assert "ERROR" not in line or "The dashboard was killed by SIGKILL; restarting" in line
        assert url in line
        assert page(url)[0] == 200
    finally:
        assert ended(process) == 0


def test_a_worker_continues_when_its_dashboard_dies_at_the_start(folder: Path, stowhand: Stowhand) -> None:
    """Its first process is killed before it answers, as by a lack of memory."""
    stowhand("migrate")
    (folder / "sitecustomize.py").write_text(DIES_ONCE)
    process, url = started(folder, "worker", "--web", "0", PYTHONPATH=str(folder))
    try:
        assert page(url)[0] == 200
    finally:
        assert ended(process) == 0
    assert (folder / "died").exists()


def ask(url: str, body: dict[str, str] | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
    """A request as a browser sends it; a form, where there is a body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=DEADLINE)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    form = None if body is None else urlencode(body)
    if form is not None:
        sent["content-type"] = "application/x-www-form-urlencoded"
    connection.request("GET" if body is None else "POST", f"{parts.path}?{parts.query}", form, sent)
    with connection.getresponse() as response:
        result = response.status, dict(response.getheaders()), response.read().decode()
    connection.close()
    return result


def token_in(said: str) -> str:
    return said.partition('name="token" value="')[2].partition('"')[0]


def test_a_visitor_signs_in_with_the_link_in_the_file_and_acts(folder: Path, stowhand: Stowhand) -> None:
    stowhand("migrate")
    stowhand("enqueue", "hello", "{}")
    process, url = started(folder, "web", "--port", "0", "--allow-actions")
    file = folder / ".stowhand" / "dashboard-link"
    while not file.exists():
        assert process.poll() is None
    assert file.stat().st_mode & 0o777 == 0o600
    link = file.read_text().strip()
    assert link.startswith(url + "login?code=")
    assert ask(url)[0] == 401
    status, headers, said = ask(link)
    assert status == 200
    visit = headers["set-cookie"].partition(";")[0]
    code = link.partition("=")[2]
    status, headers, _ = ask(url + "login", {"token": token_in(said), "secret": code}, cookie=visit)
    assert status == 303
    session = headers["set-cookie"].partition(";")[0]
    assert ask(url + "login", {"token": token_in(said), "secret": code}, cookie=visit)[0] == 401
    _, _, said = ask(url + "job?id=1", cookie=session)
    form = {"token": token_in(said), "id": "1", "action": "cancel"}
    assert ask(url + "act", form, cookie=session, origin="https://evil.example")[0] == 403
    assert ask(url + "act", form, cookie=session)[0] == 303
    assert stowhand("jobs", "show", "1", "--json").rows()[0]["state"] == "canceled"
    process.send_signal(signal.SIGTERM)
    log, _ = process.communicate(timeout=DEADLINE)
    assert "[web(audit)] INFO: cancel by link from 127.0.0.1: 1 done" in log
    assert code not in log
    assert session.partition("=")[2] not in log


def test_a_trusted_proxy_names_the_visitor(folder: Path, stowhand: Stowhand, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the nginx of the page sends; and FORWARDED_ALLOW_IPS opens nothing."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    stowhand("migrate")
    stowhand("enqueue", "hello", "{}")
    process, url = started(
        *(folder, "web", "--port", "0", "--allow-actions", "--trust-header", "X-Forwarded-User"),
        *("--trust-from", "10.0.0.0/8", "--trust-from", "127.0.0.1", "--public-url", "https://jobs.example.com"),
    )
    assert url == "https://jobs.example.com/"
    (port,) = [
        one.laddr.port for one in psutil.Process(process.pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN
    ]
    here = f"http://127.0.0.1:{port}/"
    sent: dict[str, Any] = {
        "host": "jobs.example.com",
        "x_forwarded_user": "ann@example.com",
        "x_forwarded_for": "8.8.8.8",
    }
    status, headers, said = ask(here + "job?id=1", **sent)
    assert status == 200, said
    assert headers["set-cookie"].startswith("__Host-stowhand-visit=")
    assert headers["set-cookie"].endswith("; Secure")
    cookie = headers["set-cookie"].partition(";")[0]
    form = {"token": token_in(said), "id": "1", "action": "cancel"}
    assert ask(here + "act", form, cookie=cookie, **sent)[0] == 303
    assert ask(here + "act", form, cookie=cookie, **sent | {"x_forwarded_user": "bob"})[0] == 403
    assert ask(here, host="jobs.example.com", x_forwarded_for="8.8.8.8")[0] == 403
    assert ask(here, **sent | {"host": "evil.example"})[0] == 403
    two = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    two.putrequest("GET", "/", skip_host=True)
    for name, value in (("Host", "jobs.example.com"), ("X-Forwarded-User", "root"), ("X-Forwarded-User", "ann")):
        two.putheader(name, value)
    two.endheaders()
    assert two.getresponse().status == 403, "a proxy that adds its header to the visitor's own names nobody"
    two.close()
    process.send_signal(signal.SIGTERM)
    log, _ = process.communicate(timeout=DEADLINE)
    assert "[web(audit)] INFO: cancel by ann@example.com from 8.8.8.8: 1 done" in log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "stowhand tokens make"),
        (("--host", "0.0.0.0", "--allow-actions"), "stowhand tokens make"),
        (("--host", "0.0.0.0", "--public-url", "https://a.example"), "stowhand tokens make"),
        (("--trust-header", "X-User"), "--trust-from 10.0.0.0/8 --public-url"),
        (("--trust-header", "X-User", "--trust-from", "10.0.0.0/8"), "--public-url"),
        (("--trust-from", "proxy"), "not a network"),
        (("--public-url", "jobs.example.com"), "write it like https://"),
        (("--tokens", "t.json"), "no tokens yet"),
        (("--tls-key", "key.pem"), "--tls-cert"),
    ],
)
def test_a_public_address_is_refused_without_identification(
    call: Stowhand, options: tuple[str, ...], words: str
) -> None:
    ended = call("web", "--port", "0", *options)
    assert (ended.code, words in ended.err) == (2, True), ended.err


BUG = """
import stowhand.web.reader
def amounts(self): raise ZeroDivisionError("a bug")
stowhand.web.reader.Reader.amounts = amounts
"""


@pytest.mark.parametrize("words", [("web", "--port", "0"), ("worker", "--web", "0")], ids=["alone", "beside a worker"])
def test_a_bug_in_a_page_is_logged(
    words: tuple[str, ...], folder: Path, stowhand: Stowhand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stowhand("migrate")
    (folder / "sitecustomize.py").write_text(BUG)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    process, url = started(folder, *words)
    status, said = page(url)
    assert (status, "log of this program" in said) == (500, True), said
    process.send_signal(signal.SIGTERM)
    logged, _ = process.communicate(timeout=DEADLINE)
    assert "[web] ERROR: Cannot answer a request (/); this is a bug:" in logged
    assert "ZeroDivisionError: a bug" in logged
