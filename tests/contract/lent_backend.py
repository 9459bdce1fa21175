"""The place "http": a store in memory (or PostgreSQL), lent by a real server; what is offered there goes over HTTP.

What is not (``capabilities.absent``) goes straight to the lent store, so that a test can bring about what a remote
worker meets: a reset, a cancellation, a look at the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Heartbeats, StoreOptions
from stowhand.protocols.workflows import RecordedStep, Workflows
from stowhand.remote import HttpStore
from stowhand.remote.client.claims import HeldProofs
from tests.contract.backends import Backend, Image, Secrets
from tests.support.shared_server import SharedServer

BY_THE_SERVER = frozenset({"reset_stalled", "check", "maintain"})
"""Of heartbeats."""


class LentBackend:
    """Another place, reached over HTTP. ``close`` it after the test."""

    def __init__(self, inner: Backend, shared_server: SharedServer, name: str = "http") -> None:
        self.name = name
        self.inner, self._shared_server = inner, shared_server
        self._url: str | None = None
        self._proofs = HeldProofs()

    def store(self, options: StoreOptions) -> QueueStore:
        if self._url is None:
            self._url = self._shared_server.lend(self.inner.store(options))
        remote = HttpStore(self._url)
        # Tests let one store settle what another has claimed: the fence is to decide, not the missing proof.
        remote._proofs = remote._claims._proofs = remote.workflows._proofs = self._proofs
        return cast("QueueStore", Both(remote, self.inner.store(options)))

    def image(self, job_id: int) -> Image | None:
        return self.inner.image(job_id)

    def secrets(self) -> dict[int, Secrets]:
        return self.inner.secrets()

    def ticks(self, identifier: str) -> list[datetime]:
        return self.inner.ticks(identifier)

    def refuse(self, job_id: int, *states: State) -> None:
        self.inner.refuse(job_id, *states)

    def audit(self, call: str) -> list[str]:
        """What the server's audit says of the jobs of this call. First, what the server has counted is written."""
        assert self._url is not None
        house = self._shared_server.house(self._url)
        self._shared_server.do(house.write_throughput())
        return [word for event in house.audit if event.call == call for word in event.verdicts]

    def close(self) -> None:
        if self._url is not None:
            self._shared_server.withdraw(self._url)


class Both:
    """A store over HTTP, and beside it the way to the lent one."""

    def __init__(self, remote: HttpStore, lent: QueueStore) -> None:
        self._remote, self._lent = remote, lent

    async def open(self) -> None:
        await self._remote.open()
        await self._lent.open()

    async def close(self) -> None:
        await self._remote.close()
        await self._lent.close()

    @property
    def workflows(self) -> Workflows:
        return cast("Workflows", BothWorkflows(self._remote, self._lent))

    def heartbeats(self) -> Heartbeats:
        return cast("Heartbeats", BothHeartbeats(self._remote.heartbeats(), self._lent.heartbeats()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lent if name in self._remote.capabilities.absent else self._remote, name)


class BothWorkflows:
    """The same for workflows. A test looks at any job's steps and forks it; a worker only reads those that it runs."""

    def __init__(self, remote: HttpStore, lent: QueueStore) -> None:
        assert lent.workflows is not None
        self._remote, self._lent = remote, lent.workflows
        self.fork = self._lent.fork

    async def read(self, job_id: int) -> Sequence[RecordedStep]:
        steps = await self._lent.read(job_id)
        if self._remote._proofs.of_job(job_id) is not None:
            assert await self._remote.workflows.read(job_id) == list(steps)
        return steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote.workflows, name)


class BothHeartbeats:
    """The same for a heart."""

    def __init__(self, remote: Heartbeats, lent: Heartbeats) -> None:
        self._remote, self._lent = remote, lent

    async def close(self) -> None:
        await self._remote.close()
        await self._lent.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lent if name in BY_THE_SERVER else self._remote, name)
