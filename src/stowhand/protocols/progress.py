"""How far an attempt is: what a handler says of itself, kept with its job while it may still run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.lease import Lease
from stowhand.jobs.text import clean

TEXT_LIMIT = 200
"""Characters."""


class Progress(msgspec.Struct, frozen=True):
    """Of one attempt."""

    lease: Lease
    done: float
    """0 to 1."""
    text: str | None = None


Report = Callable[[Progress], None]
"""Called by handlers, from any thread."""


@runtime_checkable
class ProgressKeeper(Protocol):
    """Heartbeats that keep the progress of running jobs. Raises StoreUnreachable."""

    async def keep_progress(self, notes: Sequence[Progress], within: float) -> None:
        """Those whose lease is valid; a row that another transaction has locked is left out. Given up after ``within``
        seconds: what was not written is not written later."""


def read_progress(lease: Lease, done: object, text: object) -> Progress:
    """Raises ConfigurationError for what is no part of 1."""
    if isinstance(done, bool) or not isinstance(done, int | float) or not 0 <= done <= 1 or math.isnan(done):
        given = repr(done) if isinstance(done, int | float) else a_type(done)
        raise ConfigurationError(f"progress: {given} given; give a number from 0 to 1, as done / total")
    return Progress(lease, float(done), None if text is None else clean(str(text))[:TEXT_LIMIT])
