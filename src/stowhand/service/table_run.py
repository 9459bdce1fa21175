"""What ``stowhand table run`` does: workers of a table in this process, with pages that show how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, a_type
from stowhand.observe.job_logger import core_logger
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.service.health import (
    Process,
    Report,
    bounds,
    report_of,
    starting,
    stuck_processes,
    unready_processes,
)
from stowhand.service.run_all import Routine, is_routine, run_all
from stowhand.service.status_server import Answer, Pages, StatusServer, verdict
from stowhand.tasks.loader import load_object
from stowhand.worker.worker import Worker


def run_table(target: str, http: str | None) -> int:
    """Work until stopped, or until the workers end by themselves. Gives the exit code; raises StowhandError.

    ``http``: where health and metrics are shown.
    """
    return asyncio.run(_work(routines_of(target), http))


def routines_of(target: str) -> tuple[Routine, ...]:
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
    if not any(isinstance(one, Worker) for one in given):
        raise ConfigurationError(f"{target}: there is no Worker among {len(given)} routines")
    return given


async def _work(routines: Sequence[Routine], http: str | None) -> int:
    workers = [one for one in routines if isinstance(one, Worker)]
    with ExitStack() as stack:
        if http is not None:
            server = StatusServer(http, _pages(workers, SystemClock()))
            stack.callback(server.close)
            core_logger().info(f"Metrics and health: {server.url}/metrics, /healthz, /readyz")
        await run_all(*routines)
    return FAILURE if any(one.unfinished for one in workers) else OK


def _pages(workers: Sequence[Worker], clock: Clock) -> Pages:
    def processes() -> list[Process]:
        return [Process("", 0.0, joint_report(workers, clock))]

    def health() -> Answer:
        return verdict("ok", "stuck", stuck_processes(processes(), joint_bounds(workers), clock.monotonic()))

    def ready() -> Answer:
        reasons = starting(processes(), "table") + unready_processes(processes(), clock.monotonic())
        return verdict("ready", "not ready", reasons)

    return {"/healthz": health, "/readyz": ready, "/metrics": _metrics}


def joint_report(workers: Sequence[Worker], clock: Clock) -> Report:
    """The health of all workers of this process. Where there are several, each loop has the number of its worker."""
    reports = [report_of(one.controls.liveness, clock) for one in workers]
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


def _metrics() -> Answer:
    """The program's metrics (``TableMetrics``)."""
    try:
        from stowhand.observe import prometheus
    except ConfigurationError as error:
        return Answer(501, f"{error}\n".encode())
    return Answer(200, prometheus.generate_latest(prometheus.REGISTRY), prometheus.CONTENT_TYPE_LATEST)
