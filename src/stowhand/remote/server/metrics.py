"""Counters of the server, for Prometheus; only where ``prometheus-client`` is installed (the extra ``metrics``)."""

from __future__ import annotations

from typing import Any


class Metrics:
    """``text`` is ``None`` where they are not offered."""

    def __init__(self) -> None:
        self._offered: Any = None
        try:
            import prometheus_client
        except ImportError:
            return
        self._offered = prometheus_client
        self._registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "stowhand_lending_requests", "Requests answered", ["call", "status"], registry=self._registry
        )
        self._claims = prometheus_client.Counter(
            "stowhand_lending_records", "Records lent to workers", registry=self._registry
        )
        self._verdicts = prometheus_client.Counter(
            "stowhand_lending_verdicts", "Verdicts on settlements", ["verdict"], registry=self._registry
        )

    def answered(self, call: str, status: int) -> None:
        """One more request."""
        if self._offered is not None:
            self._requests.labels(call, str(status)).inc()

    def lent(self, number: int) -> None:
        """So many records more."""
        if self._offered is not None:
            self._claims.inc(number)

    def judged(self, verdicts: tuple[str, ...]) -> None:
        """These verdicts."""
        if self._offered is not None:
            for verdict in verdicts:
                self._verdicts.labels(verdict).inc()

    def text(self) -> bytes | None:
        """All of them, as Prometheus reads them."""
        if self._offered is None:
            return None
        made: bytes = self._offered.generate_latest(self._registry)
        return made
