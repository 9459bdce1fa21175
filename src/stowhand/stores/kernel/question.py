"""A question is a generator: it yields queries, is sent the rows of each, and returns its answer.

So it knows neither whether an engine waits for rows on a thread or on an event loop, nor in what transaction they are
read.
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
    """How a store asks, and what its columns mean."""

    async def answer(self, ask: Callable[[], Question[T]], *, is_long: bool = False) -> T:
        """Return the answer of the question that ``ask`` begins; it may be begun again.

        ``is_long``: it may read many rows, and must not delay others.
        """

    def read_job(self, row: Row) -> Job:
        """A row of the columns of a job (``columns.COLUMNS``)."""

    def read_moment(self, value: Any) -> datetime:
        """A value of a column of times."""

    def read_names(self, value: Any) -> tuple[str, ...] | None:
        """A value of a column of lists of texts."""


def read_now(engine: Engine) -> Question[datetime]:
    """The store's time."""
    ((now,),) = yield Query("SELECT :now")
    return engine.read_moment(now)


def count_some(source: str, most: int) -> Question[int]:
    """Count the rows of a FROM clause, up to one more than ``most``."""
    ((number,),) = yield Query(_SOME % source, {"most": most + 1})
    return int(number)
