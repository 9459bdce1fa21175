"""One worker process: open the store, load the tasks, work, and stop in order.

    first TERM or INT    take nothing new; running jobs have the grace to end
    second               return the rest without using an attempt, at once
    third                exit, after at most two seconds of trying to release leases

In every case, even with a blocked loop or a store that does not answer, the process exits within five seconds after
the grace, or after the second signal.

``run_process`` raises StowhandError only before the work starts (an unknown task, an unreachable store). If handlers
cannot be stopped, it does not return: it releases their leases in a last write, and the process exits.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from stowhand.app.app_worker import AppWorker
from stowhand.app.settings.settings import WorkerSettings
from stowhand.app.start import (
    report_listening,
    traced,
    traced_events,
    warn_of_tasks_without_worker,
    warn_of_unknown_queues,
)
from stowhand.clock import SystemClock, sleep_blocking
from stowhand.cron.sources import scheduling
from stowhand.errors import StoreError
from stowhand.events import Events, JobUnknown
from stowhand.jobs.lease import Lease
from stowhand.observe.job_logger import core_logger
from stowhand.observe.listener import LogListener
from stowhand.observe.traces import Traces
from stowhand.protocols.handler import Isolate
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.workflows import proof_keeper
from stowhand.service import exit_codes
from stowhand.service.children import HUNG_CODE, LAST_WRITE_SECONDS, ORDERLY_EXIT_OFFSET, RENEWED_CODE
from stowhand.service.process_observer import ProcessObserver
from stowhand.service.quarantine import Quarantine
from stowhand.service.recurring_items import RecurringItems
from stowhand.service.reloader import Reloader, WatchedFiles
from stowhand.service.signals import StopRequests, handle_signals, run_until_exit
from stowhand.service.store_opener import open_for_work, store_of
from stowhand.service.task_loader import load_tasks, make_handler, report_problems
from stowhand.tasks.program import kill_programs
from stowhand.worker.host import DEFAULT_TIMINGS, Host, Timings
from stowhand.worker.worker import Worker, new_identity

FLUSH_TIMEOUT_SECONDS = 0.2
"""Seconds for flushing a stream: its reader may no longer read."""
SPAN_EXPORT_SECONDS = 3.0
"""Seconds that a process waits for the export of its last spans, once its work is done."""
BUSY_PAUSE_SECONDS = 0.1
GC_THRESHOLD = 10_000
"""Objects allocated and not freed before the garbage collector runs; Python's default is 700."""
EXIT_CALLBACKS: list[Callable[[], object]] = []
"""Called by ``hard_exit``. They are quick and raise nothing."""
_ACTIVE_TRACES: list[Traces] = []
"""Traces whose last spans are exported at the end."""


def run_process(
    settings: WorkerSettings,
    *,
    name: str | None = None,
    control: Callable[[Stopper], None] | None = None,
    events: Events | None = None,
    observer: ProcessObserver | None = None,
) -> int:
    """Work in this process until stopped. ``control`` receives the stopper; without it, signals are handled here."""
    work = _work(settings, name or new_identity(), control, events or Events(), observer or ProcessObserver())
    return asyncio.run(work if control is not None else run_until_exit(work))


