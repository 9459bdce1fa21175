"""Which rows of a write are refused, and when the store is at fault: from what happens, never from a code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stowhand.clock import Clock
from stowhand.stores.database.refused_rows import write_each
from tests.conftest import Run


class Cut(Exception):
    """The connection is gone."""


class Pauses:
    """A clock that only counts."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Table:
    """Accepts a write unless ``fails`` says otherwise of the number of the call and what is written."""

    def __init__(self, fails: Callable[[int, Sequence[str]], Exception | None]) -> None:
        self.calls: list[str] = []
        self._fails = fails

    async def write(self, part: Sequence[str]) -> list[str]:
        self.calls.append("".join(part))
        if error := self._fails(len(self.calls), part):
            raise error
        return [one.upper() for one in part]


def written(run: Run, table: Table, items: str) -> tuple[str, str]:
    clock: Any = Pauses()
    typed: Clock = clock
    answer = run(write_each(items, table.write, typed, lambda error: isinstance(error, Cut)))
    return "".join(sorted(answer.rows)), "".join(item for item, _ in answer.refused)


def test_an_item_that_fails_alone_while_another_is_written_is_refused(run: Run) -> None:
    table = Table(lambda _, part: ValueError("no") if "c" in part else None)
    assert written(run, table, "abcd") == ("ABD", "c")
    assert table.calls == ["abcd", "abcd", "", "ab", "cd", "c", "d", "c", "c", "c"]


def test_a_temporary_error_refuses_no_item(run: Run) -> None:
    assert written(run, Table(lambda call, _: ValueError("once") if call == 1 else None), "abcd") == ("ABCD", "")
    table = Table(lambda call, part: ValueError("c, for a while") if "c" in part and call < 8 else None)
    assert written(run, table, "abcd") == ("ABCD", "")


def test_a_write_that_fails_without_rows_raises_its_error_at_once(run: Run) -> None:
    table = Table(lambda call, part: ValueError("no such column"))
    with pytest.raises(ValueError, match="no such column"):
        written(run, table, "abcdefgh")
    assert len(table.calls) == 3


def test_a_lost_connection_ends_the_bisection(run: Run) -> None:
    table = Table(lambda call, part: Cut() if call == 4 else ValueError("no") if part else None)
    with pytest.raises(Cut):
        written(run, table, "abcd")


def test_if_all_are_refused_the_caller_gets_each_error(run: Run) -> None:
    assert written(run, Table(lambda _, part: ValueError("no") if part else None), "ab") == ("", "ab")
