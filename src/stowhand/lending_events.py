"""What happens to a store that is lent. Kept apart from ``events.py`` because no worker has a use for them."""

from __future__ import annotations

from stowhand.events import Event


class LendingStarted(Event, frozen=True):
    """The server listens. ``open``: without tokens, for programs of this machine."""

    url: str
    store: str
    open: bool
    tokens: str
    """The file of tokens."""


class LendingStopping(Event, frozen=True):
    """No new connections; what is being answered has ``grace`` seconds to end."""

    grace: float


class RequestAnswered(Event, frozen=True):
    """One request. ``who``: the id of its token."""

    call: str
    status: int
    seconds: float
    who: str
    address: str


class LentChanged(Event, frozen=True):
    """The audit: a call that changed something. ``ids`` and ``verdicts`` in one order; never a payload or a secret."""

    call: str
    who: str
    """The id of the token; empty where there are none."""
    worker: str
    ids: tuple[str, ...]
    verdicts: tuple[str, ...]
    address: str


class WrongTokens(Event, frozen=True):
    """An address keeps sending tokens that are not valid; for a minute it is told to wait."""

    address: str
    count: int


class TokensTrouble(Event, frozen=True):
    """The file of tokens has changed and cannot be read; those that were known before still hold."""

    error: str


class RequestBroken(Event, frozen=True):
    """A bug: a request could not be answered. ``trace`` says where."""

    call: str
    trace: str
