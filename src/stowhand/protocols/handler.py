"""What is done with a record: one async callable, and three optional hooks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, LeaseLost
from stowhand.events import Events
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Backoff, Outcome, Settlement
from stowhand.protocols.attempt_logger import AttemptLogger
from stowhand.protocols.callables import bare, inmost
from stowhand.protocols.store import Claim, Reply

if TYPE_CHECKING:
    # Checkers know this module without its being installed; the default is for who writes plain ``Handler``.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", covariant=True, default=Any)
    Given = TypeVarWithDefault("Given", contravariant=True, default=Any)
else:
    R, Given = TypeVar("R", covariant=True), TypeVar("Given", contravariant=True)
S = TypeVar("S")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How one record is to be run."""

    timeout: float | None = None
    """Seconds an attempt may take; ``None``: no limit."""
    backoff: Backoff | None = None
    """How long to wait after a failure; ``None``: as the store, or the worker, says."""


class Transaction(Protocol):
    """An open transaction that holds an attempt's record locked: its end is written there, and nowhere else."""

    async def settle(self, settlement: Settlement) -> Reply:
        """Write how the attempt ended, and commit.

        What the handler did is kept if the record is completed or goes back to queued, and rolled back otherwise. It
        is asked again, with another settlement, where the reply is ``Unwritten``.
        Raises nothing but StoreError; then it is not known.
        """

    async def rollback(self) -> None:
        """Undo everything. The record is as it was when it was claimed: to be handed back, or lost."""


class _Tools:
    """What an enclosing store gives to an attempt."""

    __slots__ = ("connection", "decided", "over", "store", "transaction")

    def __init__(self) -> None:
        self.store: Any = None
        self.connection: Any = None
        self.transaction: Transaction | None = None
        self.decided: Outcome | None = None
        self.over = False


class Attempt(Generic[R]):
    """One run of a handler: the record, its lease, and how the outside reaches in. Handlers know it as ``ctx``.

    ``then`` collects jobs to enqueue together with the settlement of this attempt.
    """

    __slots__ = (
        "_canceled",
        "_logger",
        "_tools",
        "cancel_reason",
        "claim",
        "detached",
        "lost",
        "started",
        "then",
    )

    def __init__(
        self, claim: Claim[R], started: float, logger: Callable[[Claim[Any]], AttemptLogger] | None = None
    ) -> None:
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
        self._logger = logger
        self._tools: _Tools | None = None  # most attempts have none, and are many
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
    def logger(self) -> AttemptLogger:
        """A logger whose lines bear the task's name and the record's id."""
        return self._logger(self.claim) if self._logger is not None else AttemptLogger.mute()

    @property
    def store(self) -> Any:
        """The store as this attempt sees it: guarded by its lease, and inside its transaction where it has one.

        What it can do is the store's matter; a table's is ``stowhand.stores.table.AttemptStore``.
        """
        if self._tools is None or self._tools.store is None:
            raise ConfigurationError("this store has nothing to give to a running handler")
        return self._tools.store

    @property
    def connection(self) -> Any:
        """The connection of the attempt's own transaction (psycopg's)."""
        if self._tools is None or self._tools.connection is None:
            raise ConfigurationError("this attempt has no transaction of its own (TableOptions: transactional=True)")
        return self._tools.connection

    def bind(self, store: Any, connection: Any = None) -> None:
        """Said by the store, before the handler runs: what ``store`` and ``connection`` are."""
        tools = self._given()
        tools.store, tools.connection = store, connection

    @property
    def transaction(self) -> Transaction | None:
        """Where the attempt's end is to be written, if it has a transaction of its own."""
        return self._tools.transaction if self._tools is not None else None

    @transaction.setter
    def transaction(self, transaction: Transaction | None) -> None:
        self._given().transaction = transaction

    @property
    def decided(self) -> Outcome | None:
        """What the store was told on the handler's behalf (``requeue``): it stands if the handler returns."""
        return self._tools.decided if self._tools is not None else None

    @decided.setter
    def decided(self, outcome: Outcome | None) -> None:
        tools = self._given()
        if tools.over:
            raise LeaseLost(f"record {self.lease.job_id}: its handler has ended, and how is decided")
        tools.decided = outcome

    def end(self) -> None:
        """Said by the worker when the handler has ended: nothing that is decided from here on would be heard."""
        if self._tools is not None:
            self._tools.over = True

    def _given(self) -> _Tools:
        if self._tools is None:
            self._tools = _Tools()
        return self._tools

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


