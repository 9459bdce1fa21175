"""House rule: wherever Python takes a duration, seconds, a timedelta and a phrase mean the same, and a wrong one is
told with the name of its option."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stowhand import App, Retry, Snooze
from stowhand.app.options import WorkerKeywords
from stowhand.commands import CommandHandler
from stowhand.flows import DelayError, Flow, Limiter, Queue
from stowhand.handler import Policy
from stowhand.jobs import limits
from stowhand.jobs.job import NewJob
from stowhand.jobs.outcomes import from_returned
from stowhand.protocols.options import Seconds, WorkerOptions, options_of
from stowhand.query import Ages
from stowhand.remote import HttpOptions
from stowhand.retry import constant, exponential
from stowhand.runner import CronItem, CronOptions, parse_cron_items
from stowhand.service.run_all import _read as run_all_grace
from stowhand.stores.api import StoreOptions
from stowhand.stores.table.arguments import read_after
from stowhand.table import ResetterOptions, TableOptions
from stowhand.testing import FakeClock, MemoryStore
from tests.conftest import Run

ROOMS = ("stowhand", "stowhand.flows", "stowhand.runner", "stowhand.testing", "stowhand.retry", "stowhand.commands")
WORDS = re.compile(
    r"timeout$|delay$|interval$|grace$|^lease$|^after$|period$|history$|retention$|max_age$|active_time$|life$"
    r"|lock_time$|^wait|^base$|^cap$|^seconds$|retry_after$|expires"
)
NARROW = {
    "Claim.lease": "a lease, no duration",
    "ClaimRequest.lease": "made by a worker",
    "Job.waits_for": "the name of an event or a step",
    "JobFilter.after": "an id",
    "NewJob.delay": "read where it is enqueued",
    "NewJob.expires": "read where it is enqueued",
    "NewJob.unique_period": "read where it is enqueued",
    "Settlement.delay": "made by a worker",
    "TableStore.records.after": "an id",
    "Terms": "made by a store, read by a worker",
    "WorkerMetrics.lag.seconds": "measured",
    "FlowShape.key_life": "read when it is made",
    "FlowWorker": "made by Flow.create_workers",
    "Limiter.interval": "read when it is made",
    "Policy.timeout": "read when it is made",
    "HttpOptions.timeout": "read when it is made",
    "FakeClock.call_later.seconds": "as any Clock, which workers call",
    "FakeClock.sleep.seconds": "as any Clock, which workers call",
    "Heartbeats.": "called by workers",
    "Resetter.expect.lease": "called by workers",
    "wait.timeout": "of a store, called by workers",
    "Traces.flush.seconds": "called at the end of a process",
    "QueueCount.waiting": "a number of jobs",
}
"""Parameters called like durations whose types are not durations, and why; by a part of their names."""


def queue_options(**given: Any) -> Any:
    return TableOptions(name="t", table_name="t", **given)


def flow(**given: Any) -> Flow:
    return Flow("f", "sqlite:///f.db", queues=[Queue("a")], **given)


def flow_worker(**given: Any) -> Any:
    async def work(job: Any) -> None: ...

    return flow().create_workers("a", work, **given)


def task_of(**options: Any) -> Any:
    return App(store=MemoryStore()).task(name="act", **options)(lambda: None).definition


def interval_of_monitor(given: Any) -> float:
    monitor = flow().monitor
    monitor.interval = given
    return monitor.interval


def made_with(struct: type, field: str, given: Any) -> Any:
    return getattr(struct(**({"lease": 300.0} if field == "heartbeat_interval" else {}), **{field: given}), field)


PLACES: dict[str, Callable[[Any], Any]] = {
    "timeout (task)": lambda given: task_of(timeout=given).timeout,
    "delay (task)": lambda given: task_of(delay=given).template.delay,
    "delay": lambda given: limits.check_options(NewJob(task="t", delay=given)).delay,
    "delay (Retry)": lambda given: Retry("x", delay=given).delay,
    "delay (Snooze)": lambda given: Snooze(given).delay,
    "expires": lambda given: limits.check_options(NewJob(task="t", expires=given)).expires,
    "timeout (policy)": lambda given: Policy(timeout=given).timeout,
    "completed": lambda given: Ages(completed=given).completed,
    "failed": lambda given: Ages(failed=given).failed,
    "canceled": lambda given: Ages(canceled=given).canceled,
    "timeout (http)": lambda given: HttpOptions(timeout=given).timeout,
    "interval (limiter)": lambda given: Limiter(reservoir=1, interval=given).interval,
    "key_life": lambda given: flow(key_life=given).shape.key_life,
    "lock_time": lambda given: flow_worker(lock_time=given)._lock_time,
    "wait_timeout": lambda given: flow_worker(wait_timeout=given)._wait_timeout,
    "grace (flow)": lambda given: flow_worker(grace=given).grace,
    "lease (flow)": lambda given: flow_worker(lease=given, lock_time=100)._lease,
    "interval (monitor)": lambda given: interval_of_monitor(given),
    "delay (DelayError)": lambda given: DelayError(delay=given).delay,
    "stalled_max_age": lambda given: queue_options(stalled_max_age=given, heartbeat_interval=1).stalled,
    "retry_after": lambda given: queue_options(retry_after=given).retry_delay,
    "timeout (commands)": lambda given: CommandHandler(lambda record: [], timeout=given)._timeout,
    "grace (commands)": lambda given: CommandHandler(lambda record: [], grace=given)._grace,
    "backoff (constant)": lambda given: constant(given)(1),
    "backoff (exponential)": lambda given: exponential(base=given)(1),
    "backoff (cap)": lambda given: exponential(base=1000, cap=given)(1),
    "grace (run_all)": run_all_grace,
    "after": read_after,
    "backfill_period": lambda given: (
        parse_cron_items([CronItem(task="t", match="* * * * *", options=CronOptions(backfill_period=given))])[0].fill
    ),
    **{
        f"{field} ({struct.__name__})": partial(made_with, struct, field)
        for struct in (WorkerOptions, StoreOptions, ResetterOptions)
        for field, option in options_of(struct).items()
        if isinstance(option, Seconds)
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_seconds_a_timedelta_and_a_phrase_mean_the_same(place: str) -> None:
    for given in (90, timedelta(seconds=90), "1.5m", "90"):
        assert float(PLACES[place](given)) == 90.0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", ["soon", True, [], "5 years"], ids=repr)
def test_an_invalid_duration_names_its_option(place: str, wrong: Any) -> None:
    with pytest.raises(Exception, match=place.split()[0]) as caught:
        PLACES[place](wrong)
    assert not isinstance(caught.value, TypeError | AttributeError), "no error of ours"


def test_a_returned_duration_and_a_clock_take_all_kinds(run: Run) -> None:
    for given in (90, timedelta(seconds=90), "1.5m"):
        assert from_returned(Snooze(given)) == Snooze(90.0)
        assert from_returned(Retry("x", delay=given)) == Retry("x", delay=90.0)
        clock = FakeClock()
        began = clock.now()
        run(clock.advance(given))
        assert (clock.now() - began).total_seconds() == 90


def test_a_parameter_called_like_a_duration_takes_every_kind() -> None:
    narrow = {
        f"{label}.{one.name}"
        for label, called in _called()
        for one in inspect.signature(called).parameters.values()
        if WORDS.search(one.name) and not _takes_all(str(one.annotation))
    }
    unexplained = sorted(name for name in narrow if not any(part in name for part in NARROW))
    assert unexplained == [], "annotate it as Duration and read it by jobs/durations.py:seconds"
    for field, option in options_of(WorkerOptions).items():
        if isinstance(option, Seconds):
            assert _takes_all(str(WorkerKeywords.__annotations__[field]))


def _takes_all(annotation: str) -> bool:
    # An option reads what its field is given, whatever its type is afterwards.
    return "Duration" in annotation or ("timedelta" in annotation and "str" in annotation) or "Seconds(" in annotation


def _called() -> list[tuple[str, Callable[..., Any]]]:
    rows: list[tuple[str, Callable[..., Any]]] = []
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", None) or [key for key in vars(module) if not key.startswith("_")]:
            value = getattr(module, name)
            if not str(getattr(value, "__module__", "")).startswith("stowhand."):
                continue
            rows.append((name, value))
            if inspect.isclass(value):
                members = inspect.getmembers(value, callable)
                rows += [(f"{name}.{key}", member) for key, member in members if not key.startswith("_")]
    return [(label, called) for label, called in rows if _has_signature(called)]


def _has_signature(called: Callable[..., Any]) -> bool:
    try:
        inspect.signature(called)
    except (TypeError, ValueError):
        return False
    return True
