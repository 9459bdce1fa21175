"""Charts: what is drawn of numbers, however few or many there are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from markupsafe import Markup, escape

from stowhand.jobs.durations import format_time
from stowhand.jobs.histogram import bucket_of
from stowhand.protocols.operator import AppVersion
from stowhand.protocols.throughput import OutcomeCounts, Period, Slot, time_slots
from stowhand.web.charts import durations, sparkline, throughput

NOON = datetime(2030, 5, 17, 12, tzinfo=UTC)


def waits(name: str, of: list[Slot]) -> Markup:
    return durations(name, "Wait", of, OutcomeCounts.wait)


def runs(name: str, of: list[Slot]) -> Markup:
    return durations(name, "Run time", of, OutcomeCounts.run)


def slots(*tallies: OutcomeCounts | None) -> list[Slot]:
    return [Slot(NOON + timedelta(minutes=number), tally) for number, tally in enumerate(tallies)]


def took(*seconds: float) -> OutcomeCounts:
    durations = {bucket: sum(bucket_of(one) == bucket for one in seconds) for bucket in map(bucket_of, seconds)}
    return OutcomeCounts(ok=len(seconds), waits=durations, runs=durations)


def drawn(chart: Markup) -> ElementTree.Element:
    """As a browser reads it: an error where it is not well formed."""
    return ElementTree.fromstring(f"<div>{chart}</div>")


def path(chart: Markup, style: str) -> str:
    result = drawn(chart).find(f".//path[@class='{style}']")
    return "" if result is None else result.get("d", "")


@pytest.mark.parametrize("count", [1, 2, 60, 1000])
@pytest.mark.parametrize("chart", [throughput, waits, runs])
def test_a_chart_has_a_column_for_each_slot(chart: object, count: int) -> None:
    assert callable(chart)
    figure = drawn(chart("figure", slots(*[took(0.02, 1.5)] * count)))
    svg = figure.find(".//svg")
    assert svg is not None
    assert svg.get("viewBox") == f"0 0 {count} 100"
    assert len(figure.findall(".//rect")) == count


def test_failures_are_drawn_on_top_of_successes() -> None:
    chart = throughput("figure", slots(OutcomeCounts(ok=6, failed=1, retry=1), None, OutcomeCounts(ok=10)))
    assert path(chart, "ok") == "M0.5 100v-60M2.5 100v-100"
    assert path(chart, "bad") == "M0.5 40v-20"
    assert "16 attempts succeeded, 2 failed." in chart


def test_one_failure_among_thousands_is_visible() -> None:
    chart = throughput("figure", slots(OutcomeCounts(ok=100_000, failed=1)))
    assert path(chart, "bad") == "M0.5 50v-2"
    assert "200,000" in chart


def test_a_missing_value_is_a_gap_and_a_single_value_is_a_dot() -> None:
    chart = runs("figure", slots(took(1.0), took(2.0), None, took(2.0)))
    assert path(chart, "p95").count("M") == 2
    assert path(chart, "p95").endswith("M3.5 24.09L3.5 24.09")
    assert len(drawn(chart).findall(".//rect")) == 3


def test_a_chart_without_counts_has_no_lines() -> None:
    for chart in (throughput, waits, runs):
        figure = chart("figure", slots(None, None))
        assert path(figure, "ok") == path(figure, "bad") == path(figure, "p50") == ""
    assert "No data." in waits("figure", slots(None))


def test_a_new_version_is_a_line_with_its_name_and_cannot_be_markup() -> None:
    label = "<script>v2&\"'"
    chart = throughput(
        "figure", slots(OutcomeCounts(ok=1), OutcomeCounts(ok=1)), [AppVersion(label, NOON + timedelta(seconds=30))]
    )
    assert path(chart, "mark") == "M0.50 0V100"
    assert f"<title>{escape(label)}: {format_time(NOON + timedelta(seconds=30))}</title>" in chart
    assert "<script" not in chart
    assert [one.text for one in drawn(chart).iter() if one.get("class") == "key mark"] == [label]
    assert "mark" not in throughput("figure", slots(None), [AppVersion(label, NOON - timedelta(seconds=1))])


def test_all_versions_of_one_column_are_named() -> None:
    came = [AppVersion(one, NOON + timedelta(seconds=at)) for one, at in (("2.2", 61), ("2.1", 62), ("3.0", 5))]
    chart = throughput("figure", slots(OutcomeCounts(ok=1), OutcomeCounts(ok=1)), came)
    names = [one.text for one in drawn(chart).iter() if one.get("class") == "key mark"]
    assert names == ["3.0", "2.1", "2.2"]


def test_many_versions_have_one_line_per_column_and_the_last_are_named() -> None:
    span = slots(*[OutcomeCounts(ok=1)] * 90)
    came = [AppVersion(f"{at:0128}", NOON + timedelta(seconds=10 * at)) for at in range(540)]
    chart = throughput("figure", span, came)
    names = [one.text for one in drawn(chart).iter() if one.get("class") == "key mark"]
    assert names == [*(came[at].version for at in (537, 538, 539)), "and 537 before"]
    assert chart.count('<path class="mark"') == 90
    assert f"{format_time(NOON)}, and 5 more</title>" in chart
    assert len(chart) < len(throughput("figure", span)) + 15_000


def test_a_chart_has_a_name_and_a_description_for_screen_readers() -> None:
    svg = drawn(waits("w", slots(took(0.25)))).find(".//svg")
    assert svg is not None
    assert svg.get("aria-labelledby") == "w-t w-d"
    assert {one.get("id"): one.text for one in svg if one.tag in ("title", "desc")} == {
        "w-t": "Wait",
        "w-d": "95 % within 285ms in the slowest column.",
    }
    small = drawn(sparkline(slots(OutcomeCounts(ok=1)))).find(".//svg")
    assert small is not None
    assert small.get("aria-hidden") == "true", "the cells beside it say it in numbers"


def test_counts_are_assigned_to_their_columns() -> None:
    periods = [
        Period(NOON + timedelta(minutes=minute), 60, task, OutcomeCounts(ok=1, waits={3: 1}))
        for minute, task in ((0, "a"), (0, "b"), (4, "a"), (9, None))
    ]
    result = time_slots(periods, NOON, NOON + timedelta(minutes=12), 300)
    assert [slot.start.minute for slot in result] == [0, 5, 10]
    assert [slot.tally and slot.tally.ok for slot in result] == [3, 1, None]
