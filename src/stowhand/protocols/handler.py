"""Handlers: an async callable per record, with optional hooks."""

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
from stowhand.jobs.task_limits import refuse_limits
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
    """A store that prepares each attempt, and may enclose its handler. Optional for stores."""

    async def validate(self, events: Events | None = None) -> None:
        """Check the store once before a worker's first claim. Raises the error that prevents work.

        ``events`` receives warnings about the store (``StoreWarning``), now and while workers run.
        """

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None] | None:
        """Prepare the attempt's control. Return a context manager around its hooks and its handler, if needed.

        The context manager may set ``control_of(attempt).transaction`` and leave it open, so that the worker settles
        in it. If entering raises LeaseLost, nothing runs and nothing is recorded.
        """


class ClaimContext(msgspec.Struct, frozen=True):
    """The ``ctx`` of ``pre_claim``."""

    worker: str
    free: int
    """Number of free slots."""
    running: int
    logger: AttemptLogger


class ClaimDecision(msgspec.Struct, frozen=True):
    """The detailed answer of ``pre_claim``: claim up to ``limit`` records, with these conditions."""

    conditions: tuple[Any, ...] = ()
    limit: int = 1


class Handler(Protocol[Record]):
    """The code that a worker runs for each claimed record.

    ``handle`` returns an ``Outcome``. Any other value, including ``None``, is the result of ``Complete``. An error is a
    ``Retry``, or a ``Fail`` if ``NonRetryable`` is in its chain of causes.

    A handler may also have:
        ``async pre_claim(ctx)``              before each claim: False (not now), True, conditions or ``ClaimDecision``;
                                              a claim then takes one record, unless ``ClaimDecision`` has a limit
        ``async pre_handle(ctx, record)``     before ``handle``
        ``async post_handle(ctx, record)``    after every ``pre_handle``, when the record is settled
        ``policy(claim) -> Policy``           timeout and backoff for this record
        ``encode(result) -> str``             a result as JSON text; raises ValueError if it cannot be kept
        ``retryable(error) -> bool``          False: the error fails the record at once

    ``Handler[Upload]`` declares the type of the records, which a type checker compares with the store. It checks the
    optional hooks only if a class names them: ``class Index(Handler[Upload], PreHandle[Upload])``.
    """

    async def handle(self, ctx: Attempt[Record], record: Record) -> object:
        """Process the record."""


class PreHandle(Protocol[Record]):
    """A handler with a ``pre_handle`` for these records."""

    async def pre_handle(self, ctx: Attempt[Record], record: Record) -> object:
        """Run before ``handle``."""


class PostHandle(Protocol[Record]):
    """A handler with a ``post_handle`` for these records."""

    async def post_handle(self, ctx: Attempt[Record], record: Record) -> object:
        """Run after every ``pre_handle``, when the record is settled."""


class Resources(Protocol):
    """The resources of tasks, open while their worker runs."""

    async def open(self, tasks: Collection[str] | None, ended: Callable[[BaseException], None]) -> None:
        """Open the resources of these tasks, or of all (``None``). Raises ResourceUnavailable.

        ``ended`` is called with the error of a resource that ends by itself. Open resources stay open until ``close``.
        """

    async def close(self, timeout: Callable[[], float]) -> list[tuple[str, BaseException]]:
        """Close all resources in reverse order, each within ``timeout()`` seconds. Return the errors by name."""


Function = Callable[[Attempt[S], S], Awaitable[object]]
Middleware = Callable[[Handler], Handler | Function[Any]]


def handler(function: Function[S]) -> Handler[S]:
    """Return a handler for an async function of (ctx, record)."""
    return cast("Handler[S]", SimpleNamespace(handle=function))


