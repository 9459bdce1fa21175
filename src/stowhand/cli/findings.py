"""What ``stowhand doctor`` finds: one line each, with the exit code that it asks for."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stowhand.service.exit_codes import FAILURE, OK


class Mark(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    mark: Mark
    what: str
    said: str
    code: int = OK


def ok(what: str, said: str) -> Finding:
    """As it should be."""
    return Finding(Mark.OK, what, said)


def warn(what: str, said: str) -> Finding:
    """Works, but not as a user may expect."""
    return Finding(Mark.WARN, what, said)


def fail(what: str, said: str, code: int = FAILURE) -> Finding:
    """Does not work."""
    return Finding(Mark.FAIL, what, said, code)
