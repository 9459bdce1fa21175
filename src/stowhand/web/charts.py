"""Charts: pure functions from numbers to SVG. The stylesheet defines colours and widths.

The drawing is stretched to the available width, so its texts are HTML around it. Texts about one column are in a
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

CHART_HEIGHT = 100
"""Height of a drawing in its own units."""
MAX_NAMED_VERSIONS = 3
EMPTY_MARKUP = Markup("")
Slots = Sequence[Slot]
Versions = Sequence[AppVersion]
"""App versions. Each has a line across the chart, at most one per column. The legend names the most recent ones."""


def throughput(name: str, slots: Slots, versions: Versions = ()) -> Markup:
    """Draw ended attempts as bars. The failed ones, with or without a retry, are on top."""
    good, bad, maximum = _outcomes(slots)
    top = _scale_end(maximum, min_value=1)
    return _figure(
        name,
        slots,
        versions,
        title="Throughput",
        description=f"{sum(good):,} attempts succeeded, {sum(bad):,} failed.",
        legend=(("ok", "succeeded"), ("bad", "failed")),
        top=f"{top:,.0f}",
        drawing=_stack(good, bad, top),
        column_texts=[
            f"{succeeded:,} succeeded, {failed:,} failed" for succeeded, failed in zip(good, bad, strict=True)
        ],
    )


def sparkline(slots: Slots) -> Markup:
    """Draw the throughput without texts, for a cell of a table."""
    good, bad, maximum = _outcomes(slots)
    frame = '<svg class="sparkline" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    return Markup(frame).format(len(slots), CHART_HEIGHT, _stack(good, bad, maximum or 1))


def durations(
    name: str,
    title: str,
    slots: Slots,
    quantile: Callable[[OutcomeCounts, float], float | None],
    versions: Versions = (),
) -> Markup:
    """Draw durations: one line for the median and one for the 95th percentile.

    ``quantile`` returns a duration in seconds of the counts of a column.
    """
    medians = [None if slot.tally is None else quantile(slot.tally, 0.5) for slot in slots]
    p95s = [None if slot.tally is None else quantile(slot.tally, 0.95) for slot in slots]
    slowest = max((value for value in p95s if value is not None), default=None)
    top = _scale_end(slowest or 0, min_value=0.001)
    return _figure(
        name,
        slots,
        versions,
        title=title,
        description=f"95 % within {format_short_duration(slowest)} in the slowest column." if slowest else "No data.",
        legend=(("p50", "half within"), ("p95", "95 % within")),
        top=format_short_duration(top),
        drawing=_line("p95", p95s, top) + _line("p50", medians, top),
        column_texts=[
            f"half within {format_short_duration(median)}, 95 % within {format_short_duration(p95)}"
            for median, p95 in zip(medians, p95s, strict=True)
        ],
    )


_CHART_TEMPLATE = """<figure class="chart" id="{name}"><figcaption><b>{title}</b>{legend}</figcaption>
<p class="scale" aria-hidden="true"><span>{top}</span><span>0</span></p>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-labelledby="{name}-t {name}-d">
<title id="{name}-t">{title}</title><desc id="{name}-d">{description}</desc>
<path class="grid" d="M0 .5H{width}M0 50H{width}M0 99.5H{width}"/>{drawing}{lines}
<g class="tooltips">{tooltips}</g></svg>
<p class="times" aria-hidden="true">{times}</p></figure>"""


def _figure(
    name: str,
    slots: Slots,
    versions: Versions,
    legend: Sequence[tuple[str, str]],
    column_texts: Sequence[str],
    **frame_fields: str,
) -> Markup:
    """Draw a chart.

    ``legend``: classes and their labels. ``column_texts``: one per column. ``frame_fields``: other fields of the
    template.
    """
    since = slots[0].start
    step = slots[1].start - since if len(slots) > 1 else timedelta(minutes=1)
    until = slots[-1].start + step
    visible = sorted(
        ((version.since - since) // step, version.version, version.since)
        for version in versions
        if since <= version.since < until
    )
    version_labels = [("mark", version) for _, version, _ in visible[-MAX_NAMED_VERSIONS:]]
    if len(visible) > MAX_NAMED_VERSIONS:
        version_labels.append(("mark", f"and {len(visible) - MAX_NAMED_VERSIONS:,} before"))
    axis_times = [since, slots[len(slots) // 2].start, until] if len(slots) > 2 else [since, until]
    label = Markup(' <bdi class="key {}">{}</bdi>')
    return Markup(_CHART_TEMPLATE).format(
        name=name,
        legend=EMPTY_MARKUP.join(label.format(css_class, text) for css_class, text in (*legend, *version_labels)),
        width=len(slots),
        height=CHART_HEIGHT,
        lines=EMPTY_MARKUP.join(_version_lines(visible, since, step)),
        tooltips=EMPTY_MARKUP.join(_tooltips(slots, column_texts)),
        times=EMPTY_MARKUP.join(_time(time, until - since) for time in axis_times),
        **frame_fields,
    )


def _version_lines(versions: Sequence[tuple[int, str, datetime]], since: datetime, step: timedelta) -> Iterator[Markup]:
    """Yield a line for each column with versions. Its title names the first one."""
    line = Markup('<path class="mark" d="M{:.2f} 0V100"><title>{}: {}{}</title></path>')
    for _, ((_, version, time), *others) in groupby(versions, lambda item: item[0]):
        more = f", and {len(others)} more" if others else ""
        yield line.format((time - since) / step, shorten(version, 36), format_time(time), more)


def _tooltips(slots: Slots, column_texts: Sequence[str]) -> Iterator[Markup]:
    rect = Markup('<rect x="{}" width="1" height="100"><title>{:%H:%M}Z: {}</title></rect>')
    for number, (slot, text) in enumerate(zip(slots, column_texts, strict=True)):
        if slot.tally is not None:
            yield rect.format(number, slot.start.astimezone(UTC), text)


def _time(time: datetime, chart_span: timedelta) -> Markup:
    """Return a time of the axis, which the script shows in local time."""
    utc = time.astimezone(UTC)
    if chart_span > timedelta(days=2):
        time_format, text = "day", f"{utc:%d %b}"
    else:
        time_format, text = "clock", f"{utc:%H:%M}Z"
    return Markup('<time datetime="{}" data-as="{}">{}</time>').format(format_iso_time(time), time_format, text)


def _outcomes(slots: Iterable[Slot]) -> tuple[list[int], list[int], int]:
    """Return the succeeded and failed attempts by column, and the maximum of ended attempts in a column."""
    tallies = [slot.tally or OutcomeCounts() for slot in slots]
    bad = [tally.errors for tally in tallies]
    good = [tally.ended - failed for tally, failed in zip(tallies, bad, strict=True)]
    return good, bad, max((tally.ended for tally in tallies), default=0)


def _stack(good: Sequence[int], bad: Sequence[int], top: float) -> Markup:
    return _bars("ok", [0 for _ in good], good, top) + _bars("bad", good, bad, top)


def _bars(css_class: str, below: Sequence[int], values: Sequence[int], top: float) -> Markup:
    """Draw each bar as a stroke. It is at least two units high, so that small values stay visible."""
    strokes = []
    for number, (under, value) in enumerate(zip(below, values, strict=True)):
        if value:
            height = min(max(CHART_HEIGHT * value / top, 2), CHART_HEIGHT)
            foot = max(CHART_HEIGHT - CHART_HEIGHT * under / top, height)
            strokes.append(f"M{number}.5 {foot:.3g}v-{height:.3g}")
    return Markup(f'<path class="{css_class}" d="{"".join(strokes)}"/>') if strokes else EMPTY_MARKUP


def _line(css_class: str, values: Sequence[float | None], top: float) -> Markup:
    """Draw a line. A column without a value is a gap; a value between gaps is a dot."""
    strokes = []
    for has_value, stretch in groupby(enumerate(values), lambda point: point[1] is not None):
        if not has_value:
            continue
        points = [f"{x + 0.5:g} {CHART_HEIGHT * (1 - min((value or 0) / top, 1)):.4g}" for x, value in stretch]
        strokes.append("M" + "L".join(points if len(points) > 1 else points * 2))
    return Markup(f'<path class="{css_class}" d="{"".join(strokes)}"/>') if strokes else EMPTY_MARKUP


def _scale_end(value: float, min_value: float) -> float:
    """Return the end of a scale: the next of 1, 2, 3, 5, 10, 20, …."""
    size = 10.0 ** floor(log10(max(value, min_value)))
    return next(size * step for step in (1, 2, 3, 5, 10, 20) if size * step >= value)
