"""In a child of the supervisor: every second a file says how its worker does, for the parent to read.

The metrics of the child are in the same folder; prometheus' multiprocess mode writes them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import Clock, SystemClock, Ticker
from stowhand.cron.scheduler import Scheduler
from stowhand.events import Events
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.health import Report
from stowhand.service.process_observer import ProcessObserver, count
from stowhand.worker.liveness import Liveness
from stowhand.worker.worker import Worker

EVERY = 1.0


class Reporter(ProcessObserver):
    """``folder``: the supervisor's, which it removes; the children do when it cannot any more."""

    def __init__(self, folder: Path, settings: WorkerSettings, clock: Clock | None = None) -> None:
        self.folder, self._settings, self._clock = folder, settings, clock or SystemClock()
        self._parent = os.getppid()
        self._late: Callable[[float], None] = lambda late: None
        self._ticker: Ticker | None = None

    def listen(self, events: Events) -> None:
        self._late = count(self._settings, events)

    def follow(self, store: QueueStore, *, worker: Worker | None = None, scheduler: Scheduler | None = None) -> None:
        del store, scheduler
        if worker is not None:
            liveness = worker.internals.liveness
            self._ticker = self._clock.ticker("stowhand reporter", lambda: self._report(liveness))

    def close(self) -> None:
        """As the last thing of the process."""
        if self._ticker is not None:
            self._ticker.stop()
        if self.folder is not None and os.getppid() != self._parent:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _report(self, liveness: Liveness) -> float:
        self._late(liveness.lag())
        now = self._clock.monotonic()
        ages, refused = liveness.ages(), liveness.refused()
        write(self.folder, Report(at=now, ages=ages, heard=liveness.heard, claimed=liveness.claimed, refused=refused))
        return EVERY


def write(folder: Path | None, report: Report) -> None:
    """Leave it there in the name of this process, whole or not at all. A folder that is gone is the end of us all."""
    if folder is None:
        return
    with suppress(OSError):
        new = folder / f"{os.getpid()}.new"
        new.write_bytes(msgspec.json.encode(report))
        new.replace(_file(folder, os.getpid()))


def read(folder: Path | None, pid: int) -> Report | None:
    """What this process said last."""
    if folder is None:
        return None
    try:
        return msgspec.json.decode(_file(folder, pid).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def forget(folder: Path | None, pid: int) -> None:
    """It has died."""
    if folder is not None:
        _file(folder, pid).unlink(missing_ok=True)


def _file(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.json"
