"""A reply that is no answer, in the words of errors.py.

CallRefused       the server understood, and will not: nothing was changed
NoReply       whether anything was done is not known: the connection broke, the time was over, or something between
              here and the server answered in its place
"""

from __future__ import annotations

import re

import msgspec

from stowhand.errors import StoreError, StoreUnreachable
from stowhand.jobs.text import clean
from stowhand.remote.wire import Kind, Trouble

SHOWN = 300
"""Bytes of somebody else's text in an error of ours."""
_TAG = re.compile(r"<[^<>]*>")


class CallRefused(StoreError):
    """The server refuses this call; ``kind`` says why, for programs."""

    def __init__(self, message: str, kind: str, said: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.said = said
        """The server's own words."""


class NoReply(StoreUnreachable):
    """It may have been done, or not."""


def trouble_of(status: int, body: bytes, where: str, secret: str | None) -> StoreError:
    """The error for a reply that is not 200. ``where``: the address, for people; ``secret`` is never repeated."""
    try:
        told: Trouble | None = msgspec.json.decode(body, type=Trouble)
    except msgspec.MsgspecError:
        told = None
    if told is None:
        return _from_a_stranger(status, body, where, secret)
    said = _shown(told.message, secret)
    fix = f" ({_shown(told.fix, secret)})" if told.fix else ""
    match status:
        case 401:
            return CallRefused(
                f"{where} refuses the worker token: it is missing, wrong, expired or revoked{fix};"
                " a new one is made on the server: stowhand tokens make",
                told.error,
                said,
            )
        case 403:
            return CallRefused(f"{where}: not within this worker token's scopes: {said}{fix}", told.error, said)
        case 429 | 503:
            unknown = told.error == Kind.OUTCOME_UNKNOWN
            return (NoReply if unknown else StoreUnreachable)(f"{where}: {said}{fix}")
        case status if status >= 500:
            return NoReply(f"{where}: {status}: {said}{fix}")
    return CallRefused(f"{where}: {said}{fix}", told.error, said)


def _from_a_stranger(status: int, body: bytes, where: str, secret: str | None) -> StoreError:
    """Not our server: a proxy before it, or something else at that address."""
    said = _first_line(body, secret)
    if status in (408, 429) or status >= 500:
        return NoReply(f"{where}: {status}" + (f": {said}" if said else ""))
    if 300 <= status < 400:
        return StoreError(f"{where} answers with a redirect ({status}), which is not followed: give the address itself")
    hint = "is this the address of 'stowhand serve'?"
    return StoreError(f"{where}: {status}" + (f": {said}" if said else "") + f"; {hint}")


def _first_line(body: bytes, secret: str | None) -> str:
    text = _TAG.sub("\n", body[:4096].decode("utf-8", "replace"))
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _shown(line, secret)


def _shown(text: str, secret: str | None) -> str:
    """One line, short, harmless."""
    if secret is not None:
        text = text.replace(secret, "***")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return clean(line, SHOWN).replace("\n", " ")
