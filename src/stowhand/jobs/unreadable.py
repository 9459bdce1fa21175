"""The record of a claim whose row could not be read."""

from __future__ import annotations

import msgspec


class Unreadable(msgspec.Struct, frozen=True):
    """An error of the attempt, retried by the rules: "the record could not be read: …". The row or the view
    may be repaired, and another version of the program may be able to read it. Other records of the claim are not
    affected."""

    error: str
    """Why; one line, safe to store."""
