"""The claim loop: decides when to claim, how many jobs, of which tasks, and how long to sleep when there are none.

    limit    as many jobs as slots are free, and a few more in proportion to the measured rate (ClaimSize)
    ask      ask the application whether a claim may be sent (admission.py)
    claim    claim jobs of the tasks whose turn it is (Fairness), or sometimes a suspect (SuspectSchedule)
    wait     wait for a free slot, a wake-up, the next due time, or the end of the poll interval
    recheck  claim again soon, a few times, if a due job was left: another transaction may be locking its row

The loop always claims once more after a wake-up before it sleeps, so it never misses one. A settlement that claims a
successor follows the same rules (claims.py).
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
"""Interval of the check whether everything has ended, for changes that no part signals."""
RECHECK_DELAYS_SECONDS = (0.01, 0.05, 0.25)
"""Pauses before claims are repeated that found nothing although a job is due.

``SKIP LOCKED`` skips rows that other transactions lock, mostly for milliseconds, and nothing notifies of the release. A
job that stays unclaimable (its serial key is busy, its flag is forbidden) waits for the next poll or wake-up."""


class Claimer:
    """Loop that claims jobs for a worker and starts them."""

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
        self._has_found_jobs = False
        """Whether the last ordinary claim found jobs; if not, suspects are claimed after the next one."""
        self._rechecks = 0
        """Number of rechecks since the last wake-up, or since nothing was due."""
        self._wakes = 0
        """Number of wake-ups before the last sleep."""
        self._was_claim_sent = False
        """Whether the last claim was permitted, and so sent."""

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
                    return  # the stop repeats calls that the store has not answered
                await state.changed_since(seen, END_CHECK_INTERVAL_SECONDS)
            elif self._is_full or not (limit := self._claim_size.limit()):
                await self._wait(seen)
            elif not await self._claim_any(limit) and not await self._sleep(was_idle=was_idle):
                return

    @property
    def _is_full(self) -> bool:
        """Whether nothing may be claimed: the worker is quiet, the store does not have the limits of its tasks yet, a
        suspect runs here, too much waits to be recorded, or too many threads have outlived their attempts."""
        state, limits = self._state, self._limits
        if state.is_suspended or limits.is_out_of_threads:
            return True
        return self._suspects.blocks_claims or state.is_backed_up

    # -- claim -----------------------------------------------------------------------------------

    async def _claim_any(self, limit: int) -> bool:
        """Claim. Return False if no job was found and no reason to claim again came up meanwhile."""
        wakes = self._state.wakes
        returned_before = self._state.returned_jobs  # jobs returned during the claim may be invisible to it
        permit = await self._admission.ask(limit)
        should_continue = False
        self._was_claim_sent = isinstance(permit, Permit)
        if isinstance(permit, Permit):
            should_continue = await self._claim_in_turn(permit) or (
                self._state.wakes == wakes and await self._claim_suspect(permit)
            )
        elif permit.pause is not None:
            await self._state.until(lambda: self._state.is_stopping or self._limits.is_spent, permit.pause)
            should_continue = True  # after the pause, ask again at once
        return should_continue or self._state.wakes != wakes or self._state.returned_jobs != returned_before

    async def _claim_in_turn(self, permit: Permit) -> bool:
        """Claim ordinary jobs of the tasks whose turn it is; if there are none, of all tasks."""
        tasks = self._state.tasks
        if self._fairness is None:
            return bool(await self._claim_ordinary(permit, tasks))
        turn = self._fairness.next(tasks)
        claimed = await self._claim_ordinary(permit, turn)
        if not claimed and turn is not tasks:
            self._fairness.restart()
            turn = tasks
            claimed = await self._claim_ordinary(permit, turn)
        is_full = len(claimed) == permit.limit or self._claims.is_rationed
        self._fairness.note_claim(claimed, is_full=is_full, is_round_open=turn is not tasks)
        return bool(claimed)

    async def _claim_ordinary(self, permit: Permit, tasks: Tasks) -> list[HeldJob]:
        claimed = await self._claims.claim(permit, tasks)
        self._suspects.note_other_claim()
        self._has_found_jobs = bool(claimed)
        if claimed:
            self._claim_size.measure(claimed)
            self._start(claimed)
            if len(claimed) < permit.limit:
                await asyncio.sleep(0)  # the store has no more jobs now, so these start before the next claim
        return claimed

    def _start(self, claimed: Sequence[HeldJob], *, first: bool = False) -> None:
        """Queue the jobs for slots. A stopping worker starts none; its stop returns them."""
        if not self._state.is_stopping:
            self._slots.add(claimed, first=first)

    # -- suspects --------------------------------------------------------------------------------

    @property
    def _suspect_is_next(self) -> bool:
        """Whether the next claim is for a suspect, and a slot is free for it."""
        limits, state = self._limits, self._state
        if state.is_suspended or limits.is_spent or limits.is_out_of_threads or not state.free_slots:
            return False
        return self._suspect_wait <= 0

    @property
    def _suspect_wait(self) -> float:
        """Seconds until a suspect is claimed before other jobs.

        Without other work a suspect is claimed after each ordinary claim.
        """
        return self._suspects.wait if self._has_found_jobs or self._suspects.is_serving else NEVER

    async def _suspect_first(self) -> None:
        """Claim a suspect before other jobs."""
        permit = await self._admission.ask(1)
        if isinstance(permit, Permit):
            await self._claim_suspect(permit)
        else:
            self._suspects.note_claim(())  # not permitted now: claim other jobs if that is permitted
        self._slots.resume()

    async def _claim_suspect(self, permit: Permit) -> bool:
        """Claim one suspect and start it in a free slot."""
        suspects = self._suspects
        if suspects.is_held or not self._state.free_slots:
            return False
        claimed = await self._claims.claim(permit, self._state.tasks, suspects=True)
        suspects.note_claim(claimed)
        for job in claimed:
            self._claim_size.measure(claimed)
            if not suspects.can_isolate:
                self._claims.return_unstarted(job)
            self._start([job], first=True)
        return bool(claimed)

    # -- claims with settlements -----------------------------------------------------------------

    def settlement_claim_limit(self, tasks: Tasks) -> int:
        """Return how many jobs of these tasks a settlement may claim now: as many as the claimer would."""
        if not self._may_claim(tasks):
            return 0
        return self._claim_size.limit(promised_claims=True) - self._claims.limit_underway

    def start_from_settlement(self, claimed: Sequence[HeldJob], tasks: Tasks) -> bool:
        """Start jobs that a settlement has claimed. Return False if the worker claims nothing now."""
        if not self._may_claim(tasks) or len(claimed) > self._limits.jobs_left:
            return False
        self._claim_size.measure(claimed)
        self._slots.add(claimed)
        return True

    def _may_claim(self, tasks: Tasks) -> bool:
        """Return whether a claim of these tasks may be sent now."""
        if self._state.is_ending or self._state.tasks != tasks or self._is_full:
            return False
        return not (self._claims.last_failed or self._slots.is_on_hold)

    # -- wait ------------------------------------------------------------------------------------

    async def _sleep(self, *, was_idle: bool) -> bool:
        """Sleep until a wake-up or the next due time. Return False if, with ``once``, all work is done.

        ``was_idle``: whether nothing ran when the claim started. If a job ran, the claim may have missed jobs that it
        enqueued at its end.
        """
        wakes = self._state.wakes
        due = await self._claims.next_due()
        is_job_left = due is not None and due <= 0
        if not is_job_left or wakes != self._wakes:
            self._rechecks, self._wakes = 0, wakes
        if is_job_left and self._was_claim_sent and self._rechecks < len(RECHECK_DELAYS_SECONDS):
            await self._state.until(lambda: self._is_woken(wakes), RECHECK_DELAYS_SECONDS[self._rechecks])
            self._rechecks += 1
        elif self._runs_once and was_idle and self._state.is_idle:
            return False
        else:
            seconds = self._claims.poll_interval(is_job_left=is_job_left)
            if due is not None and due > 0:
                seconds = min(seconds, due + 0.001)
            await self._state.until(lambda: self._is_woken(wakes) or self._is_done, seconds)
        return True

    def _is_woken(self, wakes: int) -> bool:
        return self._state.wakes != wakes or self._limits.is_spent or self._state.is_stopping

    @property
    def _is_done(self) -> bool:
        """Whether, with ``once``, no work is left; one more claim confirms that."""
        return self._runs_once and self._state.is_idle

    async def _wait(self, seen: int) -> None:
        """Wait until something changes. When suspects become due, keep the next free slot for them."""
        wait = NEVER if self._slots.is_on_hold or self._state.is_quiet else self._suspect_wait
        if not await self._state.changed_since(seen, wait):
            self._slots.hold()


class ClaimSize:
    """Number of jobs to request in the next claim: one for each free slot, and more if jobs finish fast.

    Slow handlers leave jobs to other workers, and fast ones never wait for a round trip.
    """

    def __init__(
        self, slots: Slots, settler: Settler, hooks: Hooks, limits: Limits, state: WorkerState, *, claims_singly: bool
    ) -> None:
        """``one_by_one``: claim only after the application has counted the last job."""
        self._slots = slots
        self._settler = settler
        self._hooks = hooks
        self._limits = limits
        self._state = state
        self._claims_singly = claims_singly
        self._rate = 0.0
        self._handlers_ended = 0
        self._handler_seconds = 0.0
        self._measured_at = state.clock.monotonic()

    def limit(self, *, promised_claims: bool = False) -> int:
        """Return how many jobs to claim now.

        ``promised_claims``: include those that pending settlements may claim (SuccessorClaims).
        """
        limit = int(min(self._single_limit() if self._claims_singly else self._batch_limit(), self._limits.jobs_left))
        if self._hooks.holds_slots and limit < self._settler.unanswered:
            return 0  # more slots are about to become free: one claim will fill all of them
        return limit if promised_claims else max(limit - self._settler.promised_claims, 0)

    def _single_limit(self) -> int:
        """Claim after the last job has reached its first wait and its pre_handle has returned: it is counted then."""
        return 0 if self._state.ready or self._hooks.preparing else self._state.free_slots

    def _batch_limit(self) -> int:
        ahead = 0
        if not self._hooks.holds_slots:
            ahead = min(self._state.options.look_ahead, int(self._current_rate() * LOOK_AHEAD_SECONDS))
        waiting = len(self._state.ready)
        self._slots.refill_at(ahead // 2)
        return 0 if waiting > ahead // 2 else max(self._state.free_slots + ahead - waiting, 0)

    def measure(self, claimed: Sequence[HeldJob]) -> None:
        """Update the rate (jobs per second): the average of the old one and of that since the last successful claim.

        The new rate is the lower of two: by the clock, because handlers may share one processor, and by run time,
        because many slow handlers may end at the same time. It is 0 if a claimed job was reset before: few jobs are
        claimed beside one that may kill the worker.
        """
        now = self._state.clock.monotonic()
        ended_count = self._state.handlers_ended - self._handlers_ended
        elapsed = max(now - self._measured_at, 0.001)
        if ended_count or elapsed > 1.0:
            handler_seconds = max(
                (self._state.handler_seconds - self._handler_seconds) / self._state.options.concurrency, 0.000001
            )
            self._rate = (self._rate + min(ended_count / elapsed, ended_count / handler_seconds)) / 2
            self._measured_at = now
            self._handlers_ended = self._state.handlers_ended
            self._handler_seconds = self._state.handler_seconds
        if any(job.claim.resets for job in claimed):
            self._rate = 0.0

    def _current_rate(self) -> float:
        """Return the rate, lowered if few jobs have ended since: do not claim again what was just returned."""
        elapsed = self._state.clock.monotonic() - self._measured_at
        if elapsed <= 1.0:
            return self._rate
        return min(self._rate, (self._state.handlers_ended - self._handlers_ended) / elapsed)


class Fairness:
    """Turns of tasks, so that many jobs of one task do not delay the others.

    Jobs are claimed in the order (priority, run_at, id), whatever their tasks: a hundred thousand earlier jobs of one
    task keep every other task waiting. A fair worker claims jobs of the tasks that it has not served in this round. If
    these have no jobs, it claims jobs of all tasks, and a new round starts. The order within a task is kept. An idle
    worker claims once.
    """

    def __init__(self, tasks: Tasks) -> None:
        """Raise ConfigurationError without a list of tasks: a worker that claims any task cannot skip one."""
        if tasks is None:
            raise ConfigurationError("fair: only listed tasks can take turns; use tasks")
        self._served: set[str] = set()
        """Tasks served in this round."""

    def next(self, tasks: Tasks) -> Tasks:
        """Return the tasks whose turn it is; ``tasks`` itself if none is skipped."""
        if not self._served or tasks is None:
            return tasks
        unserved = tuple(task for task in tasks if task not in self._served)
        if unserved:
            return unserved
        self._served.clear()
        return tasks

    def note_claim(self, claimed: Sequence[HeldJob], *, is_full: bool, is_round_open: bool) -> None:
        """Note the jobs of a claim. ``is_full``: there may be more; ``is_round_open``: it skipped some tasks."""
        if is_full or is_round_open:
            self._served.update(job.claim.task for job in claimed)
        else:
            self._served.clear()  # every due job was claimed: no task is waiting

    def restart(self) -> None:
        """Start a new round: the tasks whose turn it was have no jobs."""
        self._served.clear()


class SuspectSchedule:
    """Decides when suspects run: jobs that were reset twice or more, because workers died while running them.

    One slot of the worker runs suspects, one after another, while any is due. With child processes a suspect runs
    beside other jobs, and its slot is kept for the next suspect. Without them it runs in this process, and nothing is
    claimed meanwhile. A worker with one slot or without child processes claims other jobs between two suspects.
    """

    def __init__(self, state: WorkerState, *, can_isolate: bool) -> None:
        """``can_isolate``: suspects run in child processes."""
        self._state = state
        self._alternates = not can_isolate or state.options.concurrency == 1
        self.can_isolate = can_isolate
        self._last_suspect: HeldJob | None = None
        """The last claimed suspect."""
        self._claimed_at = state.clock.monotonic()
        self.is_serving = False
        """Whether the last claim of suspects found one, so that there may be more."""
        self._has_claimed_others = True
        """Whether other jobs were claimed since the last suspect."""

    @property
    def is_held(self) -> bool:
        """Whether a suspect waits for a slot or runs."""
        job = self._last_suspect
        if job is None:
            return False
        if job.attempt is None:
            return job.phase is not Phase.RELEASED
        return job.task is not None

    @property
    def blocks_claims(self) -> bool:
        """Whether a suspect runs in this process, so that nothing else may be claimed."""
        return self.is_held and not self.can_isolate

    @property
    def wait(self) -> float:
        """Seconds until suspects are claimed before other work; at 0 or less the next slot is for a suspect."""
        if self.is_held:
            return NEVER
        if self.is_serving:
            return NEVER if self._is_turn_of_others else 0.0
        return self._claimed_at + self._state.timings.suspect_poll_interval - self._state.clock.monotonic()

    def note_claim(self, claimed: Sequence[HeldJob]) -> None:
        """Note the result of a claim of suspects: at most one job."""
        self._claimed_at = self._state.clock.monotonic()
        self.is_serving = bool(claimed)
        if claimed:
            self._last_suspect = claimed[0]
            self._has_claimed_others = False

    def note_other_claim(self) -> None:
        """Note that other jobs were claimed."""
        self._has_claimed_others = True

    @property
    def _is_turn_of_others(self) -> bool:
        """Whether other jobs must be claimed and started before the next suspect."""
        return self._alternates and not (self._has_claimed_others and not self._state.ready)
