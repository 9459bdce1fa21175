"""What a worker runs for a record: one async callable with three optional hooks, and the attempt that it receives."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, LeaseLost, a_type
from stowhand.events import Events
from stowhand.jobs import limits
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Outcome, Settlement
from stowhand.protocols.attempt_logger import AttemptLogger
from stowhand.protocols.callables import bare, inmost
from stowhand.protocols.progress import Report, read_progress
from stowhand.protocols.store import Claim, Reply

if TYPE_CHECKING:
    # Checkers know this module without its being installed; the default is for a plain ``Handler``.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", covariant=True, default=Any)
    Given = TypeVarWithDefault("Given", contravariant=True, default=Any)
else:
    R, Given = TypeVar("R", covariant=True), TypeVar("Given", contravariant=True)
S = TypeVar("S")


class Transaction(Protocol):
    """An open transaction that locks an attempt's record: the end of the attempt is written there, and nowhere else."""

    async def settle(self, settlement: Settlement) -> Reply:
        """Write how the attempt ended, and commit.

        What the handler did is kept if the record is completed or goes back to queued, and rolled back otherwise. Where
        the reply is ``Unwritten`` it is called again, with another settlement. Raises nothing but StoreError; then it
        is not known whether it was written.
        """

    async def rollback(self) -> None:
        """Undo everything: the record is as it was after its claim, to be handed back, or lost."""


class AttemptControl(msgspec.Struct, eq=False):
    """The side of an attempt that its worker and its store use, and its handler does not: ``control_of``."""

    lease: Lease
    store: Any = None
    """``ctx.store``."""
    offer: Callable[[Attempt[Any]], Any] | None = None
    """Makes it, where that waits until the handler asks: most never do, and the two would refer to each other."""
    connection: Any = None
    """``ctx.connection``."""
    transaction: Transaction | None = None
    """Where the end of the attempt is written, if it has a transaction of its own."""
    decided: Outcome | None = None
    """What the handler asked its store for (``requeue``): the outcome, unless the handler raises."""
    on_enqueue: Callable[[NewJob], NewJob] | None = None
    """What ``enqueue_after`` is given goes through it."""
    hooked: Context | None = None
    """Its hooks have begun: post_handle is to come, in this context, to which its log lines and spans belong."""
    ended: bool = False
    """The handler has ended: nothing can be decided any more."""
    lost: bool = False
    """The lease is gone: nothing that this attempt does will be recorded."""
    abandoned_thread: threading.Event | None = None
    """A thread, which cannot be stopped, still runs for this attempt. The event is set when it ends."""

    def bind(self, store: Any, connection: Any = None) -> None:
        """Called by the store before the handler runs: what ``ctx.store`` and ``ctx.connection`` are."""
        self.store = store
        self.connection = connection

    def decide(self, outcome: Outcome) -> None:
        """Called by the store, on the handler's behalf. Raises LeaseLost once the handler has ended."""
        if self.ended:
            raise LeaseLost(f"record {self.lease.job_id}: its handler has ended, and how is decided")
        self.decided = outcome


class Stop(StrEnum):
    """Why a running handler is stopped: ``Attempt.cancel_reason``."""

    TIMEOUT = "timeout"
    CANCELED = "canceled"
    """The job was asked to cancel."""
    LOST = "lost"
    """Its lease is lost, or may be given away any moment."""
    RETURNED = "returned"
    """The worker stops: the job is returned without using an attempt."""
    CRASHED = "crashed"
    """The child process that ran it died."""
    UNABLE = "unable"
    """The child process could not start it."""


