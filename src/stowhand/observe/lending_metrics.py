"""Prometheus metrics of a server that lends a store (extra ``metrics``), in a registry of their own."""

from __future__ import annotations

from stowhand.observe import vocabulary
from stowhand.observe.prometheus import CollectorRegistry, generate_latest


class LendingMetrics:
    """Called by the server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = vocabulary.LENDING_REQUESTS(registry=self._registry)
        self._records = vocabulary.LENDING_RECORDS(registry=self._registry)
        self._verdicts = vocabulary.LENDING_VERDICTS(registry=self._registry)

    def answered(self, call: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(call, str(status)).inc()

    def lent(self, number: int) -> None:
        """This many records were lent."""
        self._records.inc(number)

    def judged(self, verdicts: tuple[str, ...]) -> None:
        """Settlements were answered with these verdicts."""
        for verdict in verdicts:
            self._verdicts.labels(verdict).inc()

    def text(self) -> bytes:
        """All of them in the Prometheus text format."""
        return generate_latest(self._registry)
