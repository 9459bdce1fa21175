"""What stands in a claim for a record that could not be made of its row."""

from __future__ import annotations

import msgspec


class Unreadable(msgspec.Struct, frozen=True):
    """The attempt fails with it: "the record could not be read: …". Other records of the claim are not concerned."""

    error: str
    """Why; one line, safe to store."""
