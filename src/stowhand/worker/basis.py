"""What all parts of one worker rest on."""

from __future__ import annotations

import msgspec

from stowhand.clock import Clock
from stowhand.events import Events
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.changes import Changes
from stowhand.worker.duty import Duty
from stowhand.worker.supervisor import Supervisor
from stowhand.worker.timings import Timings


class Basis(msgspec.Struct, frozen=True):
    """Of one worker, under the terms of its store."""

    worker: str
    """Its name."""
    options: WorkerOptions
    events: Events
    clock: Clock
    changes: Changes
    duty: Duty
    supervisor: Supervisor
    timings: Timings = Timings()