class Attempt(Generic[R]):
    """One run of a handler: the record, its lease, and how it is asked to stop. Handlers receive it as ``ctx``.

    ``then`` collects jobs to enqueue together with the settlement of this attempt.
    """

    __slots__ = ("_canceled", "_control", "_logger", "_report", "cancel_reason", "claim", "started", "then")

    def __init__(
        self,
        claim: Claim[R],
        started: float,
        logger: Callable[[Claim[Any]], AttemptLogger] | None = None,
        report: Report | None = None,
    ) -> None:
        self.claim = claim
        self.started = started
        """By the worker's monotonic clock."""
        self.cancel_reason: str | None = None
        """Set when the job's cancellation was requested, its time ran out, or the worker stops."""
        self.then: list[NewJob] = []
        self._logger = logger
        self._report = report
        self._control: AttemptControl | None = None
        self._canceled: asyncio.Event | None = None

    @property
    def lease(self) -> Lease:
        """The proof of the claim: hand (epoch, token) to systems that must refuse a stale one."""
        return self.claim.lease

    @property
    def record(self) -> R:
        """The record as it was claimed: a ``Job``, or a row of a user's table."""
        return self.claim.record

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1, 2, …"""
        return self.claim.attempts

    @property
    def max_attempts(self) -> int:
        """After this many the record is failed."""
        return self.claim.max_attempts

    @property
    def logger(self) -> AttemptLogger:
        """A logger whose lines carry the task's name and the record's id."""
        return self._logger(self.claim) if self._logger is not None else AttemptLogger.mute()

    def log(self, message: object, **facts: Any) -> None:
        """Write a line about this record, at level info, through ``logger``."""
        self.logger.info(message, **facts)

    def progress(self, done: float, text: str | None = None) -> None:
        """Say how far this attempt is: ``ctx.progress(done / total, "page 40 of 100")``. From any thread.

        ``done``: 0 to 1; ``text``: 200 characters. It is written within about a second, with what others say, and is
        dropped where the store does not answer at once. Raises ConfigurationError for what is no such number, and where
        the store keeps no progress: a table of yours, lent or not, and flows in Redis.
        """
        note = read_progress(self.lease, done, text)
        if self._report is None:
            raise ConfigurationError(
                "progress: this store keeps none (memory, SQLite and PostgreSQL do, lent too; a table of yours and"
                " a flow in Redis do not); take the call out, and write a line with ctx.log(…), or in a table's"
                " execution log: await ctx.store.add_execution_log_entry(…)"
            )
        self._report(note)

    def enqueue_after(self, job: NewJob) -> None:
        """Enqueue a job together with this attempt's end, in one transaction.

        It exists if and only if the end of this attempt is recorded, whatever that end is. Raises InvalidJob. A user's
        table cannot enqueue: the attempt fails there.
        """
        if self._control is not None and self._control.on_enqueue is not None:
            job = self._control.on_enqueue(job)
        self.then.append(limits.check(job))

    @property
    def store(self) -> Any:
        """The store as this attempt sees it: guarded by its lease, and inside its transaction where it has one.

        What it can do depends on the store; a table's is ``stowhand.AttemptStore``.
        Raises ConfigurationError where the store offers nothing.
        """
        control = self._control
        if control is None or (control.store is None and control.offer is None):
            raise ConfigurationError("this store has nothing to give to a running handler")
        if control.store is None:
            assert control.offer is not None
            control.store = control.offer(self)
        return control.store

    @property
    def connection(self) -> Any:
        """The connection of the attempt's own transaction (psycopg's). Raises ConfigurationError where it has none."""
        if self._control is None or self._control.connection is None:
            raise ConfigurationError("this attempt has no transaction of its own (TableOptions: transactional=True)")
        return self._control.connection

    @property
    def canceled(self) -> bool:
        """True once the handler should stop. A synchronous handler looks at this now and then."""
        return self.cancel_reason is not None

    async def until_canceled(self) -> str:
        """Wait until the handler should stop; returns the reason."""
        if self._canceled is None:
            self._canceled = asyncio.Event()
            if self.cancel_reason is not None:
                self._canceled.set()
        await self._canceled.wait()
        return self.cancel_reason or ""

    def cancel(self, reason: str) -> None:
        """Ask the handler to stop; the first reason stands. Called by the worker, on its loop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._canceled is not None:
            self._canceled.set()


