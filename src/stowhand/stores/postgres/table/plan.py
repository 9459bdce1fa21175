"""The statements about settlements of a user's table, for the shared settler (shared/plan.py)."""

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

_VERDICTS_BY_NAME = {"settled": Verdict.ALREADY_SETTLED, "busy": Verdict.BUSY, "lost": Verdict.LOST}
FOLLOWING_JOBS_REFUSAL = "a user's table cannot enqueue following jobs: INSERT them instead"


class TablePlan:
    """The statements of one table."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def acceptable(self, entry: Entry) -> str | None:
        """Return why a settlement is not acceptable; ``None`` if it enqueues nothing."""
        return FOLLOWING_JOBS_REFUSAL if entry[1].then else None

    def is_plain(self, settlement: Settlement) -> bool:
        """Return whether the record is completed without an error. A table has no column for a result."""
        return settlement.state is State.COMPLETED and settlement.error is None and not settlement.then

    def settle(self, entries: Sequence[Entry]) -> Query[tuple[Pair, State]]:
        """Return the query that settles entries with any outcome."""
        values = self.settle_values(entries)
        return Query(self._context.statement("settle"), values, self.read_settled)

    def read_settled(self, row: Row) -> tuple[Pair, State]:
        """Return the pair and state in a row of the statement ``settle``."""
        return self._pair(row), State(row[2])

    def settle_values(self, entries: Sequence[Entry]) -> Mapping[str, object]:
        """Return the parameters of the statement ``settle``."""
        settlements = [settlement for _, settlement in entries]
        return self._context.values(
            **self._context.leases([lease for lease, _ in entries]),
            states=token_array([settlement.state.value for settlement in settlements]),
            delays=plain_array([settlement.delay for settlement in settlements]),
            errors=text_array([settlement.error for settlement in settlements]),
        )

    def complete(self, leases: Sequence[Lease]) -> Query[JobId]:
        """Return the query that completes all leases, and returns the ids it completed."""
        values = self._context.values(**self._context.leases(leases))
        return Query(self._context.statement("settle_completed"), values, lambda row: self._context.job_id(row[0]))

    def look(self, entries: Sequence[Entry]) -> Query[tuple[Pair, Reply | None]]:
        """Return the query for the replies of leases that hold no row, by the record's state and message.

        A table keeps neither a history nor the tokens of finished records.
        """
        leases, settlements = zip(*entries, strict=True)
        settlements_by_pair = {pair(entry): entry[1] for entry in entries}
        values = self._context.values(
            **self._context.leases(leases),
            states=token_array([settlement.state.value for settlement in settlements]),
            errors=text_array([settlement.error for settlement in settlements]),
        )

        def read(row: Row) -> tuple[Pair, Reply | None]:
            lease_pair = self._pair(row)
            if row[2] == "canceled":
                return lease_pair, with_state(settlements_by_pair[lease_pair], State.CANCELED)
            return lease_pair, _VERDICTS_BY_NAME.get(row[2])

        return Query(self._context.statement("look"), values, read)

    def _pair(self, row: Row) -> Pair:
        return self._context.job_id(row[0]), row[1]
