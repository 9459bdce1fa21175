"""Health of a worker, over HTTP (``--http``) and for a service manager (``NOTIFY_SOCKET``).

Everything here runs in threads of its own, so that it detects a blocked loop instead of waiting for it. With several
processes, the parent shows them all: its children write their reports and metrics to a private folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stowhand.app.settings.addresses import split_address
from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import Clock, SystemClock
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import ConfigurationError
from stowhand.events import ChildDied, ChildRenewed, Events
from stowhand.observe.job_logger import core_logger
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.health import (
    Process,
    age_of,
    forget_report,
    max_loop_ages,
    report_of,
    rounded_ages,
    starting_reasons,
    stuck_process_reasons,
    stuck_reasons,
    unready_reasons,
)
from stowhand.service.notifier import Notifier
from stowhand.service.process import EXIT_CALLBACKS
from stowhand.service.process_observer import METRICS_NEEDED, ProcessObserver, count_events
from stowhand.service.status_server import Answer, StatusServer, health_answer
from stowhand.service.store_probe import StoreProbe
from stowhand.service.supervisor import Supervisor
from stowhand.worker.host import LoopLiveness
from stowhand.worker.worker import Worker

if TYPE_CHECKING:
    from stowhand.observe.exposition import Exposition

LOOP_MARK_SECONDS = 0.25
STOP_MARGIN_SECONDS = 10.0
"""Seconds beyond the grace that a service manager waits: the worker exits after half of them."""
METRICS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class HealthReporter(ProcessObserver):
    """Reporter of one ``stowhand worker``. The HTTP server's threads call it, and a thread of its own."""

    def __init__(self, settings: WorkerSettings, notifier: Notifier | None, clock: Clock | None = None) -> None:
        self._settings = settings
        self._notifier = notifier
        self._clock = clock or SystemClock()
        self._timings = settings.timings
        self._max_ages = max_loop_ages(settings.worker, settings.timings)
        self._probe = StoreProbe(self._clock, self._timings)
        self._liveness: LoopLiveness | None = None
        self._scheduler: Scheduler | None = None
        self._supervisor: Supervisor | None = None
        self._record_lag: Callable[[float], None] = lambda lag_seconds: None
        self._loop_marked_at = self._clock.monotonic()
        """Time at which the parent's loop last ran."""
        self._is_draining = False
        self._has_sent_ready = False
        self._status = ""
        self._exposition: Exposition | None = None
        self._closing = ExitStack()

    def open(self) -> None:
        """Start to answer (not ready yet). Raises ConfigurationError."""
        if self._settings.processes > 1:
            self._make_folder()
        if self._settings.http is not None:
            with suppress(ConfigurationError):  # /metrics reports it
                from stowhand.observe.exposition import Exposition

                probe, labels = self._probe, self._settings.metrics_labels
                self._exposition = Exposition(
                    probe.figures, probe.oldest_due, self.folder, cron=probe.cron, labels=labels
                )
            pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
            server = StatusServer(self._settings.http, pages)
            self._closing.callback(server.close)
            _log_address(self._settings.http, server.url)
        ticker = self._clock.ticker("stowhand health", self._tick)
        self._closing.callback(ticker.stop)

    def close(self) -> None:
        """Stop answering, and remove the folder."""
        self.stopping()
        self._closing.close()

    def stopping(self) -> None:
        """Report the stop. Called at a signal to stop (also in the signal handler) and at the end."""
        if not self._is_draining:
            self._is_draining = True
            if self._notifier is not None:
                # The manager waits until the process must have exited, even beyond the unit's own timeout.
                max_seconds = self._settings.worker.grace + STOP_MARGIN_SECONDS
                self._notifier.send(stopping=1, status="stopping", extend_timeout_usec=int(max_seconds * 1_000_000))

    # -- as ProcessObserver ----------------------------------------------------------------------

    def listen(self, events: Events) -> None:
        self._record_lag = count_events(self._settings, events)
        for kind in (ChildDied, ChildRenewed):
            events.on(kind, self._child_ended)

    def follow(self, store: QueueStore, *, worker: Worker | None = None, scheduler: Scheduler | None = None) -> None:
        self._probe.of(store, is_remote=self._settings.store.connection.is_lent)
        self._scheduler = scheduler
        if worker is not None:
            self._liveness = worker.controls.liveness

    def on_stop(self, stop: Callable[[], object]) -> Callable[[], object]:
        def stopping() -> None:
            self.stopping()
            stop()

        return stopping

    @contextmanager
    def supervising(self, supervisor: Supervisor) -> Iterator[None]:
        marking = asyncio.get_running_loop().create_task(self._mark_loop())
        self._supervisor = supervisor
        try:
            yield
        finally:
            marking.cancel()

    async def _mark_loop(self) -> None:
        while True:
            self._loop_marked_at = self._clock.monotonic()
            await self._clock.sleep(LOOP_MARK_SECONDS)

    def _child_ended(self, event: ChildDied | ChildRenewed) -> None:
        forget_report(self.folder, event.pid)

    def _processes(self) -> list[Process]:
        """Return the processes that run workers or should run them: a dead child must be replaced in time."""
        if self._supervisor is not None:
            return self._supervisor.children.health(self.folder)
        return [Process("", 0.0, None if self._liveness is None else report_of(self._liveness, self._clock))]

    # -- health ----------------------------------------------------------------------------------

    def ages(self) -> dict[str, float]:
        """Return the seconds since each loop of this process last made progress."""
        ages = {} if self._liveness is None else self._liveness.ages()
        if self._supervisor is not None:
            ages = {"loop": self._clock.monotonic() - self._loop_marked_at}
        return ages if self._scheduler is None else ages | {"cron": self._scheduler.busy}

    def problems(self) -> list[str]:
        """Return the reasons why the worker is not alive; empty if it is."""
        children = [] if self._supervisor is None else self._processes()
        return stuck_reasons(self.ages(), self._max_ages) + stuck_process_reasons(
            children, self._max_ages, self._clock.monotonic()
        )

    def unready_problems(self) -> list[str]:
        """Return the reasons why the worker is not ready; empty if it is."""
        is_stopping = self._is_draining or (self._supervisor is not None and self._supervisor.children.is_stopping)
        reasons = ["it is stopping"] if is_stopping else []
        processes = self._processes()
        reasons += starting_reasons(processes) + unready_reasons(processes, self._clock.monotonic())
        age = self.ages().get("loop", 0.0)
        if age > self._timings.blocked_threshold:
            # The probe queries the store on the loop, so a missing answer says nothing about the store.
            reasons.append(f"loop: no progress for {age:.0f} s; what runs on it blocks it")
        elif (problem := self._probe.problem()) is not None:
            reasons.append(problem)
        return reasons

    def _heard(self) -> float | None:
        """Return the seconds since the store last answered any process."""
        times = [
            self._probe.last_answer_at,
            *(process.report.last_answer_at for process in self._processes() if process.report is not None),
        ]
        answer_times = [time for time in times if time is not None]
        return round(self._clock.monotonic() - max(answer_times), 1) if answer_times else None

    # -- pages -----------------------------------------------------------------------------------

    def _metrics(self) -> Answer:
        if self._exposition is None:
            return Answer(501, f"{METRICS_NEEDED}\n".encode())
        from stowhand.observe.exposition import CONTENT_TYPE

        return Answer(200, self._exposition.text(), CONTENT_TYPE)

    def _healthz(self) -> Answer:
        problems, now = self.problems(), self._clock.monotonic()
        page: dict[str, object] = {"loops": rounded_ages(self.ages())}
        if self._supervisor is not None:
            page["processes"] = {process.name: _process_fields(process, now) for process in self._processes()}
        return health_answer("ok", "stuck", problems, **page)

    def _readyz(self) -> Answer:
        return health_answer("ready", "not ready", self.unready_problems(), store_heard_seconds_ago=self._heard())

    # -- on its own thread --------------------------------------------------------------------------

    async def _tick(self) -> float:
        if self._liveness is not None:
            self._record_lag(self._liveness.lag())
        interval = self._timings.report_interval
        if self._notifier is None:
            return interval
        if not self._is_draining:
            self._notify(self._notifier)
        elif not self.problems():
            self._notifier.send(watchdog=1)
        return interval if self._notifier.watchdog is None else min(interval, self._notifier.watchdog / 2)

    def _notify(self, notifier: Notifier) -> None:
        problems = self.problems()
        if not self._has_sent_ready and not starting_reasons(self._processes()):
            self._has_sent_ready = True
            notifier.send(ready=1)
        status = "; ".join(problems) or ("working" if self._has_sent_ready else "starting")
        if status != self._status:
            self._status = status
            notifier.send(status=status)
        if notifier.watchdog is not None and not problems:
            notifier.send(watchdog=1)

    def _make_folder(self) -> None:
        folder = self.folder = Path(tempfile.mkdtemp(prefix="stowhand-"))
        remove = partial(shutil.rmtree, folder, ignore_errors=True)
        self._closing.callback(remove)
        EXIT_CALLBACKS.append(remove)
        if self._settings.http is not None:
            os.environ[METRICS_FOLDER_VARIABLE] = str(folder)  # before the client is imported
            self._closing.callback(os.environ.pop, METRICS_FOLDER_VARIABLE, None)


def _process_fields(process: Process, now: float) -> dict[str, object]:
    loops = {} if process.report is None else rounded_ages(process.report.ages)
    return {"said_seconds_ago": round(age_of(process, now), 1), "loops": loops}


def _log_address(address: str, url: str) -> None:
    core_logger().info(f"Metrics and health: {url}/metrics, /healthz, /readyz")
    if split_address(address)[0] not in ("localhost", "127.0.0.1", "::1"):
        core_logger().warning(f"They are shown to anyone who can reach {address}; there is no password")
