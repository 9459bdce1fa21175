"""Log lines for the events of a lent store: ``[lending] INFO: …``, and ``[lending(audit)] INFO: …`` for the audit.

The dashboard uses the same listener, with the label ``[web]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowhand.events import (
    DashboardChanged,
    DashboardStoreLost,
    DashboardStoreRecovered,
    Event,
    Events,
    InvalidTokensSent,
    LendingStarted,
    LendingStopping,
    RemoteCallAudited,
    RequestAnswered,
    RequestBroken,
    TokenFileUnreadable,
)
from stowhand.jobs.durations import format_span
from stowhand.observe.job_logger import LineLogger, ScopedLogger
from stowhand.observe.logs import Scope, configure_unless_configured
from stowhand.observe.safe_text import escape, scrub, shorten, summary_line

MAX_NAME_CHARS = 200
"""Maximum length of a name that a client has chosen."""
UNNAMED_CALLER = "an unnamed caller"
AUDIT_EVENTS = (RemoteCallAudited, DashboardChanged)


class LendingListener:
    """Writer of a server's log lines. Events below the log level are not created, except those of the audit.

    ``name``: label of the lines, ``lending`` or ``web``.
    """

    def __init__(
        self, events: Events, new_logger: Callable[[Scope], LineLogger] = ScopedLogger, name: str = "lending"
    ) -> None:
        self._log, self._audit = new_logger(Scope(name)), new_logger(Scope(name, "audit"))
        listeners: dict[type[Event], tuple[str, Callable[[Any], None]]] = {
            LendingStarted: ("warning", self._started),
            LendingStopping: ("info", self._stopping),
            RequestAnswered: ("debug", self._answered),
            RemoteCallAudited: ("info", self._call_audited),
            DashboardChanged: ("info", self._dashboard_changed),
            InvalidTokensSent: ("warning", self._invalid_tokens),
            TokenFileUnreadable: ("error", self._token_file_unreadable),
            DashboardStoreLost: ("error", self._store_lost),
            DashboardStoreRecovered: ("info", self._store_recovered),
            RequestBroken: ("error", self._broken),
        }
        for kind, (level, listener) in listeners.items():
            # The audit is always on: an application may configure logging after it has mounted the dashboard.
            if self._log.enabled(level) or kind in AUDIT_EVENTS:
                events.on(kind, listener)

    def _started(self, event: LendingStarted) -> None:
        self._log.info(f"Lending {_safe_name(event.store)} at {event.url}")
        if event.is_open:
            self._log.warning(
                "No tokens: every program on this machine can claim its jobs."
                f" To require tokens, make one: stowhand tokens make --name NAME --tokens {event.tokens}"
            )
        else:
            self._log.info(f"Workers need a token of {event.tokens}")

    def _stopping(self, event: LendingStopping) -> None:
        self._log.info(f"Stopping; waiting at most {event.grace:g}s for requests")

    def _answered(self, event: RequestAnswered) -> None:
        token = f" {_safe_name(event.token_id)}" if event.token_id else ""
        self._log.debug(
            f"{event.call} {event.status} ({event.seconds * 1000:.1f}ms){token} {_safe_name(event.address)}"
        )

    def _call_audited(self, event: RemoteCallAudited) -> None:
        worker = f", worker {_safe_name(event.worker)}" if event.worker else ""
        results = _pairs(event.ids, event.verdicts)
        self._audit.info(
            f"{event.call} by {_safe_name(event.token_id) or UNNAMED_CALLER}"
            f" from {_safe_name(event.address)}{worker}: {results}"
        )

    def _dashboard_changed(self, event: DashboardChanged) -> None:
        configure_unless_configured()  # the audit of a mounted dashboard must not depend on the program's logging
        results = _pairs(event.ids, event.answers)
        self._audit.info(
            f"{event.action} by {_safe_name(event.user) or UNNAMED_CALLER} from {_safe_name(event.address)}: {results}"
        )

    def _invalid_tokens(self, event: InvalidTokensSent) -> None:
        self._log.warning(
            f"{event.count} wrong tokens within a minute from {_safe_name(event.address)};"
            " refusing this address for a minute"
        )

    def _token_file_unreadable(self, event: TokenFileUnreadable) -> None:
        self._log.error(f"Cannot read the token file; keeping the loaded tokens: {event.error}")

    def _store_lost(self, event: DashboardStoreLost) -> None:
        error = _safe_name(scrub(summary_line(event.error)))
        self._log.error(f"The store does not answer; pages show this until it does: {error}")

    def _store_recovered(self, event: DashboardStoreRecovered) -> None:
        self._log.info(f"The store is back, after {format_span(event.seconds)}")

    def _broken(self, event: RequestBroken) -> None:
        self._log.error(f"Cannot answer a request ({event.call}); this is a bug:\n{event.trace.rstrip()}")


def _pairs(ids: tuple[str, ...], results: tuple[str, ...]) -> str:
    """Return each id with its result, if there are results: ``17 done, 18 refused``."""
    if not results:
        return ", ".join(map(_safe_name, ids))
    return ", ".join(
        f"{_safe_name(job_id)} {_safe_name(result)}".rstrip() for job_id, result in zip(ids, results, strict=False)
    )


def _safe_name(text: str) -> str:
    return escape(shorten(text, MAX_NAME_CHARS))
