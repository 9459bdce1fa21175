"""The statements about settlements of a user's table, for the settler that the queue has too (shared/plan.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement, with_state
from stowhand.protocols.store import Reply, Verdict
from stowhand.stores.database.link import Row
from stowhand.stores.database.statements import plain_array, text_array, token_array
from stowhand.stores.postgres.shared.plan import Query
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.verdicts import Entry, Pair, pair

_FOUND = {"settled": Verdict.ALREADY_SETTLED, "busy": Verdict.BUSY, "lost": Verdict.LOST}
NO_JOBS = "jobs were to be enqueued with it, and a table of one's own enqueues none: INSERT them"


class TablePlan:
    """Of one table."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def acceptable(self, entry: Entry) -> str | None:
        """Whatever enqueues nothing."""
        return NO_JOBS if entry[1].then else None

    def is_plain(self, settlement: Settlement) -> bool:
        """A table has no place for a result."""
        return settlement.state is State.COMPLETED and settlement.error is None and not settlement.then

    def settle(self, entries: Sequence[Entry]) -> Query[tuple[Pair, State]]:
        """Any outcome."""
        values = self.settle_values(entries)
        return Query(self._context.statement("settle"), values, self.read_settled)

    def read_settled(self, row: Row) -> tuple[Pair, State]:
        """Of the statement ``settle``."""
        return self._pair(row), State(row[2])

    def settle_values(self, entries: Sequence[Entry]) -> Mapping[str, object]:
        """Of the statement ``settle``."""
        settlements = [settlement for _, settlement in entries]
        return self._context.values(
            **self._context.leases([lease for lease, _ in entries]),
            states=token_array([settlement.state.value for settlement in settlements]),
            delays=plain_array([settlement.delay for settlement in settlements]),
            errors=text_array([settlement.error for settlement in settlements]),
        )

    def complete(self, leases: Sequence[Lease]) -> Query[JobId]:
        """All of them completed; the ids of those that are."""
        values = self._context.values(**self._context.leases(leases))
        return Query(self._context.statement("settle_completed"), values, lambda row: self._context.job_id(row[0]))

    def look(self, entries: Sequence[Entry]) -> Query[tuple[Pair, Reply | None]]:
        """A table keeps no history, and no token of what has ended: its state and its message have to say it."""
        leases, settlements = zip(*entries, strict=True)
        asked = {pair(entry): entry[1] for entry in entries}
        values = self._context.values(
            **self._context.leases(leases),
            states=token_array([settlement.state.value for settlement in settlements]),
            errors=text_array([settlement.error for settlement in settlements]),
        )

        def read(row: Row) -> tuple[Pair, Reply | None]:
            of = self._pair(row)
            return of, with_state(asked[of], State.CANCELED) if row[2] == "canceled" else _FOUND.get(row[2])

        return Query(self._context.statement("look"), values, read)

    def _pair(self, row: Row) -> Pair:
        return self._context.job_id(row[0]), row[1]
