"""JSON texts for people: exact to the last digit, without the values of secrets, which come back when it is changed."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs.strict_json import DEPTH_LIMIT
from stowhand.observe.safe_text import HIDDEN, redact, restored

_ENCODER = msgspec.json.Encoder(decimal_format="number")


def read_exact(text: str | None) -> Any:
    """The value, with fractions as Decimal. A text that is no JSON, which SQL may have written, stands for itself."""
    if not text:
        return None
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        return text


def write_exact(value: Any) -> str:
    """What ``read_exact`` has read, as JSON."""
    return _ENCODER.encode(value).decode()


def redacted(value: Any) -> Any:
    """A value without its secrets, as deep as JSON goes here."""
    return redact(value, DEPTH_LIMIT + 1)


def redacted_text(text: str) -> str:
    """JSON as it stands, but for the values of names such as ``password``."""
    value = read_exact(text)
    hidden = redacted(value)
    return text if hidden == value else write_exact(hidden)


def restored_text(changed: str, original: str) -> str:
    """What somebody has made of ``redacted_text(original)``, with what was hidden back in its place.

    Raises InvalidJob where something is hidden that stood nowhere. What is no JSON comes back as it is.
    """
    value = read_exact(changed)
    if HIDDEN not in changed or changed == value:
        return changed
    try:
        return write_exact(restored(value, read_exact(original)))
    except KeyError as error:
        message = f"payload: {error.args[0]}: {HIDDEN} stands for a value that is hidden; write the value"
        raise InvalidJob(message) from None
