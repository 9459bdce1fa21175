"""Entry point of ``stowhand table run``: workers of a table in this process, with pages for health and metrics."""

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
    max_loop_ages,
    report_of,
    starting_reasons,
    stuck_process_reasons,
    unready_reasons,
)
from stowhand.service.run_all import Routine, is_routine, run_all
from stowhand.service.status_server import Answer, Pages, StatusServer, health_answer
from stowhand.tasks.loader import load_object
from stowhand.worker.worker import Worker


def run_table(target: str, http: str | None) -> int:
    """Work until stopped, or until the workers end by themselves. Return the exit code. Raises StowhandError.

    ``http``: where health and metrics are shown.
    """
    return asyncio.run(_work(routines_of(target), http))


def routines_of(target: str) -> tuple[Routine, ...]:
    """Return the routines of MODULE:NAME: a worker, routines, or a function that makes either.

    Raises ConfigurationError.
    """
    loaded: Any = load_object(target, object, default="worker")
    if callable(loaded) and not hasattr(loaded, "run"):
        loaded = loaded()
    values = tuple(loaded) if isinstance(loaded, Iterable) else (loaded,)
    for value in values:
        if not is_routine(value):
            raise ConfigurationError(
                f"{target}: {a_type(value)} found; name a Worker, a list of workers and resetters, or a"
                " function without arguments that gives either"
            )
    if not any(isinstance(value, Worker) for value in values):
        raise ConfigurationError(f"{target}: there is no Worker among {len(values)} routines")
    return values


async def _work(routines: Sequence[Routine], http: str | None) -> int:
    workers = [routine for routine in routines if isinstance(routine, Worker)]
    with ExitStack() as stack:
        if http is not None:
            server = StatusServer(http, _pages(workers, SystemClock()))
            stack.callback(server.close)
            core_logger().info(f"Metrics and health: {server.url}/metrics, /healthz, /readyz")
        await run_all(*routines)
    return FAILURE if any(worker.unfinished for worker in workers) else OK


def _pages(workers: Sequence[Worker], clock: Clock) -> Pages:
    def processes() -> list[Process]:
        return [Process("", 0.0, joint_report(workers, clock))]

    def health() -> Answer:
        return health_answer(
            "ok", "stuck", stuck_process_reasons(processes(), joint_bounds(workers), clock.monotonic())
        )

    def ready() -> Answer:
        reasons = starting_reasons(processes(), "table") + unready_reasons(processes(), clock.monotonic())
        return health_answer("ready", "not ready", reasons)

    return {"/healthz": health, "/readyz": ready, "/metrics": _metrics}


def joint_report(workers: Sequence[Worker], clock: Clock) -> Report:
    """Return the joint health of the workers of this process. With several, each loop has the number of its worker."""
    reports = [report_of(worker.controls.liveness, clock) for worker in workers]
    labelled = list(zip(_labels(workers), reports, strict=True))
    return Report(
        at=clock.monotonic(),
        ages={label + name: age for label, report in labelled for name, age in report.ages.items()},
        last_answer_at=max(
            (report.last_answer_at for report in reports if report.last_answer_at is not None), default=None
        ),
        has_claimed=all(report.has_claimed for report in reports),
        refused={label + name: age for label, report in labelled for name, age in report.refused.items()},
        unready="; ".join(f"{label}{report.unready}" for label, report in labelled if report.unready) or None,
    )


def joint_bounds(workers: Sequence[Worker]) -> dict[str, float]:
    """Return the maximum age in seconds of each loop of a joint report."""
    labelled = zip(_labels(workers), workers, strict=True)
    return {label + name: bound for label, worker in labelled for name, bound in max_loop_ages(worker.options).items()}


def _labels(workers: Sequence[Worker]) -> list[str]:
    return [""] if len(workers) == 1 else [f"worker {number}, " for number in range(1, len(workers) + 1)]


def _metrics() -> Answer:
    """Return the program's metrics (``TableMetrics``)."""
    try:
        from stowhand.observe import prometheus
    except ConfigurationError as error:
        return Answer(501, f"{error}\n".encode())
    return Answer(200, prometheus.generate_latest(prometheus.REGISTRY), prometheus.CONTENT_TYPE_LATEST)
