"""The calls to a table's backend, timed and reported as events (``StoreCalled``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stowhand.clock import stopwatch
from stowhand.events import Events, StoreCalled
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Heartbeats, Pulse, Refusal


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

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them."""
        with self._calls.timed("beat"):
            return await self._heartbeats.beat(leases, lease)

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent."""
        with self._calls.timed("release"):
            return await self._heartbeats.release(leases)

    async def abandon(self, token: str) -> bool:
        """Let this token claim nothing more."""
        with self._calls.timed("abandon"):
            return await self._heartbeats.abandon(token)

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """Of leases that are not these."""
        with self._calls.timed("foreign"):
            return await self._heartbeats.foreign(ours, slack)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset records without heartbeats."""
        with self._calls.timed("reset_stalled"):
            return await self._heartbeats.reset_stalled(slack)

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back what this worker holds."""
        with self._calls.timed("reset_worker"):
            return await self._heartbeats.reset_worker(worker)

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        with self._calls.timed("reset_lease"):
            return await self._heartbeats.reset_lease(lease)

    def refused(self) -> Sequence[Refusal]:
        """What the database refused to change."""
        return self._heartbeats.refused()

    async def check(self) -> None:
        """Nothing can become too new: the table is the user's."""
        await self._heartbeats.check()

    async def check_writable(self) -> None:
        """Not reported: it does none of the table's work."""
        await self._heartbeats.check_writable()

    async def maintain(self) -> None:
        """What must stay bounded."""
        with self._calls.timed("maintain"):
            await self._heartbeats.maintain()

    async def close(self) -> None:
        """Let the connection go."""
        await self._heartbeats.close()
