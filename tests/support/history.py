"""The log of every committed transition of the jobs of a SQL store, and the checker that reads it.

    install(url)                    triggers write each change of a job, in its transaction, into a table of their own
    ...                             the run under test
    assert_lawful(url)              fails with every violation of the rules below

The checker knows no engine. What may follow on an attempt comes from `jobs/lifecycle.py`. The rules are listed in
docs/contributing/kill-points.md.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import msgspec
import psycopg

from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import (
    WAITING_STATES,
    Cancel,
    Complete,
    Fail,
    Outcome,
    Retry,
    Settlement,
    Snooze,
    Wait,
    Waiting,
    effective_state,
    reset,
    settle,
)
from stowhand.jobs.limits import KEY_SEPARATOR
from stowhand.limits import Concurrency, Rate
from stowhand.protocols.workflows import STEP_OF_CHILDREN


class Image(msgspec.Struct, frozen=True):
    """The columns of a job that the rules are about. The history lacks some, which are ``None`` there."""

    state: State
    epoch: int
    attempts: int
    max_attempts: int
    resets: int
    max_resets: int | None
    serial: str | None
    key: str | None
    cancel_requested: bool
    settled_token: str | None
    started_at: str | None
    token: str | None = None
    loses_retries: str | None = None
    limit_name: str | None = None
    limit_slot: int | None = None
    key_slot: int | None = None
    task: str | None = None
    waits_for: str | None = None


COLUMNS = Image.__struct_fields__
LIVE_ONLY = ("token", "loses_retries", "limit_name", "limit_slot", "key_slot", "waits_for")
PAST_COLUMNS = tuple(name for name in COLUMNS if name not in LIVE_ONLY)
Limits = Mapping[str, Sequence[Concurrency | Rate]]
"""What each task declares. No limit is shared, and none was changed in the run."""
RATE_TOLERANCE_SECONDS = 0.001


class Change(msgspec.Struct, frozen=True):
    """One committed change of one row."""

    n: int
    """Its place in the order of all changes."""
    transaction: str | None
    """``None`` on SQLite, where transactions have no number."""
    is_past: bool
    """The row is in the history."""
    job: int
    old: Image | None
    new: Image | None
    at: float = 0.0
    """Seconds since 1970 by the clock of the machine."""


class Step(msgspec.Struct, frozen=True):
    """The columns of a recorded step that the rules are about."""

    value: str | None
    error: str | None
    remaining: int | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether it has a value or an error."""
        return self.value is not None or self.error is not None


class StepChange(msgspec.Struct, frozen=True):
    """One committed change of a step, in the order of the log."""

    job: int
    name: str
    place: int
    old: Step | None
    new: Step | None


class Transition(msgspec.Struct, frozen=True):
    """A change of a job. ``None``: it is in neither table."""

    n: int
    job: int
    before: Image | None
    after: Image | None
    at: float = 0.0

    @property
    def is_claim(self) -> bool:
        """Whether an attempt begins."""
        return self.after is not None and self.after.token is not None and self._token_before != self.after.token

    @property
    def is_end(self) -> bool:
        """Whether an attempt ends."""
        return self._token_before is not None and (self.after is None or self.after.token != self._token_before)

    @property
    def is_reset(self) -> bool:
        """Whether an attempt ends because its lease has expired."""
        return self._token_before is not None and (self.after is None or self.after.epoch > self._epoch_before)

    @property
    def _token_before(self) -> str | None:
        return None if self.before is None else self.before.token

    @property
    def _epoch_before(self) -> int:
        return -1 if self.before is None else self.before.epoch

    def __str__(self) -> str:
        return f"#{self.n}: {_words(self.before)} -> {_words(self.after)}"


class Violation(msgspec.Struct, frozen=True):
    """A rule that a transition breaks."""

    rule: str
    job: int
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: job {self.job}: {self.reason}"


# -- the rules ----------------------------------------------------------------------------------

