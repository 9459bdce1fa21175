"""Waiting for many jobs of an App."""

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
    """Return the results of jobs, in their order. The store is asked once for all of them.

    Raises what the first of them raises that has none, as ``JobHandle.result`` does; the jobs go on. With
    ``return_exceptions`` each error is in the list instead, at the place of its job. Jobs and ids: ``App.gather``.
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
            waiting = [group.create_task(result(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in waiting]


def listed(jobs: object, call: str) -> list[Any]:
    """Return jobs as a list. Raises Misuse for what is not iterable: one handle, or a call that was not awaited."""
    if not isinstance(jobs, Iterable):
        several = "app.sync.enqueue_many(…)" if call.startswith("app.sync") else "await task.enqueue_many(…)"
        raise Misuse(f"{call}: {a_type(jobs)}; it takes a list: {call}([job]), {call}({several})")
    return list(jobs)


def _handles(jobs: object, call: str) -> list[JobHandle[Any]]:
    handles = listed(jobs, call)
    for job in handles:
        if not isinstance(job, JobHandle):
            raise Misuse(
                f"{call}: {a_type(job)} is no handle, as Task.enqueue and Task.enqueue_many return; app.gather(…) takes"
                " jobs and ids of an App, too"
            )
    return handles


async def as_completed(jobs: Iterable[JobHandle[R]], timeout: Duration | None = None) -> AsyncIterator[JobHandle[R]]:
    """Yield jobs as they end, with any outcome: their ``result()`` does not wait any more.

    Raises TimeoutError when not all have ended by then; the jobs go on.
    """
    limit = None if timeout is None else seconds(timeout)
    started_at = stopwatch()
    waiting = {asyncio.ensure_future(_ended(job)): job for job in _handles(jobs, "as_completed")}
    try:
        while waiting:
            remaining = None if limit is None else started_at + limit - stopwatch()
            ended, _ = await asyncio.wait(waiting, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                raise TimeoutError(f"{len(waiting)} jobs have not ended within {limit:g} s; they go on")
            for task in ended:
                job = waiting.pop(task)
                task.result()
                yield job
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _ended(job: JobHandle[Any]) -> None:
    with suppress(NoResult):
        await job.wait()
