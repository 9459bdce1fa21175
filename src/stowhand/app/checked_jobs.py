"""Many jobs, checked one by one as they pass."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob

Check = Callable[[NewJob], NewJob]
"""The job, its values in their exact types. Raises InvalidJob."""


def check_each(jobs: Iterable[NewJob], check: Check) -> Iterator[NewJob]:
    """Raises InvalidJob with the number of the job that is wrong."""
    number = 1
    try:
        for job in jobs:
            yield check(job)
            number += 1
    except InvalidJob as error:  # also from the source itself, while it makes the job of this number
        raise InvalidJob(f"job {number} of the batch: {error}") from None


async def check_each_async(jobs: AsyncIterable[NewJob], check: Check) -> AsyncIterator[NewJob]:
    """The same for jobs that have to be waited for."""
    number = 1
    try:
        async for job in jobs:
            yield check(job)
            number += 1
    except InvalidJob as error:
        raise InvalidJob(f"job {number} of the batch: {error}") from None
