"""The alerts of deploy/prometheus-rules.yaml: promtool evaluates them, series in and alerts out.

The series have the names and labels of a worker's own metrics, so a rule that asks for others never fires here.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stowhand.events import CronScheduled, Events, JobEnded, JobLost, JobsReset, WorkerStarted
from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.observe.queue_metrics import QueueMetrics
from stowhand.observe.worker_metrics import WorkerMetrics
from stowhand.protocols.counts import CronFigures, Figures
from tests.docs.pages import ROOT
from tests.service.pages import samples
from tests.support.promtool import find_promtool

RULES = ROOT / "deploy" / "prometheus-rules.yaml"
SCRAPE = 15
"""Seconds between two scrapes."""
HOUR = 3600
NOW = datetime(2030, 1, 1, tzinfo=UTC)

Scrapes = Mapping[str, float]
"""Values by name and labels."""


@dataclass
class Case:
    """One history of scrapes, and the alerts that fire at some moments (seconds): name and labels."""

    series: dict[str, str]
    firing: dict[int, list[str]] = field(default_factory=dict)


def alerts(tmp_path: Path, *cases: Case) -> None:
    """Let promtool compare. Of every moment all alerts are named, and no other fires."""
    written = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": f"{SCRAPE}s",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'sum without (severity, alertstate) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{at}s",
                        "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
                    }
                    for at, expected in case.firing.items()
                ],
            }
            for case in cases
        ],
    }
    file = tmp_path / "alerts.yaml"
    file.write_text(json.dumps(written))
    done = subprocess.run([find_promtool(), "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(alert: str, **labels: str) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in {"alertname": alert, **labels}.items()) + "}"


def series(*steps: tuple[Scrapes | None, int], job: str = "shop", instance: str = "w1") -> dict[str, str]:
    """What Prometheus keeps of steps: what was scraped, for how many seconds. ``None``: nothing answered."""
    request = set(re.findall(r"\bstowhand_\w+", RULES.read_text()))
    names = {name for scraped, _ in steps for name in scraped or () if name.partition("{")[0] in request}
    result = {}
    for name in sorted(names):
        plain, _, labels = name.rstrip("}").partition("{")
        where = ",".join([*([labels] if labels else []), f'job="{job}"', f'instance="{instance}"'])
        result[f"{plain}{{{where}}}"] = " ".join(
            _values((scraped or {}).get(name), seconds) for scraped, seconds in steps
        )
    return result


def _values(value: float | None, seconds: int) -> str:
    scrapes = seconds // SCRAPE
    return f"_x{scrapes}" if value is None else f"{value:.3f}+0x{scrapes - 1}"


def worker(*tasks: str, emit: Callable[[Events], None] = lambda events: None) -> Scrapes:
    """The metrics of a worker that has these tasks, after these events."""
    registry = CollectorRegistry()
    events = WorkerMetrics(registry).of(Events())
    events.emit(WorkerStarted("w", tasks))
    emit(events)
    return store() | samples(generate_latest(registry))


def store(*, cron: CronFigures = CronFigures(), paused: Mapping[str, datetime] | None = None) -> dict[str, float]:  # noqa: B008 - frozen
    registry = CollectorRegistry()
    figures = Figures(states={}, tasks=[], serials=[], queues=[], workers=[], paused=paused or {})
    QueueMetrics(lambda: figures, dict, registry, cron=lambda: cron)
    return samples(generate_latest(registry))


def failures(task: str, number: int) -> Callable[[Events], None]:
    def emit(events: Events) -> None:
        for job_id in range(number):
            events.emit(JobEnded("w", job_id, task, 1, 1, AttemptOutcome.FAILED, 0.1, "ValueError"))

    return emit


# -- jobs ------------------------------------------------------------------------------------------


def test_a_burst_of_failures_between_two_scrapes_fires_whenever_it_comes_and_ends_after_a_quarter_of_an_hour(
    tmp_path: Path,
) -> None:
    before, after = worker("mail", "bill"), worker("mail", "bill", emit=failures("mail", 500))
    failed = firing("StowhandJobsFail", job="shop", kind="mail")
    cases = []
    for shift in range(12):
        burst = 20 * 60 + shift * SCRAPE
        history = series((before, burst), (after, HOUR))
        cases.append(
            Case(history, {burst - 60: [], burst + 90: [failed], burst + 14 * 60: [failed], burst + 18 * 60: []})
        )
    alerts(tmp_path, *cases)


def test_failures_before_the_first_scrape_of_a_worker_fire(tmp_path: Path) -> None:
    failed = firing("StowhandJobsFail", job="shop", kind="mail")
    after = worker("mail", emit=failures("mail", 500))
    alerts(
        tmp_path,
        Case(series((None, HOUR), (after, HOUR)) | series((store(), 2 * HOUR), instance="w0"), {
            HOUR - 60: [], HOUR + 60: [failed], HOUR + 20 * 60: [],
        }),
        Case(
            series((worker("mail", emit=failures("mail", 300)), HOUR), (None, 60), (after, HOUR))
            | series((store(), 2 * HOUR), instance="w0"),
            {HOUR - 60: [], HOUR + 180: [failed], HOUR + 20 * 60: []},
        ),
    )  # fmt: skip


def test_no_failures_and_old_failures_fire_nothing(tmp_path: Path) -> None:
    old = worker("mail", emit=failures("mail", 500))
    alerts(
        tmp_path,
        Case(series((worker("mail"), 2 * HOUR)) | series((old, 2 * HOUR), instance="w2"), {HOUR: [], HOUR + 600: []}),
    )


def test_services_that_share_a_prometheus_have_separate_alerts(tmp_path: Path) -> None:
    shop, bank = worker("mail"), worker("mail", emit=failures("mail", 1))
    late = {'stowhand_queue_oldest_due_seconds{queue="mail"}': 400.0}
    history = series((shop, 2 * HOUR)) | series((shop, HOUR), ({**bank, **late}, HOUR), job="bank")
    both = [firing("StowhandJobsFail", job="bank", kind="mail"), firing("StowhandJobsWaitTooLong", job="bank")]
    alerts(tmp_path, Case(history, {HOUR - 60: [], HOUR + 600: both}))


def test_a_job_that_kills_its_workers_fires_although_the_resetting_worker_is_new(tmp_path: Path) -> None:
    def reset(events: Events) -> None:
        events.emit(JobsReset((ResetJob(1, "mail", State.FAILED),)))

    history = series((store(), 4 * HOUR), instance="w0") | series((None, HOUR), (worker("mail", emit=reset), 3 * HOUR))
    killed = firing("StowhandJobKillsWorkers", job="shop")
    alerts(tmp_path, Case(history, {HOUR - 60: [], HOUR + 60: [killed], 2 * HOUR + 300: []}))


def test_a_lost_lease_fires(tmp_path: Path) -> None:
    def lose(events: Events) -> None:
        events.emit(JobLost("w", 1, "mail", "expired"))

    history = series((worker("mail"), HOUR), (worker("mail", emit=lose), HOUR))
    alerts(tmp_path, Case(history, {HOUR - 60: [], HOUR + 60: [firing("StowhandLeasesAreLost", job="shop")]}))


def test_an_unreachable_store_fires_for_each_service(tmp_path: Path) -> None:
    gone = firing("StowhandNobodyReachesTheStore", job="shop")
    history = series((worker("mail"), HOUR), (None, HOUR))
    alerts(
        tmp_path,
        Case(history, {HOUR - 60: [], HOUR + 900: [gone]}),
        Case(history | series((worker("mail"), 2 * HOUR), job="bank"), {HOUR - 60: [], HOUR + 900: [gone]}),
        Case({"up": f"0x{HOUR // SCRAPE}"}, {900: [firing("StowhandNobodyReachesTheStore")]}),
    )


# -- pauses ----------------------------------------------------------------------------------------


def test_a_pause_fires_after_six_hours_until_it_ends(tmp_path: Path) -> None:
    paused = store(paused={"mail": datetime.fromtimestamp(HOUR, UTC), "bill": datetime.fromtimestamp(9 * HOUR, UTC)})
    history = series((store(), HOUR), (paused, 9 * HOUR), (store(), HOUR))
    forgotten = firing("StowhandPauseIsForgotten", job="shop")
    alerts(
        tmp_path, Case(history, {6 * HOUR: [], 7 * HOUR + 60: [forgotten], 9 * HOUR: [forgotten], 10 * HOUR + 600: []})
    )


# -- recurring jobs --------------------------------------------------------------------------------


def ticks(*late: float) -> Callable[[Events], None]:
    def emit(events: Events) -> None:
        for place, seconds in enumerate(late):
            events.emit(CronScheduled("item", "mail", place, NOW, False, seconds))

    return emit


def test_one_late_tick_fires_nothing_but_several_do(tmp_path: Path) -> None:
    quiet, one, four = (worker("mail", emit=ticks(0.1, *late)) for late in ((), (300,), (300, 240, 180, 120)))
    late = firing("StowhandCronIsLate", job="shop")
    alerts(
        tmp_path,
        Case(series((quiet, HOUR), (one, HOUR)), {at: [] for at in range(HOUR, 2 * HOUR, 300)}),
        Case(series((quiet, HOUR), (four, HOUR)), {HOUR - 60: [], HOUR + 90: [late], HOUR + 20 * 60: []}),
    )


def test_an_unscheduled_item_fires_after_ten_minutes(tmp_path: Path) -> None:
    well, gone = (store(cron=CronFigures(known=("a", "b"), unscheduled=names)) for names in ((), ("b",)))
    unscheduled = firing("StowhandCronIsUnscheduled", job="shop", item="b")
    history = series((well, HOUR), (gone, HOUR), (well, HOUR))
    alerts(tmp_path, Case(history, {HOUR + 540: [], HOUR + 720: [unscheduled], 2 * HOUR + 120: []}))


def test_a_missed_tick_fires_until_the_item_creates_a_job(tmp_path: Path) -> None:
    well, missed = (store(cron=CronFigures(known=("a", "b"), missed=some)) for some in ({}, {"a": NOW}))
    history = series((well, HOUR), (missed, HOUR), (well, HOUR))
    alerts(
        tmp_path,
        Case(
            history,
            {HOUR - 60: [], HOUR + 60: [firing("StowhandCronMissedATick", job="shop", item="a")], 2 * HOUR + 120: []},
        ),
    )


def test_every_rule_aggregates_by_service() -> None:
    """``job`` is in every ``by``, so two services are never one alert."""
    grouped = re.findall(r"\bby \((.*?)\)", RULES.read_text())
    assert grouped
    assert all("job" in labels.split(", ") for labels in grouped)


def test_a_rule_that_never_fires_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="got"):
        alerts(
            tmp_path,
            Case(series((worker("mail"), HOUR)), {HOUR - 60: [firing("StowhandJobsFail", job="shop", kind="mail")]}),
        )
