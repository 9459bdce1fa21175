"""A user's table in the application's SQLite file: one writer at a time, short writes, no row locks.

The file keeps its journal mode and its other contents, which belong to its owner. Write transactions take the write
lock at once (BEGIN IMMEDIATE), and only if a read without the lock has found something to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, LogRefused, StoreError
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.calls import UNREPORTED, Calls
from stowhand.stores.database.sqlite_connection import WriteProbe
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.sqlite.shared.settler import Settler
from stowhand.stores.sqlite.table.checks import check
from stowhand.stores.sqlite.table.claims import RolledBack, TableClaim, is_due
from stowhand.stores.sqlite.table.connections import Table, TableConnections, TableTransaction
from stowhand.stores.sqlite.table.heartbeats import TableHeartbeats
from stowhand.stores.sqlite.table.operations import SqliteOperations
from stowhand.stores.sqlite.table.plan import TablePlan, mark
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.backend import ClaimedRow, Finding, Notices, refuse_fatal
from stowhand.stores.table.claims import NOT_CHANGED, AbandonedTokens, Reasons
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions


class SqliteTable:
    """The backend for ``sqlite:///file``."""

    is_listening = True
    """Always true: the file itself counts commits."""

    def __init__(
        self,
        place: str | Path,
        options: TableOptions[Any],
        shape: Shape,
        *,
        pinned: Callable[[], datetime] | None = None,
        notices: Notices | None = None,
    ) -> None:
        notices = notices or Notices(options.name)
        # SQLite names the -wal after the file itself, not after a link to it.
        self._connections = TableConnections(Path(place).resolve(), pinned, notices.warn)
        self._options = options
        self._shape = shape
        self._abandoned = AbandonedTokens(options.stalled)
        self._passed_over = PassedOver("record", notices.warn)
        self._plan = TablePlan(self._abandoned)
        self.settle = Settler(self._connections, self._plan).settle
        self._clock = SystemClock()
        self.queries = SqliteOperations(self._connections)
        self.close = self._connections.close
        self.description = f"sqlite:///{self._connections.path}"
        self.warnings: Sequence[Finding] = ()

    @property
    def key(self) -> KeyType:
        """The type of the id column."""
        return self._connections.table.key

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a record's columns."""
        return self._connections.table.names

    async def open(self) -> None:
        """Connect and read the catalog."""
        table, findings = await self._examine()
        refuse_fatal(self._shape, findings)
        assert table is not None  # nothing is fatal
        self._connections.set_table(table)
        self.warnings = [finding for finding in findings if finding.warned]

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
        _, findings = await self._examine()
        return findings

    async def _examine(self) -> tuple[Table | None, Sequence[Finding]]:
        return await self._connections.read(lambda tx: check(tx.raw, self._options, self._shape))

    # -- a worker's ------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[ClaimedRow]:
        """Claim due records in order under the token."""
        self._abandoned.started_claims.note(request.token)
        skipped = self._passed_over.current()
        if request.limit < 1 or not await self._connections.read(
            lambda tx: TableClaim(tx, request, skipped).may_claim_any()
        ):
            return ()
        taken, refused = await self._claim(request)
        reasons = {key: reason for key, reason in refused.items() if reason != NOT_CHANGED}
        is_none_claimed = len(reasons) > 1 and not taken
        for key, reason in refused.items():
            self._passed_over.add(str(key), reason, report=not is_none_claimed)
        if is_none_claimed:
            # The store may be at fault. If not, the next claim finds the records after these.
            key, reason = next(iter(reasons.items()))
            raise StoreError(
                f"{self.description}: none of {len(reasons)} records can be claimed: record {key!r}: {reason}"
            )
        return taken

    async def _claim(self, request: ClaimRequest) -> tuple[Sequence[ClaimedRow], Reasons]:
        while True:
            skipped = self._passed_over.current()
            claim = partial(self._claim_within, request=request, skipped=skipped)
            try:
                return await self._connections.write(claim)
            except RolledBack as error:  # one record's trigger rolled back the whole claim
                if str(error.key) in skipped:
                    raise StoreError(
                        f"{self.description}: record {error.key!r} rolls back every claim: {error}"
                    ) from None
                self._passed_over.add(str(error.key), str(error))

    def _claim_within(
        self, tx: TableTransaction, request: ClaimRequest, skipped: Sequence[str]
    ) -> tuple[Sequence[ClaimedRow], Reasons]:
        if request.token in self._abandoned:
            return (), {}
        return TableClaim(tx, request, skipped).claim()

    async def wait(self, timeout: float) -> bool:
        """Wait for a commit after which something is due: most commits may concern other tables."""
        deadline = self._clock.monotonic() + timeout
        while await self._connections.wake.wait(max(deadline - self._clock.monotonic(), 0.0)):
            if await self._connections.read(is_due):
                return True
        return False

    def heartbeats(self, calls: Calls = UNREPORTED) -> TableHeartbeats:
        """Return heartbeats with their own connection, and one that checks whether the file can be written."""
        probe = WriteProbe(self._connections.connect(timeout_seconds=0.0))
        return TableHeartbeats(self._connections.connect(), probe, self._plan, calls)

    # -- a running handler's ---------------------------------------------------------------------

    async def begin(self, attempt: Attempt[Any]) -> NoReturn:
        """Raise ConfigurationError."""
        raise ConfigurationError(
            "transactional handlers need PostgreSQL: an SQLite file has one writer at a time, and a handler would block"
            " all other writers, including the heartbeats of its own worker"
        )

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Append an entry, and return its number."""

        def add(tx: TableTransaction) -> Any:
            return tx.run("add_log", **mark(lease), entry=entry, most=MAX_LOG_ENTRIES).fetchone()

        row = await self._connections.write(add)
        if row is None:
            raise LogRefused(f"record {lease.job_id!r}: the attempt is over, or its log has {MAX_LOG_ENTRIES} entries")
        return int(row[0])

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Replace entry ``number``."""

        def update(tx: TableTransaction) -> Any:
            return tx.run("update_log", **mark(lease), entry=entry, number=number).fetchone()

        if await self._connections.write(update) is None:
            raise LogRefused(f"record {lease.job_id!r}: there is no entry {number}, or the attempt is over")
