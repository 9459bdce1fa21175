"""Small tables, a heading over each column, as wide as its widest cell; and pages, a line for each field. Everything in
them is escaped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from stowhand.cli.moments import say
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
) -> list[str]:
    """Aligned lines, the headings first; two spaces between columns.

    ``right``: headings of columns that end in line. ``squeezed``: of those that give way where ``width`` is too small.
    """
    shown = [list(headings), *([escape(cell) for cell in row] for row in rows)]
    lines = [[*(fit(cell, WIDEST) for cell in line[:-1]), line[-1]] for line in shown]
    widths = {head: max(map(columns, column)) for head, column in zip(headings, zip(*lines, strict=True), strict=True)}
    if width is not None and squeezed:
        _squeeze(widths, squeezed, width)
    return ["  ".join(_cells(line, widths, right, squeezed)).rstrip() for line in lines]


def _squeeze(widths: dict[str, int], squeezed: Collection[str], width: int) -> None:
    """Take from the widest, a column at a time, until all fit or nothing more can give way."""
    while sum(widths.values()) + 2 * (len(widths) - 1) > width:
        longest = max(squeezed, key=widths.__getitem__)
        if widths[longest] <= LEAST:
            return
        widths[longest] -= 1


def _cells(
    line: Sequence[str], widths: dict[str, int], right: Collection[str], squeezed: Collection[str]
) -> Iterable[str]:
    for cell, (head, wide) in zip(line, widths.items(), strict=True):
        text = fit(cell, wide) if head in squeezed else cell
        gap = " " * (wide - columns(text))
        yield gap + text if head in right else text + gap


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
