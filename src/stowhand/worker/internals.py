"""What this package's own processes use of a worker, and users do not: no part of its public face."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stowhand.jobs.lease import Lease
from stowhand.protocols.isolation import Isolate
from stowhand.worker.liveness import Liveness
from stowhand.worker.renewal import resident_bytes
from stowhand.worker.timings import Timings


class Host(msgspec.Struct, frozen=True):
    """What the process around a worker provides."""

    isolate: Isolate | None = None
    """Runs suspects in a child process; without it they run in this process, one at a time."""
    on_hang: Callable[[Lease | None], None] = lambda lease: None
    """Called from the heartbeat thread when the loop counts as hung, once per hang, with the lease of the job that
    blocks it."""
    on_threads_exhausted: Callable[[], None] = lambda: None
    """Called on the worker's loop when as many threads have outlived their attempts as jobs may run at once."""
    timings: Timings = Timings()
    resident: Callable[[], int] = resident_bytes
    """Gives the bytes of memory that the process uses."""


class Internals(msgspec.Struct, frozen=True):
    """What the process around a worker calls."""

    liveness: Liveness
    quiet: Callable[[bool], None]
    """True: claim nothing new, and stay; what runs goes on, what was claimed ahead goes back. False: claim again.
    Harmless when repeated. On the worker's own loop."""
    retask: Callable[[tuple[str, ...] | None], None]
    """Claim jobs of these tasks from now on. On the worker's own loop."""
    held: Callable[[], list[Lease]]
    """Every lease of the worker just now. From any thread; release them only as the last write."""
    give_up: Callable[[], None]
    """Emit an event for each outcome that no store has recorded, once. From any thread, as the last thing."""
    renewal_reason: Callable[[], str | None]
    """Which limit of the worker was reached, if one was: its process ends well, and another is to take its place."""
