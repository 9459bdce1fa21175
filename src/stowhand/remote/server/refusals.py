"""Error replies: what a client is answered where a request is refused."""

from __future__ import annotations

from stowhand.remote.wire import Kind, Trouble

STATUS = {
    Kind.MALFORMED: 400,
    Kind.INVALID_JOB: 400,
    Kind.REFUSED: 400,
    Kind.UNAUTHORIZED: 401,
    Kind.OUT_OF_SCOPE: 403,
    Kind.UNKNOWN: 404,
    Kind.METHOD: 405,
    Kind.LEASE_LOST: 409,
    Kind.LOG_REFUSED: 409,
    Kind.USED: 409,
    Kind.TOO_LARGE: 413,
    Kind.TOO_MANY: 429,
    Kind.OUTCOME_UNKNOWN: 503,
    Kind.UNREACHABLE: 503,
    Kind.BROKEN: 500,
}


class Refused(Exception):
    """The request is refused. ``retry_after``: seconds after which it may be repeated. ``closes``: the connection is
    closed."""

    def __init__(
        self,
        kind: Kind,
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
        self.status = status or STATUS[kind]
        self.closes = closes

    def trouble(self) -> Trouble:
        """The body of the reply."""
        return Trouble(error=self.kind, message=self.message, fix=self.fix)


def malformed(message: str, fix: str = "") -> Refused:
    """Return the refusal of a request that cannot be read, or contains impossible values."""
    return Refused(Kind.MALFORMED, message, fix or "compare the request with docs/reference/http.md")


def forbidden(message: str, fix: str) -> Refused:
    """Return the refusal of a request that the caller may not make."""
    return Refused(Kind.OUT_OF_SCOPE, message, fix)


def lacking(scope: str, name: str) -> Refused:
    """Return the refusal of a token that lacks a scope."""
    return forbidden(
        f"this token lacks the scope {scope}",
        f"make one with it: stowhand tokens make --name {name or 'NAME'} --scope {scope}",
    )


def outside(what: str, value: str, option: str) -> Refused:
    """Return the refusal of a token that is limited to other tasks, serial keys or columns."""
    return forbidden(
        f"this token is not for the {what} {value!r}",
        f"use a token made with: stowhand tokens make {option} {value}",
    )
