"""What docs/how-to/wrap-every-job.md puts around jobs does what it says, with the real packages."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, Context, Job, State
from stowhand.errors import InvalidJob
from tests.docs.pages import DOCS

PAGE = (DOCS / "how-to" / "wrap-every-job.md").read_text()
BLOCKS = dict(re.findall(r"^<!-- file: (\w+)\.py -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_page(name: str) -> dict[str, Any]:
    """The names of a block."""
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[name], f"{name}.py", "exec"), names)
    return names


@asynccontextmanager
async def opened(app: App) -> AsyncIterator[None]:
    await app.open(install=True)
    try:
        yield
    finally:
        await app.close()


async def work_off(app: App) -> list[Job]:
    await app.worker(once=True, concurrency=1).run()
    store = await app.open()
    return list(await store.inspect.list())


def test_the_time_of_every_attempt_is_printed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app: App = of_page("shop")["app"]

    @app.task
    async def send(to: str) -> None: ...

    async def scenario() -> int:
        async with opened(app):
            job = await send.enqueue("x")
            await work_off(app)
            return job.priority

    assert asyncio.run(scenario()) == 10
    assert re.search(r"^send took \d+\.\d{3} s$", capsys.readouterr().out, re.MULTILINE)


SENTRY = """
import asyncio, json, sys
import sentry_sdk, sentry_sdk.transport

class Printed(sentry_sdk.transport.Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.payload.json is not None:
                print(json.dumps([item.type, item.payload.json], default=str), flush=True)

original = sentry_sdk.init
sentry_sdk.init = lambda **options: original(dsn="https://key@sentry.invalid/1", transport=Printed, **options)
from with_sentry import app

@app.task(max_attempts=1)
async def send(to: str) -> None:
    if to == "nobody":
        raise LookupError("no such address")

@app.task(serial="slow")
def resize(width: int) -> None:
    with sentry_sdk.start_span(op="db", name="in a thread"):
        pass

async def scenario() -> None:
    await app.open(install=True)
    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        await send.enqueue("nobody")
        await resize.enqueue(3)
    await app.worker(once=True).run()
    await app.close()

asyncio.run(scenario())
"""


def test_sentry_gets_traced_attempts_and_errors_with_their_stack(place: Path) -> None:
    """In a process of its own: the SDK changes modules of Python's."""
    (place / "with_sentry.py").write_text(BLOCKS["with_sentry"])
    (place / "program.py").write_text(SENTRY)
    ran = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    sent = [json.loads(line) for line in ran.stdout.splitlines()]
    transactions = {one["transaction"]: one for kind, one in sent if kind == "transaction"}
    assert set(transactions) == {"POST /orders", "send", "resize"}
    traces = {name: one["contexts"]["trace"] for name, one in transactions.items()}
    assert len({trace["trace_id"] for trace in traces.values()}) == 1
    published = {span["description"]: span for span in transactions["POST /orders"]["spans"]}
    assert {span["op"] for span in published.values()} == {"queue.publish"}
    for task in ("send", "resize"):
        assert traces[task]["op"] == "queue.process"
        assert traces[task]["parent_span_id"] == published[task]["span_id"]
    assert traces["resize"]["data"]["messaging.destination.name"] == "slow"
    assert traces["send"]["data"]["messaging.message.retry.count"] == 0
    assert [span["description"] for span in transactions["resize"]["spans"]] == ["in a thread"]
    (error,) = [one for kind, one in sent if kind == "event"]
    (raised,) = error["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("LookupError", "no such address")
    assert raised["stacktrace"]["frames"][-1]["function"] == "send"
    assert error["contexts"]["trace"]["trace_id"] == traces["send"]["trace_id"]
    assert traces["send"]["status"] == "internal_error"


def test_structlog_lines_name_their_job(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    structlog = importlib.import_module("structlog")
    app: App = of_page("with_structlog")["app"]

    @app.task
    async def send(ctx: Context, to: str) -> None:
        structlog.get_logger().info("sending", to=to)
        ctx.logger.warning("slow")

    @app.task
    def resize() -> None:
        structlog.get_logger().info("in a thread")

    async def scenario() -> list[int]:
        async with opened(app):
            ids = [(await send.enqueue("x")).id, (await resize.enqueue()).id]
            await work_off(app)
            return ids

    try:
        first, second = asyncio.run(scenario())
        structlog.get_logger().info("after")
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    of_send = {"job": first, "task": "send", "attempt": 1}
    assert lines == [
        {"event": "sending", "to": "x", "level": "info", **of_send},
        {"event": "slow", "level": "warning", **of_send},
        {"event": "in a thread", "level": "info", "job": second, "task": "resize", "attempt": 1},
        {"event": "after", "level": "info"},
    ]


def test_a_tenant_is_passed_to_the_jobs_of_its_request(place: Path) -> None:
    names = of_page("with_tenants")
    app: App = names["app"]
    tenant = names["tenant"]
    seen: list[tuple[str, str | None]] = []

    @app.task
    def send(to: str) -> None:
        seen.append((to, tenant.get()))

    @app.task
    async def begin(ctx: Context) -> None:
        seen.append(("begin", tenant.get()))
        ctx.enqueue_after(send.new_job("after"))
        await send.enqueue("meanwhile")

    async def request(name: str) -> None:
        tenant.set(name)
        await begin.enqueue()

    async def scenario() -> list[Job]:
        async with opened(app):
            for name in ("acme", "globex"):
                await asyncio.create_task(request(name))
            with pytest.raises(InvalidJob, match="outside of any tenant"):
                await begin.enqueue()
            return await work_off(app)

    jobs = asyncio.run(scenario())
    assert not [job for job in jobs if job.state is State.FAILED]
    assert sorted(seen) == [(to, name) for to in ("after", "begin", "meanwhile") for name in ("acme", "globex")]