_HOOK_ARGUMENTS = {"pre_claim": ("ctx",), "policy": ("claim",), "encode": ("result",), "retryable": ("error",)}
_SYNCHRONOUS_HOOKS = ("policy", "encode", "retryable")
"""Hooks that are not awaited."""
HOOK_NAMES = (
    "pre_handle",
    "post_handle",
    *_HOOK_ARGUMENTS,
    "on_enqueue",
    "resources",
    "declarations",
    "limits_per_worker",
)
"""Optional members of a handler. An App sets the last four: a conversion of ``enqueue_after`` jobs, the resources of
its tasks, what they declare for the store, and their limits in each worker."""


def handler_of(function: Handler[S] | Function[S]) -> Handler[S]:
    """Return the handler, or one for an async callable of (ctx, record). Raises ConfigurationError for other values."""
    if not isinstance(function, type):
        if callable(getattr(function, "handle", None)):
            _check(function)
            return cast("Handler[S]", function)
        if callable(function):
            refuse_limits(function, "handler")
            _check(handler_object := handler(function))
            return handler_object
    raise ConfigurationError(
        f"handler: got {function!r}; use an async function of (ctx, record), or an object with an async handle"
    )


def _check(handler_object: object) -> None:
    """Check the hooks before any record is claimed: a wrong signature would fail every record."""
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
            raise ConfigurationError(f"handler: its {name} is a generator; remove its yield: async def {expected}")
        if name not in _SYNCHRONOUS_HOOKS and _is_synchronous(handler_object, hook):
            raise ConfigurationError(
                f"handler: its {name} is a plain def, which would block the loop: write async def {expected}, and call"
                " blocking code with `await asyncio.to_thread(…)`. If it returns a coroutine, annotate it with"
                " -> Awaitable[None]"
            )
        if not _accepts(hook, len(arguments)):
            raise ConfigurationError(f"handler: its {name} takes other arguments; it is called as {expected}")


def _is_synchronous(handler_object: object, hook: Callable[..., object]) -> bool:
    """Return whether a hook is a plain ``def`` without a coroutine in its annotation. Other callables are trusted."""
    inner = _innermost(hook)
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)) or inspect.iscoroutinefunction(inner):
        return False
    if inner.__name__ == "<lambda>" or getattr(handler_object, "gives_coroutines", False):
        return False
    annotation = str(getattr(inner, "__annotations__", {}).get("return", ""))
    return not any(word in annotation for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _innermost(hook: Callable[..., object]) -> object:
    # An object whose __call__ passes its arguments on may return anything, so the object itself is returned.
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
        return True  # written in C: the signature is unknown
    return True


class ChildCrashed(Exception):
    """The child process of a suspect died before it reported the outcome."""


class ChildUnable(Exception):
    """The child process of a suspect could not start the job (no store, or no such task).

    The job is returned to the queue without using an attempt.
    """


Isolate = Callable[[Attempt[Any]], Coroutine[Any, Any, object]]
"""Runs one attempt in a child process. Raises ChildCrashed, ChildUnable."""


def unwrap_callable(function: object) -> Any:
    """Return the innermost callable, without partials and wrappers of ``functools.wraps``."""
    inner: Any = inspect.unwrap(function)  # type: ignore[arg-type]
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def innermost_function(function: object) -> Any:
    """Return the function that runs when the callable is called; for an object its ``__call__``."""
    inner = unwrap_callable(function)
    call = inspect.getattr_static(type(inner), "__call__", None)
    return call if inspect.isfunction(call) else inner


def is_async(function: object) -> bool:
    """Return whether calling it returns a coroutine, as far as inspection shows."""
    return inspect.iscoroutinefunction(unwrap_callable(function)) or inspect.iscoroutinefunction(
        innermost_function(function)
    )


def not_a_function_reason(function: object) -> str | None:
    """Return why a callable is not a function, and what to write instead; ``None`` for a function."""
    inner = unwrap_callable(function)
    if isinstance(inner, type):
        return (
            f"{inner.__qualname__} is a class, and calling it only creates an object: write a def that creates one, or"
            " use a method of an object"
        )
    inner = innermost_function(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return f"{inner.__qualname__} is a generator: a task returns once; remove its yield"
    return None
