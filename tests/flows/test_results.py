"""What a worker function is given and returns: an object, or nothing; and when a caller that waits has it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.events import Events
from stowhand.flows import Flow, Queue
from stowhand.flows.job import FlowJob, FlowJobFailed
from stowhand.flows.step_handler import DelayError, read_result
from stowhand.stores.kernel import results
from tests.conftest import Run

HEARD = 60.0


@dataclass
class Answer:
    x: int
    next_queue: str | None = None


@dataclass
class Priced:
    total: Decimal


DAY = date(2030, 1, 1)


@pytest.mark.parametrize("nothing", [None, False, 0, "", {}, []], ids=repr)
def test_a_falsy_value_is_a_result_without_attributes(nothing: object) -> None:
    assert read_result(nothing) == ({}, None)


@pytest.mark.parametrize("word", ["next_queue", "nextQueue"])
def test_a_result_may_choose_the_next_queue(word: str) -> None:
    assert read_result({"x": 1, word: "third"}) == ({"x": "1"}, "third")
    assert read_result({"x": 1, word: None}) == ({"x": "1"}, None)


def test_attributes_are_json_text_and_null_ones_are_dropped() -> None:
    assert read_result({"a": "ten", "b": [1], "c": None})[0] == {"a": '"ten"', "b": "[1]"}


def test_a_value_that_json_encodes_as_an_object_is_a_result() -> None:
    assert read_result(Answer(3, "third")) == ({"x": "3"}, "third")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (3, "returned an int; return a dict"),
        ([1], "returned a list"),
        ("done", "returned a str"),
        (frozenset({1}), "returned a frozenset"),
        ({1: 2}, "names are text"),
        ({"": 2}, "names are text"),
        ({"flowName": "x"}, "is the job's own"),
        ({"next_queue": 3}, "use the name of a queue"),
        ({"x": float("inf")}, "the result's x"),
    ],
    ids=repr,
)
def test_a_result_that_is_not_an_object_is_refused(result: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        read_result(result)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"total": Decimal("19.99")}, "the result's total: a Decimal would arrive as text; use text"),
        ({"tags": {1}}, "the result's tags: a set would arrive as a list; use a list"),
        ({"names": {1: "a"}}, "the result's names: its key 1, an int, would arrive as text; use text"),
        ({"children:b:params": [{"childName": "c", "at": DAY}]}, "the result's children:b:params[0].at: a date"),
        (Priced(Decimal("19.99")), "the result's total: a Decimal would arrive as text; use text"),
    ],
    ids=repr,
)
def test_an_attribute_that_would_arrive_as_another_type_is_refused(result: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        read_result(result)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize("given", [{}, {"delay": 1, "ready_at": 2.0}], ids=["neither", "both"])
def test_a_delay_error_has_either_a_delay_or_a_time(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="either a delay or ready_at"):
        DelayError("later", **given)


def test_a_missing_attribute_is_reported_with_its_queue() -> None:
    ctx: Any = None
    job = FlowJob("1", "demo", "first", {"n": 1}, ctx)
    with pytest.raises(KeyError, match="m: no attribute of this job, or not in attributes_to_get of first"):
        job["m"]
    assert (job["n"], job.get("m"), "m" in job, dict(job)) == (1, None, False, {"n": 1})


def test_results_are_read_at_once_after_a_settlement_in_the_same_process(
    place: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_again(monkeypatch)
    flow = Flow("demo", place, queues=[Queue("only")], events=Events())
    go_on = asyncio.Event()

    async def step(job: FlowJob) -> dict[str, Any]:
        await go_on.wait()
        return {"x": 1}

    flow.create_workers("only", step, wait_timeout=0.2)

    async def scenario() -> None:
        await flow.start_all()
        job = await flow.create_job({"n": 1})
        waiting = asyncio.ensure_future(flow.result(job, HEARD))
        await asyncio.wait([waiting], timeout=0.2)
        go_on.set()
        assert (await waiting)["x"] == 1
        await flow.stop_all()

    run(scenario())


def test_results_are_read_at_once_after_a_commit_on_sqlite(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_again(monkeypatch)
    url = f"sqlite:///{tmp_path}/flow.db"
    flow, other = (Flow("demo", url, queues=[Queue("only")], events=Events()) for _ in range(2))

    async def scenario() -> None:
        async with flow, other:
            job = await flow.create_job({"n": 1})
            waiting = asyncio.ensure_future(flow.result(job, HEARD))
            await asyncio.wait([waiting], timeout=0.2)
            await other.cancel_job(job)
            with pytest.raises(FlowJobFailed, match="canceled"):
                await waiting

    run(scenario())


def never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first question a poll does not ask by itself."""
    monkeypatch.setattr(results, "PAUSE_SHARE", 1e9)
    monkeypatch.setattr(results, "MAX_PAUSE_SECONDS", 600.0)
