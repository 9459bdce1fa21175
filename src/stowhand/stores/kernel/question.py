"""Questions: generators that yield queries, receive the rows of each, and return the answer.

A question does not depend on whether the engine reads on a thread or on an event loop, nor on its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from stowhand.jobs.job import Job

T = TypeVar("T")
Row = tuple[Any, ...]
_BOUNDED_COUNT = "SELECT count(*) FROM (SELECT 1 FROM %s LIMIT :max_rows) AS counted"


class Query(msgspec.Struct, frozen=True):
    """One statement, as ``Dialect`` reads it, and its values: numbers, texts, aware datetimes, and lists of them.

    ``:now`` is a value of every statement: the store's time.
    """

    text: str
    values: Mapping[str, object] = {}


Question = Generator[Query, list[Row], T]


class Engine(Protocol):
    """The part of a store that runs the queries of questions and converts its columns."""

    async def answer(self, start: Callable[[], Question[T]], *, is_long: bool = False) -> T:
        """Return the answer of the question that ``start`` creates. The engine may start it again.

        ``is_long``: the question may read many rows and must not delay others.
        """

    def read_job(self, row: Row) -> Job:
        """Convert a row with the columns of a job (``columns.COLUMN_NAMES``)."""

    def read_moment(self, value: Any) -> datetime:
        """Convert a value of a time column."""

    def read_names(self, value: Any) -> tuple[str, ...] | None:
        """Convert a value of a column that holds a list of texts."""


def read_now(engine: Engine) -> Question[datetime]:
    """Read the store's time."""
    ((now,),) = yield Query("SELECT :now")
    return engine.read_moment(now)


def count_some(source: str, max_count: int) -> Question[int]:
    """Count the rows of a FROM clause, up to one more than ``max_count``."""
    ((number,),) = yield Query(_BOUNDED_COUNT % source, {"max_rows": max_count + 1})
    return int(number)
