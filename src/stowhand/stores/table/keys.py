"""The key of a user's table: which values can be one at all. What cannot is refused before any SQL."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from uuid import UUID

from stowhand.errors import InvalidJob, a_type
from stowhand.jobs.lease import JobId
from stowhand.jobs.text import clean


class Key(StrEnum):
    """What the id column holds."""

    INTEGER = "integer"
    """smallint, integer, bigint, or SQLite's INTEGER."""
    UUID = "uuid"
    """A job's id is its text, in lower case with hyphens."""
    TEXT = "text"


ANY_KEY: Mapping[Key, JobId] = {Key.INTEGER: 0, Key.UUID: str(UUID(int=0)), Key.TEXT: ""}
"""One of each kind, whether a record has it or not: a lookup by key uses an index."""


def read_key(kind: Key, given: Any, field: str = "id") -> JobId:
    """The id as leases hold it. Raises InvalidJob with what to give instead."""
    if kind is Key.INTEGER:
        # True is 1 to Python, and 1.0 is 1 to a database.
        if type(given) is not int:
            raise InvalidJob(f"{field}: {a_type(given)} given; the key is a whole number: {_hint(given)}")
        if not -(2**63) <= given < 2**63:
            raise InvalidJob(f"{field}: {given} is beyond 64 bits")
        return given
    if kind is Key.UUID:
        if isinstance(given, str | UUID):
            try:
                return str(UUID(str(given)))
            except ValueError:
                raise InvalidJob(f"{field}: {given!r} is no uuid; give a uuid.UUID or its text") from None
        raise InvalidJob(f"{field}: {a_type(given)} given; the key is a uuid: give a uuid.UUID or its text")
    if not isinstance(given, str):
        raise InvalidJob(f"{field}: {a_type(given)} given; the key is text: give a str")
    if clean(given, 4 * len(given) + 1) != given:
        raise InvalidJob(f"{field}: {given!r} holds NUL or a lone surrogate, which no key can hold")
    return given


def job_id(value: Any) -> JobId:
    """What the database gave for the id, as leases hold it: a uuid becomes text."""
    return str(value) if isinstance(value, UUID) else value


def _hint(given: Any) -> str:
    if isinstance(given, str) and given.lstrip("-").isdecimal() and len(given) < 20:
        return f"give {int(given)}"
    return "give an int"
