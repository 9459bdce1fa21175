"""Charts: pure functions from numbers to SVG. The stylesheet defines colours and widths.

The drawing is stretched to the available width, so its texts surround it as HTML. Texts about one column are in a
``title``, for the pointer and for screen readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from math import floor, log10

from markupsafe import Markup

from stowhand.jobs.durations import format_iso_time, format_short_duration, format_time
from stowhand.observe.safe_text import shorten
from stowhand.protocols.operator import AppVersion
from stowhand.protocols.throughput import OutcomeCounts, Slot

CHART_HEIGHT, MAX_NAMED_VERSIONS = 100, 3
EMPTY = Markup("")
Slots = Sequence[Slot]
Marks = Sequence[AppVersion]
"""App versions with a line across the chart, at most one per column. The head names the last MAX_NAMED_VERSIONS."""


def throughput(name: str, slots: Slots, marks: Marks = ()) -> Markup:
    """Draw ended attempts as bars, with the failed ones (permanently or to be retried) on top."""
    good, bad, maximum = _outcomes(slots)
    top = _scale_end(maximum, min_value=1)
    return _figure(
        name,
        slots,
        marks,
        title="Throughput",
        words=f"{sum(good):,} attempts succeeded, {sum(bad):,} failed.",
        keys=(("ok", "succeeded"), ("bad", "failed")),
        top=f"{top:,.0f}",
        drawn=_stack(good, bad, top),
        texts=[f"{succeeded:,} succeeded, {failed:,} failed" for succeeded, failed in zip(good, bad, strict=True)],
    )


def spark(slots: Slots) -> Markup:
    """Draw throughput for a table cell, beside cells with the numbers."""
    good, bad, maximum = _outcomes(slots)
    frame = '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    return Markup(frame).format(len(slots), CHART_HEIGHT, _stack(good, bad, maximum or 1))


def durations(
    name: str, title: str, slots: Slots, of: Callable[[OutcomeCounts, float], float | None], marks: Marks = ()
) -> Markup:
    """Draw durations: one line for the median and one for the 95th percentile."""
    medians, p95s = ([None if slot.tally is None else of(slot.tally, share) for slot in slots] for share in (0.5, 0.95))
    slowest = max((value for value in p95s if value is not None), default=None)
    top = _scale_end(slowest or 0, min_value=0.001)
    return _figure(
        name,
        slots,
        marks,
        title=title,
        words=f"95 of 100 within {format_short_duration(slowest)} at the slowest." if slowest else "No data.",
        keys=(("p50", "half within"), ("p95", "95 % within")),
        top=format_short_duration(top),
        drawn=_line("p95", p95s, top) + _line("p50", medians, top),
        texts=[
            f"half within {format_short_duration(median)}, 95 % within {format_short_duration(p95)}"
            for median, p95 in zip(medians, p95s, strict=True)
        ],
    )


_FRAME = """<figure class="chart" id="{name}"><figcaption><b>{title}</b>{keys}</figcaption>
<p class="scale" aria-hidden="true"><span>{top}</span><span>0</span></p>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-labelledby="{name}-t {name}-d">
<title id="{name}-t">{title}</title><desc id="{name}-d">{words}</desc>
<path class="grid" d="M0 .5H{width}M0 50H{width}M0 99.5H{width}"/>{drawn}{lines}<g class="spoken">{spoken}</g></svg>
<p class="times" aria-hidden="true">{times}</p></figure>"""


def _figure(
    name: str, slots: Slots, marks: Marks, keys: Sequence[tuple[str, str]], texts: Sequence[str], **shown: str
) -> Markup:
    """Draw a chart. ``keys``: classes and their labels. ``texts``: one per column. ``shown``: other frame fields."""
    since = slots[0].start
    step = slots[1].start - since if len(slots) > 1 else timedelta(minutes=1)
    until = slots[-1].start + step
    visible_marks = sorted(
        ((mark.since - since) // step, mark.version, mark.since) for mark in marks if since <= mark.since < until
    )
    labels = [name for _, name, _ in visible_marks[-MAX_NAMED_VERSIONS:]]
    if len(visible_marks) > MAX_NAMED_VERSIONS:
        labels.append(f"and {len(visible_marks) - MAX_NAMED_VERSIONS:,} before")
    ends = [since, slots[len(slots) // 2].start, until] if len(slots) > 2 else [since, until]
    key = Markup(' <bdi class="key {}">{}</bdi>')
    line = Markup('<path class="mark" d="M{:.2f} 0V100"><title>{}: {}{}</title></path>')
    return Markup(_FRAME).format(
        name=name,
        keys=EMPTY.join(key.format(*label) for label in (*keys, *(("mark", name) for name in labels))),
        width=len(slots),
        height=CHART_HEIGHT,
        lines=EMPTY.join(
            line.format(
                (at - since) / step, shorten(name, 36), format_time(at), f", and {len(more)} more" if more else ""
            )
            for _, ((_, name, at), *more) in groupby(visible_marks, lambda mark: mark[0])
        ),
        spoken=EMPTY.join(_tooltips(slots, texts)),
        times=EMPTY.join(_time(at, until - since) for at in ends),
        **shown,
    )


def _tooltips(slots: Slots, texts: Sequence[str]) -> Iterator[Markup]:
    rect = Markup('<rect x="{}" width="1" height="100"><title>{:%H:%M}Z: {}</title></rect>')
    for number, (slot, words) in enumerate(zip(slots, texts, strict=True)):
        if slot.tally is not None:
            yield rect.format(number, slot.start.astimezone(UTC), words)


def _time(at: datetime, width: timedelta) -> Markup:
    """Return a time of the axis, which the script shows in local time."""
    days = width > timedelta(days=2)
    form, shown = ("day", f"{at.astimezone(UTC):%d %b}") if days else ("clock", f"{at.astimezone(UTC):%H:%M}Z")
    return Markup('<time datetime="{}" data-as="{}">{}</time>').format(format_iso_time(at), form, shown)


def _outcomes(slots: Iterable[Slot]) -> tuple[list[int], list[int], int]:
    """Return the succeeded and failed attempts by column, and the maximum of ended attempts in a column."""
    tallies = [slot.tally or OutcomeCounts() for slot in slots]
    bad = [tally.errors for tally in tallies]
    good = [tally.ended - failed for tally, failed in zip(tallies, bad, strict=True)]
    return good, bad, max((tally.ended for tally in tallies), default=0)


def _stack(good: Sequence[int], bad: Sequence[int], top: float) -> Markup:
    return _bars("ok", [0] * len(good), good, top) + _bars("bad", good, bad, top)


def _bars(style: str, below: Sequence[int], values: Sequence[int], top: float) -> Markup:
    """Draw each bar as a stroke, at least two of a hundred high so that small values stay visible."""
    drawn = []
    for number, (under, value) in enumerate(zip(below, values, strict=True)):
        if value:
            height = min(max(CHART_HEIGHT * value / top, 2), CHART_HEIGHT)
            foot = max(CHART_HEIGHT - CHART_HEIGHT * under / top, height)
            drawn.append(f"M{number}.5 {foot:.3g}v-{height:.3g}")
    return Markup(f'<path class="{style}" d="{"".join(drawn)}"/>') if drawn else EMPTY


def _line(style: str, values: Sequence[float | None], top: float) -> Markup:
    """Draw a line. A column without a value is a gap; a value between gaps is a dot."""
    drawn = []
    for is_known, stretch in groupby(enumerate(values), lambda point: point[1] is not None):
        if not is_known:
            continue
        points = [f"{x + 0.5:g} {CHART_HEIGHT * (1 - min((value or 0) / top, 1)):.4g}" for x, value in stretch]
        drawn.append("M" + "L".join(points if len(points) > 1 else points * 2))
    return Markup(f'<path class="{style}" d="{"".join(drawn)}"/>') if drawn else EMPTY


def _scale_end(value: float, min_value: float) -> float:
    """Return the end of a scale: the next of 1, 2, 3, 5, 10, 20, …."""
    size = 10.0 ** floor(log10(max(value, min_value)))
    return next(size * step for step in (1, 2, 3, 5, 10, 20) if size * step >= value)
