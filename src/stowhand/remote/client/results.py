"""Hearing of the end of jobs: one request waits at the server for all of them.

It says which jobs, so nothing is lost when it is cut off, and a server that was restarted knows all it needs. For more
jobs it is ended, and sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from stowhand.clock import stopwatch
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob
from stowhand.protocols.results import Standing
from stowhand.protocols.store import DOING
from stowhand.remote.client.bodies import ITEMS
from stowhand.remote.client.http_caller import HttpCaller
from stowhand.remote.client.troubles import CallRefused
from stowhand.remote.wire import LONGEST_WAIT, Ends, EndsAsked, Kind

FRESH = 1.0
"""Seconds for which what was heard is as good as what would be asked."""
CROWDED = 1.0
"""Seconds between two looks at more jobs than fit into the request that waits."""


class HttpResults:
    """Nothing is marked from here: the server does it where that is needed."""

    waiter = None

    def __init__(self, http: HttpCaller) -> None:
        self._http = http
        self._news: dict[int, int | None] = {}
        """By job that is waited for: the revision above which another job in its place is news. ``None``: it has ended,
        and that is no news."""
        self._changed = asyncio.Event()
        self._last: Ends | None = None
        self._told: dict[int, Standing] = {}
        """Those that the last ``hear`` was told of, until they are asked for; ``_told_at`` was when."""
        self._told_at = 0.0

    def marked(self, job: NewJob) -> bool:
        """Never by its enqueueing."""
        return False

    async def retention(self) -> float | None:
        """As the last answer said. Raises ConfigurationError where the server, or what it lends, cannot be asked."""
        last = self._last or await self._ends((), 0.0)
        return last.retention

    async def mark(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """``hear`` waits for them from now on."""
        return await self._ask(job_ids)

    async def ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """Where ``hear`` has just been told of them all, what it was told, which costs no request; else as ``mark``."""
        told, self._told = self._told, {}
        if stopwatch() - self._told_at < FRESH and all(job_id in told for job_id in job_ids):
            return [told[job_id] for job_id in job_ids]
        return await self._ask(job_ids)

    async def _ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """One request for a thousand of them, more where their results are large."""
        standings: list[Standing] = []
        left = list(job_ids)
        while left:
            ends = await self._ends(((job_id, 0) for job_id in left[:ITEMS]), 0.0)
            standings += ends.ended
            left[:ITEMS] = ends.left_out
        self._learn(job_ids, standings)
        return standings

    async def hear(self, job_ids: Sequence[int]) -> None:
        """Until the server says that one has ended. Of more than a thousand the oldest are heard of, and all are asked
        about every second."""
        self._news = {job_id: self._news.get(job_id, 0) for job_id in job_ids}
        while not await self._is_news():
            pass

    async def rest(self) -> None:
        """Nothing is held."""

    async def _is_news(self) -> bool:
        """One request. False: it came to nothing, or there are other jobs to wait for."""
        self._changed.clear()
        awaited = [(job_id, above) for job_id, above in sorted(self._news.items()) if above is not None]
        if not awaited:
            return not await self._changed.wait()
        is_crowded = len(awaited) > ITEMS
        poll = asyncio.ensure_future(self._ends(awaited[:ITEMS], CROWDED if is_crowded else LONGEST_WAIT))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((poll, changed), return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                return False
            ends = poll.result()
        finally:
            poll.cancel()
            changed.cancel()
        self._learn([standing.job_id for standing in ends.ended], ends.ended)
        if not is_crowded:
            self._told, self._told_at = {one.job_id: one for one in ends.ended}, stopwatch()
        return is_crowded or bool(ends.ended)

    def _learn(self, job_ids: Sequence[int], standings: Iterable[Standing]) -> None:
        """What was answered about these is no news any more."""
        ended = {one.job_id: one for one in standings}
        for job_id in job_ids:
            standing = ended.get(job_id)
            goes_on = standing is None or not (standing.state is None or standing.state.terminal)
            above = ((standing and standing.replaced) or 0) if goes_on else None
            if above is not None and self._news.get(job_id) != above:
                self._changed.set()
            self._news[job_id] = above

    async def _ends(self, jobs: Iterable[tuple[int, int]], wait: float) -> Ends:
        try:
            self._last = await self._http.post("/v1/ends", EndsAsked(jobs=tuple(jobs), wait=wait), Ends, waits=wait)
        except CallRefused as refused:
            match refused.kind:
                case Kind.UNKNOWN:
                    why = "the server is older and cannot tell: update Stowhand there, or ask the store itself"
                case Kind.REFUSED:
                    why = refused.server_message
                case _:
                    raise
            raise ConfigurationError(f"{DOING['results']}: {self._http.base}: {why}") from None
        return self._last
