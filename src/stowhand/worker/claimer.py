"""Claims jobs: when, how many, of which tasks, and how long to sleep when there are none.

    limit    the free slots, and a little ahead in proportion to the measured rate (ClaimSize)
    ask      whether a claim may go out now (admission.py)
    claim    of the tasks whose turn it is (Fairness); now and then a suspect (Suspects); one call (claims.py)
    wait     until a slot becomes free, a wake-up comes, a job falls due, or the poll interval has passed
    recheck  soon, and a few times only, where a claim left something due: another transaction may lock its row

Before it sleeps it has claimed once more after the last wake-up, so a wake-up is never slept through. What a settlement
claims along with it follows the same rules (claims.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stowhand.errors import ConfigurationError
from stowhand.protocols.options import LOOK_AHEAD_SECONDS
from stowhand.worker.admission import Admission, Permit
from stowhand.worker.claims import Claims, Tasks
from stowhand.worker.hooks import Hooks
from stowhand.worker.leases import HeldJob, Phase
from stowhand.worker.limits import Limits
from stowhand.worker.settler import Settler
from stowhand.worker.slots import Slots
from stowhand.worker.state import NEVER, WorkerState

END_CHECK_INTERVAL_SECONDS = 0.5
"""Seconds between two looks whether everything has ended, where no part signals it."""
RECHECK_DELAYS_SECONDS = (0.01, 0.05, 0.25)
"""Pauses before the claims that follow one which found nothing although a job is due.

