"""Many callers wait for the ends of jobs; one question to the store is for all of them.

A wake-up says that some job may have ended, and the store is then asked about all that are waited for. While a store is
away everything is tried again: a caller's own timeout decides how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context

from stowhand.clock import Clock
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.protocols.results import Results, Standing
from stowhand.retry import exponential

SPACING = 20e-6
"""Seconds between two questions for each job that they are about, so that a thousand jobs that end one after the other
do not cost a question each about the others."""
AWAY = 1.0
"""Seconds after which a store that could not be heard is asked."""
AGAIN = 0.1
LINGER = 30.0
"""Seconds for which a connection is kept that nobody waits on."""


class Waits:
    """Of one store, on one loop."""

    def __init__(self, results: Results, clock: Clock) -> None:
        self.results = results
        self._clock = clock
        self._waiting: dict[int, list[tuple[int, asyncio.Future[Standing]]]] = {}
        """By job: the revision that is waited for."""
        self._unmarked: set[int] = set()
        self._heard = True
        """Something may have ended since the last question was sent."""
        self.questions = 0
        """Asked so far: who remembers the number knows whether a job that has just been enqueued was in one."""
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        """Somebody waits."""
        self._task: asyncio.Task[None] | None = None
        self._away = exponential(base=0.1, cap=5.0, jitter=0.2)
        self._locked = exponential(base=0.005, cap=2.0)

    async def end(self, job_id: int, revision: int, *, asked: int | None = None) -> Standing:
        """How the job ended. ``asked``: it bore our mark from the first, when there had been so many questions.

        Raises StoreError where the store refuses to say, or is closed meanwhile.
        """
        return await self.first(((job_id, revision),), asked=asked)

    async def first(self, jobs: Sequence[tuple[int, int]], *, asked: int | None = None) -> Standing:
        """How one of these ended, each with its revision: whichever was told of first. Otherwise as ``end``."""
        ended: asyncio.Future[Standing] = asyncio.get_running_loop().create_future()
        for job_id, revision in jobs:
            self._waiting.setdefault(job_id, []).append((revision, ended))
            if asked is None:
                self._unmarked.add(job_id)
        if asked is not None and asked != self.questions:
            self._heard = True
        self._begin()
        try:
            return await ended
        finally:
            for job_id, _ in jobs:
                self._leave(job_id, ended)

    @property
    def is_quiet(self) -> bool:
        """The store has been asked about every job that is waited for, and will be heard."""
        return not (self._unmarked or self._heard)

    async def close(self) -> None:
        """End every wait with an error."""
        task, self._task = self._task, None
        if task is not None:
            await _ended(task)
        self._fail(StoreError("the store was closed while the end of a job was waited for; the job goes on"))
        await self.results.rest()

    def _begin(self) -> None:
        self._changed.set()
        self._wanted.set()
        if self._task is None or self._task.done():
            # In a context of its own: it is no part of the request or the span of whoever waits first.
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name="stowhand results", context=Context())

    def _leave(self, job_id: int, ended: asyncio.Future[Standing]) -> None:
        rest = [one for one in self._waiting.get(job_id, ()) if one[1] is not ended]
        if rest:
            self._waiting[job_id] = rest
        else:
            self._waiting.pop(job_id, None)
            self._unmarked.discard(job_id)
        if not self._waiting:
            self._wanted.clear()

    async def _run(self) -> None:
        hearing = asyncio.ensure_future(self._hear())
        hearing.add_done_callback(lambda _: self._changed.set())
        try:
            await self._answer(hearing)
        except Exception as error:  # noqa: BLE001 - boundary: each that waits raises it
            self._fail(error)
        finally:
            await _ended(hearing)

    async def _answer(self, hearing: asyncio.Future[None]) -> None:
        """Until nobody has waited for a while."""
        failures = locked = 0
        next_question = 0.0
        await asyncio.sleep(0)  # it hears from before the first question on
        while not hearing.done():
            self._changed.clear()
            pause = None if self._waiting else LINGER
            try:
                if self._unmarked:
                    asked = sorted(self._unmarked)
                    self._tell(await self.results.mark(asked), asked)
                    locked = locked + 1 if self._unmarked else 0
                    pause = self._locked(locked) if self._unmarked else pause
                if self._heard and self._waiting:
                    now = self._clock.monotonic()
                    pause = next_question - now
                    if pause <= 0:
                        pause = None
                        await self._ask()
                        next_question = self._clock.monotonic() + SPACING * len(self._waiting)
                failures = 0
            except StoreUnreachable:
                failures += 1
                self._heard, pause = True, self._away(failures)
            if not await self._is_changed(pause) and pause == LINGER and not self._waiting:
                await self.results.rest()
                if not self._waiting:
                    return
        hearing.result()

    async def _ask(self) -> None:
        self._heard = False
        self.questions += 1
        self._tell(await self.results.ask(sorted(self._waiting)))

    async def _hear(self) -> None:
        """What ends from the call of ``hear`` on is in the question that follows it: it is called again at once."""
        while True:
            try:
                await self.results.hear(sorted(self._waiting))
            except StoreUnreachable:
                await self._clock.sleep(AWAY)
            self._heard = True
            self._changed.set()
            await self._wanted.wait()

    async def _is_changed(self, pause: float | None) -> bool:
        """Wait until there is something to do, or so many seconds: then False."""
        if pause is None:
            return await self._changed.wait()
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._changed.set()

        timer = self._clock.call_later(pause, end)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        return not is_over

    def _tell(self, standings: Sequence[Standing], marked: Sequence[int] = ()) -> None:
        """``marked``: those that the store was to mark."""
        self._unmarked.difference_update(marked)
        for standing in standings:
            if not standing.is_marked and standing.job_id in self._waiting:
                self._unmarked.add(standing.job_id)
            for revision, ended in self._waiting.get(standing.job_id, ()):
                if standing.ends(revision) and not ended.done():
                    ended.set_result(standing)

    def _fail(self, error: Exception) -> None:
        for waiting in self._waiting.values():
            for _, ended in waiting:
                if not ended.done():
                    ended.set_exception(error)
                    ended.exception()  # seen: who is cancelled in this very moment raises nothing


async def _ended(task: asyncio.Future[None]) -> None:
    """Cancel it until it has ended: up to Python 3.11 ``wait_for``, which drivers use, may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
