"""``Logger``: where the runner's lines and those of its tasks go, and in whose name."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stowhand.runner import Logger, make_worker_utils, run_once
from tests.support import subprocesses

Line = tuple[str, str, dict[str, Any], Any]


class Kept(list[Line]):
    """A log factory that keeps what it is given: level, message, scope, meta."""

    def __call__(self, scope: dict[str, Any]) -> Any:
        return lambda level, message, meta: self.append((level, message, scope, meta))


async def work(url: str, task: Any, logger: Logger | None) -> None:
    async with await make_worker_utils(connection_string=url) as utils:
        await utils.migrate()
        await utils.add_job("task")
    await run_once(connection_string=url, task_list={"task": task}, logger=logger, name="w-1")


async def test_lines_contain_the_scope_of_their_source(sqlite_url: str) -> None:
    lines = Kept()

    async def task(payload: Any, helpers: Any) -> None:
        helpers.logger.info("hello", {"a": 1})

    await work(sqlite_url, task, Logger(lines))
    scopes = {message: scope for _, message, scope, _ in lines}
    assert scopes["hello"] == {"label": "job", "worker_id": "w-1", "task_identifier": "task", "job_id": 1}
    assert scopes["Worker connected and looking for jobs... (task names: 'task')"] == {"label": "core"}
    done = next(message for message in scopes if message.startswith("Completed task 1 (task) with success"))
    assert scopes[done] == {"label": "worker", "worker_id": "w-1"}


async def test_four_levels_meta_by_mapping_and_by_name_and_wider_scopes(sqlite_url: str) -> None:
    lines = Kept()

    def task(payload: Any, helpers: Any) -> None:
        log = helpers.logger
        log.error("e", {"a": 1})
        log.warn("w")
        log.warning("w", b=2)
        log.info("i", {"a": 1}, b=2)
        log.debug("d")
        log.scope({"order": 7}).info("wider")
        log.scope(order=8).scope(line=1).info("wider still")

    await work(sqlite_url, task, Logger(lines))
    own = [line for line in lines if line[2].get("label") == "job"]
    assert [(level, message, meta) for level, message, _, meta in own[:5]] == [
        ("error", "e", {"a": 1}),
        ("warning", "w", None),
        ("warning", "w", {"b": 2}),
        ("info", "i", {"a": 1, "b": 2}),
        ("debug", "d", None),
    ]
    job = {"label": "job", "worker_id": "w-1", "task_identifier": "task", "job_id": 1}
    assert [scope for _, _, scope, _ in own[5:]] == [job | {"order": 7}, job | {"order": 8, "line": 1}]


async def test_a_log_factory_receives_debug_lines_of_the_worker(sqlite_url: str) -> None:
    lines = Kept()
    await work(sqlite_url, lambda payload: None, Logger(lines))
    assert ("debug", "Started task 1 (task), attempt 1") in [(level, message) for level, message, _, _ in lines]


@pytest.mark.parametrize("fails", ["factory", "log"])
async def test_a_logger_that_raises_fails_no_job(sqlite_url: str, fails: str, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []

    def broken(*args: Any) -> Any:
        raise OSError("the disk is full")

    async def task(payload: Any, helpers: Any) -> None:
        helpers.logger.info("hello")
        ran.append(1)

    factory = broken if fails == "factory" else lambda scope: broken
    with caplog.at_level(logging.ERROR, "stowhand"):
        await work(sqlite_url, task, Logger(factory))
    assert ran == [1]
    assert "The program's logger raised OSError: the disk is full" in caplog.messages


async def test_without_a_logger_the_standard_logging_is_used(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def task(payload: Any, helpers: Any) -> None:
        helpers.logger.warn("hello", {"a": 1})

    with caplog.at_level(logging.INFO, "stowhand"):
        await work(sqlite_url, task, None)
    record = next(record for record in caplog.records if record.getMessage() == "hello")
    assert (record.name, record.levelname) == ("stowhand.job", "WARNING")
    assert vars(record)["meta"] == {"a": 1}
    assert str(vars(record)["scope"]).startswith("job(w-1: task{")


PROGRAM = """
import asyncio, sys
from stowhand.runner import make_worker_utils, run_once
if "--configured" in sys.argv:
    import logging
    logging.basicConfig(format="mine %(message)s", level="INFO")
async def hello(payload, helpers):
    helpers.logger.debug("a detail")
    helpers.logger.info(f"Hello, {payload['name']}")
async def main():
    async with await make_worker_utils(connection_string="sqlite:///q.db") as utils:
        await utils.migrate()
        await utils.add_job("hello", {"name": "Bobby Tables"})
    await run_once(connection_string="sqlite:///q.db", task_list={"hello": hello}, name="w-1")
asyncio.run(main())
"""


def said(folder: Path, *arguments: str, **environ: str) -> str:
    done = subprocesses.run(
        [subprocesses.PYTHON, "-W", "error", "-c", PROGRAM, *arguments],
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return str(done.stderr)


def test_a_program_that_configured_no_logging_still_shows_the_lines(tmp_path: Path) -> None:
    text = said(tmp_path)
    assert "[core] INFO: Worker connected and looking for jobs... (task names: 'hello')" in text
    assert "[job(w-1: hello{1})] INFO: Hello, Bobby Tables" in text
    assert "[worker(w-1)] INFO: Completed task 1 (hello) with success (" in text
    assert "a detail" not in text


def test_debug_lines_are_shown_on_request(tmp_path: Path) -> None:
    assert "[job(w-1: hello{1})] DEBUG: a detail" in said(tmp_path, STOWHAND_DEBUG="1")


def test_a_program_that_configured_logging_keeps_its_configuration(tmp_path: Path) -> None:
    text = said(tmp_path, "--configured")
    assert "mine Hello, Bobby Tables" in text
    assert "[job(" not in text
