"""Keeps leases true while the loop works: one tick, called again and again by a thread of its own.

    beat     renew what is held; hear what is lost, canceled, busy
    return   give back what was claimed ahead and has not started, and what stopped unfinished
    reset    take back the jobs of dead workers
    enroll   write down, for people, that this worker is there
    watch    notice a handler that blocks the loop, and say where

A failed call is tried again at the next tick; it cancels nothing. What a lease really is worth is its local deadline,
which the worker's loop watches (``Worker._guard``).
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import SchemaTooNew, StoreError
from stowhand.events import Beaten, Events, JobsReturned, LoopBlocked, StoreRecovered, StoreTrouble
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import slack
from stowhand.protocols.options import OUTAGE, WorkerOptions
from stowhand.protocols.store import Foreign, Heartbeats
from stowhand.worker.frames import frame_of
from stowhand.worker.leases import Held, Leases, leases_of
from stowhand.worker.registration import AGAIN, Registration
from stowhand.worker.sweeper import Sweeper
from stowhand.worker.write_look import WriteLook

AHEAD_AT_MOST = 1.0
"""Seconds a job may be held without having been started."""
TOKENS = 100
"""Lost claims that are still to be abandoned, at most."""
TICK = 0.5
SOON = 0.01
GOODBYE = 1.0
BLOCKED_AFTER = 1.0
SEEN_EVERY = 0.25


class Heartbeater:
    """Used by one thread at a time; ``tick`` is the whole of its life. Answers go back through two callbacks."""

    def __init__(
        self,
        heartbeats: Heartbeats,
        leases: Leases,
        options: WorkerOptions,
        events: Events,
        clock: Clock,
        worker: str,
        tell_lost: Callable[[list[Held]], None],
        tell_canceled: Callable[[list[Held]], None],
    ) -> None:
        self._heartbeats, self._leases, self._options = heartbeats, leases, options
        self._events, self._clock, self._worker = events, clock, worker
        self._tell_lost, self._tell_canceled = tell_lost, tell_canceled
        interval, lease = options.sweep_interval, options.lease
        self._sweep = Sweeper(
            heartbeats,
            events,
            clock,
            name=worker,
            interval=interval,
            slack=slack(lease),
            memory=lease + options.every_beat + interval,
            lease=lease,
        )
        self.registration = Registration(heartbeats, worker, options)
        self._write_look = WriteLook(heartbeats, clock)
        self._lock = threading.Lock()
        self._returns: list[tuple[list[Lease], str]] = []
        self._dead_tokens: list[str] = []
        self._crashed: list[Lease] = []
        self._failures = 0
        self._refused: float | None = None
        self._beat_now = False
        self.returned = 0
        """How many leases went back so far."""
        self.beats = 0
        """Good beats so far: after a store's restart the worker waits for one before it claims again."""
        self.is_leaving = False
        """This worker has nothing more to do but to say goodbye."""
        self.ticked = clock.monotonic()
        """When a tick last began or ended: it is older than two seconds only while the store keeps one waiting."""
        self.watch = LoopWatchdog(events, clock, worker, options)

    # -- asked by the loop -----------------------------------------------------------------------

    def give_back(self, held: list[Held], why: str) -> None:
        """Hand these back unspent, at the next tick. They are already out of the book."""
        if held:
            with self._lock:
                self._returns.append((leases_of(held), why))

    def abandon(self, token: str) -> None:
        """The reply to its claim was lost. In a long outage the oldest are forgotten: their leases have ended."""
        with self._lock:
            self._dead_tokens.append(token)
            if len(self._dead_tokens) > TOKENS:
                del self._dead_tokens[0]

    def crashed(self, lease: Lease) -> None:
        """The child that ran this job died."""
        with self._lock:
            self._crashed.append(lease)

    def ours(self) -> tuple[Lease, ...]:
        """What this worker renews; every other lease is foreign to it. From any thread."""
        now = self._clock.monotonic()
        return tuple(held.claim.lease for held in self._leases.all() if self._worth_keeping(held, now))

    def foresee(self, seen: Foreign) -> None:
        """A claim that found nothing has seen foreign leases: the sweep comes when the first of them ends."""
        self._sweep.foresee(seen)

    def refused(self) -> float | None:
        """Since when the store refuses what is written here; ``None``: it does not. Who asks has it looked at."""
        self._write_look.want()
        return self._refused

    def beat_soon(self) -> None:
        """Renew everything at the next tick, due or not."""
        self._beat_now = True

    def leave(self) -> float:
        """Take this worker out of the roll at the next tick, unless the store is away; the seconds that it is worth."""
        self.is_leaving = True
        self.registration.leaving = not self._failures
        return GOODBYE if self.registration.leaving else 0.0

    def close(self) -> None:
        """After the last tick: let the heart's connection go."""
        self._heartbeats.close()

    @property
    def owes(self) -> int:
        """How many errands wait for the store."""
        return len(self._returns) + len(self._dead_tokens) + len(self._crashed)

    # -- the tick --------------------------------------------------------------------------------

    def tick(self) -> float:
        """One round. Gives the seconds until the next."""
        now = self.ticked = self._clock.monotonic()
        self.watch.look(now)
        try:
            self._beat(now)
            stale = self._leases.pull_ahead(now - AHEAD_AT_MOST)
            self.give_back(stale, "claimed ahead and not started within a second")
            self._run_errands()
            self._sweep.tick(worked=self._worked(now), ours=self.ours)
            self._write_look.tick(now)
            self.registration.tick(now)
        except SchemaTooNew:
            raise  # nothing that this version does there is right any more
        except StoreError as error:
            self._failures += 1
            self._refused = now if self._refused is None else self._refused
            pause = float(min(OUTAGE(self._failures), self._options.every_beat / 2, 2.0))
            if self._failures == 1 or self._failures % 10 == 0:
                again = pause if self._is_written else max(pause, AGAIN)
                self._events.emit(StoreTrouble(self._worker, "beat", str(error), again))
            return pause
        finally:
            self.ticked = self._clock.monotonic()
        if self._failures and self._is_written:
            self._events.emit(StoreRecovered(self._worker, "beat", self._failures))
            self._failures, self._refused = 0, None
        return self._pause()

    @property
    def _is_written(self) -> bool:
        """What was last to be written was; else all that goes well is that nothing has to be."""
        return self.registration.recorded and self._write_look.well

    def _worked(self, now: float) -> float:
        """When there was work last."""
        return now if len(self._leases) else self._leases.taken_at

    def _pause(self) -> float:
        """Until the next tick, which is no later than what is ahead may wait, or than the next sweep."""
        now = self._clock.monotonic()
        sweep = self._sweep.due(self._worked(now)) - now
        pause = min(TICK, self._options.every_beat / 2, max(sweep, SOON))
        oldest = self._leases.oldest_ahead()
        if oldest is not None:
            pause = min(pause, max(oldest + AHEAD_AT_MOST - self._clock.monotonic(), SOON))
        return float(pause)

    def _beat(self, now: float) -> None:
        due = self._leases.all() if self._beat_now else self._leases.due(now, self._options.every_beat)
        due = [held for held in due if self._worth_keeping(held, now)]
        if due:
            self._renew(due)
        if due or self._beat_now:
            self._beat_now = False
            self.beats += 1

    def _renew(self, due: list[Held]) -> None:
        sent = self._clock.monotonic()
        pulse = self._heartbeats.beat(leases_of(due), self._options.lease)
        if self._events.wants(Beaten):
            self._events.emit(Beaten(self._worker, len(due), self._clock.monotonic() - sent))
        self._sweep.refusals.hear()
        unwell = pulse.lost | pulse.busy | pulse.refused
        self._leases.renewed((held for held in due if held.pair not in unwell), sent)
        for held in self._leases.find(pulse.busy):  # not renewed, so due again at the next tick
            self._leases.kept_busy(held, sent + self._options.every_beat)
        if pulse.lost:
            self._tell_lost(self._leases.find(pulse.lost))
        if pulse.canceled:
            self._tell_canceled(self._leases.find(pulse.canceled))

    def _worth_keeping(self, held: Held, now: float) -> bool:
        """A handler that ignores being stopped, or a loop that hangs, keeps no job alive for ever."""
        if self.watch.hangs:
            return False
        return held.stopped_at is None or now - held.stopped_at < 3 * self._options.lease

    def _run_errands(self) -> None:
        """Each is forgotten only after the store has taken it; each is harmless when repeated."""
        while self._crashed:
            self._sweep.tell(self._heartbeats.reset_lease(self._crashed[0]))
            with self._lock:
                self._crashed.pop(0)
        for token in tuple(self._dead_tokens):
            if self._heartbeats.abandon(token):
                with self._lock:  # it may have been forgotten meanwhile
                    self._dead_tokens = [one for one in self._dead_tokens if one != token]
        for _ in range(len(self._returns)):
            leases, why = self._returns[0]
            busy = self._heartbeats.release(leases)
            left = {one.job_id for one in self._sweep.refusals.hear()}  # these come back when their leases end
            self.returned += len(leases) - len(busy)  # before nothing is owed any more
            with self._lock:
                self._returns.pop(0)
                if busy:  # somebody's transaction holds them; dropped, they would count as if this worker had died
                    self._returns.append((list(busy), why))
            if returned := tuple(one.job_id for one in leases if one not in busy and one.job_id not in left):
                self._events.emit(JobsReturned(self._worker, returned, why))


