"""The replies to settlements: pure rules, the same for every store.

the lease holds its row           `recorded`: as requested, or changed by the row's own state
the lease has settled its row     `recorded_before`: a repeat of a call whose reply was lost
the row belongs to another claim  LOST
the row does not exist any more   `untraced`
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


def recorded(settlement: Settlement, state: State) -> Reply:
    """Return the reply for a row that the lease held, and that is ``state`` now."""
    return Verdict.SETTLED if state is settlement.state else with_state(settlement, state)


def recorded_before(settlement: Settlement, state: State) -> Reply:
    """Return the reply for a row, now ``state``, that keeps the lease's token: this lease has settled it."""
    # A waiting job may have been retried or claimed since. A completed one stays completed.
    is_other_end = state.terminal and state is not settlement.state
    if not is_other_end and (settlement.state is not State.COMPLETED or state not in WAITING_STATES):
        return Verdict.ALREADY_SETTLED
    if settlement.state in WAITING_STATES:
        return with_state(settlement, state)
    # The lease has settled it differently; the recorded error is not known here.
    return msgspec.structs.replace(with_state(settlement, state), error=None, error_class=None)


def continues(settlement: Settlement) -> bool:
    """Return whether it completes a step of a flow whose job continues: in a next queue, or waiting for children."""
    return settlement.state is State.COMPLETED and any(is_step(job.task, job.key) for job in settlement.then)


def untraced(*, repeat: bool) -> Verdict:
    """Return the reply for a row without a trace. A repeated call may have removed it itself, without a reply."""
    return Verdict.UNKNOWN if repeat else Verdict.LOST


def pair(entry: Entry) -> Pair:
    """Return the pair of the entry's lease."""
    return entry[0].job_id, entry[0].token


class Replies:
    """The replies of one call, collected over several attempts: other transactions may lock rows meanwhile."""

    def __init__(self, batch: Sequence[Entry]) -> None:
        self._batch = batch
        # A lease that occurs twice is settled by its first entry.
        self._once = {pair(entry): entry for entry in reversed(batch)}
        self.entries = sorted(self._once.values(), key=lambda entry: entry[0].job_id)
        """Each lease once, in the order in which rows are locked everywhere."""
        self.known: dict[Pair, Reply] = {}

    def missed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries without a reply, whose rows must be looked up."""
        return [entry for entry in entries if pair(entry) not in self.known]

    def busy(self) -> list[Entry]:
        """Return the entries whose rows another transaction has locked, and drop their replies for a retry."""
        busy = [entry for entry in self.entries if self.known.get(pair(entry)) is Verdict.BUSY]
        for entry in busy:
            del self.known[pair(entry)]
        return busy

    def in_order(self, *, repeat: bool) -> list[Reply]:
        """Return one reply for each entry of the batch."""
        default = untraced(repeat=repeat)
        return [self._of(entry, self.known.get(pair(entry), default)) for entry in self._batch]

    def _of(self, entry: Entry, reply: Reply) -> Reply:
        settlement = self._once[pair(entry)][1]
        return settlement if reply is Verdict.SETTLED and entry[1] != settlement else reply