class Stopper:
    """Requests to stop. They may come from any thread or from a signal handler."""

    def __init__(
        self,
        worker: Worker,
        release_and_exit: Callable[[], None],
        on_stop: Callable[[float], object] = lambda grace: None,
        timings: Timings = DEFAULT_TIMINGS,
        *,
        is_supervised: bool = False,
    ) -> None:
        """``on_stop``: called at a request to stop, with the seconds that handlers still have.

        ``is_supervised``: use the exit codes between a child and its supervisor.
        """
        self._worker = worker
        self._exit_now = release_and_exit
        self._on_stop = on_stop
        self._stop_requests = StopRequests(timings.same_signal_window)
        self._is_quiet = False
        self.loop = asyncio.get_running_loop()
        self._is_supervised = is_supervised
        self.must_be_replaced = False
        self.code: int | None = None
        """The exit code, once the work is finished. A later forced exit does not change it."""

    def request_stop(self) -> None:
        """First request: drain. Second: return the jobs at once. Third: exit now."""
        if not self._stop_requests.add():
            return
        if self._stop_requests.count <= 2:
            self._stop(now=self._stop_requests.count == 2)
            self._on_stop(self._worker.options.grace if self._stop_requests.count == 1 else 0.0)
        else:  # the loop may be blocked, and a signal handler must not wait
            threading.Thread(target=self._exit_now, name="stowhand leave", daemon=True).start()

    def drain(self) -> None:
        """Drain at the supervisor's order, unless this process already had a request to stop."""
        if self._stop_requests.count == 0:
            self.request_stop()

    def replace(self) -> None:
        """Drain, and exit with the code that requests a new process from the supervisor."""
        self.must_be_replaced = True
        self._stop(now=False)
        self._on_stop(self._worker.options.grace)

    def leave_hung(self, store: QueueStore, blocking: Lease | None) -> None:
        """Exit at once: a handler blocks the loop, so no job can drain. Earlier requests to stop do not matter.

        The other jobs are returned without using an attempt. The blocking job counts as one whose worker died.
        """

        def release_and_exit() -> None:
            kill_programs()
            others = [lease for lease in self._worker.controls.current_leases() if lease != blocking]
            _run_within(lambda: asyncio.run(_release(store, others, self._worker.id)), LAST_WRITE_SECONDS)
            hard_exit(self._supervised_code(HUNG_CODE) if self._is_supervised else exit_codes.FAILURE)

        threading.Thread(target=release_and_exit, name="stowhand hang", daemon=True).start()

    def toggle(self) -> None:
        """Pause claiming; called again: resume."""
        self.quiet(on=not self._is_quiet)

    def quiet(self, *, on: bool) -> None:
        """Pause claiming, or resume, on the supervisor's order."""
        self._is_quiet = on
        self._on_loop(lambda: self._worker.controls.pause_claims(on))

    def now(self) -> None:
        """Return all jobs at once: the supervisor is lost, or had two requests to stop."""
        if self._stop_requests.count < 2:
            self._on_stop(0.0)
        self._stop_requests.count = max(self._stop_requests.count, 2)
        self._stop(now=True)

    @property
    def unfinished_code(self) -> int:
        """Exit code of a process that leaves handlers unfinished."""
        return self._supervised_code(exit_codes.REPLACE) if self.must_be_replaced else exit_codes.FAILURE

    def finish(self, code: int) -> int:
        """Store the exit code of the finished work, and return it."""
        if code == exit_codes.OK and self.must_be_replaced:
            code = exit_codes.REPLACE
        elif code == exit_codes.OK and self._is_supervised and self._worker.controls.renewal_reason() is not None:
            code = RENEWED_CODE
        self.code = self._supervised_code(code)
        return code

    def _supervised_code(self, code: int) -> int:
        return ORDERLY_EXIT_OFFSET + code if self._is_supervised else code

    def _stop(self, *, now: bool) -> None:
        self._on_loop(lambda: self._worker.stop(now=now))

    def _on_loop(self, call: Callable[[], object]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call)


