"""Writes what a worker has counted into the store: for people, like its entry in the list of workers."""

from __future__ import annotations

import uuid

from stowhand.errors import SchemaTooNew, StoreError
from stowhand.events import Events, StoreRecovered, StoreTrouble
from stowhand.protocols.throughput import ThroughputKeeper
from stowhand.worker.minute_book import MinuteBook

EVERY = 10.0
"""Seconds between two writes, at least: a worker that dies takes what it counted since with it."""


class ThroughputWriter:
    """On the loop of the heartbeats that keep throughput; those of other stores are left alone."""

    def __init__(self, worker: str, book: MinuteBook, events: Events) -> None:
        self._worker = worker
        self._book = book
        self._events = events
        self._writer = f"{worker}:{uuid.uuid4().hex[:12]}"
        """Of this run: another worker may have, or have had, the same name."""
        self._wrote_at = float("-inf")
        self._failures = 0
        self.finishing = False
        """One last write is due."""

    def finish(self) -> None:
        """Write at the next tick, whenever the last write was."""
        self.finishing = True

    async def tick(self, heartbeats: object, now: float) -> None:
        """Write, if it is time and something has ended. What fails is reported, and written with the next."""
        last, self.finishing = self.finishing, False
        if not isinstance(heartbeats, ThroughputKeeper) or not (last or now - self._wrote_at >= EVERY):
            return
        taken = self._book.take()
        if not taken:
            return
        self._wrote_at = now
        try:
            closed = await heartbeats.write_throughput(self._writer, taken)
        except BaseException as error:
            self._book.put_back(taken)
            if isinstance(error, SchemaTooNew) or not isinstance(error, StoreError):
                raise
            self._failures += 1
            if self._failures == 1 or self._failures % 10 == 0:
                self._events.emit(StoreTrouble(self._worker, "throughput", str(error), EVERY))
            return
        self._book.written(taken, closed)
        if self._failures:
            self._events.emit(StoreRecovered(self._worker, "throughput", self._failures))
            self._failures = 0
