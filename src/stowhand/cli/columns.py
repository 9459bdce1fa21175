"""Views as lists of columns: printed as a table, as a page with one line per field, or as JSON.

Text is escaped, so that no value can control the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Generic, TypeVar

import click
import msgspec

from stowhand.cli.screen import output_width
from stowhand.jobs.durations import format_iso_time, format_time
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import columns as width_of
from stowhand.observe.safe_text import escape, escape_lines, fit, summary_line
from stowhand.protocols.counts import BoundedCount

T = TypeVar("T")

MAX_CELL_WIDTH = 60
"""Maximum width of a cell, except in the last column."""
MIN_SHRUNK_WIDTH = 8


class Column(msgspec.Struct, Generic[T], frozen=True):
    """One field of a view of ``T``."""

    key: str = ""
    """Name in JSON, and on a page with spaces for underscores. Empty: shown in tables only."""
    heading: str = ""
    """Heading in a table. Empty: not shown in tables."""
    value: Callable[[T], Any] | None = None
    """Function that returns the value for JSON; by default the attribute ``key``."""
    text: Callable[[T], str] | None = None
    """Function that returns the text of tables and pages; by default the formatted value."""
    is_right_aligned: bool = False
    """Whether cells are aligned to the right."""
    can_shrink: bool = False
    """Whether cells are cut when the table is wider than the terminal."""
    is_multiline: bool = False
    """Whether the text has line breaks: a page keeps them, a table shows the most informative line."""
    colors: Mapping[str, str] = {}
    """Color by text, for tables on a terminal."""

    def value_of(self, row: T) -> Any:
        """Return the value for JSON."""
        return attrgetter(self.key)(row) if self.value is None else self.value(row)

    def text_of(self, row: T) -> str:
        """Return the text for tables and pages; ``-`` if there is none."""
        text = _value_text(self.value_of(row)) if self.text is None else self.text(row)
        return text or "-"

    def cell_of(self, row: T) -> str:
        """Return the text on one line."""
        text = self.text_of(row)
        return escape(summary_line(text) if self.is_multiline else text)


def table(columns: Sequence[Column[T]], rows: Iterable[T]) -> list[str]:
    """Return aligned lines, headings first. Columns that can shrink are cut to fit the terminal."""
    visible = [column for column in columns if column.heading]
    cells = [[column.heading for column in visible], *([column.cell_of(row) for column in visible] for row in rows)]
    cells = [[*(fit(cell, MAX_CELL_WIDTH) for cell in line[:-1]), line[-1]] for line in cells]
    widths = _shrunk_widths(visible, [max(map(width_of, column)) for column in zip(*cells, strict=True)])
    has_color = wants_color(sys.stdout)

    def aligned(column: Column[T], cell: str, width: int) -> str:
        text = fit(cell, width) if column.can_shrink else cell
        gap = " " * (width - width_of(text))
        if has_color and text in column.colors:
            text = click.style(text, fg=column.colors[text])
        return gap + text if column.is_right_aligned else text + gap

    return ["  ".join(map(aligned, visible, line, widths)).rstrip() for line in cells]


def _shrunk_widths(columns: Sequence[Column[T]], widths: list[int]) -> list[int]:
    """Shrink the widest column that can shrink until all fit or none can shrink further."""
    width = output_width()
    min_widths = {
        index: max(MIN_SHRUNK_WIDTH, len(column.heading)) for index, column in enumerate(columns) if column.can_shrink
    }
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        shrinkable = [index for index, floor in min_widths.items() if widths[index] > floor]
        if not shrinkable:
            break
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return widths


def page(columns: Sequence[Column[T]], row: T) -> str:
    """Return a line for each field that has a key."""
    visible = [column for column in columns if column.key]
    width = max(len(column.key) for column in visible) + 2
    lines = []
    for column in visible:
        text = column.text_of(row)
        name = column.key.replace("_", " ")
        lines.append(f"{name:<{width}}{escape_lines(text) if column.is_multiline else escape(text)}".rstrip())
    return "\n".join(lines)


def fields(columns: Sequence[Column[T]], row: T) -> dict[str, Any]:
    """Return a row as an object for JSON. ``more_than`` names the amounts that are lower bounds."""
    values = {column.key: column.value_of(row) for column in columns if column.key}
    bounded = [key for key, value in values.items() if isinstance(value, BoundedCount) and value.is_lower_bound]
    if bounded:
        values["more_than"] = bounded
    return values


def json_line(value: Any) -> str:
    """Return one line of JSON, in ASCII, so that it can be printed to a terminal."""
    return json.dumps(value, default=_json_value)


def _json_value(value: object) -> Any:
    match value:
        case datetime():
            return format_iso_time(value)
        case BoundedCount():
            return value.number
        case _:
            return msgspec.structs.asdict(value)  # type: ignore[arg-type]


def _value_text(value: object) -> str:
    match value:
        case datetime():
            return format_time(value)
        case bool():
            return "yes" if value else "no"
        case tuple() | list():
            return ", ".join(map(str, value))
        case None:
            return ""
        case _:
            return str(value)
