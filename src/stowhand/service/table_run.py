"""What ``stowhand table run`` does: workers of a table in this process, or the same in each of several.

A child of several imports the program itself, so each has workers of its own. Its standard input ends with the parent,
and it then stops in order. One that dies is replaced; its records come back when their leases end.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, StowhandError, a_type
from stowhand.observe.job_logger import core_logger
from stowhand.observe.logs import configure_logging
from stowhand.observe.safe_text import scrub
from stowhand.service import exit_codes
from stowhand.service.children import RENEWED, SETTLED_CODES, Child, Children, Next, Slot, stop_with_parent
from stowhand.service.exit_codes import exit_code
from stowhand.service.health import (
    Process,
    Report,
    bounds,
    forget_report,
    report_of,
    starting,
    stuck_processes,
    unready_processes,
    write_report,
)
from stowhand.service.run_all import Routine, is_routine, longest_end, run_all
from stowhand.service.status_server import Answer, Pages, StatusServer, verdict
from stowhand.tasks.loading import load_object
from stowhand.tasks.program import how_it_ended
from stowhand.worker.host import USUAL
from stowhand.worker.worker import Worker

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class TableRunOptions(msgspec.Struct, frozen=True):
    """The arguments of ``stowhand table run``."""

    target: str
    processes: int = 1
    http: str | None = None
    folder: Path | None = None
    """This is a child, which writes its reports there."""
    logged: tuple[str, str] = ("info", "text")
    """Level and format of the children's logs."""


def run_table(options: TableRunOptions) -> int:
    """Work until stopped, or until the workers end by themselves. Gives the exit code; raises StowhandError."""
    if options.processes > 1:
        return asyncio.run(_TableWorkers(options).run())
    if options.folder is not None:
        stop_with_parent()
    return asyncio.run(_work(options))


def routines_of(target: str, processes: int = 1) -> tuple[Routine, ...]:
    """What MODULE:NAME means: a worker, routines, or a function that makes either. Raises ConfigurationError."""
    found: Any = load_object(target, object, default="worker")
    if callable(found) and not hasattr(found, "run"):
        found = found()
    given = tuple(found) if isinstance(found, Iterable) else (found,)
    for one in given:
        if not is_routine(one):
            raise ConfigurationError(
                f"{target}: {a_type(one)} found; name a Worker, a list of workers and resetters, or a"
                " function without arguments that gives either"
            )
    named = [one.options.name for one in given if isinstance(one, Worker) and one.options.name]
    if processes > 1 and named:
        raise ConfigurationError(
            f"{target}: the worker is called {named[0]!r}, and no two processes may have the same name; leave"
            " WorkerOptions(name=…) out"
        )
    if not any(isinstance(one, Worker) for one in given):
        raise ConfigurationError(f"{target}: there is no Worker among {len(given)} routines")
    return given


def workers_of(routines: Iterable[Routine]) -> list[Worker]:
    """The workers among them."""
    return [one for one in routines if isinstance(one, Worker)]


# -- in this process -------------------------------------------------------------------------------


async def _work(options: TableRunOptions) -> int:
    routines = routines_of(options.target)
    workers, clock = workers_of(routines), SystemClock()

    def processes() -> list[Process]:
        return [Process("", 0.0, joint_report(workers, clock))]

    pages: Pages = {
        "/healthz": lambda: _health(stuck_processes(processes(), joint_bounds(workers), clock.monotonic())),
        "/readyz": lambda: _ready(_unready(processes(), clock)),
        "/metrics": partial(_metrics, None),
    }
    with _shown(options.http, pages), _reported(options.folder, workers, clock):
        await run_all(*routines)
    if any(one.unfinished for one in workers):
        return exit_codes.FAILURE
    is_renewed = options.folder is not None and any(one.internals.renewal_reason() for one in workers)
    return RENEWED if is_renewed else exit_codes.OK


def joint_report(workers: Sequence[Worker], clock: Clock) -> Report:
    """The health of all workers of this process. Where there are several, each loop has the number of its worker."""
    reports = [report_of(one.internals.liveness, clock) for one in workers]
    labelled = list(zip(_labels(workers), reports, strict=True))
    return Report(
        at=clock.monotonic(),
        ages={label + name: age for label, one in labelled for name, age in one.ages.items()},
        heard=max((one.heard for one in reports if one.heard is not None), default=None),
        claimed=all(one.claimed for one in reports),
        refused={label + name: age for label, one in labelled for name, age in one.refused.items()},
        unready="; ".join(f"{label}{one.unready}" for label, one in labelled if one.unready) or None,
    )


