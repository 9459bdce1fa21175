"""Text that is safe to store, so that no character of an error message makes the failure path fail."""

from __future__ import annotations

MAX_ERROR_BYTES = 16 * 1024
"""Maximum size of an error text, including its traceback."""


def clean(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Return ``text`` without NUL and lone surrogates, cut to ``limit`` bytes of UTF-8.

    A cut keeps both ends: the last line of a traceback names the error, and its first lines show where it began.
    """
    safe = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    raw = safe.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    mark = b"\n[...]\n"
    head = raw[: limit // 4].decode("utf-8", "ignore")
    tail = raw[len(raw) - (limit - limit // 4 - len(mark)) :].decode("utf-8", "ignore")
    return head + mark.decode() + tail