OUTCOMES: tuple[Outcome, ...] = (Complete(), Retry(), Fail(), Snooze(0), Cancel())
"""One of each kind."""
CANCELED_WAITING = {(state, State.CANCELED) for state in WAITING_STATES}
ENQUEUED_AGAIN = {(state, State.QUEUED) for state in (*WAITING_STATES, State.FAILED)}
"""By an enqueue with the key of the job."""
_LIVE = (*WAITING_STATES, State.FAILED)
BY_HAND: set[tuple[State, State | None]] = {
    *((state, state) for state in _LIVE),
    *((state, State.QUEUED) for state in (State.ERRORED, State.FAILED, State.CANCELED)),
    *((state, State.FAILED) for state in WAITING_STATES),
    *((state, State.COMPLETED) for state in _LIVE),
    *((state, None) for state in (*_LIVE, State.COMPLETED, State.CANCELED)),
}
"""Changes by an administrator, and by a retention, of jobs that do not run."""


def check_history(
    changes: Iterable[Change],
    *,
    administered: bool = False,
    keeps_history: bool = True,
    limits: Limits | None = None,
    clock_steps: Sequence[tuple[int, int]] = (),
) -> list[Violation]:
    """Return every violation of the rules.

    Args:
        changes: The log, in its order.
        administered: Whether the run has used calls for people: retry, remove, reschedule and others, and purges.
        keeps_history: Whether ended jobs are in the history. Without it they leave no trace.
        limits: The limits of the tasks.
        clock_steps: In their order, first and last places in the log (``Change.n``) between which the store's clock was
            set. A rate promises nothing about a time that contains one.

    """
    found = transitions(changes)
    violations = list(_Checker(administered, keeps_history, limits or {}).check(found))
    return violations + list(_broken_rates(found, limits or {}, clock_steps))


def transitions(changes: Iterable[Change]) -> list[Transition]:
    """Return the transitions of all jobs in order. A move from one table to the other in one transaction is one."""
    by_job: dict[int, list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.n):
        by_job[change.job].append(change)
    return sorted((one for found in by_job.values() for one in _of_job(found)), key=lambda one: one.n)


def _of_job(changes: Sequence[Change]) -> Iterator[Transition]:
    waiting: Change | None = None
    for change in changes:
        if waiting is not None:
            if _is_wait(waiting, change):
                waiting = msgspec.structs.replace(waiting, new=change.new)
                continue
            if _is_move(waiting, change):
                yield Transition(waiting.n, change.job, waiting.old or change.old, waiting.new or change.new, change.at)
                waiting = None
                continue
            yield Transition(waiting.n, waiting.job, waiting.old, waiting.new, waiting.at)
        waiting = change
    if waiting is not None:
        yield Transition(waiting.n, waiting.job, waiting.old, waiting.new, waiting.at)


def _is_move(first: Change, second: Change) -> bool:
    """Whether one of the two takes the job from a table and the other one brings it into the other table."""
    is_move = first.is_past is not second.is_past and (first.old is None) is not (second.old is None)
    return is_move and (first.new is None) is (first.old is not None) and first.transaction == second.transaction


def _is_wait(first: Change, second: Change) -> bool:
    """Whether a settlement has queued a job, and then recorded for what the job waits (on PostgreSQL)."""
    is_same = first.transaction is not None and first.transaction == second.transaction
    is_end = is_same and first.old is not None and first.old.state is State.PROCESSING
    is_queued = is_end and first.new is not None and first.new.state is State.QUEUED and first.new == second.old
    return is_queued and second.new is not None and second.new.waits_for is not None


