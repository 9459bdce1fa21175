"""The correlation id that is bound where a line is written stands in the line, and in no other."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import queue
from collections.abc import Callable, Iterator
from logging.handlers import QueueHandler, QueueListener
from typing import Any

import pytest

from stowhand.observe.correlation import CorrelationFilter
from stowhand.observe.job_logger import core_logger, job_logger
from stowhand.observe.logs import JsonLines, TextLines, configure_logging
from stowhand.observe.propagation import bound_correlation_id, current_correlation_id
from stowhand.tasks.threads import Threads
from tests.conftest import Run
from tests.support.logs import logging_restored


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    with logging_restored():
        yield


def text_of(write: Callable[[], object]) -> str:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    write()
    return stream.getvalue()


def json_of(write: Callable[[], object]) -> dict[str, Any]:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    write()
    result: dict[str, Any] = json.loads(stream.getvalue())
    return result


def test_a_text_line_ends_with_the_correlation_id() -> None:
    with bound_correlation_id("abc-1"):
        assert text_of(lambda: core_logger().info("Hello")) == "[core] INFO: Hello (correlation_id=abc-1)\n"
        line = text_of(lambda: job_logger("w", "t", 1).info("Hello", n=3))
    assert line == "[job(w: t{1})] INFO: Hello (n=3, correlation_id=abc-1)\n"


def test_a_json_line_has_the_correlation_id_beside_a_field_of_that_name() -> None:
    with bound_correlation_id("abc-1"):
        line = json_of(lambda: core_logger().info("Hello", correlation_id="mine"))
    assert (line["correlation_id"], line["meta"]) == ("abc-1", {"correlation_id": "mine"})


def test_a_line_of_another_logger_shows_the_correlation_id() -> None:
    with bound_correlation_id("abc-1"):
        assert "(correlation_id=abc-1)" in text_of(lambda: logging.getLogger("shop.orders").warning("gone"))
        assert json_of(lambda: logging.getLogger("shop.orders").warning("gone"))["correlation_id"] == "abc-1"


def test_without_a_correlation_id_lines_have_none() -> None:
    with bound_correlation_id("abc-1"), bound_correlation_id(None):
        assert text_of(lambda: core_logger().info("Hello")) == "[core] INFO: Hello\n"
    assert current_correlation_id() is None
    assert "correlation_id" not in json_of(lambda: core_logger().info("Hello"))


def test_a_correlation_id_cannot_forge_a_line_or_leak_a_password() -> None:
    with bound_correlation_id("x\n[core] ERROR: forged \x1b[2J redis://me:secret@host"):
        text = text_of(lambda: core_logger().info("Hello"))
        line = json_of(lambda: core_logger().info("Hello"))
    assert text.count("\n") == 1
    assert "\\n[core] ERROR" in text
    assert "\x1b" not in text
    assert "secret" not in text + json.dumps(line)


def test_threads_and_tasks_started_under_a_correlation_id_write_it(run: Run) -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    threads = Threads()

    def say(what: str) -> None:
        logging.getLogger("shop").info(what)

    async def later(what: str) -> None:
        await asyncio.sleep(0)
        say(what)

    async def work(name: str) -> None:
        with bound_correlation_id(name):
            inner = asyncio.create_task(later(f"task of {name}"))
            await threads.run(lambda: say(f"thread of {name}"), on_abandoned=lambda _: None)
            await asyncio.to_thread(say, f"other thread of {name}")
            await inner
        say("nobody's")

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    run(both())
    threads.close()
    lines = stream.getvalue().splitlines()
    for name in "ab":
        theirs = [line for line in lines if f"of {name} " in line]
        assert len(theirs) == 3
        assert all(line.endswith(f"(correlation_id={name})") for line in theirs)
    assert [line for line in lines if "nobody" in line] == ["[shop] INFO: nobody's"] * 2


# -- for handlers of somebody else's ---------------------------------------------------------------


def filtered(handler_filter: logging.Filter, fmt: str = "%(correlation_id)s %(message)s") -> tuple[Any, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(handler_filter)
    handler.setFormatter(logging.Formatter(fmt))
    logger = logging.Logger("theirs")
    logger.addHandler(handler)
    return logger, stream


def test_the_filter_sets_the_id_for_any_formatter() -> None:
    logger, stream = filtered(CorrelationFilter("-"))
    with bound_correlation_id("abc-1"):
        logger.info("one")
    logger.info("two")
    with bound_correlation_id("a\nb"):
        logger.info("three")
    assert stream.getvalue() == "abc-1 one\n- two\na\\nb three\n"


def test_the_default_of_the_filter_is_none_and_existing_ids_are_kept() -> None:
    logger, stream = filtered(CorrelationFilter())
    logger.info("one")
    with bound_correlation_id("ours"):
        logger.info("two", extra={"correlation_id": "theirs"})
        logger.info("three", extra={"correlation_id": 5})
    assert stream.getvalue() == "None one\ntheirs two\n5 three\n"


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
def test_on_a_queue_the_filter_keeps_the_id_for_the_writing_thread(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    writer = logging.StreamHandler(stream)
    writer.setFormatter(formatter)
    letters: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ours = QueueHandler(letters)
    ours.addFilter(CorrelationFilter())
    logger = logging.Logger("theirs")
    logger.addHandler(ours)
    listener = QueueListener(letters, writer)
    listener.start()
    with bound_correlation_id("abc-1"):
        logger.info("one")
    listener.stop()
    assert "abc-1" in stream.getvalue()
