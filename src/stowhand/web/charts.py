"""Charts: numbers in, SVG out. Pure; colours and widths are the stylesheet's.

The drawing is stretched to the width that there is, so its words stand around it, as HTML. Whatever is said of a moment
is in a ``title``, for the pointer and for who listens to the page.
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
"""Moments worth a line across the chart: one in a column. Its head names the last ``NAMED``."""


def throughput(name: str, slots: Slots, marks: Marks = ()) -> Markup:
    """Attempts that ended, as bars; on top of the others those that failed, for good or to be tried again."""
    good, bad, most = _outcomes(slots)
    top = _scale_end(most, least=1)
    return _figure(
        name,
        slots,
        marks,
        title="Throughput",
        words=f"{sum(good):,} attempts succeeded, {sum(bad):,} failed.",
        keys=(("ok", "succeeded"), ("bad", "failed")),
        top=f"{top:,.0f}",
        drawn=_stack(good, bad, top),
        texts=[f"{one:,} succeeded, {other:,} failed" for one, other in zip(good, bad, strict=True)],
    )


def spark(slots: Slots) -> Markup:
    """Throughput for a cell of a table, beside cells that say it in numbers."""
    good, bad, most = _outcomes(slots)
    frame = '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    return Markup(frame).format(len(slots), CHART_HEIGHT, _stack(good, bad, most or 1))


def durations(
    name: str, title: str, slots: Slots, of: Callable[[OutcomeCounts, float], float | None], marks: Marks = ()
) -> Markup:
    """How long something took: a line below which half stayed, and one below which 95 of 100 did."""
    half, most = ([None if slot.tally is None else of(slot.tally, share) for slot in slots] for share in (0.5, 0.95))
    slowest = max((value for value in most if value is not None), default=None)
    top = _scale_end(slowest or 0, least=0.001)
    return _figure(
        name,
        slots,
        marks,
        title=title,
        words=f"95 of 100 within {format_short_duration(slowest)} at the slowest." if slowest else "No data.",
        keys=(("p50", "half within"), ("p95", "95 % within")),
        top=format_short_duration(top),
        drawn=_line("p95", most, top) + _line("p50", half, top),
        texts=[
            f"half within {format_short_duration(x)}, 95 % within {format_short_duration(y)}"
            for x, y in zip(half, most, strict=True)
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
    """``keys``: classes, with what they are called. ``said``: of each column. ``shown``: what the frame names."""
    since = slots[0].start
    step = slots[1].start - since if len(slots) > 1 else timedelta(minutes=1)
    until = slots[-1].start + step
    visible_marks = sorted(
        ((one.since - since) // step, one.version, one.since) for one in marks if since <= one.since < until
    )
    labels = [name for _, name, _ in visible_marks[-MAX_NAMED_VERSIONS:]]
    if len(visible_marks) > MAX_NAMED_VERSIONS:
        labels.append(f"and {len(visible_marks) - MAX_NAMED_VERSIONS:,} before")
    ends = [since, slots[len(slots) // 2].start, until] if len(slots) > 2 else [since, until]
    key = Markup(' <bdi class="key {}">{}</bdi>')
    line = Markup('<path class="mark" d="M{:.2f} 0V100"><title>{}: {}{}</title></path>')
    return Markup(_FRAME).format(
        name=name,
        keys=EMPTY.join(key.format(*one) for one in (*keys, *(("mark", name) for name in labels))),
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
    """The script says it in local time."""
    days = width > timedelta(days=2)
    form, shown = ("day", f"{at.astimezone(UTC):%d %b}") if days else ("clock", f"{at.astimezone(UTC):%H:%M}Z")
    return Markup('<time datetime="{}" data-as="{}">{}</time>').format(format_iso_time(at), form, shown)


def _outcomes(slots: Iterable[Slot]) -> tuple[list[int], list[int], int]:
    """What ended well, what failed, and the most of both in one column."""
    tallies = [slot.tally or OutcomeCounts() for slot in slots]
    bad = [tally.errors for tally in tallies]
    good = [tally.ended - failed for tally, failed in zip(tallies, bad, strict=True)]
    return good, bad, max((tally.ended for tally in tallies), default=0)


def _stack(good: Sequence[int], bad: Sequence[int], top: float) -> Markup:
    return _bars("ok", [0] * len(good), good, top) + _bars("bad", good, bad, top)


def _bars(style: str, below: Sequence[int], values: Sequence[int], top: float) -> Markup:
    """Each is a stroke. What is there is seen: it is two of a hundred high at least."""
    drawn = []
    for number, (under, value) in enumerate(zip(below, values, strict=True)):
        if value:
            height = min(max(CHART_HEIGHT * value / top, 2), CHART_HEIGHT)
            foot = max(CHART_HEIGHT - CHART_HEIGHT * under / top, height)
            drawn.append(f"M{number}.5 {foot:.3g}v-{height:.3g}")
    return Markup(f'<path class="{style}" d="{"".join(drawn)}"/>') if drawn else EMPTY


def _line(style: str, values: Sequence[float | None], top: float) -> Markup:
    """A column without a value is a gap; a value between gaps is a dot."""
    drawn = []
    for is_known, stretch in groupby(enumerate(values), lambda one: one[1] is not None):
        points = [f"{at + 0.5:g} {CHART_HEIGHT * (1 - min((value or 0) / top, 1)):.4g}" for at, value in stretch]
        drawn += ["M" + "L".join(points if len(points) > 1 else points * 2)] if is_known else []
    return Markup(f'<path class="{style}" d="{"".join(drawn)}"/>') if drawn else EMPTY


def _scale_end(value: float, least: float) -> float:
    """The next of 1, 2, 3, 5, 10, 20, …: where a scale ends."""
    size = 10.0 ** floor(log10(max(value, least)))
    return next(size * step for step in (1, 2, 3, 5, 10, 20) if size * step >= value)