class _Checker:
    def __init__(self, administered: bool, keeps_history: bool, limits: Limits) -> None:
        self._administered = administered
        self._limits = limits
        self._keeps_history = keeps_history
        self._last: dict[int, Image | None] = {}
        self._epochs: dict[int, int] = {}
        self._calls: dict[str, str | None] = {}
        """By token of each claim call: the time of the call."""
        self._holders: dict[Hashable, int] = {}
        """By what only one running job may hold: the job."""

    def check(self, all_transitions: Iterable[Transition]) -> Iterator[Violation]:
        for one in all_transitions:
            for rule, reason in self._broken_by(one):
                yield Violation(rule, one.job, f"{reason}: {one}")

    def _broken_by(self, one: Transition) -> Iterator[tuple[str, str]]:
        before, after = one.before, one.after
        if one.job in self._last and self._last[one.job] != before:
            yield "continuity", f"the job was left as {_words(self._last[one.job])}"
        self._last[one.job] = after
        if (reason := self._refusal(before, after)) is not None:
            yield "transition", reason
        if after is not None and not 0 <= after.attempts <= after.max_attempts:
            yield "attempts", "the attempts exceed the maximum"
        yield from self._check_lease(one)
        yield from self._check_exclusive(one)
        if one.is_end and before is not None:
            yield from _check_slots(before, self._limits.get(before.task or "", ()))

    def _refusal(self, before: Image | None, after: Image | None) -> str | None:
        """Return why no call of a store makes this change; ``None`` if one does."""
        if before is None:
            is_new = after is not None and after.state is State.QUEUED and not (after.attempts or after.resets)
            return None if is_new else "a job begins queued, without attempts"
        if before.state is State.PROCESSING:
            return self._refusal_of_end(before, after)
        if after is not None and after.state is State.PROCESSING:
            return _refusal_of_claim(before, after)
        return self._refusal_at_rest(before, after)

    def _refusal_of_end(self, before: Image, after: Image | None) -> str | None:
        if after is None:
            return None if not self._keeps_history else "a running job left no trace"
        if after.state is State.PROCESSING:
            is_same = _lease_of(before) == _lease_of(after) and after.cancel_requested >= before.cancel_requested
            return None if is_same else "a running job changed its lease"
        ends = {*_ends(before), *(_ends_by_hand(before) if self._administered else ())}
        if after.waits_for is not None:
            ends |= set(_waits(before))
        end = _End(after.state, after.epoch, after.attempts, after.resets, after.settled_token)
        return None if end in ends else "no outcome, release or reset ends an attempt so"

    def _refusal_at_rest(self, before: Image, after: Image | None) -> str | None:
        if after is not None and _gets_key(before, after):
            return None
        move = before.state, None if after is None else after.state
        is_known = move in CANCELED_WAITING or (move in ENQUEUED_AGAIN and before.key is not None)
        is_known = is_known or (move in BY_HAND and self._administered)
        if not is_known and not (after is None and not self._keeps_history):
            return "no call makes this of a job that does not run" if after is not None else "the job left no trace"
        if after is not None and (after.epoch != before.epoch or after.resets not in (before.resets, 0)):
            return "a job that does not run changed its epoch or its resets"
        return None

    def _check_lease(self, one: Transition) -> Iterator[tuple[str, str]]:
        """Epochs grow, and a token is of one claim call."""
        after = one.after
        if after is None:
            return
        highest = self._epochs.get(one.job, -1)
        begins = after.state is State.PROCESSING and (one.before is None or one.before.token != after.token)
        if after.epoch < highest or (begins and after.epoch == highest and one.before is not None):
            yield "epoch", f"the epoch was {highest} before"
        self._epochs[one.job] = max(after.epoch, highest)
        token = after.token if begins else None
        if token is not None and self._calls.setdefault(token, after.started_at) != after.started_at:
            yield "token", f"token {token} was of the claim at {self._calls[token]}"

    def _check_exclusive(self, one: Transition) -> Iterator[tuple[str, str]]:
        held, wanted = set(_exclusive(one.before)), set(_exclusive(one.after))
        for what in held - wanted:
            if self._holders.get(what) == one.job:
                del self._holders[what]
        for what in wanted - held:
            holder = self._holders.setdefault(what, one.job)
            if holder != one.job:
                kind, name = what
                yield kind, f"job {holder} holds the {kind} {name!r}"


