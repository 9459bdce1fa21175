"""Error replies to refused requests."""

from __future__ import annotations

from stowhand.remote.wire import ErrorKind, ErrorReply

STATUS_CODES = {
    ErrorKind.MALFORMED: 400,
    ErrorKind.INVALID_JOB: 400,
    ErrorKind.REFUSED: 400,
    ErrorKind.UNAUTHORIZED: 401,
    ErrorKind.OUT_OF_SCOPE: 403,
    ErrorKind.UNKNOWN: 404,
    ErrorKind.METHOD: 405,
    ErrorKind.LEASE_LOST: 409,
    ErrorKind.LOG_REFUSED: 409,
    ErrorKind.USED: 409,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.TOO_MANY: 429,
    ErrorKind.OUTCOME_UNKNOWN: 503,
    ErrorKind.UNREACHABLE: 503,
    ErrorKind.BROKEN: 500,
}


class Refused(Exception):
    """Refusal of a request.

    ``retry_after``: seconds after which the request may be repeated. ``closes``: the connection is closed after it.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        fix: str = "",
        *,
        retry_after: int | None = None,
        status: int | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fix = fix
        self.retry_after = retry_after
        self.status = status or STATUS_CODES[kind]
        self.closes = closes

    def error_reply(self) -> ErrorReply:
        """Return the body of the reply."""
        return ErrorReply(error=self.kind, message=self.message, fix=self.fix)


def malformed(message: str, fix: str = "") -> Refused:
    """Return the refusal of a request that cannot be read or contains impossible values."""
    return Refused(ErrorKind.MALFORMED, message, fix or "compare the request with docs/reference/http.md")


def forbidden(message: str, fix: str) -> Refused:
    """Return the refusal of a request that the caller may not make."""
    return Refused(ErrorKind.OUT_OF_SCOPE, message, fix)


def missing_scope(scope: str, name: str) -> Refused:
    """Return the refusal of a token that lacks a scope."""
    return forbidden(
        f"this token lacks the scope {scope}",
        f"make one with it: stowhand tokens make --name {name or 'NAME'} --scope {scope}",
    )


def outside_limit(noun: str, value: str, option: str) -> Refused:
    """Return the refusal of a token that is limited to other tasks, serial keys or columns."""
    return forbidden(
        f"this token is not for the {noun} {value!r}",
        f"use a token made with: stowhand tokens make {option} {value}",
    )
