"""Middleware around the attempts of an App's tasks, and hooks on the jobs that it enqueues.

middleware   ``Handler -> Handler``: the first is outermost. The inner handler supplies the hooks that one lacks
on_enqueue   ``NewJob -> NewJob``: called in order before the job is checked and written
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, a_type
from stowhand.jobs.job import NewJob
from stowhand.protocols.handler import HOOK_NAMES, Handler, Middleware, handler_of, unwrap_callable

AroundThread = Callable[[], AbstractContextManager[object]]
OnEnqueue = Callable[[NewJob], NewJob]


class MiddlewareChain(msgspec.Struct, frozen=True):
    """The middleware and enqueue hooks of one App."""

    thread: AroundThread | None = None
    """Context manager entered in the thread of each threaded attempt."""
    middleware: tuple[Middleware, ...] = ()
    on_enqueue: tuple[OnEnqueue, ...] = ()

    def wrap(self, inner: Handler) -> Handler:
        """Return the handler with all middleware around it. Raises ConfigurationError if one returns no handler."""
        for middleware in reversed(self.middleware):
            try:
                outer = handler_of(middleware(inner))
            except ConfigurationError as error:
                raise ConfigurationError(f"App: middleware {_name_of(middleware)}: {error}") from None
            inner = _WrappedHandler(outer, inner)
        return inner

    def apply_on_enqueue(self, job: NewJob) -> NewJob:
        """Return the job after all ``on_enqueue`` functions. Raises their errors, and InvalidJob."""
        for change in self.on_enqueue:
            changed_job = change(job)
            if not isinstance(changed_job, NewJob):
                raise InvalidJob(f"on_enqueue {_name_of(change)} returned {a_type(changed_job)}; return a NewJob")
            job = changed_job
        return job


class _WrappedHandler:
    """Handler of a middleware. The inner handler supplies the hooks that it does not define."""

    def __init__(self, outer: Handler, inner: Handler) -> None:
        self.handle = outer.handle
        for hook in HOOK_NAMES:
            function = getattr(outer, hook, None) or getattr(inner, hook, None)
            if function is not None:
                setattr(self, hook, function)


def read_middleware(thread: AroundThread | None, middleware: object, on_enqueue: object) -> MiddlewareChain:
    """Read the arguments of an App. Raises ConfigurationError unless each is a list of functions."""
    return MiddlewareChain(thread, _read("middleware", middleware), _read("on_enqueue", on_enqueue))


def _read(option: str, functions: object) -> tuple[Any, ...]:
    if not isinstance(functions, Iterable) or isinstance(functions, str | bytes):
        raise ConfigurationError(f"App: {option}: got {a_type(functions)}; use a list of functions, {option}=[…]")
    checked = tuple(functions)
    for function in checked:
        if not callable(function):
            raise ConfigurationError(f"App: {option}: {a_type(function)} in the list; use functions only")
    return checked


def _name_of(function: object) -> str:
    return str(getattr(unwrap_callable(function), "__qualname__", type(function).__qualname__))
