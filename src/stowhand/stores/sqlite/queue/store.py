"""The embedded store: the calls of a worker, and the parts that implement all other calls.

Each method passes work, a function of a transaction, to the connection that runs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import refuse_conditions
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.handler import EnclosingStore
from stowhand.protocols.producer import Transactions
from stowhand.protocols.queue_store import Notices
from stowhand.protocols.store import (
    Capabilities,
    Claim,
    ClaimRequest,
    Foreign,
    Reply,
    StoreOptions,
    Terms,
    batch_with_max_attempts,
)
from stowhand.protocols.validation import NO_DEFAULT_ATTEMPTS
from stowhand.stores.foreign_leases import ForeignLeases
from stowhand.stores.kernel.inspector import Inspector
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.sqlite.queue import claim
from stowhand.stores.sqlite.queue.administrator import Administrator
from stowhand.stores.sqlite.queue.connections import Connections, FileConnections
from stowhand.stores.sqlite.queue.flow_tables import SqliteFlowTables
from stowhand.stores.sqlite.queue.heartbeats import SqliteHeartbeats
from stowhand.stores.sqlite.queue.installer import Installer
from stowhand.stores.sqlite.queue.operations import Operator
from stowhand.stores.sqlite.queue.plan import QueuePlan
from stowhand.stores.sqlite.queue.producer import Producer
from stowhand.stores.sqlite.queue.reader import Reader
from stowhand.stores.sqlite.queue.results import Results
from stowhand.stores.sqlite.queue.timetable import Timetable
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.sqlite.queue.workflows import SqliteWorkflows
from stowhand.stores.sqlite.shared.settler import Settler

SYNCHRONOUS_MODES = ("FULL", "NORMAL")
DEFAULT_OPTIONS = StoreOptions()


class EmbeddedStore:
    """Jobs in an SQLite database, reached by ``connections``."""

    is_listening = True
    """Always true: the database itself counts commits."""
    terms: Terms | None = None
    enclosing: EnclosingStore | None = None
    settings = None
    connections = None
    transactions: Transactions | None = None
    workflows: SqliteWorkflows

    def __init__(
        self,
        connections: Connections,
        options: StoreOptions,
        notices: Notices,
        *,
        description: str,
        absent: Mapping[str, str],
    ) -> None:
        self.description = description
        self.capabilities = Capabilities(has_queues=True, absent={"settings": NO_DEFAULT_ATTEMPTS, **absent})
        self.notices = notices
        self._passed_over = PassedOver("job", lambda warning: self.notices.warn(warning, ""))
        self._connections = connections
        self._options = options
        self._foreign_leases = ForeignLeases()
        self._plan = QueuePlan()
        self._settler = Settler(connections, self._plan)
        self.jobs = Producer(connections, options)
        self.inspect = Inspector(Reader(connections))
        self.admin = Administrator(connections, self.jobs)
        self.operate = Operator(connections)
        self.timetable = Timetable(connections, options)
        self.schema = Installer(connections)
        self.flows = SqliteFlowTables(connections, keeps_history=options.history is not None)
        self.results = Results(connections, options.history)

    async def open(self) -> None:
        """Connect, and check the schema. This does not wait for writers: the caller itself may hold the write lock."""
        await self._connections.open()
        self._connections.wake.look()

    async def close(self) -> None:
        """Close every connection. Harmless when repeated; the next use opens them again."""
        await self.jobs.close()
        self.results.close()
        await self._connections.close()

    # -- work ---------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Move up to ``limit`` due jobs to processing."""
        refuse_conditions(request.conditions)
        self._foreign_leases.ask(request)
        # Transactions are short, so updating the heads of many new serial keys takes several.
        while True:
            claimed = await self._connections.write(lambda tx: _claim(tx, request, self._passed_over))
            if claimed is not None:
                return claimed

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record the outcomes of attempts."""
        return await self._settler.settle(batch_with_max_attempts(batch, self._options.max_attempts), repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the earliest waiting job of these tasks and queues is due."""
        question = self._foreign_leases.take_question()

        def read(tx: Transaction) -> float | None:
            if question is not None:
                foreign = self._plan.find_foreign(tx, question.own_leases, question.slack)
                self._foreign_leases.set_answer(foreign.expires_in)
            return claim.next_due(tx, tasks, queues)

        return await self._connections.read(read)

    def foreign(self) -> Foreign | None:
        """Return what the last ``next_due`` read about foreign leases."""
        return self._foreign_leases.take_answer()

    async def wait(self, timeout: float) -> bool:
        """Wait for a commit of any process. Return whether there was one within the timeout."""
        return await self._connections.wake.wait(timeout)

    def heartbeats(self) -> SqliteHeartbeats:
        """Return the heartbeats, with connections of their own and a probe that tests whether the file is writable."""
        return SqliteHeartbeats(
            self._connections.connect(),
            self._connections.connect(timeout_seconds=0.0),
            self._connections.probe(),
            self._options.history,
            self._options.failed_retention,
        )


class SqliteStore(EmbeddedStore):
    """Jobs in one SQLite file, which may be the application's own. Processes on one machine can share it."""

    transactions: Producer

    def __init__(self, path: str | Path, options: StoreOptions = DEFAULT_OPTIONS) -> None:
        if options.synchronous not in SYNCHRONOUS_MODES:
            raise ConfigurationError(
                f"synchronous is {options.synchronous!r}: it must be one of {', '.join(SYNCHRONOUS_MODES)}"
            )
        path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would hide a symbolic link
        url, notices = f"sqlite:///{path}", Notices()
        absent = {"connections": f"{url} lends no connections: open the file with sqlite3, or use PostgreSQL"}
        connections = FileConnections(path, options, notices.warn)
        super().__init__(connections, options, notices, description=url, absent=absent)
        self.transactions = self.jobs
        self.workflows = SqliteWorkflows(connections, self.jobs.write_in)


def _claim(tx: Transaction, request: ClaimRequest, passed_over: PassedOver) -> Sequence[Claim[Job]] | None:
    return claim.claim(tx, request, passed_over) if claim.refresh_heads(tx) else None
