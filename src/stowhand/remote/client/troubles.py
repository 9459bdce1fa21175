"""Errors of calls: what a failed request or an error reply means, as the exceptions of errors.py.

CallRefused   the server refuses the request: nothing was changed
NoReply       it is not known whether anything was done: the connection broke, the deadline passed, or a proxy between
              here and the server answered in its place
"""

from __future__ import annotations

import re

import msgspec

from stowhand.errors import StoreError, StoreRefused, StoreUnreachable
from stowhand.jobs.text import clean
from stowhand.remote.wire import Kind, Trouble

SHOWN = 300
"""Bytes of the server's or a proxy's text that are quoted in an error."""
_TAG = re.compile(r"<[^<>]*>")


class CallRefused(StoreRefused):
    """The server refuses this call; ``kind`` says why, for programs."""

    def __init__(self, message: str, kind: str, server_message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.server_message = server_message
        """Without the address that ``str()`` begins with."""


class NoReply(StoreUnreachable):
    """The call may have been executed or not."""


def trouble_of(status: int, body: bytes, where: str, secret: str | None) -> StoreError:
    """The error for a reply that is not 200. ``where``: the address, for people; ``secret`` is never part of it."""
    try:
        trouble: Trouble | None = msgspec.json.decode(body, type=Trouble)
    except msgspec.MsgspecError:
        trouble = None
    if trouble is None:
        return _from_another_program(status, body, where, secret)
    message = _shown(trouble.message, secret)
    fix = f" ({_shown(trouble.fix, secret)})" if trouble.fix else ""
    match status:
        case 401:
            return CallRefused(
                f"{where} refuses the worker token: it is missing, wrong, expired or revoked{fix};"
                " a new one is made on the server: stowhand tokens make",
                trouble.error,
                message,
            )
        case 403:
            return CallRefused(
                f"{where}: not within this worker token's scopes: {message}{fix}", trouble.error, message
            )
        case 429 | 503:
            unknown = trouble.error == Kind.OUTCOME_UNKNOWN
            return (NoReply if unknown else StoreUnreachable)(f"{where}: {message}{fix}")
        case status if status >= 500:
            return NoReply(f"{where}: {status}: {message}{fix}")
    return CallRefused(f"{where}: {message}{fix}", trouble.error, message)


def _from_another_program(status: int, body: bytes, where: str, secret: str | None) -> StoreError:
    """Not our server: a proxy before it, or another program at that address."""
    text = _first_line(body, secret)
    if status in (408, 429) or status >= 500:
        return NoReply(f"{where}: {status}" + (f": {text}" if text else ""))
    if 300 <= status < 400:
        return StoreError(f"{where} answers with a redirect ({status}), which is not followed: give the address itself")
    hint = "is this the address of 'stowhand serve'?"
    return StoreError(f"{where}: {status}" + (f": {text}" if text else "") + f"; {hint}")


def _first_line(body: bytes, secret: str | None) -> str:
    text = _TAG.sub("\n", body[:4096].decode("utf-8", "replace"))
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _shown(line, secret)


def _shown(text: str, secret: str | None) -> str:
    """One short line without control characters."""
    if secret is not None:
        text = text.replace(secret, "***")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return clean(line, SHOWN).replace("\n", " ")
