"""What a keyed enqueue makes of the payload that waits and the new one. In SQL: functions/enqueue.sql."""

from __future__ import annotations


def appended(old: str, new: str) -> str:
    """Both arrays, one after the other, when both are arrays; else the new one. As text: no number is rounded."""
    first, second = old.strip(), new.strip()
    if not (first.startswith("[") and second.startswith("[")):
        return new
    return "[" + ",".join(filter(None, (first[1:-1].strip(), second[1:-1].strip()))) + "]"