async def _work(
    settings: WorkerSettings,
    name: str,
    control: Callable[[Stopper], None] | None,
    events: Events,
    observer: ProcessObserver,
) -> int:
    changes = WatchedFiles(settings)
    loaded = load_tasks(settings, may_be_empty=settings.watch)
    report_problems(loaded, settings)
    store = traced(store_of(settings.store), loaded.traces)
    handler = make_handler(loaded, settings, store, name)
    unrecorded_jobs = _listen(events, loaded.traces, observer)
    wrapped_handler = loaded.registry.middleware.wrap(handler)
    quarantine = Quarantine(settings, name, handler.is_program, wrapped_handler, events, proof_keeper(store.workflows))
    try:
        # With several processes, the supervisor schedules: it outlives them all.
        recurring = RecurringItems(settings, loaded, store, events) if control is None else None
        await open_for_work(store, settings.store)
        host = _host(quarantine.run, store, lambda: stopper, settings.timings)
        options = settings.worker_options(loaded.claimed(settings), name)
        worker = AppWorker(loaded.flows, loaded.traces, None, store, wrapped_handler, options, events=events, host=host)
        report_listening(store, events, worker.id)
        observer.follow(store, worker=worker, scheduler=None if recurring is None else recurring.scheduler)
        exit_now = partial(release_and_exit, store, worker, lambda: stopper.code)
        stopper: Stopper = Stopper(
            worker,
            exit_now,
            _exit_at_deadline(exit_now, settings.timings),
            settings.timings,
            is_supervised=control is not None,
        )
        await warn_of_unknown_queues(store, loaded.registry, options)
        await _start(control, stopper, recurring, observer, partial(warn_of_tasks_without_worker, store, options.tasks))
        reloader = Reloader(settings, loaded, handler, worker, events)
        reduce_garbage_collection()
        await _run(worker, changes, reloader, recurring, once=settings.worker.once)
        if worker.unfinished or worker.has_unfinished_flows:
            _last_write(store, worker.unfinished)
            hard_exit(stopper.unfinished_code)
        return stopper.finish(exit_codes.FAILURE if unrecorded_jobs or worker.flow_error else exit_codes.OK)
    finally:
        await quarantine.close()
        handler.close()
        await store.close()


async def _start(
    control: Callable[[Stopper], None] | None,
    stopper: Stopper,
    recurring: RecurringItems | None,
    observer: ProcessObserver,
    warn: Callable[[], Awaitable[None]],
) -> None:
    """Let the supervisor stop the worker, or the process itself by signals."""
    if control is not None:
        control(stopper)
    else:
        await warn()
    if recurring is not None:
        handle_signals(observer.on_stop(stopper.request_stop), recurring.reload, stopper.toggle)


def _listen(events: Events, traces: Traces | None, observer: ProcessObserver) -> list[JobUnknown]:
    """Log, trace and count events. Return the list that ``_unrecorded_jobs`` fills."""
    LogListener(events)
    traced_events(events, traces)
    export_spans_at_exit(traces)
    observer.listen(events)
    return _unrecorded_jobs(events)


def _host(isolate: Isolate, store: QueueStore, stopper: Callable[[], Stopper], timings: Timings) -> Host:
    """Return the worker's host. ``stopper`` is a function, because the stopper is made after the worker."""
    return Host(isolate, lambda lease: stopper().leave_hung(store, lease), lambda: stopper().replace(), timings)


def reduce_garbage_collection() -> None:
    """Make the garbage collector ignore loaded objects and run less often.

    Loaded objects stay until the end, and the ten or so objects of each running job are not garbage. This is for
    processes that Stowhand starts, and keeps a higher threshold or a disabled collector that the tasks have set.
    """
    gc.freeze()
    first, *later = gc.get_threshold()
    if 0 < first < GC_THRESHOLD:
        gc.set_threshold(GC_THRESHOLD, *later)


def _unrecorded_jobs(events: Events) -> list[JobUnknown]:
    """Return a list that fills with the jobs that ended, but whose outcome could not be recorded at the stop."""
    jobs: list[JobUnknown] = []
    events.on(JobUnknown, lambda event: None if event.outcome is None else jobs.append(event))
    return jobs


async def _run(
    worker: AppWorker, changes: WatchedFiles, tasks: Reloader, recurring: RecurringItems | None, *, once: bool
) -> None:
    """Run the worker, and meanwhile reload changed files and schedule recurring items.

    An error of a flow's worker is not raised: it was logged, and ``_work`` returns its exit code.
    """
    if recurring is None:
        async with changes.reloading(tasks.reload):
            await _run_worker(worker)
    else:
        async with (
            changes.reloading(tasks.reload, recurring.reload),
            scheduling(recurring.scheduler, once=once),
        ):
            await _run_worker(worker)


