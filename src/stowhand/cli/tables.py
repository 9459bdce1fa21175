"""Small tables: a heading over each column, as wide as its widest cell. Everything in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stowhand.observe.safe_text import columns, escape, fit

WIDEST = 60
"""Columns for one cell, at most; the last column of a table is never cut."""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned lines, the headings first; two spaces between columns."""
    shown = [list(headings), *([escape(cell) for cell in row] for row in rows)]
    lines = [[*(fit(cell, WIDEST) for cell in line[:-1]), line[-1]] for line in shown]
    widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(_padded(cell, wide) for cell, wide in zip(line, widths, strict=True)).rstrip() for line in lines]


def _padded(cell: str, wide: int) -> str:
    return cell + " " * (wide - columns(cell))