def control_of(attempt: Attempt[Any]) -> AttemptControl:
    """The worker's and the store's side of an attempt. Made when it is first asked for: most attempts need none."""
    control = attempt._control  # noqa: SLF001 - the one door: handlers do not meet it in their ``ctx``
    if control is None:
        control = attempt._control = AttemptControl(attempt.claim.lease)  # noqa: SLF001 - as above
    return control


def known_control_of(attempt: Attempt[Any]) -> AttemptControl | None:
    """The same; ``None`` where nobody has asked for it, so all is as it was in the beginning."""
    return attempt._control  # noqa: SLF001 - as above


def report_of(attempt: Attempt[Any]) -> Report | None:
    """Where its progress goes; ``None``: the store keeps none."""
    return attempt._report  # noqa: SLF001 - as above


@runtime_checkable
class EnclosingStore(Protocol):
    """A store that prepares each attempt, and may enclose its handler. Optional: a worker asks whether its store is
    one."""

    async def validate(self, events: Events | None = None) -> None:
        """Called once before a worker's first claim. Raises what makes the store unfit to be worked on.

        ``events``: receives what a person should know of the store (``StoreWarned``), now and while it is worked on.
        """

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None] | None:
        """Bind what the handler may use to the attempt's control; return what is to enclose its hooks and its handler,
        if anything.

        The context manager may set ``control_of(attempt).transaction`` and leave it open: the worker settles there. It
        may raise LeaseLost on entering: then nothing runs, and nothing is recorded.
        """


class Asking(msgspec.Struct, frozen=True):
    """The ``ctx`` of ``pre_claim``."""

    worker: str
    free: int
    """Slots in which nothing runs."""
    running: int
    logger: AttemptLogger


class Claimable(msgspec.Struct, frozen=True):
    """The full answer of ``pre_claim``: claim up to ``limit`` records, with these conditions."""

    conditions: tuple[Any, ...] = ()
    limit: int = 1


class Handler(Protocol[Given]):
    """What a worker runs for each record it claims.

    ``handle`` returns an ``Outcome``, or anything else, which is ``Complete`` with that result (``None`` included);
    what it raises is a ``Retry``, or a ``Fail`` when ``NonRetryable`` is in its chain of causes.

    A handler may also have:
        ``async pre_claim(ctx)``              before each claim: False (not now), True, conditions, or ``Claimable``;
                                              one record is claimed at a time then, unless ``Claimable`` says more
        ``async pre_handle(ctx, record)``     before ``handle``
        ``async post_handle(ctx, record)``    after every ``pre_handle``, when the record has been marked
        ``policy(claim) -> Policy``           timeout and backoff for this record
        ``encode(result) -> str``             a result as JSON text; raises ValueError when it cannot be kept
        ``retryable(error) -> bool``          False: what it raised fails the record at once

    ``Handler[Upload]`` says what the records are, and a type checker compares it with the store. Hooks are optional, so
    it compares theirs only where a class names them: ``class Index(Handler[Upload], PreHandle[Upload])``.
    """

    async def handle(self, ctx: Attempt[Given], record: Given) -> object:
        """Do the work."""


class PreHandle(Protocol[Given]):
    """A handler with a ``pre_handle`` for these records."""

    async def pre_handle(self, ctx: Attempt[Given], record: Given) -> object:
        """Before ``handle``."""


class PostHandle(Protocol[Given]):
    """A handler with a ``post_handle`` for these records."""

    async def post_handle(self, ctx: Attempt[Given], record: Given) -> object:
        """After every ``pre_handle``, when the record has been marked."""


class Resources(Protocol):
    """What tasks ask for, open while their worker runs."""

    async def open(self, tasks: Collection[str] | None, ended: Callable[[BaseException], None]) -> None:
        """Open what these tasks ask for; ``None``: all. ``ended``: called with the error of one that ends by itself.

        Raises ResourceUnavailable; what was opened stays until ``close``.
        """

    async def close(self, within: Callable[[], float]) -> list[tuple[str, BaseException]]:
        """Close all, the last first; each has ``within()`` seconds. Gives what that raised, by name."""


