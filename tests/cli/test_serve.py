"""``stowhand serve`` and ``stowhand tokens``."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowhand.cli import health
from stowhand.cli.serve import _serve_health
from tests.cli.conftest import Stowhand, command
from tests.conftest import Run
from tests.remote.server.lending import Client
from tests.support import subprocesses
from tests.support.jobs_table import jobs_table

TABLE = f"""\
import sqlite3
from stowhand.table import TableOptions, TableStore

sqlite3.connect("app.db").execute('''{jobs_table("uploads", "path text", dialect="sqlite", moment="text")}''')
sqlite3.connect("app.db", isolation_level=None).execute("insert into uploads (path) values ('a.py')")
store = TableStore("sqlite:///app.db", TableOptions(name="uploads", table_name="uploads"))
"""


class Serving:
    """``stowhand serve`` in a process; stopped and collected at the end."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocesses.Popen(
            command("serve", "--port", "0", *options),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = ""
        while "http" not in self.said.partition("Lending")[2]:
            line = self.process.stdout.readline()
            assert line, self.said
            self.said += line
        self.url = next(word for word in self.said.split() if word.startswith("http"))

    def end(self) -> None:
        """Harmless when repeated."""
        self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.said += self.process.communicate()[0]


@pytest.fixture
def serving(folder: Path) -> Iterator[Serving]:
    serving = Serving(folder)
    yield serving
    serving.end()


def test_health_is_answered_on_its_own_port_while_the_loop_is_blocked(folder: Path, run: Run) -> None:
    class Frozen:
        """As much of the server's health as is asked."""

        def alive(self) -> tuple[bool, dict[str, str]]:
            return True, {"status": "ok"}

        async def ready(self) -> tuple[bool, dict[str, str]]:
            return False, {"status": "not ready"}

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def scenario() -> None:
        with _serve_health(f"127.0.0.1:{port}", Frozen()):  # type: ignore[arg-type]
            assert await asyncio.to_thread(health.request_health, f"127.0.0.1:{port}", "/healthz") == (True, "ok")
            ready = await asyncio.to_thread(health.request_health, f"127.0.0.1:{port}", "/readyz")
            assert ready == (False, "not ready: not ready")
            well, why = health.request_health(
                f"127.0.0.1:{port}", "/healthz"
            )  # on the loop, which waits for the answer
            assert not well
            assert "no answer of the event loop" in why

    run(scenario())


def test_health_of_a_served_store_is_shown(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    serving = Serving(folder, "--http", str(port))
    try:
        deadline = time.monotonic() + 60
        while health.request_health(f"127.0.0.1:{port}", "/healthz") != (True, "ok"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert health.request_health(f"127.0.0.1:{port}", "/readyz") == (True, "ready")
    finally:
        serving.end()


def test_a_served_store_stops_at_a_signal_with_its_open_polls(serving: Serving) -> None:
    client, later = Client(serving.url), Client(serving.url)
    assert client.claim() == []
    poll = json.dumps({"wait": 30, "wake_count": client.post("due").body["wake_count"]}).encode()
    client.connection.request("POST", "/v1/due", poll, {"content-type": "application/json"})
    assert later.get("/v1/terms").status == 200, "so the poll has been read too"
    serving.process.send_signal(signal.SIGTERM)
    with client.connection.getresponse() as answer:
        assert (answer.status, json.load(answer)["seconds"]) == (200, None), "it was answered, not cut off"
    assert serving.process.wait(60) == 0
    client.close()
    later.close()
    serving.end()
    assert "No tokens: every program on this machine can claim its jobs" in serving.said


def test_a_users_table_is_served(folder: Path) -> None:
    (folder / "shop.py").write_text(TABLE)
    serving = Serving(folder, "--app", "shop:store")
    client = Client(serving.url)
    try:
        terms = client.get("/v1/terms").body
        assert (terms["name"], terms["kind"], terms["logs"], terms["lease"]) == ("uploads", "table", True, 30.0)
        (claim,) = client.claim(tasks=["uploads"])
        assert (claim["kind"], claim["record"]["path"]) == ("record", "a.py")
        held = {"lease": claim["lease"], "authorization": claim["authorization"]}
        entry = {"key": "step", "startTime": "2026-01-01T00:00:00Z", "out": "hello"}
        assert client.post("logs", proof=held, add=[entry]).body == {"numbers": [1]}
        assert client.post("logs", proof=held, update=[[1, {**entry, "exitCode": 0}]]).status == 200
        client.post("logs", proof=held, update=[[2, entry]]).refused(409, "log refused")
        client.post("enqueue", jobs=[{"task": "uploads"}]).refused(404, "unknown")
        assert client.settle(claim) == ["settled"]
        client.post("logs", proof=held, add=[entry]).refused(409, "log refused")
    finally:
        client.close()
        serving.end()


APP = """\
import msgspec
from stowhand import App

def marked(job):
    return msgspec.structs.replace(job, flags=(*job.flags, job.serial))

app = App("sqlite:///mine.db", include=["bank"], on_enqueue=[marked])
"""
BANK = """\
from shop import app

@app.task(serial="bank", max_attempts=3)
def charge(cents: int) -> None: ...
"""


def test_an_apps_store_is_served_with_the_options_of_its_tasks(folder: Path) -> None:
    (folder / "shop.py").write_text(APP)
    (folder / "bank.py").write_text(BANK)
    serving = Serving(folder, "--app", "shop:app")
    client = Client(serving.url)
    try:
        body = client.post("enqueue", jobs=[{"task": "charge", "payload": '{"cents":5}', "priority": 2}]).body
        (job,) = body["jobs"]
        assert [job[name] for name in ("serial", "max_attempts", "priority")] == ["bank", 3, 2]
        assert job["flags"] == ["bank"], "it has passed the App's on_enqueue, with what its task declares"
        client.post("enqueue", jobs=[{"task": "charge", "payload": "{}"}]).refused(400, "invalid job")
        assert (folder / "mine.db").exists()
    finally:
        client.close()
        serving.end()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "stowhand tokens make"),
        (("--trust-from", "proxy"), "not a network"),
        (("--tokens", "t.json"), "no tokens yet"),
        (("--tls-cert", "nothing.pem"), "no such file"),
        (("--app", "tasks.hello:hello"), "not a store"),
        (("--grace", "soon"), "grace"),
    ],
)
def test_an_object_that_cannot_be_served_is_refused_with_advice(
    call: Stowhand, options: tuple[str, ...], words: str
) -> None:
    ended = call("serve", "--port", "0", *options)
    assert ended.code == 2
    assert words in ended.err


