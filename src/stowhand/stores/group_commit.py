"""Group commit: one statement for the simultaneous calls of one event loop.

A call that arrives while no statement is in flight is sent at once, alone. It does not even wait for the next turn of
the loop. Others wait until a statement may start, and share it. Each returns when its own job is durable, or raises the
error of its own job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Generic, NamedTuple, TypeVar

MAX_STATEMENTS_IN_FLIGHT = 2
"""While the server commits one statement, the next is prepared."""
MAX_JOBS_PER_STATEMENT = 500
MAX_PAYLOAD_CHARACTERS = 1024 * 1024
"""Limit of one statement. A longer job is sent alone."""

Q = TypeVar("Q")
A = TypeVar("A")
TakeJobs = Callable[[], Sequence[Any]]
"""Called right before a statement is sent: returns its jobs, without those of cancelled callers."""


def payload_size(job: Any) -> int:
    """Return the characters of a job's payload."""
    size: int = len(job.payload)
    return size


class GroupCommit(Generic[Q, A]):
    """Commits jobs of one event loop in groups.

    ``commit_one`` commits one job. ``commit_all`` commits a group in one transaction, all or none, and returns the
    results in order. ``is_divisible``: whether an error of ``commit_all`` may concern some jobs only, and nothing was
    written: the group is then retried by halves. ``error_for`` returns the error for one caller.
    """

    def __init__(
        self,
        commit_one: Callable[[Q], Awaitable[A]],
        commit_all: Callable[[TakeJobs], Awaitable[Sequence[A]]],
        is_divisible: Callable[[Exception], bool],
        error_for: Callable[[Exception, Q], Exception],
        *,
        size: Callable[[Q], int] = payload_size,
    ) -> None:
        self._size = size
        self._commit_one, self._commit_all = commit_one, commit_all
        self._is_divisible, self._error_for = is_divisible, error_for
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Call[Q, A]] = deque()
        self._in_flight = 0
        self._is_group_pending = False
        """A group has been started and has not taken its jobs yet."""
        self._groups: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: Q) -> A:
        """Commit a job. One that is cancelled before it is sent is not committed; afterwards it may exist."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._in_flight and self._loop is not None and not self._loop.is_closed():
                return await self._commit_one(job)  # this object belongs to another loop for now
            self._loop, self._in_flight, self._is_group_pending = loop, 0, False
            self._waiting.clear()
        if not self._in_flight:
            self._in_flight = 1
            try:
                return await self._commit_one(job)
            finally:
                if self._loop is loop:
                    self._end_statement()
        call: _Call[Q, A] = _Call(job, loop.create_future())  # a call of _Call[Q, A] takes five times as long
        self._waiting.append(call)
        self._start()
        return await call.result

    async def close(self) -> None:
        """Wait for statements in flight, each of which has a deadline. Those of another loop are not completed."""
        loop = asyncio.get_running_loop()
        while groups := [group for group in self._groups if group.get_loop() is loop]:
            await asyncio.wait(groups)

    def _start(self) -> None:
        while self._waiting and self._waiting[0].result.done():
            self._waiting.popleft()
        if self._waiting and not self._is_group_pending and self._in_flight < MAX_STATEMENTS_IN_FLIGHT:
            self._is_group_pending = True
            self._in_flight += 1
            # The task starts in the loop's next turn, so that all callers of this turn share it. It has its own
            # context: it is not part of the first caller's attempt or span.
            assert self._loop is not None
            group = self._loop.create_task(self._run_group(), context=Context())
            self._groups.add(group)
            group.add_done_callback(self._groups.discard)

    def _end_statement(self) -> None:
        self._in_flight -= 1
        self._start()

    async def _run_group(self) -> None:
        group = _Group(self._take_waiting)
        try:
            await self._commit(group)
        finally:
            if not group.calls:
                group.take_jobs()
            for call in group.calls:
                call.result.cancel()  # the loop is ending: all others are done
            self._end_statement()

    def _take_waiting(self) -> list[_Call[Q, A]]:
        calls: list[_Call[Q, A]] = []
        text = 0
        while self._waiting and len(calls) < MAX_JOBS_PER_STATEMENT:
            text += self._size(self._waiting[0].job)
            if calls and text > MAX_PAYLOAD_CHARACTERS:
                break
            calls.append(self._waiting.popleft())
        self._is_group_pending = False
        self._start()
        return calls

    async def _commit(self, group: _Group[Q, A]) -> None:
        try:
            result = await self._commit_all(group.take_jobs)
        except Exception as error:  # noqa: BLE001 - each caller raises it, or the error of its own half
            if not group.calls:
                group.take_jobs()  # there was no connection for them
            if len(group.calls) > 1 and self._is_divisible(error):
                half = len(group.calls) // 2
                await self._commit(_Group(group.calls[:half].copy))
                await self._commit(_Group(group.calls[half:].copy))
            else:
                group.fail(error, self._error_for)
        else:
            for call, job in zip(group.calls, result, strict=True):
                if not call.result.done():
                    call.result.set_result(job)


class _Call(NamedTuple, Generic[Q, A]):
    job: Q
    result: asyncio.Future[A]


class _Group(Generic[Q, A]):
    """Calls that share a statement. ``take`` returns the waiting calls."""

    def __init__(self, take: Callable[[], list[_Call[Q, A]]]) -> None:
        self._take = take
        self.calls: list[_Call[Q, A]] = []

    def take_jobs(self) -> list[Q]:
        """Return the jobs when the statement is sent, or sent again."""
        self.calls = [call for call in self._take() if not call.result.done()]
        self._take = self.calls.copy
        return [call.job for call in self.calls]

    def fail(self, error: Exception, error_for: Callable[[Exception, Q], Exception]) -> None:
        """Raise an error of its own in each call."""
        for call in self.calls:
            if not call.result.done():
                call.result.set_exception(error_for(error, call.job))
                call.result.exception()  # mark as retrieved: a caller cancelled right now raises nothing
