"""House rule: time and chance come in by one door, so that a test can hold it."""

from __future__ import annotations

import ast

import pytest

from tests.support.sources import PACKAGE, Source, package_sources

pytestmark = pytest.mark.xdist_group("sources")

# File or folder inside the package -> why it may look at the clock itself.
ALLOWED = {
    "clock.py": "the door",
}

FORBIDDEN_CALLS = {
    *(f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")),
    *(f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")),
    *(f"time.{name}" for name in ("sleep", "localtime", "gmtime")),
    *(f"datetime.{kind}.{name}" for kind in ("datetime", "date") for name in ("now", "utcnow", "today")),
    "asyncio.sleep",
}


def test_time_and_random_numbers_come_from_the_clock() -> None:
    rows = [
        f"{source.name}:{call.lineno} calls {name}"
        for source in package_sources()
        if not _allowed(source)
        for name, call in source.calls()
        if _is_forbidden(name, call)
    ]
    assert not rows, "go through clock.py, or be given a generator:\n" + "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time as t\nt.monotonic()", ["time.monotonic"]),
        ("from time import sleep as nap\nnap(1)", ["time.sleep"]),
        ("import datetime as dt\ndt.datetime.now(dt.UTC)", ["datetime.datetime.now"]),
        ("from datetime import datetime\ndatetime.utcnow()", ["datetime.datetime.utcnow"]),
        ("import random\nrandom.random()", ["random.random"]),
        ("from random import Random\nRandom(1)", ["random.Random"]),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(1)", ["asyncio.sleep"]),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)", []),
        ("def f(clock):\n    return clock.time()", []),
    ],
)
def test_the_rule_follows_import_names(text: str, expected: list[str]) -> None:
    source = Source(PACKAGE / "example.py", "example.py")
    vars(source).update(text=text, tree=ast.parse(text))
    assert [name for name, call in source.calls() if _is_forbidden(name, call)] == expected


def _allowed(source: Source) -> bool:
    return any(source.name == name or source.name.startswith(f"{name}/") for name in ALLOWED)


def _is_forbidden(name: str, call: ast.Call) -> bool:
    if name == "asyncio.sleep" and [ast.unparse(argument) for argument in call.args] == ["0"]:
        return False  # that lets others run; it does not wait
    return name in FORBIDDEN_CALLS or name.startswith("random.")
