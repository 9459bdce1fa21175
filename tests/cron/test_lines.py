"""What the log says about recurring tasks."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from stowhand.events import (
    CronClockMoved,
    CronConflict,
    CronReloaded,
    CronScheduled,
    CronStarted,
    Event,
    Events,
    SchedulingFailed,
)
from stowhand.observe.listener import LogListener
from stowhand.observe.logs import configure_logging

AT = datetime(2030, 1, 1, 4, tzinfo=UTC)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    written = io.StringIO()
    root, ours = logging.getLogger(), logging.getLogger("stowhand")
    before = root.handlers[:], root.level, ours.level
    configure_logging("info", "text", written)
    yield written
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (CronStarted(("a",), 0), "INFO: Scheduling 1 recurring task: 'a'"),
        (CronStarted(("a", "b"), 3), "INFO: Scheduling 2 recurring tasks: 'a', 'b'; backfilled 3 missed ticks"),
        (CronScheduled("a", "a", 7, AT, False, 0.1), "INFO: Scheduled task 7 (a) for 2030-01-01 04:00Z"),
        (
            CronScheduled("id", "a", 7, AT, False, 61.0),
            "INFO: Scheduled task 7 (a, id) for 2030-01-01 04:00Z, 61s late",
        ),
        (CronScheduled("a", "a", 7, AT, True, 61.0), None),
        (CronClockMoved(-70.0), "WARNING: The store's clock went back by 70s; nothing is scheduled twice"),
        (SchedulingFailed("it is\naway", 0.1), "ERROR: Cannot schedule recurring tasks, retrying in 0.1s: it is"),
        (CronReloaded(("a",), None), "INFO: Reloaded the crontab: 'a'"),
    ],
)
def test_each_event_has_its_line(stream: io.StringIO, event: Event, line: str | None) -> None:
    events = Events()
    LogListener(events)
    events.emit(event)
    assert stream.getvalue() == (f"[core] {line}\n" if line else "")


def test_a_conflict_shows_both_items_and_a_bad_crontab_all_its_lines(stream: io.StringIO) -> None:
    events = Events()
    LogListener(events)
    events.emit(CronConflict("x", AT, "0 4 * * * mine", "0 4 * * * \x1b[31mtheirs"))
    events.emit(CronReloaded(("a",), "crontab line 1: bad\ncrontab line 2: worse"))
    lines = stream.getvalue().splitlines()
    assert "with the identifier x; for 2030-01-01 04:00Z" in lines[0]
    assert "This worker: 0 4 * * * mine; the other: 0 4 * * * " in lines[0]
    assert "\x1b" not in lines[0]
    assert lines[1:] == [
        "[core] ERROR: Cannot reload the crontab; keeping the loaded one ('a'):",
        "[core] ERROR:   crontab line 1: bad",
        "[core] ERROR:   crontab line 2: worse",
    ]