Function = Callable[[Attempt[S], S], Awaitable[object]]
Middleware = Callable[[Handler], Handler | Function[Any]]


class _Function:
    def __init__(self, function: Function[Any]) -> None:
        self.handle = function


def handler(function: Function[S]) -> Handler[S]:
    """A handler from one async function of (ctx, record)."""
    return cast("Handler[S]", _Function(function))


_ASKED = {"pre_claim": ("ctx",), "policy": ("claim",), "encode": ("result",), "retryable": ("error",)}
_PLAIN = ("policy", "encode", "retryable")
"""Not awaited."""
HOOKS = ("pre_handle", "post_handle", *_ASKED, "on_enqueue", "resources", "counted_as")
"""What a handler may have beside ``handle``. The last three are an App's: what jobs of ``enqueue_after`` go through,
what its tasks ask for, and which names are second names of a task (a mapping to the first)."""


def handler_of(given: Handler[S] | Function[S]) -> Handler[S]:
    """A handler is itself; an async callable of (ctx, record) is one. Raises ConfigurationError for anything else."""
    if not isinstance(given, type):
        if callable(getattr(given, "handle", None)):
            _check(given)
            return cast("Handler[S]", given)
        if callable(given):
            _check(made := handler(given))
            return made
    raise ConfigurationError(
        f"handler: {given!r} given; give an async function of (ctx, record), or an object with an async handle"
    )


def _check(made: object) -> None:
    """Before any record is claimed: a hook with a wrong signature would fail them all, one by one."""
    for name in ("handle", "pre_handle", "post_handle", *_ASKED):
        hook = getattr(made, name, None)
        if hook is None:
            continue
        asked = _ASKED.get(name, ("ctx", "record"))
        shown = f"{name}({', '.join(asked)})"
        if not callable(hook):
            raise ConfigurationError(f"handler: its {name} is {a_type(hook)}; it is called as {shown}")
        if name in _PLAIN and inspect.iscoroutinefunction(hook):
            raise ConfigurationError(f"handler: its {name} is asynchronous; make it a plain function, {shown}")
        if inspect.isasyncgenfunction(hook) or inspect.isgeneratorfunction(hook):
            raise ConfigurationError(f"handler: its {name} yields, and is no hook; write async def {shown}")
        if name not in _PLAIN and _is_plain(made, hook):
            raise ConfigurationError(
                f"handler: its {name} is a plain def, which would hold up the loop: write async def {shown}, and wait "
                "for what blocks by `await asyncio.to_thread(…)`. One that gives a coroutine says -> Awaitable[None]"
            )
        if not _takes(hook, len(asked)):
            raise ConfigurationError(f"handler: its {name} takes other arguments; it is called as {shown}")


def _is_plain(made: object, hook: Callable[..., object]) -> bool:
    """A plain ``def`` whose annotations name no coroutine. What cannot be inspected is trusted."""
    inner = _inmost(hook)
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)) or inspect.iscoroutinefunction(inner):
        return False
    if inner.__name__ == "<lambda>" or getattr(made, "gives_coroutines", False):
        return False
    gives = str(getattr(inner, "__annotations__", {}).get("return", ""))
    return not any(word in gives for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _inmost(hook: Callable[..., object]) -> object:
    """The function that runs in the end: of a partial, of what ``functools.wraps`` names, of an object with
    ``__call__`` (but one that passes its arguments on may return anything)."""
    inner = bare(hook)
    call = inmost(inner)
    hands_on = call is not inner and call.__code__.co_flags & inspect.CO_VARARGS
    return inner if hands_on else call


def _takes(hook: Callable[..., object], number: int) -> bool:
    try:
        inspect.signature(hook).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        return True  # written in C: its signature is not known
    return True
