"""What stands in a claim for a record that could not be made of its row."""

from __future__ import annotations

import msgspec


class Unreadable(msgspec.Struct, frozen=True):
    """An error of the attempt, retried by the rules: "the record could not be read: …". For row and view may be mended,
    and another version of the program may be able to read it. Other records of the claim are not concerned."""

    error: str
    """Why; one line, safe to store."""
