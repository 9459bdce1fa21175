"""The calls to a table's backend, timed and reported as events (``StoreCalled``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from stowhand.clock import stopwatch
from stowhand.events import Events, StoreCalled
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Heartbeats, Pulse, Refusal

T = TypeVar("T")


class Calls:
    """Of one store. Nothing is measured without a listener."""

    def __init__(self, store: str, events: Events | None) -> None:
        self._store = store
        self.events = events

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Say how the block went; one that is cancelled has not failed."""
        events = self.events
        if events is None or not events.wants(StoreCalled):
            yield
            return
        began, failed = stopwatch(), False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            events.emit(StoreCalled(self._store, operation, stopwatch() - began, failed))


class TimedHeartbeats:
    """Heartbeats whose calls are reported, on the thread on which they run."""

    def __init__(self, heartbeats: Heartbeats, calls: Calls) -> None:
        self._heartbeats = heartbeats
        self._calls = calls

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them."""
        return self._timed("beat", lambda: self._heartbeats.beat(leases, lease))

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent."""
        return self._timed("release", lambda: self._heartbeats.release(leases))

    def abandon(self, token: str) -> bool:
        """Let this token claim nothing more."""
        return self._timed("abandon", lambda: self._heartbeats.abandon(token))

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """Of leases that are not these."""
        return self._timed("foreign", lambda: self._heartbeats.foreign(ours, slack))

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset records without heartbeats."""
        return self._timed("reset_stalled", lambda: self._heartbeats.reset_stalled(slack))

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back what this worker holds."""
        return self._timed("reset_worker", lambda: self._heartbeats.reset_worker(worker))

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        return self._timed("reset_lease", lambda: self._heartbeats.reset_lease(lease))

    def refused(self) -> Sequence[Refusal]:
        """What the database refused to change."""
        return self._heartbeats.refused()

    def check(self) -> None:
        """Nothing can become too new: the table is the user's."""
        self._heartbeats.check()

    def check_writable(self) -> None:
        """Not reported: it does none of the table's work."""
        self._heartbeats.check_writable()

    def maintain(self) -> None:
        """What must stay bounded."""
        self._timed("maintain", self._heartbeats.maintain)

    def close(self) -> None:
        """Let the connection go."""
        self._heartbeats.close()

    def _timed(self, operation: str, call: Callable[[], T]) -> T:
        with self._calls.timed(operation):
            return call()