def _exclusive(image: Image | None) -> Iterator[tuple[str, Hashable]]:
    """Yield what no other running job may hold: its serial key, its slot of a key, and its slot of a limit."""
    if image is not None and image.state is State.PROCESSING:
        if image.serial is not None and KEY_SEPARATOR in image.serial:
            yield "key", (image.serial, image.key_slot)
        elif image.serial is not None:
            yield "serial", image.serial
        if image.limit_slot is not None:
            yield "limit", (image.limit_name, image.limit_slot)


def _check_slots(running: Image, limits: Sequence[Concurrency | Rate]) -> Iterator[tuple[str, str]]:
    """Each slot is a number up to the limit. As no two jobs share one, no more jobs run than the limit allows.

    The last row of an attempt is checked: SQLite writes the slots after the claim, in its transaction.
    """
    for limit in limits:
        if limit.key is not None and KEY_SEPARATOR not in (running.serial or ""):
            yield "key", "it was claimed without its key"
        if isinstance(limit, Concurrency):
            kind, slot = ("limit", running.limit_slot) if limit.key is None else ("key", running.key_slot)
            if slot is None or not 1 <= slot <= limit.limit:
                yield kind, f"its slot is {slot}, and the limit {limit.limit}"


def _broken_rates(
    all_transitions: Sequence[Transition], limits: Limits, clock_steps: Sequence[tuple[int, int]]
) -> Iterator[Violation]:
    """In any time t at most burst + t * limit / per jobs are claimed, by the times in the log."""
    borders = [place for step in clock_steps for place in step]
    starts: dict[tuple[Rate, str | None, int], list[tuple[float, Transition]]] = defaultdict(list)
    for one in all_transitions:
        if one.after is None or not one.is_claim:
            continue
        for limit in limits.get(one.after.task or "", ()):
            if isinstance(limit, Rate):
                key = None if limit.key is None else one.after.serial
                period = bisect(borders, one.n)
                if period % 2 == 0:
                    starts[limit, key, period].append((float(str(one.after.started_at)), one))
    for (limit, key, _), claims in starts.items():
        per_second = limit.limit / limit.period
        # Between the claims i and j, j - i + 1 jobs are claimed. So the earliest i with the least `allowance` decides.
        allowance = float("inf")
        for number, (at, one) in enumerate(sorted(claims, key=lambda claim: claim[0])):
            spent = number - at * per_second
            allowance = min(allowance, spent)
            excess = spent - allowance + 1 - limit.burst - RATE_TOLERANCE_SECONDS * per_second
            if excess > 1e-4:
                yield Violation("rate", one.job, f"{excess:.4f} jobs above the rate {limit} of the key {key!r}: {one}")


class _End(msgspec.Struct, frozen=True):
    state: State
    epoch: int
    attempts: int
    resets: int
    settled_token: str | None


def _ends(job: Image) -> Iterator[_End]:
    """Yield every row that may follow on an attempt: settled, released or reset."""
    for outcome in OUTCOMES:
        settlement = settle(outcome, attempts=job.attempts, max_attempts=job.max_attempts, backoff=lambda attempt: 0.0)
        for continues in (False, settlement.state is State.COMPLETED):
            yield _end(job, settlement, resets=0, settled_token=job.token, continues=continues)
    yield _end(job, settle(Snooze(0), attempts=0, max_attempts=1, backoff=lambda attempt: 0.0), resets=job.resets)
    decided = reset(resets=job.resets, max_resets=job.max_resets, max_attempts=job.max_attempts)
    yield _end(job, decided, resets=job.resets + 1, epochs=1)


def _waits(job: Image) -> Iterator[_End]:
    """Yield every row of an attempt that ends because its workflow waits. The wait decides which attempts count."""
    waiting = settle(
        Waiting(Wait(step="s")), attempts=job.attempts, max_attempts=job.max_attempts, backoff=lambda n: 0.0
    )
    assert waiting.wait is not None
    for attempts in range(job.attempts):
        settlement = msgspec.structs.replace(waiting, wait=msgspec.structs.replace(waiting.wait, attempts=attempts))
        yield _end(job, settlement, resets=0, settled_token=job.token)


