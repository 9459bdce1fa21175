"""Text that is safe to show: user strings cannot forge a log line, control a terminal or leak a password."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_ALLOWED_CHARS = frozenset("\u200c\u200d\u00a0\u202f\u3000")
"""Joiners and wide spaces: not printable by Python's rules, but harmless and part of ordinary text."""
_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):(\S*)@")
# The closing bracket of a list of pairs, `(user=a, password=b)`, is not part of the last value.
_IN_PAIR = re.compile(r"(?i)\b(\w*passw(?:or)?d)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&;'\"]+?(?=[),\]}]*(?:[\s&;'\"]|$)))")
HIDDEN_TEXT = "***"
_SECRET_NAME = re.compile(
    r"(?i)(?:passw(?:or)?d|passphrase|pwd|secret|token|authorization|credentials?"
    r"|(?:api|access|encryption|private|secret|signing)[-_ ]?key)$"
)
"""Matches names of fields whose values are secrets."""


def escape(text: str) -> str:
    """Return the text on one line, with control characters, escapes and text-direction marks made visible."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _ALLOWED_CHARS else _visible(char) for char in text)


def escape_lines(text: str, indent: str = "    ") -> str:
    """Escape the text but keep line breaks. Further lines are indented, so that none can pass for a log line."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return f"\n{indent}".join(escape(line.replace("\t", "    ")) for line in lines)


def scrub(text: str) -> str:
    """Return the text without passwords in URLs and in ``password=…`` pairs."""
    if "://" in text:
        text = _IN_URL.sub(r"\1:***@", text)
    if "passw" in text.lower():
        text = _IN_PAIR.sub(r"\1\2***", text)
    return text


def redact(value: Any, depth: int = 20) -> Any:
    """Return a value without secrets, found by their names or inside texts. Values deeper than ``depth`` are cut."""
    if isinstance(value, str):
        return scrub(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth == 0:
        return "[...]"
    if isinstance(value, dict):
        return {name: HIDDEN_TEXT if is_secret(name) else redact(item, depth - 1) for name, item in value.items()}
    return [redact(item, depth - 1) for item in value]


def restored(edited: Any, original: Any) -> Any:
    """Return an edited ``redact(original)`` with the hidden values restored.

    Raises KeyError with the name of a secret without original, or with a text that was changed around one.
    """
    match edited, original:
        case str(), str() if edited == redact(original):
            return original
        case str(), _ if _has_hidden(edited) and not _has_hidden(str(original)):
            raise KeyError(shorten(edited, 100))
        case list(), list() if len(edited) == len(original):
            return [restored(value, original_value) for value, original_value in zip(edited, original, strict=True)]
        case list(), _:
            return [restored(value, None) for value in edited]
        case dict(), _:
            originals = original if isinstance(original, dict) else {}
            return {
                name: originals[name]
                if value == HIDDEN_TEXT and is_secret(name)
                else restored(value, originals.get(name))
                for name, value in edited.items()
            }
    return edited


def _has_hidden(text: str) -> bool:
    """Return whether the text has ``***`` in the place of a password."""
    passwords = [match[2] for match in _IN_URL.finditer(text)] + [match[3] for match in _IN_PAIR.finditer(text)]
    return HIDDEN_TEXT in passwords


def is_secret(name: object) -> bool:
    """Return whether values of this name are secrets."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def summary_line(error: str) -> str:
    """Return the most informative line of an error: its first; of a traceback the last one that is not indented."""
    lines = [line for line in error.splitlines() if line.strip()]
    if not lines:
        return ""
    if not lines[0].startswith("Traceback"):
        return lines[0].strip()
    return next((line for line in reversed(lines) if not line[0].isspace()), lines[-1]).strip()


def shorten(text: str, width: int) -> str:
    """Shorten the text to ``width`` characters, with an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def columns(text: str) -> int:
    """Return the width on a terminal: East Asian characters take two columns, combining ones none."""
    return len(text) if text.isascii() else sum(map(_char_columns, text))


def _char_columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, width: int) -> str:
    """Shorten the text to ``width`` columns, with an ellipsis where it was cut."""
    if columns(text) <= width:
        return text
    while text and columns(text) >= width:
        text = text[: max(len(text) - max((columns(text) - width) // 2, 1), 0)]
    return text + "…"


def _visible(char: str) -> str:
    return char.encode("unicode_escape").decode()
