"""What a store replies to settlements: the rules, once for every store. Pure: facts come in, replies go out.

the lease holds its row       `recorded`: as asked, or as what only the row knows has made of it
it holds none, but settled it `recorded_before`: a repeat of a call whose reply was lost
the row is another claim's    LOST
nothing is left of the row    `untraced`
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import WAITING_STATES, Settlement, with_state
from stowhand.protocols.flow_tables import is_step
from stowhand.protocols.store import Reply, Verdict

Entry = tuple[Lease, Settlement]
Pair = tuple[JobId, str]
"""Job id and token, by which every write is guarded."""


def recorded(asked: Settlement, state: State) -> Reply:
    """The row was the lease's, and is ``state`` now."""
    return Verdict.SETTLED if state is asked.state else with_state(asked, state)


def recorded_before(asked: Settlement, state: State) -> Reply:
    """The row, ``state`` now, keeps the lease's token: this very lease has settled it."""
    # A waiting job may have been retried or claimed since. A completed one stays completed.
    is_other_end = state.terminal and state is not asked.state
    if not is_other_end and (asked.state is not State.COMPLETED or state not in WAITING_STATES):
        return Verdict.ALREADY_SETTLED
    if asked.state in WAITING_STATES:
        return with_state(asked, state)
    # The lease has settled it otherwise; what else was recorded is not known here.
    return msgspec.structs.replace(with_state(asked, state), error=None, error_class=None)


def continues(settlement: Settlement) -> bool:
    """Return whether it completes a step of a flow whose job goes on: to a next queue, or to wait for children."""
    return settlement.state is State.COMPLETED and any(is_step(job.task, job.key) for job in settlement.then)


def untraced(*, repeat: bool) -> Verdict:
    """There is neither a row nor a trace of one. A repeat may have removed it itself, in the call without a reply."""
    return Verdict.UNKNOWN if repeat else Verdict.LOST


def pair(entry: Entry) -> Pair:
    """Of the lease."""
    return entry[0].job_id, entry[0].token


class Replies:
    """To one call, as they come in from a database that other transactions may keep from writing a row."""

    def __init__(self, batch: Sequence[Entry]) -> None:
        self._batch = batch
        # A lease that is named twice is settled as it was named first.
        self._once = {pair(entry): entry for entry in reversed(batch)}
        self.entries = sorted(self._once.values(), key=lambda entry: entry[0].job_id)
        """Each lease once, in the order in which rows are locked everywhere."""
        self.known: dict[Pair, Reply] = {}

    def missed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of them that have no reply yet: look what became of them."""
        return [entry for entry in entries if pair(entry) not in self.known]

    def busy(self) -> list[Entry]:
        """Those whose rows another transaction has locked, to be tried again: they have no reply from now on."""
        found = [entry for entry in self.entries if self.known.get(pair(entry)) is Verdict.BUSY]
        for entry in found:
            del self.known[pair(entry)]
        return found

    def in_order(self, *, repeat: bool) -> list[Reply]:
        """One for each of the batch."""
        without = untraced(repeat=repeat)
        return [self._of(entry, self.known.get(pair(entry), without)) for entry in self._batch]

    def _of(self, entry: Entry, reply: Reply) -> Reply:
        written = self._once[pair(entry)][1]
        return written if reply is Verdict.SETTLED and entry[1] != written else reply
