"""The queue's statements about leases, for the parts that a user's table has too (shared/plan.py)."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.errors import InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.job import State
from stowhand.jobs.text import clean
from stowhand.protocols.store import Reply, Verdict
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Row
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import pairs
from stowhand.stores.postgres.shared.array_literals import plain_array, text_array
from stowhand.stores.postgres.shared.plan import Query
from stowhand.stores.verdicts import Entry, Pair, continues, pair, recorded_before

CONTINUED = "continued"
"""In the place of ``completed``, of a step of a flow whose job goes on (``way_back`` in settle.sql)."""
_FOUND: dict[str, Verdict] = {"busy": Verdict.BUSY, "lost": Verdict.LOST}


class QueuePlan:
    """Every list of leases is in id order: that is the order of locking."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    def acceptable(self, entry: Entry) -> str | None:
        """As on SQLite: the rest of a batch, and options of jobs that follow; their payloads were checked before."""
        try:
            limits.check_left(entry[1])
            for job in entry[1].then:
                limits.refuse_reserved(limits.check_options(job))
        except InvalidJob as error:
            return clean(trouble.first_line(error))
        return None

    def settle(self, entries: Sequence[Entry]) -> Query[tuple[Pair, State]]:
        """Any outcome."""
        settlements = [settlement for _, settlement in entries]
        values = (
            *pairs([lease for lease, _ in entries]),
            text_array(CONTINUED if continues(each) else each.state for each in settlements),
            plain_array(each.delay for each in settlements),
            plain_array(each.refund for each in settlements),
            text_array(each.error for each in settlements),
            text_array(each.error_class for each in settlements),
            text_array(each.result for each in settlements),
            text_array(each.payload for each in settlements),
            self._context.keep,
            self._context.now(),
        )
        return Query(self._context.statements["settle"], values, lambda row: ((row[0], row[1]), State(row[2])))

    def look(self, entries: Sequence[Entry]) -> Query[tuple[Pair, Reply | None]]:
        """The history is looked at too."""
        asked = {pair(entry): entry[1] for entry in entries}

        def read(row: Row) -> tuple[Pair, Reply | None]:
            job_id, token, found, state = row
            if found == "settled":
                return (job_id, token), recorded_before(asked[job_id, token], State(state))
            return (job_id, token), _FOUND.get(found)

        values = self._context.values(**self._context.leases([lease for lease, _ in entries]))
        return Query(self._context.statement("look"), values, read)
