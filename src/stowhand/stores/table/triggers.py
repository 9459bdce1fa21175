"""Does a trigger of the user's set a column? Read in its text, which is never run.

What is found is a warning and no refusal: the text does not say when it sets the column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_BEGINS = r"(?:\A|;|\bbegin|\bthen|\belse|\bloop)\s*"
"""Where a statement of PL/pgSQL begins: elsewhere a plain ``=`` compares."""


def sets_column(text: str, column: str, arguments: Sequence[str] = ()) -> bool:
    """``text``: of the trigger, or of its function. ``arguments``: of a ready-made one: ``moddatetime(started_at)``."""
    if column in arguments:
        return True
    source, name = _COMMENT.sub(" ", text), rf'"?{re.escape(column)}"?'
    ways = (
        rf"\bnew\s*\.\s*{name}\s*:=",
        rf"{_BEGINS}new\s*\.\s*{name}\s*=",
        rf"\binto\s+new\s*\.\s*{name}(?!\w)",
        rf"""\[\s*["']{re.escape(column)}["']\s*\]\s*=(?!=)""",
        # A statement of its own, of another trigger that follows the update.
        rf"\bset\b[^;]*?(?<![\w.]){name}\s*=",
    )
    return any(re.search(way, source, re.IGNORECASE) for way in ways)


def said_of(trigger: str, column: str) -> str:
    """The warning."""
    return (
        f"the trigger {trigger} sets {column}, by which a claim is known. If it does so at a heartbeat too (an UPDATE"
        " of last_heartbeat_at alone), every attempt is lost at its first one: let it set the column only where the"
        " state changes, or make it BEFORE UPDATE OF state"
    )