def _end(
    job: Image,
    settlement: Settlement,
    *,
    resets: int,
    epochs: int = 0,
    settled_token: str | None = None,
    continues: bool = False,
) -> _End:
    state = effective_state(
        settlement.state,
        cancel_requested=job.cancel_requested,
        loses_retries=job.loses_retries,
        continues=continues,
    )
    attempts = max(job.attempts - settlement.refund, 0)
    if settlement.wait is not None:
        attempts = settlement.wait.attempts
    if state is State.FAILED and job.loses_retries is not None:
        attempts = job.max_attempts
    return _End(state, job.epoch + epochs, attempts, resets, settled_token)


def _ends_by_hand(job: Image) -> Iterator[_End]:
    """Yield what an administrator makes of a job whose lease has expired."""
    yield _End(State.COMPLETED, job.epoch + 1, job.attempts, job.resets, None)
    yield _End(State.FAILED, job.epoch + 1, job.max_attempts, job.resets, None)


def _refusal_of_claim(before: Image, after: Image) -> str | None:
    if before.state not in WAITING_STATES:
        return "only a waiting job is claimed"
    expected = before.epoch + 1, min(before.attempts + 1, before.max_attempts), before.resets, None
    if (after.epoch, after.attempts, after.resets, after.settled_token) != expected or after.token is None:
        return "a claim adds 1 to the epoch and to the attempts, and nothing else"
    return None


def _gets_key(before: Image, after: Image) -> bool:
    """Whether a waiting job gets the key of its limit, or loses one that its task no longer declares."""
    changed, missing = (before.serial, after.serial) if after.serial is None else (after.serial, before.serial)
    is_key = before.state in WAITING_STATES and missing is None and KEY_SEPARATOR in (changed or "")
    return is_key and msgspec.structs.replace(before, serial=after.serial) == after


def _lease_of(job: Image) -> tuple[object, ...]:
    return job.token, job.epoch, job.attempts, job.max_attempts, job.resets, job.serial, job.settled_token


def _words(image: Image | None) -> str:
    if image is None:
        return "nothing"
    words = [image.state.value, f"epoch {image.epoch}", f"attempts {image.attempts}/{image.max_attempts}"]
    words += [f"resets {image.resets}"] if image.resets else []
    words += [f"{name} {value}" for name in ("token", "serial", "key") if (value := getattr(image, name)) is not None]
    return f"({', '.join(words)})"


# -- workflows ----------------------------------------------------------------------------------


def check_steps(changes: Iterable[StepChange], *, administered: bool = False) -> list[Violation]:
    """Return every violation of the rules of steps.

    Args:
        changes: The log of the steps, in its order.
        administered: Whether the run has retried failed children, or workflows, by hand.

    """
    return list(_StepChecker(administered).check(changes))


class _Family(msgspec.Struct):
    """The children of a step: how many were created, and how many of those have ended."""

    created: int
    ended: int = 0
    is_copy: bool = False
    """The step was copied by a fork, with its ended children."""


