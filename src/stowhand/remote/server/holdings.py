"""Which worker holds what, of what this server has lent since it started: for whoever saw that worker die.

Only what was lent under the same worker token is found. Bounded: what was lent first is forgotten first, and comes back
when its lease ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from stowhand.jobs.lease import JobId, Lease

MOST = 100_000
"""Leases."""
Holder = tuple[str, str]
"""Id of the worker token, name of the worker."""


class Holdings:
    """Of one server, used on its loop."""

    def __init__(self) -> None:
        self._holders: OrderedDict[tuple[JobId, str], Holder] = OrderedDict()
        self._held: dict[Holder, dict[tuple[JobId, str], Lease]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def lent(self, holder: Holder, leases: Iterable[Lease]) -> None:
        """These (in the store) are its own from now on."""
        for lease in leases:
            pair = (lease.job_id, lease.token)
            self._holders[pair] = holder
            self._held.setdefault(holder, {})[pair] = lease
        while len(self._holders) > MOST:
            self._forget(next(iter(self._holders)))

    def over(self, leases: Iterable[Lease]) -> None:
        """They are held no more: settled, released, lost."""
        for lease in leases:
            if (lease.job_id, lease.token) in self._holders:
                self._forget((lease.job_id, lease.token))

    def of(self, holder: Holder) -> list[Lease]:
        """What it holds, as far as is known."""
        return list(self._held.get(holder, {}).values())

    def _forget(self, pair: tuple[JobId, str]) -> None:
        holder = self._holders.pop(pair)
        held = self._held[holder]
        del held[pair]
        if not held:
            del self._held[holder]
