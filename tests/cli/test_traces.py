"""Spans of commands that enqueue, and of a program's flow that is run."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Stowhand, command
from tests.support import subprocesses

CALLER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
APP = """\
import tests.service.traced_work  # where spans go
from stowhand import App
from stowhand.flows import Flow, Queue

app = App()


@app.task
async def send() -> None: ...


app.cron("0 4 * * *", send, identifier="nightly")
flow = Flow("demo", "sqlite:///flow.db", [Queue("first", next_queue="second"), Queue("second")])


async def first(job) -> None:
    print("worked", flush=True)


flow.create_workers("first", first)
"""
HANGING = """
import threading
from opentelemetry import trace
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from stowhand.service import process

process.SPAN_EXPORT_SECONDS = 0.1


class Hanging(SpanExporter):
    def export(self, spans):
        threading.Event().wait()


trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(Hanging()))
"""


@pytest.fixture
def program(stowhand: Stowhand, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Stowhand:
    """The same, beside an application whose spans go to the file ``spans``."""
    monkeypatch.setenv("STOWHAND_TEST_SPANS", str(folder / "spans"))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[2]}")
    (folder / "shop.py").write_text(APP)
    return stowhand


def spans_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "spans").read_text().splitlines()]


def flags_of(call: Stowhand) -> list[list[str]]:
    jobs = sorted(call("jobs", "list", "--json").rows(), key=lambda job: job["id"])
    return [call("jobs", "show", job["id"], "--json").rows()[0]["flags"] for job in jobs]


def test_the_span_of_a_command_is_a_child_of_the_callers(
    call: Stowhand, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "crontab").write_text("0 4 * * * hello ?id=nightly\n")
    call("migrate")
    monkeypatch.setenv("TRACEPARENT", CALLER)
    call("enqueue", "hello", "--otel", "--flag", "mine")
    call("enqueue", "hello", "--otel", "--tasks", "tasks")
    call("cron", "run", "nightly", "--otel")
    call("enqueue", "hello")
    monkeypatch.setenv("TRACEPARENT", "zz")
    call("enqueue", "hello", "--otel")
    carried = [f"traceparent={CALLER}"]
    assert flags_of(call) == [["mine", *carried], carried, carried, [], []]


def test_the_span_of_an_enqueue_is_exported_before_the_command_exits(
    program: Stowhand, call: Stowhand, folder: Path
) -> None:
    call("migrate")
    added = program("enqueue", "send", "--app", "shop:app", "--otel", TRACEPARENT=CALLER)
    assert (added.code, added.out) == (0, "1\n"), added.err
    assert program("cron", "run", "nightly", "--app", "shop:app", STOWHAND_OTEL="1").out == "2\n"
    first, second = spans_of(folder)
    assert (first["name"], second["name"]) == ("enqueue send", "enqueue send")
    assert (first["parent_id"], second["parent_id"]) == ("0x" + "b" * 16, None)
    jobs = [
        [f"traceparent=00-{span['context']['trace_id'][2:]}-{span['context']['span_id'][2:]}-"]
        for span in (first, second)
    ]
    assert [[flag[:-2] for flag in flags] for flags in flags_of(call)] == jobs


def test_a_running_flow_is_traced(program: Stowhand, folder: Path) -> None:
    add = "import asyncio, shop; asyncio.run(shop.flow.create_job({}))"
    subprocesses.run([*command()[:1], "-c", add], cwd=folder, check=True)
    words = command("flows", "run", "shop", "--otel")
    with subprocesses.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"worked\n"
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    assert running.returncode == 0
    assert [span["name"] for span in spans_of(folder)] == ["run demo/first"]


def test_a_command_exits_although_no_exporter_answers(program: Stowhand, call: Stowhand, folder: Path) -> None:
    """The provider's own exit handler waits half a minute for that."""
    call("migrate")
    (folder / "shop.py").write_text(APP + HANGING)
    added = program("enqueue", "send", "--app", "shop:app", "--otel")
    assert (added.code, added.out) == (0, "1\n")
    assert "The last spans were not exported within 0.1 s" in added.err
