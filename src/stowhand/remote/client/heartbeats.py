"""The heart of a lent store: beats, releases and abandons from whatever thread calls, on a loop of its own.

A loop in a thread rather than a blocking client, because only there a deadline is one for the whole call: a blocking
client waits anew for every few bytes that a bad line lets through, and a beat that hangs lets leases end.

Dead workers are found by the server: it resets what is stalled, so there is nothing to do for that here. Whoever saw
one die, a supervisor its child say, tells the server, and nobody waits for the lease.
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
    """One call at a time. Its thread begins with the first one."""

    def __init__(self, base: str, options: HttpOptions, proofs: HeldProofs) -> None:
        self._http = HttpCaller(base, options, SystemClock())
        self._proofs = proofs
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them. What is lost is ours no longer, so its proof is not kept."""
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
        """Hand back unspent; gives those that are busy."""
        left: list[Lease] = []
        for start in range(0, len(leases), ITEMS):
            page = leases[start : start + ITEMS]
            release = Release(leases=tuple(self._proofs.of(one) for one in page))
            busy = frozenset(self._run(self._http.post("/v1/release", release, Released)).busy)
            left += [one for one in page if (one.job_id, one.token) in busy]
            self._proofs.end((one.job_id, one.token) for one in page if (one.job_id, one.token) not in busy)
        return left

    def abandon(self, token: str) -> bool:
        """The claim whose reply was lost: only the worker token that made it may do this."""
        abandoned = self._run(self._http.post("/v1/release", Release(token=token), Released)).abandoned
        if abandoned:
            self._proofs.end_token(token)
        return abandoned

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """None that this side need look at: the server does it."""
        return Foreign()

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Nothing: the server does it."""
        return ()

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """What was lent to it under this store's worker token, since the server started."""
        return self._run(self._http.post("/v1/reset", Reset(worker=worker), ResetDone)).jobs

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        found = self._run(self._http.post("/v1/reset", Reset(leases=(self._proofs.of(lease),)), ResetDone)).jobs
        self._proofs.end([(lease.job_id, lease.token)])
        return found

    def refused(self) -> Sequence[Refusal]:
        """Nothing: the server names them."""
        return ()

    def check(self) -> None:
        """Nothing: the server looks after the schema of what it lends."""

    def check_writable(self) -> None:
        """Nothing: the lender looks after what it lends, and answers claims with its errors."""

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
                    target=_serve, args=(self._loop,), name="stowhand http heart", daemon=True
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(call, loop).result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
