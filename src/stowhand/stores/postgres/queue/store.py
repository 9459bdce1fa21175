"""The PostgreSQL store: the calls of a worker. Parts in files of their own do everything else."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.conditions import refuse_conditions
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.queue_store import Notices
from stowhand.protocols.store import Capabilities, Claim, ClaimRequest, Foreign, Heartbeats, Reply, StoreOptions
from stowhand.stores.kernel.inspector import Inspector
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.postgres.queue.administrator import Administrator
from stowhand.stores.postgres.queue.claims import Claims
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.flow_tables import PostgresFlowTables
from stowhand.stores.postgres.queue.from_graphile import GraphileImport
from stowhand.stores.postgres.queue.heartbeats import PostgresHeartbeats
from stowhand.stores.postgres.queue.idle_announcement import IdleAnnouncement
from stowhand.stores.postgres.queue.in_transaction import InTransaction
from stowhand.stores.postgres.queue.installer import Installer
from stowhand.stores.postgres.queue.operations import Operator
from stowhand.stores.postgres.queue.producer import Producer
from stowhand.stores.postgres.queue.reader import Reader
from stowhand.stores.postgres.queue.results import Results
from stowhand.stores.postgres.queue.settlements import Settlements
from stowhand.stores.postgres.queue.timetable import Timetable
from stowhand.stores.postgres.queue.workflows import PostgresWorkflows
from stowhand.stores.postgres.shared.listener import Listener

_DEFAULT_OPTIONS = StoreOptions()
_POOLER_WARNING = "behind a pooler no notification arrives: use a direct address of the database (--listen-url)"


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Connections open on first use."""

    terms = None
    enclosing = None

    def __init__(self, url: str, options: StoreOptions = _DEFAULT_OPTIONS) -> None:
        context = PostgresContext(url, options)
        self._context = context
        self.notices = Notices()
        self._settlements = Settlements(context)
        self.capabilities = Capabilities(has_queues=True, settle_and_claim=self._settlements.settle_and_claim)
        announcement = IdleAnnouncement(context.statements)
        pooler_warning = _POOLER_WARNING if options.listen_url is None else None
        self._listener = Listener(
            context.listen_dialer,
            lambda: context.role("listen"),
            context.channel,
            pooler_warning,
            announcement,
            self.notices.listening,
        )
        passed_over = PassedOver("job", lambda warning: self.notices.warn(warning, ""))
        self._claims = Claims(context, self._listener, announcement, passed_over)
        self.jobs = Producer(context)
        self.transactions = InTransaction(context)
        self.inspect = Inspector(Reader(context))
        self.admin = Administrator(context, self.jobs)
        self.operate = Operator(context)
        self.timetable = Timetable(context, self.jobs)
        self.schema = self.settings = Installer(context)
        self.connections = context
        self.flows = PostgresFlowTables(context)
        self.results = Results(context)
        self.workflows = PostgresWorkflows(context, self.jobs, self.transactions)

    @property
    def description(self) -> str:
        """Address and schema, for messages."""
        return f"{self._context.address}, schema {self._context.schema}"

    def from_graphile(self, schema: str) -> GraphileImport:
        """Move the jobs of a graphile-worker schema in the same database into this one."""
        return GraphileImport(self._context, self.schema, schema)

    async def open(self) -> None:
        """Connect, and check the schema. Raise StoreUnreachable or SchemaError."""
        await self.schema.check()

    async def close(self) -> None:
        """Close every connection."""
        for part in (self.jobs, self._claims, self._settlements, self._listener, self._context.pool):
            await part.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Claim due jobs."""
        refuse_conditions(request.conditions)
        return await self._claims.claim(request)

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record the outcomes of attempts."""
        return await self._settlements.settle(batch, repeat=repeat) if batch else []

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the earliest waiting job of these tasks and queues is due."""
        return await self._claims.next_due(tasks, queues)

    def foreign(self) -> Foreign | None:
        """Return what the last claim without jobs read about foreign leases."""
        return self._claims.foreign()

    async def wait(self, timeout: float) -> bool:
        """Wait for a notification. Return True if there may be new jobs."""
        notified = await self._listener.wait(timeout)
        if notified:
            self._claims.on_notification()
        return notified

    @property
    def is_listening(self) -> bool:
        """Whether notifications arrive now."""
        return self._listener.is_listening

    def heartbeats(self) -> Heartbeats:
        """Return the heartbeats, which use a connection of their own."""
        return PostgresHeartbeats(self._context)
