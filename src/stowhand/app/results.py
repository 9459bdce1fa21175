"""Functions that wait for many jobs of an App."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar, overload

from stowhand.clock import stopwatch
from stowhand.errors import Misuse, NoResult, a_type
from stowhand.jobs.durations import Duration, seconds
from stowhand.tasks.job_handle import JobHandle
from stowhand.tasks.needs_loop import needs_loop

R = TypeVar("R")


@overload
async def gather(
    jobs: Iterable[JobHandle[R]], timeout: Duration | None = None, *, return_exceptions: Literal[False] = ...
) -> list[R]: ...
@overload
async def gather(
    jobs: Iterable[JobHandle[R]], timeout: Duration | None = None, *, return_exceptions: bool
) -> list[R | Exception]: ...
@needs_loop("app.sync.gather(…)")
async def gather(
    jobs: Iterable[JobHandle[Any]], timeout: Duration | None = None, *, return_exceptions: bool = False
) -> list[Any]:
    """Wait for many jobs and return their results in order, with one poll for all of them.

    Args:
        jobs: Handles. For jobs and ids use ``App.gather``.
        timeout: Seconds, a timedelta or a phrase ("30s"); ``None`` waits without limit.
        return_exceptions: Whether errors are returned in the list instead of raised.

    Returns:
        The results, in the order of ``jobs``.

    Raises:
        TimeoutError, JobFailed: As ``JobHandle.result``, with all its other errors, for the first job without a result.
            The jobs continue.

    Example:
        results = await gather(await send.enqueue_many(payloads), timeout="1m")

    """
    handles = _handles(jobs, "gather")
    return await gathered([partial(handle.result, timeout) for handle in handles], return_exceptions=return_exceptions)


async def gathered(calls: Iterable[Callable[[], Awaitable[R]]], *, return_exceptions: bool) -> list[R | Exception]:
    """Return the results of all calls, in their order."""

    async def result(call: Callable[[], Awaitable[R]]) -> R | Exception:
        try:
            return await call()
        except Exception as error:
            if not return_exceptions:
                raise
            return error

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def listed(jobs: object, call: str) -> list[Any]:
    """Return jobs as a list. Raises Misuse unless they are iterable: for one handle, or a call without ``await``."""
    if not isinstance(jobs, Iterable):
        example = "app.sync.enqueue_many(…)" if call.startswith("app.sync") else "await task.enqueue_many(…)"
        raise Misuse(f"{call}: got {a_type(jobs)}; use a list: {call}([job]), {call}({example})")
    return list(jobs)


def _handles(jobs: object, call: str) -> list[JobHandle[Any]]:
    handles = listed(jobs, call)
    for job in handles:
        if not isinstance(job, JobHandle):
            raise Misuse(
                f"{call}: {a_type(job)} is not a handle; use handles, which Task.enqueue and Task.enqueue_many return;"
                " app.gather(…) also takes jobs and ids"
            )
    return handles


async def as_completed(jobs: Iterable[JobHandle[R]], timeout: Duration | None = None) -> AsyncIterator[JobHandle[R]]:
    """Yield jobs as they finish, with any outcome. Their ``result()`` returns or raises at once.

    Args:
        jobs: Handles.
        timeout: Seconds, a timedelta or a phrase ("30s"), for all jobs; ``None`` waits without limit.

    Raises:
        TimeoutError: Not all jobs have finished in time; they continue.

    """
    limit = None if timeout is None else seconds(timeout)
    started_at = stopwatch()
    waiting = {asyncio.ensure_future(_wait_for_end(job)): job for job in _handles(jobs, "as_completed")}
    try:
        while waiting:
            remaining = None if limit is None else started_at + limit - stopwatch()
            finished, _ = await asyncio.wait(waiting, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if not finished:
                raise TimeoutError(f"{len(waiting)} jobs have not finished within {limit:g} s; they continue")
            for task in finished:
                job = waiting.pop(task)
                task.result()
                yield job
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _wait_for_end(job: JobHandle[Any]) -> None:
    with suppress(NoResult):
        await job.wait()
