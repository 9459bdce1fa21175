"""Claims jobs: when, how many, of which tasks, and how long to sleep when there are none.

    limit    the free slots, and a little ahead in proportion to the measured rate (claim_size.py)
    ask      whether a claim may go out now (admission.py)
    claim    of the tasks whose turn it is (fairness.py); now and then a suspect (suspects.py); one call (claims.py)
    wait     until a slot falls free, a wake-up comes, a job falls due, or the poll interval has passed
    recheck  soon, and a few times only, where a claim left something due: another transaction may lock its row

Before it sleeps it has claimed once more after the last wake-up, so a wake-up is never slept through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stowhand.worker.admission import Admission, Pause, Permit
from stowhand.worker.basis import Basis
from stowhand.worker.changes import NEVER
from stowhand.worker.claim_size import ClaimSize
from stowhand.worker.claims import Claims
from stowhand.worker.fairness import Fairness
from stowhand.worker.leases import Held
from stowhand.worker.load import Load
from stowhand.worker.slots import Slots
from stowhand.worker.suspects import Suspects

LAST_LOOKS = 0.5
"""Seconds between two looks whether everything has ended, where no part signals it."""
RECHECK_DELAYS_SECONDS = (0.01, 0.05, 0.25)
"""Pauses before the claims that follow one which found nothing although a job is due.

