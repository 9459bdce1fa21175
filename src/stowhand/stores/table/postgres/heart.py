"""What keeps leases true, on a blocking connection for the heartbeat's own thread."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand import lifecycle
from stowhand.clock import stopwatch
from stowhand.database.blocking import BlockingLink, Row
from stowhand.database.repeating import repeated_blocking
from stowhand.job import State
from stowhand.store import Foreign, JobId, Lease, Pulse, ResetJob
from stowhand.stores.table.postgres.home import Home, mark_of, marks

PAGE = 1000
SHARE = 99.0
"""Seconds between two looks for waiting records that were canceled, for each second that one took: no index helps."""


class TableHeart:
    """Blocking; one thread at a time. Every method raises StoreUnreachable, and may be repeated."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = BlockingLink(home.address, lambda: home.role("heart"), home.dialer.prepared)
        self._look_at = float("-inf")

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew. How long that lasts is the table's: ``stalled_max_age``, whatever ``lease`` says."""
        if not leases:
            return Pulse()
        answers: dict[str, set[tuple[JobId, str]]] = {"lost": set(), "canceled": set(), "busy": set()}
        for id_, token, found in self._rows("beat", **marks(leases)):
            if found != "renewed":
                answers[found].add((self._home.job_id(id_), token))
        return Pulse(**{name: frozenset(found) for name, found in answers.items()})

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent. Gives those whose rows somebody's transaction has locked."""
        if not leases:
            return []
        done = {(self._home.job_id(id_), token) for id_, token in self._rows("release", **marks(leases))}
        missed = [lease for lease in leases if (lease.job_id, lease.token) not in done]
        if not missed:
            return []
        nothing: list[str] = [""] * len(missed)
        found = {
            (self._home.job_id(id_), token): what
            for id_, token, what in self._rows("look", **marks(missed), states=nothing, errors=nothing)
        }
        return [lease for lease in missed if found.get((lease.job_id, lease.token)) == "busy"]

    def abandon(self, token: str) -> bool:
        """Give back what it holds. False: its claim is still under way, or some of it is locked.

        A claim commits only after its answer was read; so one whose answer was lost and that is not under way any more
        brings nothing later.
        """
        ((over,),) = self._rows("claim_is_over", token=token)
        if not over:
            return False
        if not self._home.begun.may_hold(token):
            return True
        held = [Lease(self._home.job_id(key), token, epoch) for key, epoch in self._rows("held_by_token", token=token)]
        return not self.release(held)

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these. Waiting records that were asked to cancel are looked for as well."""
        self._tidy()
        ids = [str(lease.job_id) for lease in ours]
        ((late, ends_in),) = self._rows("foreign_leases", ids=ids, age=self._home.options.stalled + slack)
        return Foreign(late=late, ends_in=ends_in)

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has not been renewed in time."""
        self._tidy()
        age = self._home.options.stalled + slack
        return self._reset(self._rows("find_stalled", age=age, page=PAGE), age)

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds, but for what somebody's transaction has locked."""
        taken: list[ResetJob] = []
        while page := self._reset(self._rows("find_held_by_worker", worker=worker, page=PAGE)):
            taken += page
        return taken

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        return self._reset(self._rows("find_held_by_lease", **mark_of(lease)))

    def check(self) -> None:
        """The table is its owner's; what does not fit any more, the next statement says."""

    def maintain(self) -> None:
        """Cancel waiting records that were asked to cancel: their turn may be far away."""
        began = stopwatch()
        more = len(self._rows("cancel_waiting", page=PAGE)) == PAGE
        now = stopwatch()
        self._look_at = now if more else now + SHARE * (now - began)

    def close(self) -> None:
        """Let the connection go."""
        self._link.close()

    def _tidy(self) -> None:
        if stopwatch() >= self._look_at:
            self.maintain()

    def _reset(self, found: Sequence[Row], age: float | None = None) -> Sequence[ResetJob]:
        """Decide by the law, and write: only where the row is still what was found."""
        if not found:
            return []
        options = self._home.options
        decided = [
            lifecycle.reset(resets=resets, max_resets=options.max_num_resets, max_attempts=options.max_num_retries + 1)
            for _, _, _, resets, _ in found
        ]
        became = {
            self._home.job_id(id_): State(state)
            for id_, state in self._rows(
                "reset",
                ids=[row[0] for row in found],
                marks=[row[1] for row in found],
                epochs=[row[2] for row in found],
                states=[each.state.value for each in decided],
                errors=[options.reset_failure_message] * len(found),
                age=age,
            )
        }
        return [
            ResetJob(key, options.name, became[key], worker or None)
            for key, worker in ((self._home.job_id(row[0]), row[4]) for row in found)
            if key in became
        ]

    def _rows(self, name: str, **values: object) -> list[Row]:
        """Again, a few times, after what was definitely not done."""
        statement, given = self._home.statement(name), self._home.values(**values)
        with self._home.translated():
            return repeated_blocking(lambda: self._link.rows(statement, given, self._home.patience))