class LoopWatchdog:
    """Notices a blocked loop: the loop says ``seen()`` some times a second, another thread looks when it last did."""

    def __init__(self, events: Events, clock: Clock, worker: str, options: WorkerOptions) -> None:
        self._events, self._clock, self._worker, self._options = events, clock, worker, options
        self._thread = threading.get_ident()
        self.last = clock.monotonic()
        """When the loop last said that it runs."""
        self.pause = min(SEEN_EVERY, options.lease / 20)
        """Seconds between two of its words."""
        self._late = 0.0
        self._next_report = BLOCKED_AFTER
        self._hang_reported = False
        self._doubted = False
        """The last look believed it blocked only if the next one does: the whole process may have stood still."""
        self.driving: Callable[[], Held | None] = lambda: None
        self.timeout_of: Callable[[Any], float | None] = lambda claim: None
        self.on_hang: Callable[[], None] = lambda: None
        self.hangs = False

    def here(self) -> None:
        """LoopWatchdog the thread that calls this."""
        self._thread = threading.get_ident()
        self.seen()

    def seen(self) -> None:
        """The loop runs."""
        last, self.last = self.last, self._clock.monotonic()
        self._late = max(self._late, self.last - last)
        self.hangs = self._doubted = False

    def late(self) -> float:
        """Seconds by which its words came late, the most since this was last asked. From any thread."""
        late, self._late = self._late, 0.0
        return max(late, self._clock.monotonic() - self.last) - self.pause

    def look(self, now: float) -> None:
        """Report a blocked loop: after a second, then at each doubling."""
        blocked = now - self.last
        if blocked < self._next_report:
            if blocked < BLOCKED_AFTER:
                self._next_report, self._hang_reported = BLOCKED_AFTER, False
            return
        self._next_report = max(blocked, self._next_report) * 2
        self._judge(blocked)

    def _judge(self, blocked: float) -> None:
        held = self.driving()
        claim = held.claim if held is not None else None
        patience = 3 * self._options.lease + (self.timeout_of(claim) or 0.0 if claim is not None else 0.0)
        if not self._doubted and (held is None or blocked > patience):
            self._doubted, self._next_report = True, blocked
            return
        self.hangs = blocked > patience
        self._next_report = min(self._next_report, max(patience, blocked) + 0.01)
        if self.hangs:
            self._next_report = blocked * 2
        stack = frame_of(self._thread)
        self._events.emit(
            LoopBlocked(
                worker=self._worker,
                task=claim.task if claim is not None else None,
                job_id=claim.lease.job_id if claim is not None else None,
                seconds=blocked,
                stack=_their_stack(stack) if stack is not None else "",
                beating=not self.hangs,
            )
        )
        if self.hangs and not self._hang_reported:
            self._hang_reported = True
            self.on_hang()


def _their_stack(frame: FrameType) -> str:
    """The stack from the handler's own first frame on: the loop's and ours say nothing to its author."""
    frames = list(traceback.walk_stack(frame))[::-1]
    names = [str(one.f_globals.get("__name__")) for one, _ in frames]
    first = max((place + 1 for place, name in enumerate(names) if name == "asyncio.events"), default=0)
    while first < len(names) and names[first].startswith("stowhand."):
        first += 1
    return "".join(traceback.StackSummary.extract(iter(frames[first:] or frames)).format())