def test_a_used_port_is_reported(call: Stowhand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = call("serve", "--port", taken.getsockname()[1])
    assert ended.code == 2
    assert "is in use" in ended.err


def test_a_token_is_made_listed_and_revoked(call: Stowhand) -> None:
    job = call("tokens", "make", "--name", "ci", "--scope", "claim,enqueue", "--task", "a", "--expires", "30d")
    token = job.out.strip()
    assert token.startswith("stow_")
    assert "It is not shown again" in job.err
    shown = call("tokens", "list").out
    assert token.split("_", 2)[2] not in shown
    assert " ".join(shown.splitlines()[1].split()[1:3]) == "ci active"
    assert "claim, enqueue" in shown
    assert "task a" in shown
    assert call("tokens", "revoke", "ci").out == "Revoked ci\n"
    (row,) = call("tokens", "list", "--json").rows()
    assert (row["standing"], "sha256" in row) == ("revoked", False)
    again = call("tokens", "revoke", "ci", "nobody")
    assert (again.code, "no token nobody" in again.err) == (1, True)


def test_commas_separate_the_tasks_and_queues_of_a_token(call: Stowhand) -> None:
    call("tokens", "make", "--name", "ci", "--task", "a,b", "--queue", "mail, bulk", "--queue", "night")
    (row,) = call("tokens", "list", "--json").rows()
    assert (row["tasks"], row["queues"]) == (["a", "b"], ["mail", "bulk", "night"])
    empty = call("tokens", "make", "--name", "ci", "--queue", "mail,")
    assert (empty.code, "--queue: empty" in empty.err) == (2, True)


def test_the_file_of_tokens_is_named_by_option_or_variable(
    call: Stowhand, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWHAND_TOKENS", "b/tokens.json")
    call("tokens", "make", "--name", "b", "--expires", "never")
    call("tokens", "make", "--name", "a", "--tokens", "a.json")
    assert [row["name"] for row in call("tokens", "list", "--json").rows()] == ["b"]
    assert json.loads((folder / "a.json").read_text())["tokens"][0]["name"] == "a"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scope", "everything"), "available: act, add, claim, enqueue, payload, read"),
        (("--scope", ","), "no scope given"),
        (("--serial", "q"), "cannot be limited by serial key"),
        (("--scope", "read,act", "--task", "a"), "act and add are scopes of the dashboard"),
        (("--scope", "add", "--serial", "q"), "act and add are scopes of the dashboard"),
        (("--task", "a\nb"), "--task"),
        (("--expires", "soon"), "not a duration"),
        (("--expires", "0s"), "longer than 0"),
    ],
)
def test_an_invalid_token_is_refused(call: Stowhand, options: tuple[str, ...], words: str) -> None:
    ended = call("tokens", "make", "--name", "x", *options)
    assert ended.code == 2
    assert words in ended.err
    assert ended.out == ""
