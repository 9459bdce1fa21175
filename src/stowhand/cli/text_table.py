"""Small tables, a heading over each column, as wide as its widest cell; and pages, a line for each field. Everything in
them is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from stowhand.jobs.moments import say
from stowhand.observe.safe_text import columns, escape, escape_lines, fit

WIDEST = 60
"""Columns for one cell, at most; the last column of a table is never cut."""
LEAST = 8
"""Columns that are left of what is squeezed."""


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    squeezed: Collection[str] = (),
    width: int | None = None,
    widest: int = WIDEST,
    rest: int | None = None,
    paint: Callable[[str, str], str] = lambda head, text: text,
) -> list[str]:
    """Aligned lines, the headings first; two spaces between columns.

    ``right``: headings of columns that end in line. ``squeezed``: of those that give way where ``width`` is too small.
    ``rest``: columns that the last one has at least; it gets what is left, and is cut. ``paint``: colours a cell of the
    column that it is given the heading of.
    """
    shown = [list(headings), *([escape(cell) for cell in row] for row in rows)]
    lines = [[*(fit(cell, widest) for cell in line[:-1]), line[-1]] for line in shown]
    widths = {head: max(map(columns, column)) for head, column in zip(headings, zip(*lines, strict=True), strict=True)}
    if rest is not None:
        widths[headings[-1]] = rest
    if width is not None and squeezed:
        _squeeze(widths, squeezed, width)
        if rest is not None:
            widths[headings[-1]] += max(width - _wide(widths), 0)

    def cells(line: Sequence[str]) -> Iterable[str]:
        for cell, (head, wide) in zip(line, widths.items(), strict=True):
            text = fit(cell, wide) if head in squeezed or rest is not None else cell
            gap = " " * (wide - columns(text))
            painted = text if line is lines[0] else paint(head, text)
            yield gap + painted if head in right else painted + gap

    return ["  ".join(cells(line)).rstrip() for line in lines]


def _wide(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _squeeze(widths: dict[str, int], squeezed: Collection[str], width: int) -> None:
    """Take from the widest, a column at a time, until all fit or nothing more can give way."""
    while _wide(widths) > width:
        longest = max(squeezed, key=widths.__getitem__)
        if widths[longest] <= LEAST:
            return
        widths[longest] -= 1


def page(fields: Mapping[str, object], width: int, whole: Collection[str]) -> str:
    """A line for each field, the names in a column of that width. ``whole``: of texts whose line breaks stay."""
    return "\n".join(
        f"{name.replace('_', ' '):<{width}}"
        f"{escape_lines(str(value)) if name in whole and value is not None else escape(_words(value))}".rstrip()
        for name, value in fields.items()
    )


def _words(value: object) -> str:
    match value:
        case datetime():
            return say(value)
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ", ".join(map(str, value)) or "-"
        case None | "":
            return "-"
        case _:
            return str(value)
