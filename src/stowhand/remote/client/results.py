"""How jobs ended, asked of a server that lends its store."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.errors import ConfigurationError
from stowhand.protocols.results import Standing
from stowhand.protocols.store import DOING
from stowhand.remote.client.bodies import ITEMS
from stowhand.remote.client.http_caller import HttpCaller
from stowhand.remote.client.troubles import CallRefused
from stowhand.remote.wire import ENDS, Ends, EndsAsked, Kind


class HttpResults:
    """Of one store."""

    min_pause = 0.1
    hear = None

    def __init__(self, http: HttpCaller) -> None:
        self._http = http
        self._last: Ends | None = None

    async def retention(self) -> float | None:
        """As the last answer said. Raises ConfigurationError where the server, or what it lends, cannot be asked."""
        last = self._last or await self._ends(())
        return last.retention

    async def ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        """One request for a thousand of them, more where their results are large."""
        standings: list[Standing] = []
        left = list(job_ids)
        while left:
            ends = await self._ends(left[:ITEMS])
            standings += ends.ended
            left[:ITEMS] = ends.left_out
        return standings

    async def _ends(self, job_ids: Sequence[int]) -> Ends:
        try:
            self._last = await self._http.post(ENDS, EndsAsked(job_ids=tuple(job_ids)))
        except CallRefused as refused:
            if refused.kind != Kind.REFUSED:
                raise
            why = f"{DOING['results']}: {self._http.base}: {refused.server_message}"
            raise ConfigurationError(why) from None
        return self._last
