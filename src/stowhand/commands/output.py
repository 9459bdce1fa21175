"""The redacted output of one step, of which the end is kept."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from stowhand.commands.redaction import Redactor
from stowhand.jobs.execution_log import MAX_OUTPUT_BYTES
from stowhand.jobs.text import clean
from stowhand.tasks.program import OutputReader

MAX_ERROR_LINES = 20
"""Maximum number of output lines in the error of a failed command."""
MAX_ERROR_BYTES = 4 * 1024
"""Maximum size of the output in that error."""
_MAX_KEPT_BYTES = MAX_OUTPUT_BYTES + 16
"""A few bytes more than are stored, so that the log shows that output was cut."""


class Output:
    """An ``OutputReader`` that redacts the output and keeps its end. ``on_change`` is called after each addition."""

    def __init__(self, redactor: Redactor, on_change: Callable[[], None] = lambda: None) -> None:
        self._redactor = redactor
        self._stream = redactor.stream()
        self._kept = bytearray()
        self._on_change = on_change
        self._has_ended = False
        self._second_reader: OutputReader | None = None

    def attach(self, reader: OutputReader) -> None:
        """Pass the output on to a second reader, as it arrives."""
        self._second_reader = reader

    def feed(self, data: bytes) -> None:
        """Add output."""
        self._keep(self._stream.feed(data))

    def end(self) -> None:
        """End the program's output. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            self._keep(self._stream.end())
            if self._second_reader is not None:
                self._second_reader.end()

    def add_line(self, line: str) -> None:
        """Add a line about the program after its output."""
        self.end()
        if self._kept and not self._kept.endswith(b"\n"):
            self._keep(b"\n")
        self._keep(clean(self._redactor.text(line)).encode() + b"\n")

    @property
    def text(self) -> str:
        """The end of the output. Invalid UTF-8 becomes U+FFFD. An incomplete last character is omitted."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(
            bytes(self._kept[-_MAX_KEPT_BYTES:]), self._has_ended
        )

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the output, for an error."""
        text = self._kept[-MAX_ERROR_BYTES:].decode("utf-8", "replace")
        lines = [clean(line.rstrip()) for line in text.splitlines() if line.strip()]
        return lines[-MAX_ERROR_LINES:]

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._kept += data
        if len(self._kept) > 2 * _MAX_KEPT_BYTES:
            del self._kept[:-_MAX_KEPT_BYTES]
        if self._second_reader is not None:
            self._second_reader.feed(data)
        self._on_change()
