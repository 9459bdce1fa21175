"""What a worker runs for a record: one async callable with three optional hooks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.events import Events
from stowhand.protocols.attempt import Attempt, AttemptLogger

if TYPE_CHECKING:
    # Type checkers know this module without its being installed. The default serves a plain ``Handler``.
    from typing_extensions import TypeVar as TypeVarWithDefault

    Record = TypeVarWithDefault("Record", contravariant=True, default=Any)
else:
    Record = TypeVar("Record", contravariant=True)
S = TypeVar("S")


@runtime_checkable
class EnclosingStore(Protocol):
    """A store that prepares each attempt, and may enclose its handler. Optional: a worker asks whether its store is
    one."""

    async def validate(self, events: Events | None = None) -> None:
        """Called once before a worker's first claim. Raises what makes the store unfit to be worked on.

        ``events``: receives what a person should know of the store (``StoreWarning``), now and while it is worked on.
        """

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None] | None:
        """Bind what the handler may use to the attempt's control; return what is to enclose its hooks and its handler,
        if anything.

        The context manager may set ``control_of(attempt).transaction`` and leave it open: the worker settles there. It
        may raise LeaseLost on entering: then nothing runs, and nothing is recorded.
        """


class ClaimContext(msgspec.Struct, frozen=True):
    """The ``ctx`` of ``pre_claim``."""

    worker: str
    free: int
    """Slots in which nothing runs."""
    running: int
    logger: AttemptLogger


class ClaimDecision(msgspec.Struct, frozen=True):
    """The full answer of ``pre_claim``: claim up to ``limit`` records, with these conditions."""

    conditions: tuple[Any, ...] = ()
    limit: int = 1


class Handler(Protocol[Record]):
    """What a worker runs for each record it claims.

    ``handle`` returns an ``Outcome``, or anything else, which is ``Complete`` with that result (``None`` included);
    what it raises is a ``Retry``, or a ``Fail`` when ``NonRetryable`` is in its chain of causes.

    A handler may also have:
        ``async pre_claim(ctx)``              before each claim: False (not now), True, conditions or ``ClaimDecision``;
                                              one record is claimed at a time then, unless ``ClaimDecision`` says more
        ``async pre_handle(ctx, record)``     before ``handle``
        ``async post_handle(ctx, record)``    after every ``pre_handle``, when the record has been marked
        ``policy(claim) -> Policy``           timeout and backoff for this record
        ``encode(result) -> str``             a result as JSON text; raises ValueError when it cannot be kept
        ``retryable(error) -> bool``          False: what it raised fails the record at once

    ``Handler[Upload]`` says what the records are, and a type checker compares it with the store. Hooks are optional, so
    it compares theirs only where a class names them: ``class Index(Handler[Upload], PreHandle[Upload])``.
    """

    async def handle(self, ctx: Attempt[Record], record: Record) -> object:
        """Do the work."""


class PreHandle(Protocol[Record]):
    """A handler with a ``pre_handle`` for these records."""

    async def pre_handle(self, ctx: Attempt[Record], record: Record) -> object:
        """Before ``handle``."""


class PostHandle(Protocol[Record]):
    """A handler with a ``post_handle`` for these records."""

    async def post_handle(self, ctx: Attempt[Record], record: Record) -> object:
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


def handler(function: Function[S]) -> Handler[S]:
    """A handler from one async function of (ctx, record)."""
    return cast("Handler[S]", SimpleNamespace(handle=function))


_HOOK_ARGUMENTS = {"pre_claim": ("ctx",), "policy": ("claim",), "encode": ("result",), "retryable": ("error",)}
_SYNCHRONOUS_HOOKS = ("policy", "encode", "retryable")
"""Not awaited."""
HOOK_NAMES = ("pre_handle", "post_handle", *_HOOK_ARGUMENTS, "on_enqueue", "resources", "task_queues")
"""What a handler may have beside ``handle``. The last three are an App's: what jobs of ``enqueue_after`` go through,
what its tasks ask for, and the queue that each of them declares."""


def handler_of(function: Handler[S] | Function[S]) -> Handler[S]:
    """A handler is itself; an async callable of (ctx, record) is one. Raises ConfigurationError for anything else."""
    if not isinstance(function, type):
        if callable(getattr(function, "handle", None)):
            _check(function)
            return cast("Handler[S]", function)
        if callable(function):
            _check(handler_object := handler(function))
            return handler_object
    raise ConfigurationError(
        f"handler: {function!r} given; give an async function of (ctx, record), or an object with an async handle"
    )


def _check(handler_object: object) -> None:
    """Before any record is claimed: a hook with a wrong signature would fail them all, one by one."""
    for name in ("handle", "pre_handle", "post_handle", *_HOOK_ARGUMENTS):
        hook = getattr(handler_object, name, None)
        if hook is None:
            continue
        arguments = _HOOK_ARGUMENTS.get(name, ("ctx", "record"))
        expected = f"{name}({', '.join(arguments)})"
        if not callable(hook):
            raise ConfigurationError(f"handler: its {name} is {a_type(hook)}; it is called as {expected}")
        if name in _SYNCHRONOUS_HOOKS and inspect.iscoroutinefunction(hook):
            raise ConfigurationError(f"handler: its {name} is asynchronous; make it a plain function, {expected}")
        if inspect.isasyncgenfunction(hook) or inspect.isgeneratorfunction(hook):
            raise ConfigurationError(f"handler: its {name} yields, and is no hook; write async def {expected}")
        if name not in _SYNCHRONOUS_HOOKS and _is_synchronous(handler_object, hook):
            raise ConfigurationError(
                f"handler: its {name} is a plain def, which would block the loop: write async def {expected}, and call"
                " blocking code with `await asyncio.to_thread(…)`. If it returns a coroutine, annotate it with"
                " -> Awaitable[None]"
            )
        if not _accepts(hook, len(arguments)):
            raise ConfigurationError(f"handler: its {name} takes other arguments; it is called as {expected}")


def _is_synchronous(handler_object: object, hook: Callable[..., object]) -> bool:
    """A plain ``def`` whose annotations name no coroutine. What cannot be inspected is trusted."""
    inner = _innermost(hook)
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)) or inspect.iscoroutinefunction(inner):
        return False
    if inner.__name__ == "<lambda>" or getattr(handler_object, "gives_coroutines", False):
        return False
    annotation = str(getattr(inner, "__annotations__", {}).get("return", ""))
    return not any(word in annotation for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _innermost(hook: Callable[..., object]) -> object:
    """The function that runs in the end: of a partial, of what ``functools.wraps`` names, of an object with
    ``__call__`` (but one that passes its arguments on may return anything)."""
    inner = unwrap_callable(hook)
    call = innermost_function(inner)
    is_forwarding = call is not inner and call.__code__.co_flags & inspect.CO_VARARGS
    return inner if is_forwarding else call


def _accepts(hook: Callable[..., object], number: int) -> bool:
    try:
        inspect.signature(hook).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        return True  # written in C: its signature is not known
    return True


class ChildCrashed(Exception):
    """Raised by an isolating handler: the child process died before it reported how the attempt ended."""


class ChildUnable(Exception):
    """Raised by an isolating handler: the child process never started the job (no store, no such task any more). That
    is no death: the job is returned without using an attempt."""


Isolate = Callable[[Attempt[Any]], Coroutine[Any, Any, object]]
"""Runs one attempt where it can do no harm (a child process). Raises ChildCrashed, ChildUnable."""


def unwrap_callable(function: object) -> Any:
    """The innermost callable, without partials and the wrappers that ``functools.wraps`` names."""
    inner: Any = inspect.unwrap(function)  # type: ignore[arg-type]
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def innermost_function(function: object) -> Any:
    """The ``def`` that runs in the end: of an object, its ``__call__``."""
    inner = unwrap_callable(function)
    call = inspect.getattr_static(type(inner), "__call__", None)
    return call if inspect.isfunction(call) else inner


def is_async(function: object) -> bool:
    """Whether calling it returns a coroutine, as far as can be seen."""
    return inspect.iscoroutinefunction(unwrap_callable(function)) or inspect.iscoroutinefunction(
        innermost_function(function)
    )


def not_a_function_reason(function: object) -> str | None:
    """Why this callable is no function, and what to write instead; ``None``: it is one."""
    inner = unwrap_callable(function)
    if isinstance(inner, type):
        return (
            f"{inner.__qualname__} is a class, and calling it makes an object and does no work: write a def that makes"
            " one, or give a method of an object"
        )
    inner = innermost_function(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return f"{inner.__qualname__} is a generator: a task returns once; remove its yield"
    return None