class _StepChecker:
    def __init__(self, administered: bool) -> None:
        self._administered = administered
        self._families: dict[tuple[int, str], _Family] = {}

    def check(self, changes: Iterable[StepChange]) -> Iterator[Violation]:
        last: dict[tuple[int, str], int] = {}
        for change in changes:
            family = change.job, change.name
            for rule, reason in self._broken_by(change):
                yield Violation(rule, change.job, f"step {change.name!r}[{change.place}]: {reason}")
            if change.place == STEP_OF_CHILDREN and change.new is not None:
                last[family] = change.new.remaining or 0
        for (job, name), found in self._families.items():
            expected = found.created - found.ended
            if not found.is_copy and last[job, name] != expected:
                reason = f"{found.created} children were created and {found.ended} have ended, {last[job, name]} remain"
                yield Violation("children", job, f"step {name!r}: {reason}")

    def _broken_by(self, change: StepChange) -> Iterator[tuple[str, str]]:
        old, new = change.old, change.new
        if change.place == STEP_OF_CHILDREN:
            yield from self._count(change)
        elif old is None and (family := self._families.get((change.job, change.name))) is not None:
            family.ended += 1
        elif old is not None and new is not None and old.is_recorded and new != old:
            is_late = self._administered and old.value is None and (change.job, change.name) in self._families
            if not is_late:
                yield "step", f"{old} was recorded, and became {new}"

    def _count(self, change: StepChange) -> Iterator[tuple[str, str]]:
        key = change.job, change.name
        if change.new is None:
            self._families.pop(key, None)
            return
        remaining = change.new.remaining
        if remaining is None or remaining < 0:
            yield "children", f"{remaining} children remain"
        before = 0 if change.old is None else change.old.remaining or 0
        added = (remaining or 0) - before
        if change.old is None:
            self._families[key] = _Family(added, is_copy=added == 0)
        elif added > 0:
            self._families[key].created += added


def check_waits(url: str) -> list[Violation]:
    """Return the waiting jobs of a store that nothing will ever wake, though no call is under way."""
    is_sqlite = _file(url) is not None
    live, steps, events = (
        ("stowhand_jobs", "stowhand_steps", "stowhand_events")
        if is_sqlite
        else ("stowhand.live", "stowhand.steps", "stowhand.events")
    )
    never = f"run_at >= {NEVER_MICROS}" if is_sqlite else "run_at >= '9999-12-31'"
    waiting = f"select j.id, j.waits_for from {live} j where j.state = 'queued' and j.waits_for is not null"
    step = f"select 1 from {steps} s where s.job_id = j.id"
    header = f"{step} and s.place = {STEP_OF_CHILDREN} and 'children:' || s.name = j.waits_for"
    child = f"select count(*) from {live} c where c.parent_id = s.job_id and c.parent_step = s.name"
    lost = {
        "its time never comes": f"{waiting} and j.waits_for like 'time:%' and {never}",
        "its event was emitted": f"{waiting} and exists"
        f" (select 1 from {events} e where 'event:' || e.name = j.waits_for"
        f" and e.job_id in (0, j.id)) and exists ({step} and s.place = 0 and s.value is null and s.error is null"
        " and (s.name = j.waits_for or substr(s.name, 1, length(j.waits_for) + 1) = j.waits_for || '#'))",
        "its children have ended": f"{waiting} and {never} and exists ({header} and s.remaining = 0)",
        "it has no such children": f"{waiting} and j.waits_for like 'children:%' and not exists ({header})",
        "fewer children are left than it waits for": f"{waiting} and exists ({header}"
        f" and s.remaining > ({child} and c.state <> 'failed'))",
    }
    return [
        Violation("wake-up", job, f"it waits for {waits_for}, and {reason}")
        for reason, statement in lost.items()
        for job, waits_for in _rows(url, statement)
    ]


NEVER_MICROS = 253_402_214_400_000_000
"""The last day of the year 9999, as SQLite has it: the run time of a job that only an event or its children wake."""


# -- the log ------------------------------------------------------------------------------------

LOG_TABLE = {"postgres": "transition_log.changes", "sqlite": "transition_log"}
STEP_LOG_TABLE = {"postgres": "transition_log.steps", "sqlite": "transition_log_of_steps"}
STEP_COLUMNS = Step.__struct_fields__


def install(url: str) -> None:
    """Log every change of this store's jobs from now on. Its schema must exist."""
    if path := _file(url):
        with closing(sqlite3.connect(path)) as file:
            file.executescript("".join(_sqlite_statements()))
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("".join(_postgres_statements()).encode())


