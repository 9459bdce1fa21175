"""JSON texts for display: exact to the last digit and without secrets. Edited texts get their secrets back."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs.strict_json import MAX_DEPTH
from stowhand.observe.safe_text import HIDDEN_TEXT, redact, restored

_EXACT_ENCODER = msgspec.json.Encoder(decimal_format="number")


def read_exact(text: str | None) -> Any:
    """Return the value, with fractions as Decimal. Text that is not JSON, which SQL may write, is returned as is."""
    if not text:
        return None
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        return text


def write_exact(value: Any) -> str:
    """Return a value of ``read_exact`` as JSON."""
    return _EXACT_ENCODER.encode(value).decode()


def redacted(value: Any) -> Any:
    """Return the value without its secrets, at every depth."""
    return redact(value, MAX_DEPTH + 1)


def redacted_text(text: str) -> str:
    """Return the JSON text unchanged except for the values of names such as ``password``."""
    value = read_exact(text)
    hidden = redacted(value)
    return text if hidden == value else write_exact(hidden)


def restored_text(edited: str, original: str) -> str:
    """Return an edited ``redacted_text(original)`` with the hidden values restored.

    Raises InvalidJob if a hidden value has no original. A text that is not JSON is returned as is.
    """
    value = read_exact(edited)
    if HIDDEN_TEXT not in edited or edited == value:
        return edited
    try:
        return write_exact(restored(value, read_exact(original)))
    except KeyError as error:
        message = f"payload: {error.args[0]}: {HIDDEN_TEXT} hides a value that the original lacks; write the value"
        raise InvalidJob(message) from None
