"""Whether code runs inside a worker: what waits there for another job's end keeps a slot from running it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stowhand.errors import Misuse

_inside: ContextVar[bool] = ContextVar("stowhand inside a worker", default=False)


def is_inside() -> bool:
    """Return whether an attempt, or what it has started, is asking."""
    return _inside.get()


def refuse_inside(what: str) -> None:
    """Raise Misuse in an attempt, and in what it has started."""
    if is_inside():
        raise Misuse(
            f"{what} was called inside an attempt, which would keep its slot while it waits: with one slot for ever."
            " Return, and let the next job be enqueued with ctx.enqueue_after(…), or make a flow of the steps"
        )


@contextmanager
def inside_a_worker() -> Iterator[None]:
    """Mark the block, and tasks and threads that are started in it, as inside a worker."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