def read_log(url: str) -> list[Change]:
    """Return the log in its order."""
    return [_change(row) for row in _rows(url, f"select * from {LOG_TABLE[_engine(url)]} order by n")]


def read_steps(url: str) -> list[StepChange]:
    """Return the log of the steps in its order."""
    rows = _rows(url, f"select * from {STEP_LOG_TABLE[_engine(url)]} order by n")
    return [
        StepChange(job, name, place, None if was_new else Step(*old), None if is_gone else Step(*new))
        for _, was_new, is_gone, job, name, place, *values in rows
        for old, new in [(values[: len(STEP_COLUMNS)], values[len(STEP_COLUMNS) :])]
    ]


def log_end(url: str) -> int:
    """Return the place of the last change in the log."""
    ((end,),) = _rows(url, f"select coalesce(max(n), 0) from {LOG_TABLE[_engine(url)]}")
    return int(end)


def assert_lawful(
    url: str, *, administered: bool = False, limits: Limits | None = None, clock_steps: Sequence[tuple[int, int]] = ()
) -> list[Transition]:
    """Fail with every violation in the log, and unless the log ends as the tables are. Return the transitions."""
    changes = read_log(url)
    violations = check_history(changes, administered=administered, limits=limits, clock_steps=clock_steps)
    violations += [*check_steps(read_steps(url), administered=administered), *check_waits(url)]
    found = [str(violation) for violation in violations]
    all_transitions = transitions(changes)
    last = {one.job: one.after for one in all_transitions}
    logged = {job: (after.state.value, after.epoch) for job, after in last.items() if after is not None}
    live, past = ("stowhand_jobs", "stowhand_history") if _file(url) else ("stowhand.live", "stowhand.history")
    rows = _rows(url, f"select id, state, epoch from {live} union all select id, state, epoch from {past}")
    stored = {job: (state, epoch) for job, state, epoch in rows}
    found += [
        f"log: job {job}: the log ends with {logged.get(job)}, the table has {stored.get(job)}"
        for job in sorted(stored.keys() | logged.keys())
        if stored.get(job) != logged.get(job)
    ]
    assert not found, "\n".join(["violations of the rules of tests/support/history.py:", *found[:50]])
    return all_transitions


def _engine(url: str) -> str:
    return "sqlite" if _file(url) else "postgres"


def _file(url: str) -> str | None:
    return url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else None


def _rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    if path := _file(url):
        with closing(sqlite3.connect(path)) as file:
            return file.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def _change(row: Sequence[Any]) -> Change:
    n, transaction, at, is_past, job, *values = row
    old, new = values[: len(COLUMNS)], values[len(COLUMNS) :]
    return Change(n, transaction, bool(is_past), job, _image(old), _image(new), float(at))


def _image(values: Sequence[Any]) -> Image | None:
    if values[0] is None:
        return None
    texts = {name: str(value) for name, value in zip(COLUMNS, values, strict=True) if value is not None}
    return msgspec.convert(dict.fromkeys(COLUMNS) | texts, Image, strict=False)


def _insert(table: str, operation: str, log: str, cast: Callable[[str], str] = str) -> str:
    """Return the statement of a trigger that logs one kind of change."""
    columns = PAST_COLUMNS if table == "history" else COLUMNS
    values = [str(int(table == "history")), "old.id" if operation == "delete" else "new.id"]
    for when, absent_in in (("old", "insert"), ("new", "delete")):
        values += [cast(f"{when}.{name}") if name in columns and operation != absent_in else "null" for name in COLUMNS]
    names = ", ".join(["is_past", "job", *(f"{when}_{name}" for when in ("old", "new") for name in COLUMNS)])
    return f"insert into {log} ({names}) values ({', '.join(values)});"


