"""Batches as array literals: one text for each column, which the server reads faster than psycopg writes a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_array(texts: Iterable[str | None]) -> str:
    """An array literal of texts."""
    return "{" + ",".join(["NULL" if text is None else quoted(text) for text in texts]) + "}"


def plain_array(values: Iterable[object]) -> str:
    """An array literal of what needs no quotes: numbers, booleans."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def token_array(tokens: Sequence[str]) -> str:
    """An array literal of texts of which hardly any needs an escape."""
    joined = "".join(tokens)
    if not tokens or '"' in joined or "\\" in joined:
        return text_array(tokens)
    return '{"' + '","'.join(tokens) + '"}'


def quoted(text: str) -> str:
    """One element of an array literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
