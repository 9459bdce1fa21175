"""The memory of claims that were answered (a client whose reply was lost asks again with the same token), and of which
worker holds which lease (a supervisor reports that its worker died).

Both are bounded, the oldest entries go first, and answers are forgotten after two minutes. After that, or after a
restart of the server, a job comes back by the release of its claim token, or when its lease ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from stowhand.clock import Clock
from stowhand.jobs.lease import JobId, Lease, Pair

MOST_TOKENS = 20_000
"""Claim tokens that are remembered."""
MOST_LEASES = 100_000
"""Leases whose holders are remembered."""
BYTES = 64 * 1024 * 1024
"""Size of the remembered records, as they were sent."""
KEPT = 120.0
"""Seconds. Clients notice a lost reply at once."""


Holder = tuple[str, str]
"""Id of the worker token, name of the worker."""


class Sent(msgspec.Struct, frozen=True):
    """One record that was lent."""

    lease: Lease
    """As the store knows it."""
    body: bytes
    """As it was sent: an encoded ``wire.Lent``."""


class Answer:
    """What one claim token was answered, and whether it may still claim."""

    def __init__(self) -> None:
        self.at = 0.0
        self.sent: dict[JobId, Sent] = {}
        self.released = False
        self.turn = asyncio.Lock()
        """Requests with the same token are answered one after the other."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(one.body) for one in self.sent.values())


class Holdings:
    """Which worker holds which leases, of those lent since the server started."""

    def __init__(self) -> None:
        self._holders: OrderedDict[Pair, Holder] = OrderedDict()
        self._held: dict[Holder, dict[Pair, Lease]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def lent(self, holder: Holder, leases: Iterable[Lease]) -> None:
        """These leases (as the store knows them) were lent to it."""
        for lease in leases:
            pair = lease.pair
            self._holders[pair] = holder
            self._held.setdefault(holder, {})[pair] = lease
        while len(self._holders) > MOST_LEASES:
            self._forget(next(iter(self._holders)))

    def over(self, leases: Iterable[Lease]) -> None:
        """These leases have ended: settled, released, lost."""
        for lease in leases:
            if lease.pair in self._holders:
                self._forget(lease.pair)

    def of(self, holder: Holder) -> list[Lease]:
        """The known leases of this worker."""
        return list(self._held.get(holder, {}).values())

    def _forget(self, pair: Pair) -> None:
        holder = self._holders.pop(pair)
        held = self._held[holder]
        del held[pair]
        if not held:
            del self._held[holder]


class Answers:
    """By the store's claim token, which is derived from the worker token too. The oldest are forgotten first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_token: OrderedDict[str, Answer] = OrderedDict()
        self._bytes = 0
        self.holdings = Holdings()
        """Kept for longer than the answers."""

    def __len__(self) -> int:
        return len(self._by_token)

    def of(self, token: str) -> Answer:
        """The answer of this token; a new one where there is none."""
        answer = self._by_token.pop(token, None) or Answer()
        answer.at = self._clock.monotonic()
        self._by_token[token] = answer
        self._forget()
        return answer

    def remember(self, token: str, sent: Iterable[Sent]) -> None:
        """These records are sent now."""
        answer = self.of(token)
        self._bytes -= answer.size
        answer.sent.update((one.lease.job_id, one) for one in sent)
        self._bytes += answer.size
        self._forget()

    def over(self, leases: Iterable[Lease]) -> None:
        """These leases (as the store knows them) have ended: settled, released or lost."""
        leases = tuple(leases)
        self.holdings.over(leases)
        for lease in leases:
            answer = self._by_token.get(lease.token)
            gone = answer.sent.pop(lease.job_id, None) if answer is not None else None
            if gone is not None:
                self._bytes -= len(gone.body)

    def drop_if_empty(self, token: str) -> None:
        """Forget a claim that returned nothing."""
        answer = self._by_token.get(token)
        if answer is not None and not (answer.sent or answer.released or answer.turn.locked()):
            del self._by_token[token]

    def _forget(self) -> None:
        while self._by_token:
            token, oldest = next(iter(self._by_token.items()))
            fits = len(self._by_token) <= MOST_TOKENS and self._bytes <= BYTES
            if (fits and self._clock.monotonic() - oldest.at < KEPT) or len(self._by_token) == 1:
                return
            del self._by_token[token]
            self._bytes -= oldest.size
