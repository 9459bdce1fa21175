"""The line of the application that declares something, for its error messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stowhand.errors import ConfigurationError, DuplicateTask

_OWN_PACKAGE = "stowhand"


@contextmanager
def declaration_errors() -> Iterator[None]:
    """Prefix errors of a declaration with its line: ``shop/mail.py:12: task 'send': timeout …``."""
    try:
        yield
    except (ConfigurationError, DuplicateTask) as error:
        site = _line()
        raise type(error)("\n".join(f"{site}{line}" for line in str(error).splitlines())) from error.__cause__


def _line() -> str:
    """Return ``shop/mail.py:12: ``, relative to the current folder if below it; empty if there is no file."""
    frame = sys._getframe(1)  # noqa: SLF001 - as logging and warnings find their callers
    while frame.f_globals.get("__name__", "").split(".")[0] in (_OWN_PACKAGE, "contextlib"):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    file, folder = frame.f_code.co_filename, os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - text, maybe no path
    return f"{file.removeprefix(folder)}:{frame.f_lineno}: "
