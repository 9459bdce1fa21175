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
_SOME = "SELECT count(*) FROM (SELECT 1 FROM %s LIMIT :most) AS counted"


class Query(msgspec.Struct, frozen=True):
    """One statement, as ``Dialect`` reads it, and its values: numbers, texts, aware datetimes, and lists of them.

    ``:now`` is a value of every statement: the store's time.
    """

    text: str
    values: Mapping[str, object] = {}


Question = Generator[Query, list[Row], T]


class Engine(Protocol):
    """The part of a store that runs the queries of questions and converts its columns."""

    async def answer(self, ask: Callable[[], Question[T]], *, is_long: bool = False) -> T:
        """Return the answer of the question that ``ask`` starts. The engine may start it again.

        ``is_long``: the question may read many rows and must not delay others.
        """

    def read_job(self, row: Row) -> Job:
        """Convert a row with the columns of a job (``columns.COLUMNS``)."""

    def read_moment(self, value: Any) -> datetime:
        """Convert a value of a time column."""

    def read_names(self, value: Any) -> tuple[str, ...] | None:
        """Convert a value of a column that holds a list of texts."""


def read_now(engine: Engine) -> Question[datetime]:
    """Read the store's time."""
    ((now,),) = yield Query("SELECT :now")
    return engine.read_moment(now)


def count_some(source: str, most: int) -> Question[int]:
    """Count the rows of a FROM clause, up to one more than ``most``."""
    ((number,),) = yield Query(_SOME % source, {"most": most + 1})
    return int(number)
