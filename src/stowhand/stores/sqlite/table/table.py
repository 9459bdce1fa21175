"""A user's table in an SQLite file of the application's: one writer at a time, short writes, no lock on any row.

The file stays as it is: its journal mode and whatever else is kept in it are its owner's. Written is in transactions
that take the write lock at once (BEGIN IMMEDIATE), and only where a look without it has found something to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, LogRefused, StoreError
from stowhand.jobs.execution_log import ENTRIES_LIMIT
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
    """Always: commits are counted in the file itself."""

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
        # As SQLite names its -wal: by the file itself, wherever a link to it is.
        self._connections = TableConnections(Path(place).resolve(), pinned, notices.warn)
        self._options = options
        self._shape = shape
        self._abandoned = AbandonedTokens(options.stalled)
        self._passed = PassedOver("record", notices.warn)
        self._plan = TablePlan(self._abandoned)
        self.settle = Settler(self._connections, self._plan).settle
        self._clock = SystemClock()
        self.queries = SqliteOperations(self._connections)
        self.close = self._connections.close
        self.description = f"sqlite:///{self._connections.path}"
        self.warnings: Sequence[Finding] = ()

    @property
    def key(self) -> KeyType:
        """What the id column holds."""
        return self._connections.table.key

    @property
    def names(self) -> tuple[str, ...]:
        """Of a record's columns."""
        return self._connections.table.names

    async def open(self) -> None:
        """Connect and look at the catalog."""
        table, found = await self._examine()
        refuse_fatal(self._shape, found)
        assert table is not None  # nothing is fatal
        self._connections.learn(table)
        self.warnings = [finding for finding in found if finding.warned]

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
        _, found = await self._examine()
        return found

    async def _examine(self) -> tuple[Table | None, Sequence[Finding]]:
        return await self._connections.read(lambda tx: check(tx.raw, self._options, self._shape))

    # -- a worker's ------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[ClaimedRow]:
        """Due records in order, now processing under the token."""
        self._abandoned.started_claims.note(request.token)
        passed = self._passed.current()
        if request.limit < 1 or not await self._connections.read(
            lambda tx: TableClaim(tx, request, passed).is_worth_it()
        ):
            return ()
        taken, refused = await self._claim(request)
        wrong = {key: why for key, why in refused.items() if why != NOT_CHANGED}
        none_passes = len(wrong) > 1 and not taken
        for key, why in refused.items():
            self._passed.refused(str(key), why, report=not none_passes)
        if none_passes:
            # The store may be at fault; if not, the next claim finds what comes after them.
            key, why = next(iter(wrong.items()))
            raise StoreError(f"{self.description}: none of {len(wrong)} records can be claimed: record {key!r}: {why}")
        return taken

    async def _claim(self, request: ClaimRequest) -> tuple[Sequence[ClaimedRow], Reasons]:
        while True:
            passed = self._passed.current()
            claim = partial(self._claim_within, request=request, passed=passed)
            try:
                return await self._connections.write(claim)
            except RolledBack as error:  # by the trigger of one record, with all that was claimed before it
                if str(error.key) in passed:
                    raise StoreError(f"{self.description}: record {error.key!r} undoes every claim: {error}") from None
                self._passed.refused(str(error.key), str(error))

    def _claim_within(
        self, tx: TableTransaction, request: ClaimRequest, passed: Sequence[str]
    ) -> tuple[Sequence[ClaimedRow], Reasons]:
        if request.token in self._abandoned:
            return (), {}
        return TableClaim(tx, request, passed).claim()

    async def wait(self, timeout: float) -> bool:
        """Until a commit by anyone, if something is due then: most commits to the file may concern other tables."""
        deadline = self._clock.monotonic() + timeout
        while await self._connections.wake.wait(max(deadline - self._clock.monotonic(), 0.0)):
            if await self._connections.read(is_due):
                return True
        return False

    def heartbeats(self, calls: Calls = UNREPORTED) -> TableHeartbeats:
        """With a connection of its own, and one that only tries whether the file can be written."""
        probe = WriteProbe(self._connections.connect(timeout_seconds=0.0))
        return TableHeartbeats(self._connections.connect(), probe, self._plan, calls)

    # -- a running handler's ---------------------------------------------------------------------

    async def begin(self, attempt: Attempt[Any]) -> NoReturn:
        """Raises ConfigurationError."""
        raise ConfigurationError(
            "transactional handlers need PostgreSQL: an SQLite file has one writer at a time, and a handler would keep"
            " everybody else from writing, the heartbeats of its own worker too"
        )

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Append an entry; its number."""

        def add(tx: TableTransaction) -> Any:
            return tx.run("add_log", **mark(lease), entry=entry, most=ENTRIES_LIMIT).fetchone()

        row = await self._connections.write(add)
        if row is None:
            raise LogRefused(f"record {lease.job_id!r}: the attempt is over, or its log has {ENTRIES_LIMIT} entries")
        return int(row[0])

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Put it in the place of entry ``number``."""

        def update(tx: TableTransaction) -> Any:
            return tx.run("update_log", **mark(lease), entry=entry, number=number).fetchone()

        if await self._connections.write(update) is None:
            raise LogRefused(f"record {lease.job_id!r}: there is no entry {number}, or the attempt is over")
