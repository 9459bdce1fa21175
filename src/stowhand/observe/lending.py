"""The events of a lent store as log lines: ``[lending] INFO: …``, and the audit as ``[lending(audit)] INFO: …``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowhand.events import (
    Event,
    Events,
    LendingStarted,
    LendingStopping,
    LentChanged,
    RequestAnswered,
    RequestBroken,
    TokensTrouble,
    WrongTokens,
)
from stowhand.observe.job_logger import LineLogger, ScopedLogger
from stowhand.observe.logs import Scope
from stowhand.observe.safe_text import escape, shorten

WIDTH = 200
"""Characters of a name that a client has chosen."""


class LendingListener:
    """Made once per server; an event below the level is never made."""

    def __init__(self, events: Events, new_logger: Callable[[Scope], LineLogger] = ScopedLogger) -> None:
        self._log, self._audit = new_logger(Scope("lending")), new_logger(Scope("lending", "audit"))
        listeners: dict[type[Event], tuple[str, Callable[[Any], None]]] = {
            LendingStarted: ("warning", self._started),
            LendingStopping: ("info", self._stopping),
            RequestAnswered: ("debug", self._answered),
            LentChanged: ("info", self._changed),
            WrongTokens: ("warning", self._wrong),
            TokensTrouble: ("error", self._trouble),
            RequestBroken: ("error", self._broken),
        }
        for kind, (level, listener) in listeners.items():
            if self._log.enabled(level):
                events.on(kind, listener)

    def _started(self, event: LendingStarted) -> None:
        self._log.info(f"Lending {_name(event.store)} at {event.url}")
        if event.open:
            self._log.warning(
                "No tokens: every program of this machine may work on it."
                f" Make one, and all of them need one: stowhand tokens make --name NAME --tokens {event.tokens}"
            )
        else:
            self._log.info(f"Worker tokens are needed ({event.tokens})")

    def _stopping(self, event: LendingStopping) -> None:
        self._log.info(f"Stopping; requests have {event.grace:g}s to end")

    def _answered(self, event: RequestAnswered) -> None:
        who = f" {_name(event.who)}" if event.who else ""
        self._log.debug(f"{event.call} {event.status} ({event.seconds * 1000:.1f}ms){who} {_name(event.address)}")

    def _changed(self, event: LentChanged) -> None:
        verdicts = event.verdicts or ("",) * len(event.ids)
        what = ", ".join(
            _name(job_id) + (f" {_name(verdict)}" if verdict else "")
            for job_id, verdict in zip(event.ids, verdicts, strict=False)
        )
        worker = f", worker {_name(event.worker)}" if event.worker else ""
        self._audit.info(f"{event.call} by {_name(event.who) or 'anybody'} from {_name(event.address)}{worker}: {what}")

    def _wrong(self, event: WrongTokens) -> None:
        self._log.warning(
            f"{event.count} wrong tokens within a minute from {_name(event.address)}; it is refused for a minute"
        )

    def _trouble(self, event: TokensTrouble) -> None:
        self._log.error(f"The file of tokens cannot be read, so the tokens known before still hold: {event.error}")

    def _broken(self, event: RequestBroken) -> None:
        self._log.error(f"A request could not be answered ({event.call}). This is a bug:\n{event.trace.rstrip()}")


def _name(text: str) -> str:
    return escape(shorten(text, WIDTH))