async def _run_worker(worker: AppWorker) -> None:
    try:
        await worker.run()
    except Exception as error:
        if error is not worker.flow_error:
            raise


def export_spans_at_exit(traces: Traces | None) -> None:
    """Export the last spans when the process ends, in order or by ``hard_exit``."""
    if traces is not None and traces not in _ACTIVE_TRACES:
        _ACTIVE_TRACES.append(traces)


def export_last_spans(code: int) -> int:
    """Export the last spans of a process whose work is done, and return its exit code.

    If the export takes too long, the process exits here. The provider's exit handler would wait for half a minute.
    """
    if [traces for traces in _ACTIVE_TRACES if not traces.flush(SPAN_EXPORT_SECONDS)]:
        core_logger().warning(f"The last spans were not exported within {SPAN_EXPORT_SECONDS:g} s")
        _ACTIVE_TRACES.clear()
        hard_exit(code)
    return code


def hard_exit(code: int) -> None:
    """End the process now, without exit handlers and without joining threads that may never end."""
    try:
        kill_programs()
        for callback in (*EXIT_CALLBACKS, *(traces.leave for traces in _ACTIVE_TRACES)):
            callback()
        for stream in (sys.stdout, sys.stderr):
            _run_within(stream.flush, FLUSH_TIMEOUT_SECONDS)  # the reader may no longer read
    finally:
        os._exit(code)


def _last_write(store: QueueStore, leases: list[Lease]) -> None:
    """Return the jobs that still run. This is allowed only because the process exits right afterwards."""
    _run_within(lambda: asyncio.run(_release(store, leases)), LAST_WRITE_SECONDS)


def release_and_exit(
    store: QueueStore,
    worker: Worker,
    finished_code: Callable[[], int | None] = lambda: None,
    timeout: float = LAST_WRITE_SECONDS,
) -> None:
    """Exit now. Return the jobs of this worker without using attempts, as far as the time allows.

    ``finished_code`` returns the exit code of finished work (the worker then holds no jobs), otherwise ``None``.
    """
    if (code := finished_code()) is not None:
        _ACTIVE_TRACES.clear()  # their export has started or finished
        hard_exit(code)
    kill_programs()
    _run_within(worker.controls.report_unrecorded, FLUSH_TIMEOUT_SECONDS)
    _run_within(lambda: asyncio.run(_release(store, worker.controls.current_leases(), worker.id)), timeout)
    hard_exit(exit_codes.FAILURE)


def _exit_at_deadline(exit_now: Callable[..., object], timings: Timings) -> Callable[[float], None]:
    """Return a function that exits after the grace, even if the loop is blocked or the store never answers."""

    def wait(grace: float) -> None:
        sleep_blocking(grace + timings.exit_timeout - timings.forced_exit_margin)
        exit_now(timeout=timings.lease_release_timeout)

    return lambda grace: threading.Thread(target=wait, args=(grace,), name="stowhand deadline", daemon=True).start()


async def _release(store: QueueStore, leases: Sequence[Lease], worker: str | None = None) -> None:
    """Release leases. With ``worker``, also reset the jobs of a claim whose reply was lost."""
    heartbeats = store.heartbeats()
    try:
        busy = await heartbeats.release(sorted(leases, key=lambda lease: lease.job_id))
        while busy:  # locked by another transaction; the caller bounds the time
            await SystemClock().sleep(BUSY_PAUSE_SECONDS)
            busy = await heartbeats.release(busy)
        while worker is not None and await heartbeats.reset_worker(worker):
            pass
    except StoreError:
        return  # the jobs are reset when their leases expire
    finally:
        await heartbeats.close()


def _run_within(call: Callable[[], None], seconds: float) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
