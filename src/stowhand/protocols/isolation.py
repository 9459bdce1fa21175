"""Running an attempt apart from the worker's process, so that it cannot take the worker with it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from stowhand.protocols.handler import Attempt


class ChildCrashed(Exception):
    """Raised by an isolating handler: the child process died before it reported how the attempt ended."""


class ChildUnable(Exception):
    """Raised by an isolating handler: the child process never started the job (no store, no such task any more). That
    is no death: the job is returned without using an attempt."""


Isolate = Callable[[Attempt[Any]], Coroutine[Any, Any, object]]
"""Runs one attempt where it can do no harm (a child process). Raises ChildCrashed, ChildUnable."""
