"""A worker process under a supervisor: ``python -m stowhand.service.child``.

Its standard input carries a ChildOrder first, then one word per line: ``drain``, ``quiet``, ``take``, ``now``. The end
of the input means that the supervisor is lost. The process then returns all its jobs and exits: no supervisor would
replace it or reset its jobs.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import Clock, SystemClock, Ticker
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import ResourceUnavailable, StowhandError
from stowhand.events import Events
from stowhand.observe.logs import configure_logging
from stowhand.observe.safe_text import scrub
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.children import ORDERLY_EXIT_OFFSET, UNOPENED_CODE
from stowhand.service.exit_codes import exit_code
from stowhand.service.health import report_of, write_report
from stowhand.service.process import EXIT_CALLBACKS, Stopper, export_last_spans, hard_exit, run_process
from stowhand.service.process_observer import ProcessObserver, count_events
from stowhand.service.supervisor import ChildOrder
from stowhand.worker.host import LoopLiveness
from stowhand.worker.worker import Worker


def main() -> None:
    """Run the worker that the order describes. Exit without waiting for threads that may never end."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildOrder)
    settings = WorkerSettings.from_json(order.settings)
    configure_logging(settings.log_level, settings.log_format)
    for number in (signal.SIGINT, signal.SIGHUP):
        # The supervisor decides; TERM sent to this process alone still ends it. The handler is a function, because
        # programs that a task starts would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
    supervisor_lost = threading.Event()
    try:
        observer = _observer(order, settings, supervisor_lost)
        code = run_process(settings, name=order.name, control=partial(_listen, supervisor_lost), observer=observer)
    except StowhandError as error:
        sys.stderr.write(f"error: {scrub(str(error))}\n")
        code = UNOPENED_CODE if isinstance(error, ResourceUnavailable) else exit_code(error)
    hard_exit(export_last_spans(ORDERLY_EXIT_OFFSET + code))


class ChildReporter(ProcessObserver):
    """Writer of this child's reports. Its metrics are in the same folder (prometheus-client's multiprocess mode).

    The supervisor removes ``folder``; once the supervisor is lost, a child removes it. ``is_alone`` returns whether the
    supervisor is lost.
    """

    def __init__(
        self, folder: Path, settings: WorkerSettings, is_alone: Callable[[], bool], clock: Clock | None = None
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock or SystemClock()
        self._is_alone = is_alone
        self._record_lag: Callable[[float], None] = lambda lag_seconds: None
        self._ticker: Ticker | None = None

    def listen(self, events: Events) -> None:
        self._record_lag = count_events(self._settings, events)

    def follow(self, store: QueueStore, *, worker: Worker | None = None, scheduler: Scheduler | None = None) -> None:
        del store, scheduler
        if worker is not None:
            liveness = worker.controls.liveness
            self._ticker = self._clock.ticker("stowhand report", lambda: self._report(liveness))

    def close(self) -> None:
        """Stop the reports. Called last before the process exits."""
        if self._ticker is not None:
            self._ticker.stop()
        if self._is_alone():
            _remove_folder(self._folder)

    async def _report(self, liveness: LoopLiveness) -> float:
        self._record_lag(liveness.lag())
        write_report(self._folder, report_of(liveness, self._clock))
        return self._settings.timings.report_interval


def _remove_folder(folder: Path) -> None:
    """Remove the folder. Rename it first: other processes may still be writing."""
    with suppress(OSError):  # another child has renamed it
        folder = folder.rename(folder.with_suffix(".gone"))
    shutil.rmtree(folder, ignore_errors=True)


def _observer(order: ChildOrder, settings: WorkerSettings, supervisor_lost: threading.Event) -> ProcessObserver:
    if order.folder is None:
        return ProcessObserver()
    # Both checks are needed. The end of the input may be read while the dying supervisor is still the parent, and the
    # supervisor may be lost before that end is read.
    reporter = ChildReporter(
        Path(order.folder), settings, lambda: supervisor_lost.is_set() or os.getppid() != order.parent
    )
    EXIT_CALLBACKS.append(reporter.close)
    return reporter


def _listen(supervisor_lost: threading.Event, stopper: Stopper) -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopper.request_stop())  # also while the loop is blocked
    threading.Thread(target=_read_orders, args=(supervisor_lost, stopper), name="stowhand orders", daemon=True).start()


def _read_orders(supervisor_lost: threading.Event, stopper: Stopper) -> None:
    for line in sys.stdin.buffer:
        match line.strip():
            case b"drain":
                stopper.drain()
            case b"quiet" | b"take" as word:
                stopper.quiet(on=word == b"quiet")
            case _:
                stopper.now()
    supervisor_lost.set()
    stopper.now()


if __name__ == "__main__":
    main()