def joint_bounds(workers: Sequence[Worker]) -> dict[str, float]:
    """Return, by loop of a joint report, the age in seconds above which it is not alive."""
    labelled = zip(_labels(workers), workers, strict=True)
    return {label + name: bound for label, one in labelled for name, bound in bounds(one.options).items()}


def _labels(workers: Sequence[Worker]) -> list[str]:
    return [""] if len(workers) == 1 else [f"worker {number}, " for number in range(1, len(workers) + 1)]


def _unready(processes: Sequence[Process], clock: Clock) -> list[str]:
    return starting(processes, "table") + unready_processes(processes, clock.monotonic())


@contextmanager
def _reported(folder: Path | None, workers: list[Worker], clock: Clock) -> Iterator[None]:
    """Write a report of the child's workers every second."""
    if folder is None:
        yield
        return

    async def report() -> float:
        write_report(folder, joint_report(workers, clock))
        return USUAL.report_every

    ticker = clock.ticker("stowhand report", report)
    try:
        yield
    finally:
        ticker.stop()


# -- several ---------------------------------------------------------------------------------------


class _TableWorkers:
    """The parent: it starts children, replaces those that die, and shows the health of all."""

    def __init__(self, options: TableRunOptions) -> None:
        # A mistake in the program is reported once, here, and not by every child.
        routines = routines_of(options.target, options.processes)
        self._bounds = joint_bounds(workers_of(routines))
        self._options, self._clock = options, SystemClock()
        self._children = Children(options.processes, self._start, self._on_end, grace=longest_end(routines))
        self._code = exit_codes.OK
        self._folder = Path(tempfile.mkdtemp(prefix="stowhand-"))

    async def run(self) -> int:
        pages: Pages = {
            "/healthz": lambda: _health(stuck_processes(self._processes(), self._bounds, self._clock.monotonic())),
            "/readyz": lambda: _ready(
                (["it is stopping"] if self._children.stopping else []) + _unready(self._processes(), self._clock)
            ),
            "/metrics": partial(_metrics, self._folder),
        }
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._children.request_stop)
        try:
            with _shown(self._options.http, pages):
                await self._children.run()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return exit_codes.FAILURE if self._children.were_killed else self._code

    async def _start(self, slot: Slot) -> Child:
        folder = str(self._folder)
        arguments = (*self._options.logged, folder, self._options.target)
        return await Child.start("stowhand.service.table_run", *arguments, environ={MULTIPROCESS: folder})

    async def _on_end(self, slot: Slot, code: int) -> Next:
        """Replace the child until it has done its work, or all are to stop."""
        assert slot.child is not None
        forget_report(self._folder, slot.child.pid)
        if code == RENEWED:
            return Next.AT_ONCE
        if code == exit_codes.OK:
            return Next.NONE
        if self._children.stopping:
            self._code = self._code or (exit_codes.FAILURE if code > 0 else exit_codes.OK)
            return Next.NONE
        if code in SETTLED_CODES and slot.restarts == 0:
            self._code = code
            self._children.stop()
            return Next.NONE
        core_logger().warning(f"process {slot.number + 1} {how_it_ended(code)}; it is started again")
        return Next.RESTART

    def _processes(self) -> list[Process]:
        return self._children.health(self._folder)


# -- pages -----------------------------------------------------------------------------------------


@contextmanager
def _shown(address: str | None, pages: Pages) -> Iterator[None]:
    if address is None:
        yield
        return
    server = StatusServer(address, pages)
    core_logger().info(f"Metrics and health: {server.url}/metrics, /healthz, /readyz")
    try:
        yield
    finally:
        server.close()


_health = partial(verdict, "ok", "stuck")
_ready = partial(verdict, "ready", "not ready")


def _metrics(folder: Path | None) -> Answer:
    """The program's metrics (``TableMetrics``): of this process, or of all children together."""
    try:
        from stowhand.observe import prometheus
    except ConfigurationError as error:
        return Answer(501, f"{error}\n".encode())
    registry = prometheus.REGISTRY
    if folder is not None:
        registry = prometheus.CollectorRegistry()
        prometheus.MultiProcessCollector(registry, path=str(folder))
    return Answer(200, prometheus.generate_latest(registry), prometheus.CONTENT_TYPE_LATEST)


def main() -> int:
    """What each of several processes runs: its arguments are level and format of the log, folder, target."""
    level, form, folder, target = sys.argv[1:]
    configure_logging(level, form)
    try:
        return run_table(TableRunOptions(target, folder=Path(folder)))
    except StowhandError as error:
        sys.stderr.write(f"error: {scrub(str(error))}\n")
        return exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
