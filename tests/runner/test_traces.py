"""Spans of what the library's functions enqueue and run."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.runner import make_worker_utils, quick_add_job, run, run_once
from stowhand.tasks.context import Helpers
from tests.support.spans import Spans, ids_of, links_of


async def test_the_span_of_a_run_is_linked_to_that_of_each_way_to_enqueue(sqlite_url: str) -> None:
    spans = Spans()
    traced: Any = {"connection_string": sqlite_url, "traces": spans.traces()}

    async def first(payload: Any, helpers: Helpers) -> None:
        await helpers.add_job("second")

    async def second(payload: Any) -> None: ...

    tasks: Any = {"first": first, "second": second}
    async with await make_worker_utils(**traced) as utils:
        await utils.migrate()
        await utils.add_job("first")
        await utils.add_jobs([{"identifier": "second"}])
    await quick_add_job(traced, "second")
    async with await run(**traced, task_list={"other": second}, no_handle_signals=True) as runner:
        await runner.add_job("second")
    crontab = "* * * * * second ?id=tick"
    await run_once(**traced, task_list=tasks, crontab=crontab)
    (ran,) = spans.named("run first")
    enqueued = spans.named("enqueue second")
    assert sorted(link for span in spans.named("run second") for link in links_of(span)) == sorted(
        map(ids_of, enqueued)
    )
    assert len(enqueued) == 5, "by add_jobs, quick_add_job, the runner, the task, and the tick"
    assert [span.parent.span_id for span in enqueued if span.parent is not None] == [ids_of(ran)[1]]


async def test_an_invalid_traces_option_is_reported_with_other_mistakes(sqlite_url: str) -> None:
    wrong: Any = {"connection_string": sqlite_url, "traces": True, "schema": 7}
    with pytest.raises(ConfigurationError) as raised:
        await make_worker_utils(**wrong)
    assert "traces: got a bool; use a stowhand.observe.traces.Traces()" in str(raised.value)
    assert "schema" in str(raised.value)
