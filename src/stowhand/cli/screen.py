"""Pages that are shown again and again: in place on a terminal, one after the other elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

import click

from stowhand.observe.safe_text import fit

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def output_width() -> int | None:
    """Columns of what is written to: the terminal's, or as ``COLUMNS`` says, in a pipe too; ``None``: unlimited."""
    said = os.environ.get("COLUMNS", "")
    known = sys.stdout.isatty() or (said.isdecimal() and int(said) > 0)
    return shutil.get_terminal_size().columns if known else None


class Screen:
    """``in_place``: each page takes the place of the one before, cut to what the terminal has room for."""

    def __init__(self, *, in_place: bool | None = None) -> None:
        self._in_place = sys.stdout.isatty() if in_place is None else in_place
        self._pages = 0

    @property
    def width(self) -> int | None:
        """Columns that a page has; ``None``: as many as it likes."""
        return shutil.get_terminal_size().columns if self._in_place else output_width()

    def show(self, lines: Sequence[str]) -> None:
        """The next page."""
        if self._in_place:
            start = HOME if self._pages else HOME + REST_OF_SCREEN
            room = shutil.get_terminal_size()
            fitting = [fit(line, room.columns) for line in lines[: room.lines - 1]]
            click.echo(start + "".join(f"{line}{REST_OF_LINE}\n" for line in fitting) + REST_OF_SCREEN, nl=False)
        else:
            click.echo("\n".join([*([""] if self._pages else []), *lines]))
        self._pages += 1