@runtime_checkable
class EnclosingStore(Protocol):
    """A store that stands by while a handler runs. Optional: a worker asks whether its store is one."""

    async def validate(self, events: Events | None = None) -> None:
        """Called once before a worker's first claim. Raises what makes the store unfit to be worked on.

        ``events``: told of what a person should know of the store (``StoreWarned``), now and while it is worked on.
        """

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None] | None:
        """Furnish the attempt; give what is to enclose its hooks and its handler, if anything.

        What encloses it may set ``attempt.transaction``, and leave it open: the worker settles there. It may raise
        LeaseLost on entering: nothing is run then, and nothing recorded.
        """


class Asking(msgspec.Struct, frozen=True):
    """The ``ctx`` of ``pre_claim``."""

    worker: str
    free: int
    """Slots in which nothing runs."""
    running: int
    logger: AttemptLogger


class Claimable(msgspec.Struct, frozen=True):
    """An answer of ``pre_claim`` in full: claim, with these conditions, up to ``limit`` records."""

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

    ``Handler[Upload]`` says what the records are, and a checker compares it with the store. Hooks are optional, so it
    compares theirs only where a class names them: ``class Index(Handler[Upload], PreHandle[Upload])``.
    """

    async def handle(self, ctx: Attempt[Given], record: Given) -> object:
        """Do the work."""


class PreHandle(Protocol[Given]):
    """A handler that says of which records its ``pre_handle`` is."""

    async def pre_handle(self, ctx: Attempt[Given], record: Given) -> object:
        """Before ``handle``."""


class PostHandle(Protocol[Given]):
    """A handler that says of which records its ``post_handle`` is."""

    async def post_handle(self, ctx: Attempt[Given], record: Given) -> object:
        """After every ``pre_handle``, when the record has been marked."""


Function = Callable[[Attempt[S], S], Awaitable[object]]
Middleware = Callable[[Handler], Handler]


class _Function:
    def __init__(self, function: Function[Any]) -> None:
        self.handle = function


def handler(function: Function[S]) -> Handler[S]:
    """A handler from one async function of (ctx, record)."""
    return cast("Handler[S]", _Function(function))


_ASKED = {"pre_claim": ("ctx",), "policy": ("claim",), "encode": ("result",), "retryable": ("error",)}
_PLAIN = ("policy", "encode", "retryable")
"""Not awaited."""


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
    """Before a record is touched: a hook that cannot be called as it will be would fail them all, one by one."""
    for name in ("handle", "pre_handle", "post_handle", *_ASKED):
        hook = getattr(made, name, None)
        if hook is None:
            continue
        asked = _ASKED.get(name, ("ctx", "record"))
        shown = f"{name}({', '.join(asked)})"
        if not callable(hook):
            raise ConfigurationError(f"handler: its {name} is a {type(hook).__qualname__}; it is called as {shown}")
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
    """A ``def`` that says of no coroutine that it gives. What cannot be looked into is believed."""
    inner = _inmost(hook)
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)) or inspect.iscoroutinefunction(inner):
        return False
    if inner.__name__ == "<lambda>" or getattr(made, "gives_coroutines", False):
        return False
    gives = str(getattr(inner, "__annotations__", {}).get("return", ""))
    return not any(word in gives for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _inmost(hook: Callable[..., object]) -> object:
    """The function that runs at last: of a partial, of what ``functools.wraps`` names, of an object with ``__call__``
    (but one that hands on whatever it is given may give anything)."""
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
        return True  # something written in C, of which nobody knows
    return True
