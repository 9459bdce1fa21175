"""Counters of the server, for Prometheus; only where ``prometheus-client`` is installed (the extra ``metrics``)."""

from __future__ import annotations

from typing import Any


class Metrics:
    """Counts nothing where ``prometheus-client`` is not installed; ``text`` is ``None`` then."""

    def __init__(self) -> None:
        self._client: Any = None
        try:
            import prometheus_client
        except ImportError:
            return
        self._client = prometheus_client
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
        """A request was answered."""
        if self._client is not None:
            self._requests.labels(call, str(status)).inc()

    def lent(self, number: int) -> None:
        """This many records were lent."""
        if self._client is not None:
            self._claims.inc(number)

    def judged(self, verdicts: tuple[str, ...]) -> None:
        """Settlements were answered with these verdicts."""
        if self._client is not None:
            for verdict in verdicts:
                self._verdicts.labels(verdict).inc()

    def text(self) -> bytes | None:
        """All counters in the Prometheus text format."""
        if self._client is None:
            return None
        made: bytes = self._client.generate_latest(self._registry)
        return made