def _insert_step(operation: str, log: str, cast: Callable[[str], str]) -> str:
    """Return the statement of a trigger that logs one kind of change of a step."""
    row = "old" if operation == "delete" else "new"
    values = [str(int(operation == "insert")), str(int(operation == "delete"))]
    values += [f"{row}.job_id", f"{row}.name", f"{row}.place"]
    for when, absent_in in (("old", "insert"), ("new", "delete")):
        values += [cast(f"{when}.{name}") if operation != absent_in else "null" for name in STEP_COLUMNS]
    return f"insert into {log} ({', '.join(_step_log_columns())}) values ({', '.join(values)});"


def _step_log_columns() -> list[str]:
    columns = [f"{when}_{name}" for when in ("old", "new") for name in STEP_COLUMNS]
    return ["was_new", "is_gone", "job", "name", "place", *columns]


def _differs(table: str, operator: str) -> str:
    columns = PAST_COLUMNS if table == "history" else COLUMNS
    return " or ".join(f"old.{name} {operator} new.{name}" for name in columns if name != "started_at")


OPERATIONS = ("insert", "update", "delete")


def _postgres_statements() -> Iterator[str]:
    columns = ", ".join(f"{when}_{name} text" for when in ("old", "new") for name in COLUMNS)
    yield "create schema transition_log;"
    yield (
        "create table transition_log.changes (n bigint generated always as identity,"
        " transaction text default pg_current_xact_id()::text,"
        " at double precision default extract(epoch from clock_timestamp()),"
        f" is_past int, job bigint, {columns});"
    )

    def cast(value: str) -> str:
        # The text of a timestamp depends on the time zone of the session.
        return f"extract(epoch from {value})::text" if value.endswith("started_at") else f"{value}::text"

    for table, operation in product(("live", "history"), OPERATIONS):
        name = f"transition_log.{table}_{operation}"
        when = f"when ({_differs(table, 'is distinct from')})" if operation == "update" else ""
        yield f"""
            create function {name}() returns trigger language plpgsql security definer as $$
            begin
              {_insert(table, operation, "transition_log.changes", cast)}
              return null;
            end $$;
            create trigger transition_log_{operation} after {operation} on stowhand.{table}
              for each row {when} execute function {name}();"""
    steps = ", ".join(f"{name} {'int' if name.endswith('remaining') else 'text'}" for name in _step_log_columns()[5:])
    yield (
        "create table transition_log.steps (n bigint generated always as identity,"
        f" was_new int, is_gone int, job bigint, name text, place int, {steps});"
    )
    for operation in OPERATIONS:
        insert = _insert_step(
            operation, "transition_log.steps", lambda value: f"{value}::text" if value.endswith("value") else value
        )
        yield f"""
            create function transition_log.steps_{operation}() returns trigger language plpgsql security definer as $$
            begin
              {insert}
              return null;
            end $$;
            create trigger transition_log_{operation} after {operation} on stowhand.steps
              for each row execute function transition_log.steps_{operation}();"""


def _sqlite_statements() -> Iterator[str]:
    columns = ", ".join(f"{when}_{name}" for when in ("old", "new") for name in COLUMNS)
    yield (
        "create table transition_log (n integer primary key autoincrement, transaction_number,"
        f" at default ((julianday('now') - 2440587.5) * 86400.0), is_past, job, {columns});"
    )

    def cast(value: str) -> str:
        return f"{value} / 1e6" if value.endswith("started_at") else value

    for table, operation in product(("live", "history"), OPERATIONS):
        when = f"when {_differs(table, 'is not')}" if operation == "update" else ""
        yield f"""
            create trigger transition_log_{table}_{operation} after {operation}
            on {"stowhand_jobs" if table == "live" else "stowhand_history"} {when} begin
              {_insert(table, operation, "transition_log", cast)}
            end;"""
    yield (
        f"create table transition_log_of_steps (n integer primary key autoincrement, {', '.join(_step_log_columns())});"
    )
    for operation in OPERATIONS:
        yield f"""
            create trigger transition_log_steps_{operation} after {operation} on stowhand_steps begin
              {_insert_step(operation, "transition_log_of_steps", str)}
            end;"""
