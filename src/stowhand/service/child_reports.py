"""The health of a child process: every second (``report_every``) it writes a report to a file, which the parent reads.

The child's metrics are in the same folder; prometheus' multiprocess mode writes them.
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
from stowhand.service.health import Report, report_of
from stowhand.service.process_observer import ProcessObserver, count
from stowhand.worker.host import Liveness
from stowhand.worker.worker import Worker


class ChildReporter(ProcessObserver):
    """Writes the reports of this child. ``folder``: removed by the supervisor, or by a child once that is gone.

    ``is_alone``: whether the supervisor is gone.
    """

    def __init__(
        self, folder: Path, settings: WorkerSettings, is_alone: Callable[[], bool], clock: Clock | None = None
    ) -> None:
        self.folder, self._settings, self._clock = folder, settings, clock or SystemClock()
        self._is_alone = is_alone
        self._late: Callable[[float], None] = lambda late: None
        self._ticker: Ticker | None = None

    def listen(self, events: Events) -> None:
        self._late = count(self._settings, events)

    def follow(self, store: QueueStore, *, worker: Worker | None = None, scheduler: Scheduler | None = None) -> None:
        del store, scheduler
        if worker is not None:
            liveness = worker.internals.liveness
            self._ticker = self._clock.ticker("stowhand report", lambda: self._report(liveness))

    def close(self) -> None:
        """Called as the last thing of the process."""
        if self._ticker is not None:
            self._ticker.stop()
        if self.folder is not None and self._is_alone():
            _remove(self.folder)

    async def _report(self, liveness: Liveness) -> float:
        self._late(liveness.lag())
        write(self.folder, liveness, self._clock)
        return self._settings.timings.report_every


def write(folder: Path | None, liveness: Liveness, clock: Clock) -> None:
    """Write the report of this process, whole or not at all. Without a folder there is no parent left to read it."""
    if folder is None:
        return
    with suppress(OSError):
        new = folder / f"{os.getpid()}.new"
        new.write_bytes(msgspec.json.encode(report_of(liveness, clock)))
        new.replace(_file(folder, os.getpid()))


def read(folder: Path | None, pid: int) -> Report | None:
    """The latest report of a process, if there is one."""
    if folder is None:
        return None
    try:
        return msgspec.json.decode(_file(folder, pid).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def forget(folder: Path | None, pid: int) -> None:
    """Delete the report of a process that has died."""
    if folder is not None:
        _file(folder, pid).unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Under another name, for those that still write into it."""
    with suppress(OSError):  # another child was first
        folder = folder.rename(folder.with_suffix(".gone"))
    shutil.rmtree(folder, ignore_errors=True)


def _file(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.json"
