"""What is done with a record: one async callable, and three optional hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from stowhand.job import NewJob
from stowhand.lifecycle import Backoff
from stowhand.retry import natural
from stowhand.store import Claim, Lease

R = TypeVar("R")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How one record is to be run."""

    timeout: float | None = None
    """Seconds an attempt may take; ``None``: no limit."""
    backoff: Backoff = natural


class Attempt(Generic[R]):
    """One run of a handler: the record, its lease, and how the outside reaches in.

    ``then`` collects jobs to enqueue together with the settlement of this attempt.
    """

    __slots__ = ("_canceled", "cancel_reason", "claim", "detached", "lost", "started", "then")

    def __init__(self, claim: Claim[R], started: float) -> None:
        self.claim = claim
        self.started = started
        """By the worker's monotonic clock."""
        self.cancel_reason: str | None = None
        """Set when somebody asked the job to cancel, its time ran out, or the worker stops."""
        self.lost = False
        """The lease is gone: nothing that this attempt does will be recorded."""
        self.detached = False
        """Something that cannot be stopped (a thread) still runs for this attempt."""
        self.then: list[NewJob] = []
        self._canceled: asyncio.Event | None = None

    @property
    def lease(self) -> Lease:
        """The proof of the claim: compare (epoch, token) in outside systems."""
        return self.claim.lease

    @property
    def record(self) -> R:
        """What the store handed over."""
        return self.claim.record

    @property
    def canceled(self) -> bool:
        """True once the handler should stop. A synchronous handler looks at this now and then."""
        return self.cancel_reason is not None

    async def until_canceled(self) -> str:
        """Wait until the handler should stop; gives the reason."""
        if self._canceled is None:
            self._canceled = asyncio.Event()
            if self.cancel_reason is not None:
                self._canceled.set()
        await self._canceled.wait()
        return self.cancel_reason or ""

    def cancel(self, reason: str) -> None:
        """Say that the handler should stop. Called by the worker, on its loop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._canceled is not None:
            self._canceled.set()


class Handler(Protocol):
    """What a worker runs for each record it claims.

    ``handle`` returns an ``Outcome``, or anything else, which is ``Complete`` with that result (``None`` included);
    what it raises is a ``Retry``, or a ``Fail`` when ``NonRetryable`` is in its chain of causes.

    A handler may also have:
        ``policy(claim) -> Policy``     timeout and backoff for this record
        ``encode(result) -> str``       a result as JSON text; raises ValueError when it cannot be kept
    """

    async def handle(self, attempt: Attempt[Any]) -> object:
        """Do the work."""


Middleware = Callable[[Handler], Handler]


class _Function:
    def __init__(self, function: Callable[[Attempt[Any]], Awaitable[object]]) -> None:
        self._function = function

    async def handle(self, attempt: Attempt[Any]) -> object:
        return await self._function(attempt)


def handler(function: Callable[[Attempt[Any]], Awaitable[object]]) -> Handler:
    """A handler from one async function."""
    return _Function(function)
