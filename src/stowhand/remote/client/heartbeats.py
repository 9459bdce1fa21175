"""The heartbeats of a lent store: beat, release and abandon, callable from any thread, on an event loop of their own.

An event loop in a thread rather than a blocking client, because its deadline covers the whole call: a blocking client
starts its timeout anew with every few bytes that a bad connection delivers, and while a beat hangs, leases end.

The server finds dead workers and resets their jobs. A process that saw a worker die (the supervisor of a child) reports
it, so that nothing waits for the end of the lease.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from stowhand.clock import SystemClock
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.remote.client.bodies import ITEMS
from stowhand.remote.client.http_caller import HttpCaller
from stowhand.remote.client.options import HttpOptions
from stowhand.remote.client.proofs import HeldProofs, Pair
from stowhand.remote.wire import Beaten, Held, Release, Released, Reset, ResetDone

T = TypeVar("T")


class HttpHeartbeats:
    """One call at a time. The thread starts with the first call."""

    def __init__(self, base: str, options: HttpOptions, proofs: HeldProofs) -> None:
        self._http = HttpCaller(base, options, SystemClock())
        self._proofs = proofs
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew the leases. The proofs of lost ones are dropped."""
        lost: set[Pair] = set()
        canceled: set[Pair] = set()
        busy: set[Pair] = set()
        for start in range(0, len(leases), ITEMS):
            held = Held(leases=tuple(self._proofs.of(one) for one in leases[start : start + ITEMS]), lease=lease)
            beaten = self._run(self._http.post("/v1/heartbeat", held, Beaten))
            lost.update(beaten.lost)
            canceled.update(beaten.canceled)
            busy.update(beaten.busy)
        self._proofs.end(lost)
        return Pulse(lost=frozenset(lost), canceled=frozenset(canceled), busy=frozenset(busy))

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back without using an attempt; returns the leases that are busy."""
        left: list[Lease] = []
        for start in range(0, len(leases), ITEMS):
            page = leases[start : start + ITEMS]
            release = Release(leases=tuple(self._proofs.of(one) for one in page))
            busy = frozenset(self._run(self._http.post("/v1/release", release, Released)).busy)
            left += [one for one in page if (one.job_id, one.token) in busy]
            self._proofs.end((one.job_id, one.token) for one in page if (one.job_id, one.token) not in busy)
        return left

    def abandon(self, token: str) -> bool:
        """Hand back what a claim without a reply took. Only the worker token that made the claim may do this."""
        abandoned = self._run(self._http.post("/v1/release", Release(token=token), Released)).abandoned
        if abandoned:
            self._proofs.end_token(token)
        return abandoned

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """None: the server looks for foreign leases that have ended."""
        return Foreign()

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Nothing: the server does it."""
        return ()

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back what was lent to this worker under the same worker token, since the server started."""
        return self._run(self._http.post("/v1/reset", Reset(worker=worker), ResetDone)).jobs

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back the job of this lease."""
        found = self._run(self._http.post("/v1/reset", Reset(leases=(self._proofs.of(lease),)), ResetDone)).jobs
        self._proofs.end([(lease.job_id, lease.token)])
        return found

    def refused(self) -> Sequence[Refusal]:
        """Nothing: the server reports them."""
        return ()

    def check(self) -> None:
        """Nothing: the server checks the schema of the store that it lends."""

    def check_writable(self) -> None:
        """Nothing: a claim is answered with the server's error."""

    def maintain(self) -> None:
        """Nothing: the server does it."""

    def close(self) -> None:
        """End the thread. Harmless when repeated."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._http.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="stowhand http heartbeats", daemon=True
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(call, loop).result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
