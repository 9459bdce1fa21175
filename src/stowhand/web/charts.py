"""Charts: numbers in, SVG out. Pure; colours and widths are the stylesheet's.

The drawing is stretched to the width that there is, so its words stand around it, as HTML. Whatever is said of a moment
is in a ``title``, for the pointer and for who listens to the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, floor, log10

import msgspec
from markupsafe import Markup

from stowhand.jobs.moments import iso, say, say_brief
from stowhand.protocols.throughput import Period, Tally, total

HEIGHT = 100
SPOKEN = 200
"""Columns of which each says its numbers to the pointer; a chart of more is drawn without."""
_ROUND = (60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400, 172_800, 432_000)
"""Seconds at which a scale of more than half a minute may end."""


class Slot(msgspec.Struct, frozen=True):
    """A span of time, and what was counted in it; ``None``: nothing was."""

    at: datetime
    tally: Tally | None = None


class Mark(msgspec.Struct, frozen=True):
    """A moment worth a line across the chart."""

    at: datetime
    label: str


def slots_of(periods: Iterable[Period], since: datetime, until: datetime, step: float) -> list[Slot]:
    """One for each ``step`` seconds from ``since`` until before ``until``, all tasks together."""
    found: defaultdict[int, list[Period]] = defaultdict(list)
    for period in periods:
        found[floor((period.at - since).total_seconds() / step)].append(period)
    count = max(ceil((until - since).total_seconds() / step), 1)
    return [
        Slot(since + timedelta(seconds=number * step), total(found[number]) if number in found else None)
        for number in range(count)
    ]


def throughput(name: str, slots: Sequence[Slot], marks: Sequence[Mark] = ()) -> Markup:
    """Attempts that ended, as bars; on top of the others those that failed, for good or to be tried again."""
    fine, bad = _fine_and_bad(slots)
    top = _nice(max(map(sum, zip(fine, bad, strict=True)), default=0))
    return _figure(
        name,
        _Chart(
            title="Throughput",
            words=f"{sum(fine):,} attempts ended well, {sum(bad):,} failed.",
            keys=(("ok", "ended well"), ("bad", "failed")),
            top=_count(top),
            drawn=_stack(fine, bad, top),
            said=[f"{one:,} ended well, {other:,} failed" for one, other in zip(fine, bad, strict=True)],
        ),
        slots,
        marks,
    )


def waits(name: str, slots: Sequence[Slot], marks: Sequence[Mark] = ()) -> Markup:
    """How long jobs were due before they were claimed: a line that half of them, and one that 95 of 100, stay below."""
    return _figure(name, _durations("Wait", slots, Tally.wait), slots, marks)


def runs(name: str, slots: Sequence[Slot], marks: Sequence[Mark] = ()) -> Markup:
    """How long handlers took, likewise."""
    return _figure(name, _durations("Run time", slots, Tally.run), slots, marks)


def spark(slots: Sequence[Slot], words: str) -> Markup:
    """Throughput for a cell of a table. ``words``: what it is, for who listens."""
    fine, bad = _fine_and_bad(slots)
    drawn = _stack(fine, bad, max(map(sum, zip(fine, bad, strict=True)), default=0) or 1)
    frame = '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    return Markup(frame).format(len(slots), HEIGHT, words, drawn)


class _Chart(msgspec.Struct, frozen=True, kw_only=True):
    """``said``: of each column. ``top``: where the scale ends. ``keys``: classes of the stylesheet, and their names."""

    title: str
    words: str
    keys: Sequence[tuple[str, str]]
    top: str
    drawn: Markup
    said: Sequence[str]


def _durations(title: str, slots: Sequence[Slot], of: Callable[[Tally, float], float | None]) -> _Chart:
    half, most = ([None if slot.tally is None else of(slot.tally, share) for slot in slots] for share in (0.5, 0.95))
    known = [value for value in most if value is not None]
    top = _nice_duration(max(known, default=0.0))
    both = zip(half, most, strict=True)
    return _Chart(
        title=title,
        words=f"95 of 100 within {say_brief(max(known))} at the slowest." if known else "Nothing was counted.",
        keys=(("p50", "half within"), ("p95", "95 % within")),
        top=say_brief(top),
        drawn=_joined([_area(half, most, top), _line("p95", most, top), _line("p50", half, top)]),
        said=[f"half within {say_brief(one)}, 95 % within {say_brief(other)}" for one, other in both],
    )


_FRAME = """<figure class="chart" id="{name}"><figcaption><b>{title}</b>{keys}</figcaption>
<p class="scale" aria-hidden="true"><span>{top}</span><span>0</span></p>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-labelledby="{name}-t {name}-d">
<title id="{name}-t">{title}</title><desc id="{name}-d">{words}</desc>
<path class="grid" d="M0 .5H{width}M0 50H{width}M0 99.5H{width}"/>{drawn}{lines}<g class="spoken">{spoken}</g></svg>
<p class="times" aria-hidden="true">{times}</p></figure>"""


def _figure(name: str, chart: _Chart, slots: Sequence[Slot], marks: Sequence[Mark]) -> Markup:
    since = slots[0].at
    step = slots[1].at - since if len(slots) > 1 else timedelta(minutes=1)
    until = slots[-1].at + step
    here = [mark for mark in marks if since <= mark.at < until]
    ends = [since, slots[len(slots) // 2].at, until] if len(slots) > 2 else [since, until]
    return Markup(_FRAME).format(
        name=name,
        title=chart.title,
        words=chart.words,
        keys=_keys([*chart.keys, *(("mark", mark.label) for mark in here)]),
        top=chart.top,
        width=len(slots),
        height=HEIGHT,
        drawn=chart.drawn,
        lines=_joined(_line_across((mark.at - since) / step, mark) for mark in here),
        spoken=_joined(_spoken(slots, chart.said)),
        times=_joined(_time(at, until - since) for at in ends),
    )


def _keys(named: Iterable[tuple[str, str]]) -> Markup:
    return _joined(Markup(' <span class="key {}">{}</span>').format(style, name) for style, name in named)


def _line_across(x: float, mark: Mark) -> Markup:
    line = '<path class="mark" d="M{:.2f} 0V{}"><title>{}: {}</title></path>'
    return Markup(line).format(x, HEIGHT, mark.label, say(mark.at))


def _spoken(slots: Sequence[Slot], said: Sequence[str]) -> Iterator[Markup]:
    if len(slots) > SPOKEN:
        return
    for number, (slot, words) in enumerate(zip(slots, said, strict=True)):
        if slot.tally is not None:
            rect = '<rect x="{}" width="1" height="100"><title>{:%H:%M}Z: {}</title></rect>'
            yield Markup(rect).format(number, slot.at.astimezone(UTC), words)


def _time(at: datetime, width: timedelta) -> Markup:
    """The script says it in local time."""
    days = width > timedelta(days=2)
    form, shown = ("day", f"{at.astimezone(UTC):%d %b}") if days else ("clock", f"{at.astimezone(UTC):%H:%M}Z")
    return Markup('<time datetime="{}" data-as="{}">{}</time>').format(iso(at), form, shown)


def _fine_and_bad(slots: Iterable[Slot]) -> tuple[list[int], list[int]]:
    tallies = [slot.tally or Tally() for slot in slots]
    bad = [tally.failures + tally.retry for tally in tallies]
    return [tally.ended - failed for tally, failed in zip(tallies, bad, strict=True)], bad


def _stack(fine: Sequence[int], bad: Sequence[int], top: float) -> Markup:
    return _bars("ok", [0] * len(fine), fine, top) + _bars("bad", fine, bad, top)


def _bars(style: str, below: Sequence[int], values: Sequence[int], top: float) -> Markup:
    """What is there is seen: a bar is two of a hundred high at least."""
    drawn = []
    for number, (under, value) in enumerate(zip(below, values, strict=True)):
        if value:
            base = HEIGHT * under / top
            height = min(max(HEIGHT * value / top, 2), HEIGHT)
            foot = max(HEIGHT - base, height)
            drawn.append(f"M{number}.1 {foot:.4g}v-{height:.4g}h.8v{height:.4g}z")
    return Markup('<path class="{}" d="{}"/>').format(style, "".join(drawn)) if drawn else Markup("")


def _line(style: str, values: Sequence[float | None], top: float) -> Markup:
    """A column without a value is a gap; a value between gaps is a dot."""
    drawn = []
    for stretch in _stretches(values):
        points = [f"{number + 0.5:g} {_y(value, top)}" for number, value in stretch]
        drawn.append("M" + "L".join(points if len(points) > 1 else points * 2))
    return Markup('<path class="{}" d="{}"/>').format(style, "".join(drawn)) if drawn else Markup("")


def _area(below: Sequence[float | None], above: Sequence[float | None], top: float) -> Markup:
    drawn = []
    for stretch in _stretches(above):
        there = [f"{number + 0.5:g} {_y(value, top)}" for number, value in stretch]
        back = [f"{number + 0.5:g} {_y(below[number] or 0, top)}" for number, _ in reversed(stretch)]
        drawn.append(f"M{'L'.join(there + back)}z")
    return Markup('<path class="between" d="{}"/>').format("".join(drawn)) if drawn else Markup("")


def _stretches(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Runs of columns that have a value."""
    found: list[list[tuple[int, float]]] = []
    for number, value in enumerate(values):
        if value is None:
            continue
        if not found or found[-1][-1][0] != number - 1:
            found.append([])
        found[-1].append((number, value))
    return found


def _y(value: float, top: float) -> str:
    return f"{HEIGHT * (1 - min(value / top, 1)):.4g}"


def _nice(value: float) -> int:
    """The next of 1, 2, 3, 5, 10, 20, …: where a scale ends."""
    if value <= 1:
        return 1
    size = 10 ** floor(log10(value))
    return int(next(size * step for step in (1, 2, 3, 5, 10) if size * step >= value))


def _nice_duration(value: float) -> float:
    if value > _ROUND[0] / 2:
        return next((one for one in _ROUND if one >= value), value)
    size = 10.0 ** floor(log10(max(value, 0.001)))
    return next(size * step for step in (1, 2, 3, 5, 10) if size * step >= value * 0.999)


def _count(number: int) -> str:
    return (
        f"{number / 1_000_000:g}M" if number >= 1_000_000 else f"{number / 1000:g}k" if number >= 1000 else str(number)
    )


def _joined(pieces: Iterable[Markup]) -> Markup:
    return Markup("").join(pieces)
