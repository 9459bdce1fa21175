"""Group commit: what callers of one event loop ask for at the same time is done by one statement.

A call that comes while no other is on its way goes at once, by itself: it waits for no company, not even for a turn of
the loop. Others wait until a statement may start, and share it; each returns when its own job is durable, or raises
what became of its own job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Generic, NamedTuple, TypeVar

AT_ONCE = 2
"""Statements on their way: while the server commits one, the next is made."""
MOST_JOBS = 500
MOST_TEXT = 1024 * 1024
"""Characters of payload of one statement; a job that is longer goes without company."""

Q = TypeVar("Q")
A = TypeVar("A")
Board = Callable[[], Sequence[Any]]
"""Called when a statement is about to be sent: its jobs. Who has been cancelled by then is not among them."""


def payload_size(job: Any) -> int:
    """Characters of a job's payload."""
    size: int = len(job.payload)
    return size


class GroupCommit(Generic[Q, A]):
    """``alone`` commits one job. ``together`` commits those on board in one transaction, all or none, and gives them in
    that order. ``divisible``: an error of ``together`` that need not be that of every job, and with which nothing was
    written: they are tried again by halves. ``error_for``: what a caller is told.
    """

    def __init__(
        self,
        alone: Callable[[Q], Awaitable[A]],
        together: Callable[[Board], Awaitable[Sequence[A]]],
        divisible: Callable[[Exception], bool],
        error_for: Callable[[Exception, Q], Exception],
        *,
        size: Callable[[Q], int] = payload_size,
    ) -> None:
        self._size = size
        self._alone, self._together = alone, together
        self._divisible, self._error_for = divisible, error_for
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Call[Q, A]] = deque()
        self._on_their_way = 0
        self._gathering = False
        """A group has been started and is not on board yet."""
        self._groups: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: Q) -> A:
        """Commit it. Cancelled before it is sent, it is not; afterwards it may exist."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._on_their_way and self._loop is not None and not self._loop.is_closed():
                return await self._alone(job)  # this object belongs to another loop for now
            self._loop, self._on_their_way, self._gathering = loop, 0, False
            self._waiting.clear()
        if not self._on_their_way:
            self._on_their_way = 1
            try:
                return await self._alone(job)
            finally:
                if self._loop is loop:
                    self._arrived()
        call = _Call[Q, A](job, loop.create_future())
        self._waiting.append(call)
        self._start()
        return await call.made

    async def close(self) -> None:
        """Wait for what is on its way: each statement has a deadline. What another loop left undone stays undone."""
        loop = asyncio.get_running_loop()
        while groups := [group for group in self._groups if group.get_loop() is loop]:
            await asyncio.wait(groups)

    def _start(self) -> None:
        while self._waiting and self._waiting[0].made.done():
            self._waiting.popleft()
        if self._waiting and not self._gathering and self._on_their_way < AT_ONCE:
            self._gathering = True
            self._on_their_way += 1
            # It begins in the loop's next turn: who calls in this one is on board. In a context of its own: it is no
            # part of the attempt or of the span of whoever called first.
            assert self._loop is not None
            group = self._loop.create_task(self._go(), context=Context())
            self._groups.add(group)
            group.add_done_callback(self._groups.discard)

    def _arrived(self) -> None:
        self._on_their_way -= 1
        self._start()

    async def _go(self) -> None:
        group = _Group(self._next)
        try:
            await self._send(group)
        finally:
            if not group.calls:
                group.board()
            for call in group.calls:
                call.made.cancel()  # the loop is ending: all others are done
            self._arrived()

    def _next(self) -> list[_Call[Q, A]]:
        calls: list[_Call[Q, A]] = []
        text = 0
        while self._waiting and len(calls) < MOST_JOBS:
            text += self._size(self._waiting[0].job)
            if calls and text > MOST_TEXT:
                break
            calls.append(self._waiting.popleft())
        self._gathering = False
        self._start()
        return calls

    async def _send(self, group: _Group[Q, A]) -> None:
        try:
            made = await self._together(group.board)
        except Exception as error:  # noqa: BLE001 - each caller raises it, or what became of its own half
            if not group.calls:
                group.board()  # there was no connection for them
            if len(group.calls) > 1 and self._divisible(error):
                half = len(group.calls) // 2
                await self._send(_Group(group.calls[:half].copy))
                await self._send(_Group(group.calls[half:].copy))
            else:
                group.fail(error, self._error_for)
        else:
            for call, job in zip(group.calls, made, strict=True):
                if not call.made.done():
                    call.made.set_result(job)


class _Call(NamedTuple, Generic[Q, A]):
    job: Q
    made: asyncio.Future[A]


class _Group(Generic[Q, A]):
    """Calls that share a statement. ``take``: those that want to."""

    def __init__(self, take: Callable[[], list[_Call[Q, A]]]) -> None:
        self._take = take
        self.calls: list[_Call[Q, A]] = []

    def board(self) -> list[Q]:
        """Their jobs, as the statement is sent, or sent again."""
        self.calls = [call for call in self._take() if not call.made.done()]
        self._take = self.calls.copy
        return [call.job for call in self.calls]

    def fail(self, error: Exception, error_for: Callable[[Exception, Q], Exception]) -> None:
        """Each raises an error of its own."""
        for call in self.calls:
            if not call.made.done():
                call.made.set_exception(error_for(error, call.job))
                call.made.exception()  # seen: who is cancelled in this very moment raises nothing
