"""Pages on a terminal, which replace each other. In other outputs they follow each other."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

import click

from stowhand.observe.safe_text import fit

CURSOR_HOME = "\x1b[H"
CLEAR_LINE = "\x1b[K"
CLEAR_SCREEN = "\x1b[J"


def output_width() -> int | None:
    """Return the width of the terminal, or of ``COLUMNS``, also in a pipe. ``None`` means unlimited."""
    columns = os.environ.get("COLUMNS", "")
    is_known = sys.stdout.isatty() or (columns.isdecimal() and int(columns) > 0)
    return shutil.get_terminal_size().columns if is_known else None


class Screen:
    """Shows pages. On a terminal each page is cut to size and replaces the page before."""

    def __init__(self) -> None:
        self._shown_pages = 0

    def show(self, lines: Sequence[str]) -> None:
        """Show the next page."""
        if sys.stdout.isatty():
            start = CURSOR_HOME if self._shown_pages else CURSOR_HOME + CLEAR_SCREEN
            size = shutil.get_terminal_size()
            fitted = [fit(line, size.columns) for line in lines[: size.lines - 1]]
            click.echo(start + "".join(f"{line}{CLEAR_LINE}\n" for line in fitted) + CLEAR_SCREEN, nl=False)
        else:
            click.echo("\n".join([*([""] if self._shown_pages else []), *lines]))
        self._shown_pages += 1
