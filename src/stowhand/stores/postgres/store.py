"""The PostgreSQL store: one object for a worker, a producer, an inspector and an installer; each part has its file."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence

from stowhand.job import Job, NewJob, State
from stowhand.lifecycle import Settlement
from stowhand.store import Answer, Claim, ClaimRequest, Heart, JobFilter, Lease, SchemaStatus, StoreOptions, Verdict
from stowhand.stores.postgres.claiming import Claims
from stowhand.stores.postgres.ears import Ears
from stowhand.stores.postgres.heart import PostgresHeart
from stowhand.stores.postgres.home import Home
from stowhand.stores.postgres.inspecting import Inspector
from stowhand.stores.postgres.producing import Producer
from stowhand.stores.postgres.schema import Installer
from stowhand.stores.postgres.settling import Settlements

_DEFAULTS = StoreOptions()


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Nothing is connected before it is used."""

    def __init__(self, url: str, options: StoreOptions = _DEFAULTS) -> None:
        home = Home(url, options)
        self._home = home
        self._claims = Claims(home)
        self._settlements = Settlements(home)
        self._ears = Ears(home)
        self._producer = Producer(home)
        self._inspector = Inspector(home)
        self._installer = Installer(home)

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"{self._home.address}, schema {self._home.schema}"

    # -- a worker's ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and check the schema. Raises StoreUnreachable, SchemaError."""
        await self._installer.check()

    async def close(self) -> None:
        """Let every connection go."""
        for part in (self._claims, self._settlements, self._ears, self._home.pool):
            await part.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Due jobs, now processing."""
        return await self._claims.claim(request)

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Verdict]:
        """Record how jobs left processing."""
        return await self._settlements.settle(batch, repeat=repeat) if batch else []

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due."""
        return await self._claims.next_due(tasks)

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work."""
        return await self._ears.wait(timeout)

    @property
    def hears(self) -> bool:
        """Wake-ups are known to arrive just now."""
        return self._ears.hears

    def heart(self) -> Heart:
        """A blocking connection of its own."""
        return PostgresHeart(self._home)

    # -- a producer's ----------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job and wake a worker."""
        return await self._producer.enqueue(job)

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """All or none; ids in the order given."""
        return await self._producer.enqueue_many(jobs)

    def enqueue_in(self, connection: object, job: NewJob) -> object:
        """Inside the caller's transaction: the ``Job``, or an awaitable of it on an asynchronous connection."""
        return self._producer.enqueue_in(connection, job)

    # -- a person's ------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        return await self._inspector.get(job_id)

    async def list(self, wanted: JobFilter) -> Sequence[Job]:
        """In id order."""
        return await self._inspector.find(wanted)

    async def counts(self) -> dict[State, int]:
        """By state."""
        return await self._inspector.counts()

    async def retry(self, job_id: int) -> Answer:
        """Due now."""
        return await self._inspector.retry(job_id)

    async def cancel(self, job_id: int) -> Answer:
        """At once, or asked of its worker."""
        return await self._inspector.cancel(job_id)

    async def remove(self, job_id: int) -> Answer:
        """Delete."""
        return await self._inspector.remove(job_id)

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._inspector.remove_key(key)

    # -- the schema's ----------------------------------------------------------------------------

    async def install(self) -> SchemaStatus:
        """Install or upgrade."""
        return await self._installer.install()

    async def status(self) -> SchemaStatus:
        """What is there."""
        return await self._installer.status()

    async def plan(self) -> str:
        """What ``install`` would run."""
        return await self._installer.plan()

    async def uninstall(self) -> None:
        """Remove everything of ours."""
        await self._installer.uninstall()