``SKIP LOCKED`` passes over a row that another transaction locks, mostly for milliseconds, and no notification follows
when the lock is released. A job that stays unclaimable (its serial key is busy, its flag is forbidden) waits for the
poll after that, until a wake-up comes or nothing is due."""


class Claimer:
    """The first of the worker's loops."""

    def __init__(
        self,
        admission: Admission,
        claim_size: ClaimSize,
        claims: Claims,
        suspects: Suspects,
        slots: Slots,
        load: Load,
        basis: Basis,
    ) -> None:
        self._admission = admission
        self._claim_size = claim_size
        self._claims = claims
        self._suspects = suspects
        self._slots = slots
        self._load = load
        self._duty = basis.duty
        self._changes = basis.changes
        self._once = basis.options.once
        self._fairness = Fairness(basis.options.tasks) if basis.options.fair else None
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
        while not self._duty.is_stopping:
            seen, was_idle = self._changes.count, self._load.is_idle
            if self._suspect_is_next:
                await self._suspect_first()
            elif self._is_spent:
                self._slots.resume()
                if not self._load.is_at_work:
                    return  # calls that a store has not answered yet are tried once more while the worker stops
                await self._changes.since(seen, LAST_LOOKS)
            elif self._is_full or not (limit := self._claim_size.limit()):
                await self._wait(seen)
            elif not await self._claim_any(limit) and not await self._sleep(was_idle=was_idle):
                return

    @property
    def _is_spent(self) -> bool:
        """Nothing more is claimed: the worker has had as many jobs, or as much time, as it may."""
        return self._duty.is_over or not self._claim_size.left

    @property
    def _is_full(self) -> bool:
        """Nothing may be claimed: the worker is quiet, a suspect runs here, too much waits to be recorded, or too many
        threads have outlived their attempts."""
        load = self._load
        return self._duty.is_quiet or self._suspects.blocks_claims or load.is_backed_up or load.is_out_of_threads

    # -- claim -----------------------------------------------------------------------------------

    async def _claim_any(self, limit: int) -> bool:
        """Claim. False: there was nothing, and nothing happened meanwhile for which to claim again."""
        wakes = self._changes.wakes
        returned = self._load.returned  # jobs given back during the claim may be invisible to it
        permit = await self._ask(limit)
        found = False
        self._claim_sent = isinstance(permit, Permit)
        if isinstance(permit, Permit):
            found = await self._claim_in_turn(permit) or (
                self._changes.wakes == wakes and await self._claim_suspect(permit)
            )
        elif permit.pause is not None:
            await self._changes.until(lambda: self._duty.is_stopping or self._is_spent, permit.pause)
            found = True  # the pause is over: ask again at once
        return found or self._changes.wakes != wakes or self._load.returned != returned

    async def _ask(self, limit: int) -> Permit | Pause:
        return await self._admission.ask(free=self._load.free, running=self._slots.running, limit=limit)

    async def _claim_in_turn(self, permit: Permit) -> bool:
        """Ordinary jobs: those of the tasks whose turn it is, or else of all."""
        tasks = self._duty.tasks
        if self._fairness is None:
            return bool(await self._claim_ordinary(permit, tasks))
        turn = self._fairness.next(tasks)
        claimed = await self._claim_ordinary(permit, turn)
        if not claimed and turn is not tasks:
            self._fairness.restart()
            turn = tasks
            claimed = await self._claim_ordinary(permit, turn)
        full = len(claimed) == permit.limit or self._claims.rations
        self._fairness.served(claimed, full=full, round_open=turn is not tasks)
        return bool(claimed)

    async def _claim_ordinary(self, permit: Permit, tasks: tuple[str, ...] | None) -> list[Held]:
        claimed = await self._claims.claim(permit, tasks, limit=permit.limit)
        self._suspects.others_claimed()
        self._found_jobs = bool(claimed)
        if claimed:
            self._claim_size.measure(claimed)
            self._start(claimed)
            if len(claimed) < permit.limit:
                await asyncio.sleep(0)  # there is no more now, so no hurry to claim: they start first
        return claimed

    def _start(self, claimed: Sequence[Held], *, first: bool = False) -> None:
        """Queue them for a slot, unless the worker stops: then it returns them as they are."""
        if not self._duty.is_stopping:
            self._slots.add(claimed, first=first)

    # -- suspects --------------------------------------------------------------------------------

    @property
    def _suspect_is_next(self) -> bool:
        """It is time to claim a suspect before anything else, and there is a slot for it."""
        load = self._load
        if self._duty.is_quiet or self._is_spent or load.is_out_of_threads or not load.free:
            return False
        return self._suspect_wait <= 0

    @property
    def _suspect_wait(self) -> float:
        """Seconds until a suspect is claimed first. Without other work, one is claimed after each ordinary claim."""
        return self._suspects.wait if self._found_jobs or self._suspects.is_serving else NEVER

    async def _suspect_first(self) -> None:
        """Offer a free slot to suspects first."""
        permit = await self._ask(1)
        if isinstance(permit, Permit):
            await self._claim_suspect(permit)
        else:
            self._suspects.claimed(())  # not now: claim other jobs, if any may be claimed
        self._slots.resume()

    async def _claim_suspect(self, permit: Permit) -> bool:
        """Claim one suspect, and start it in a free slot."""
        suspects = self._suspects
        if suspects.is_held or not self._load.free:
            return False
        claimed = await self._claims.claim(permit, self._duty.tasks, limit=1, suspects=True)
        suspects.claimed(claimed)
        for held in claimed:
            self._claim_size.measure(claimed)
            if not suspects.can_isolate:
                self._claims.give_back_ahead(held)
            self._start([held], first=True)
        return bool(claimed)

    # -- wait ------------------------------------------------------------------------------------

    async def _sleep(self, *, was_idle: bool) -> bool:
        """Sleep until a wake-up, or until there may be work without one. False: with ``once``, all is done.

        ``was_idle``: nothing ran when the claim began. Otherwise it may not have seen what the end of a job enqueued.
        """
        wakes = self._changes.wakes
        due = await self._claims.next_due()
        leaves_due = due is not None and due <= 0
        if not leaves_due or wakes != self._wakes:
            self._rechecks, self._wakes = 0, wakes
        if leaves_due and self._claim_sent and self._rechecks < len(RECHECK_DELAYS_SECONDS):
            await self._changes.until(lambda: self._is_woken(wakes), RECHECK_DELAYS_SECONDS[self._rechecks])
            self._rechecks += 1
        elif self._once and was_idle and self._load.is_idle:
            return False
        else:
            seconds = self._claims.poll_interval(leaves_due=leaves_due)
            if due is not None and due > 0:
                seconds = min(seconds, due + 0.001)
            await self._changes.until(lambda: self._is_woken(wakes) or self._is_done, seconds)
        return True

    def _is_woken(self, wakes: int) -> bool:
        return self._changes.wakes != wakes or self._is_spent or self._duty.is_stopping

    @property
    def _is_done(self) -> bool:
        """With ``once``, before the end the store is asked once more."""
        return self._once and self._load.is_idle

    async def _wait(self, seen: int) -> None:
        """Until something changes. From the time when suspects are due, no slot that falls free is filled before."""
        wait = NEVER if self._slots.on_hold or self._duty.is_quiet else self._suspect_wait
        if not await self._changes.since(seen, wait):
            self._slots.hold()