``SKIP LOCKED`` passes over a row that another transaction locks, mostly for milliseconds, and no notification follows
when the lock is released. A job that stays unclaimable (its serial key is busy, its flag is forbidden) waits for the
poll after that, until a wake-up comes or nothing is due."""


class Claimer:
    """The loop that claims jobs for a worker and starts them."""

    def __init__(
        self,
        admission: Admission,
        claim_size: ClaimSize,
        claims: Claims,
        suspects: SuspectSchedule,
        slots: Slots,
        limits: Limits,
        state: WorkerState,
    ) -> None:
        self._admission = admission
        self._claim_size = claim_size
        self._claims = claims
        self._suspects = suspects
        self._slots = slots
        self._limits = limits
        self._state = state
        self._runs_once = state.options.once
        self._fairness = Fairness(state.options.tasks) if state.options.fair else None
        self._found_jobs = False
        """The last ordinary claim brought something: else suspects are asked for after the next one."""
        self._rechecks = 0
        """Rechecks since the last wake-up, or since nothing was due."""
        self._wakes = 0
        """Wake-ups before the last sleep."""
        self._claim_sent = False
        """The last permit was given, so the store was asked."""

    async def run(self) -> None:
        """Claim and start jobs until stopped, or, with ``once``, until nothing is due and nothing runs."""
        state = self._state
        while not state.is_stopping:
            seen, was_idle = state.changes, state.is_idle
            if self._suspect_is_next:
                await self._suspect_first()
            elif self._limits.is_spent:
                self._slots.resume()
                if not state.has_work:
                    return  # calls that a store has not answered yet are tried once more while the worker stops
                await state.changed_since(seen, END_CHECK_INTERVAL_SECONDS)
            elif self._is_full or not (limit := self._claim_size.limit()):
                await self._wait(seen)
            elif not await self._claim_any(limit) and not await self._sleep(was_idle=was_idle):
                return

    @property
    def _is_full(self) -> bool:
        """Whether nothing may be claimed: the worker is quiet, a suspect runs here, too much waits to be recorded, or
        too many threads have outlived their attempts."""
        state, limits = self._state, self._limits
        return state.is_quiet or self._suspects.blocks_claims or state.is_backed_up or limits.is_out_of_threads

    # -- claim -----------------------------------------------------------------------------------

    async def _claim_any(self, limit: int) -> bool:
        """Claim. False: there was nothing, and nothing happened meanwhile for which to claim again."""
        wakes = self._state.wakes
        returned_before = self._state.returned_jobs  # jobs given back during the claim may be invisible to it
        permit = await self._admission.ask(limit)
        found = False
        self._claim_sent = isinstance(permit, Permit)
        if isinstance(permit, Permit):
            found = await self._claim_in_turn(permit) or (
                self._state.wakes == wakes and await self._claim_suspect(permit)
            )
        elif permit.pause is not None:
            await self._state.until(lambda: self._state.is_stopping or self._limits.is_spent, permit.pause)
            found = True  # the pause is over: ask again at once
        return found or self._state.wakes != wakes or self._state.returned_jobs != returned_before

    async def _claim_in_turn(self, permit: Permit) -> bool:
        """Ordinary jobs: those of the tasks whose turn it is, or else of all."""
        tasks = self._state.tasks
        if self._fairness is None:
            return bool(await self._claim_ordinary(permit, tasks))
        turn = self._fairness.next(tasks)
        claimed = await self._claim_ordinary(permit, turn)
        if not claimed and turn is not tasks:
            self._fairness.restart()
            turn = tasks
            claimed = await self._claim_ordinary(permit, turn)
        full = len(claimed) == permit.limit or self._claims.is_rationed
        self._fairness.served(claimed, full=full, round_open=turn is not tasks)
        return bool(claimed)

    async def _claim_ordinary(self, permit: Permit, tasks: Tasks) -> list[HeldJob]:
        claimed = await self._claims.claim(permit, tasks)
        self._suspects.others_claimed()
        self._found_jobs = bool(claimed)
        if claimed:
            self._claim_size.measure(claimed)
            self._start(claimed)
            if len(claimed) < permit.limit:
                await asyncio.sleep(0)  # there is no more now, so no hurry to claim: they start first
        return claimed

    def _start(self, claimed: Sequence[HeldJob], *, first: bool = False) -> None:
        """Queue them for a slot, unless the worker stops: then it returns them as they are."""
        if not self._state.is_stopping:
            self._slots.add(claimed, first=first)

    # -- suspects --------------------------------------------------------------------------------

    @property
    def _suspect_is_next(self) -> bool:
        """Whether a suspect is to be claimed before anything else, and a slot is free for it."""
        limits, state = self._limits, self._state
        if state.is_quiet or limits.is_spent or limits.is_out_of_threads or not state.free_slots:
            return False
        return self._suspect_wait <= 0

    @property
    def _suspect_wait(self) -> float:
        """Seconds until a suspect is claimed first. Without other work, one is claimed after each ordinary claim."""
        return self._suspects.wait if self._found_jobs or self._suspects.is_serving else NEVER

    async def _suspect_first(self) -> None:
        """Offer a free slot to suspects first."""
        permit = await self._admission.ask(1)
        if isinstance(permit, Permit):
            await self._claim_suspect(permit)
        else:
            self._suspects.claimed(())  # not now: claim other jobs, if any may be claimed
        self._slots.resume()

    async def _claim_suspect(self, permit: Permit) -> bool:
        """Claim one suspect, and start it in a free slot."""
        suspects = self._suspects
        if suspects.is_held or not self._state.free_slots:
            return False
        claimed = await self._claims.claim(permit, self._state.tasks, suspects=True)
        suspects.claimed(claimed)
        for job in claimed:
            self._claim_size.measure(claimed)
            if not suspects.can_isolate:
                self._claims.return_unstarted(job)
            self._start([job], first=True)
        return bool(claimed)

    # -- along with a settlement -----------------------------------------------------------------

    def limit_along(self, tasks: Tasks) -> int:
        """How many jobs of these tasks a settlement may claim now: as many as the claimer would, in this order."""
        return (
            self._claim_size.limit(promised_claims=True) - self._claims.limit_underway if self._may_claim(tasks) else 0
        )

    def start_along(self, claimed: Sequence[HeldJob], tasks: Tasks) -> bool:
        """Start what a settlement has claimed. False: nothing is claimed any more."""
        if not self._may_claim(tasks) or len(claimed) > self._limits.jobs_left:
            return False
        self._claim_size.measure(claimed)
        self._slots.add(claimed)
        return True

    def _may_claim(self, tasks: Tasks) -> bool:
        """The next claim would be one of these tasks, and might be sent now."""
        if self._state.is_ending or self._state.tasks != tasks or self._is_full:
            return False
        return not (self._claims.last_failed or self._slots.is_on_hold)

    # -- wait ------------------------------------------------------------------------------------

    async def _sleep(self, *, was_idle: bool) -> bool:
        """Sleep until a wake-up, or until there may be work without one. False: with ``once``, all is done.

        ``was_idle``: nothing ran when the claim began. Otherwise it may not have seen what the end of a job enqueued.
        """
        wakes = self._state.wakes
        due = await self._claims.next_due()
        leaves_due = due is not None and due <= 0
        if not leaves_due or wakes != self._wakes:
            self._rechecks, self._wakes = 0, wakes
        if leaves_due and self._claim_sent and self._rechecks < len(RECHECK_DELAYS_SECONDS):
            await self._state.until(lambda: self._is_woken(wakes), RECHECK_DELAYS_SECONDS[self._rechecks])
            self._rechecks += 1
        elif self._runs_once and was_idle and self._state.is_idle:
            return False
        else:
            seconds = self._claims.poll_interval(leaves_due=leaves_due)
            if due is not None and due > 0:
                seconds = min(seconds, due + 0.001)
            await self._state.until(lambda: self._is_woken(wakes) or self._is_done, seconds)
        return True

    def _is_woken(self, wakes: int) -> bool:
        return self._state.wakes != wakes or self._limits.is_spent or self._state.is_stopping

    @property
    def _is_done(self) -> bool:
        """Whether, with ``once``, nothing is left to do; the store is then asked once more."""
        return self._runs_once and self._state.is_idle

    async def _wait(self, seen: int) -> None:
        """Wait until something changes. From the time when suspects are due, no slot that becomes free is filled."""
        wait = NEVER if self._slots.is_on_hold or self._state.is_quiet else self._suspect_wait
        if not await self._state.changed_since(seen, wait):
            self._slots.hold()


class ClaimSize:
    """How many jobs to claim: the free slots, and a little ahead in proportion to how fast jobs end.

    A slow handler hoards nothing, and a fast one never waits for a round trip.
    """

    def __init__(
        self, slots: Slots, settler: Settler, hooks: Hooks, limits: Limits, state: WorkerState, *, one_by_one: bool
    ) -> None:
        """``one_by_one``: the application counts each record before the next claim."""
        self._slots = slots
        self._settler = settler
        self._hooks = hooks
        self._limits = limits
        self._state = state
        self._claims_singly = one_by_one
        self._rate = 0.0
        self._handlers_ended = 0
        self._handler_seconds = 0.0
        self._measured_at = state.clock.monotonic()

    def limit(self, *, promised_claims: bool = False) -> int:
        """How many to claim now. ``promised``: those too that settlements under way may claim (Successors)."""
        limit = int(min(self._single() if self._claims_singly else self._many(), self._limits.jobs_left))
        if self._hooks.holds_slots and limit < self._settler.unanswered:
            return 0  # more slots are about to become free than are free: one claim for all of them
        return limit if promised_claims else max(limit - self._settler.promised_claims, 0)

    def _single(self) -> int:
        """When the last record has run to its first wait, and its pre_handle has returned: so it has been counted."""
        return 0 if self._state.ready or self._hooks.preparing else self._state.free_slots

    def _many(self) -> int:
        ahead = 0
        if not self._hooks.holds_slots:
            ahead = min(self._state.options.look_ahead, int(self._current_rate() * LOOK_AHEAD_SECONDS))
        waiting = len(self._state.ready)
        self._slots.refill_at(ahead // 2)
        return 0 if waiting > ahead // 2 else max(self._state.free_slots + ahead - waiting, 0)

    def measure(self, claimed: Sequence[HeldJob]) -> None:
        """Jobs per second since the last claim that brought some, half old and half new.

        Of two ways to count, the slower: by the clock (handlers may share one processor), and by how long handlers
        took (many slow ones that end at one moment are no sign of haste). Beside a job under which a worker died few
        are claimed.
        """
        now = self._state.clock.monotonic()
        done = self._state.handlers_ended - self._handlers_ended
        elapsed = max(now - self._measured_at, 0.001)
        if done or elapsed > 1.0:
            handler_seconds = max(
                (self._state.handler_seconds - self._handler_seconds) / self._state.options.concurrency, 0.000001
            )
            self._rate = (self._rate + min(done / elapsed, done / handler_seconds)) / 2
            self._measured_at = now
            self._handlers_ended = self._state.handlers_ended
            self._handler_seconds = self._state.handler_seconds
        if any(job.claim.resets for job in claimed):
            self._rate = 0.0

    def _current_rate(self) -> float:
        """The rate, unless it has fallen since it was measured: what was given back is not to be claimed at once."""
        elapsed = self._state.clock.monotonic() - self._measured_at
        return (
            self._rate
            if elapsed <= 1.0
            else min(self._rate, (self._state.handlers_ended - self._handlers_ended) / elapsed)
        )


class Fairness:
    """Tasks take turns, so that none waits behind the flood of another.

    Jobs are claimed in the order (priority, run_at, id), whatever their tasks: a hundred thousand of one task, all due
    earlier, keep every other task waiting. A fair worker claims jobs of the tasks that it has not served in this round;
    when they have none, of all tasks, and a new round begins. Within one task the order stays; an idle worker claims
    once.
    """

    def __init__(self, tasks: Tasks) -> None:
        """Raises ConfigurationError where there is no list of tasks, because then no task can be passed over."""
        if tasks is None:
            raise ConfigurationError("fair: tasks that have no names cannot take turns; give tasks")
        self._served: set[str] = set()
        """Tasks served in this round."""

    def next(self, tasks: Tasks) -> Tasks:
        """Return those of these tasks whose turn it is; ``tasks`` itself where none is passed over."""
        if not self._served or tasks is None:
            return tasks
        unserved = tuple(task for task in tasks if task not in self._served)
        if unserved:
            return unserved
        self._served.clear()
        return tasks

    def served(self, claimed: Sequence[HeldJob], *, full: bool, round_open: bool) -> None:
        """A claim brought these. ``full``: there may be more; ``round_open``: it passed some tasks over."""
        if full or round_open:
            self._served.update(job.claim.task for job in claimed)
        else:
            self._served.clear()  # everything that was due is here: no task waits behind another

    def restart(self) -> None:
        """The tasks whose turn it was have no jobs."""
        self._served.clear()


class SuspectSchedule:
    """When suspects run: jobs that were reset twice or more, because workers died under them.

    One slot of the worker serves them, one after another, while any is due. In a child process a suspect runs beside
    other jobs, and its slot is kept for the next suspect. In this process it takes the next free slot, and nothing new
    is claimed while it runs. A worker of one slot, and one without a child process, claims other jobs between two
    suspects.
    """

    def __init__(self, state: WorkerState, *, can_isolate: bool) -> None:
        """``can_isolate``: there are child processes for them."""
        self._state = state
        self._alternates = not can_isolate or state.options.concurrency == 1
        self.can_isolate = can_isolate
        self._last_suspect: HeldJob | None = None
        """The last one."""
        self._claimed_at = state.clock.monotonic()
        self.is_serving = False
        """The last claim brought one, so there may be more."""
        self._has_claimed_others = True
        """Other jobs were claimed since the last suspect."""

    @property
    def is_held(self) -> bool:
        """One waits or runs. One that was given back before it started does not count."""
        job = self._last_suspect
        if job is None:
            return False
        if job.attempt is None:
            return job.phase is not Phase.RELEASED
        return job.task is not None

    @property
    def blocks_claims(self) -> bool:
        """One runs in this process, so nothing else may be claimed."""
        return self.is_held and not self.can_isolate

    @property
    def wait(self) -> float:
        """Seconds until suspects are to be claimed although there is other work: from 0 on the next slot is for one."""
        if self.is_held:
            return NEVER
        if self.is_serving:
            return NEVER if self._is_turn_of_others else 0.0
        return self._claimed_at + self._state.timings.suspects_every - self._state.clock.monotonic()

    def claimed(self, claimed: Sequence[HeldJob]) -> None:
        """Note the answer to a claim of suspects, of one at most."""
        self._claimed_at = self._state.clock.monotonic()
        self.is_serving = bool(claimed)
        if claimed:
            self._last_suspect = claimed[0]
            self._has_claimed_others = False

    def others_claimed(self) -> None:
        """Note the answer to a claim of other jobs."""
        self._has_claimed_others = True

    @property
    def _is_turn_of_others(self) -> bool:
        """Other jobs come between two suspects: until they have been claimed, and those that were have started."""
        return self._alternates and not (self._has_claimed_others and not self._state.ready)
