"""The lifecycle as a state machine: the promises hold in whatever order things happen; without the fence they do not.

The promises by their numbers: I2 terminal states absorb, I4 a stale lease changes nothing, I5 one valid lease per job,
I6 attempts and resets stay within their limits, I12 a serial key is serial, I14 a key names one live job,
I23 every row satisfies the state machine's checks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from copy import copy
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from stowhand.jobs.job import KeyMode, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Settlement, Snooze, allowed_resets, settle
from stowhand.protocols.queue_store import Reschedule
from stowhand.protocols.store import ClaimRequest, Reply, StoreOptions, Verdict
from stowhand.testing import MemoryStore
from stowhand.testing.clock import START
from tests.model.engine.rows import Row, Rows
from tests.model.engine.store import ModelStore
from tests.support import memory_rows

T = TypeVar("T")
LEASE = 10.0
WORKERS = st.sampled_from(["w1", "w2", "w3"])
OUTCOMES = st.sampled_from([Complete(), Retry("no", 3.0), Fail("never"), Snooze(3.0), Cancel("away")])
SELDOM = st.sampled_from([False, False, False, True])
EXPLICIT = "only an explicit call may leave a terminal state"

THOROUGH = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

UNTIL_BROKEN = settings(THOROUGH, max_examples=2000, phases=[Phase.generate])


class WatchedStore(MemoryStore):
    """A store whose rows can be looked at."""

    def __init__(self, options: StoreOptions) -> None:
        super().__init__(options=options)

    def rows(self) -> list[memory_rows.Row]:
        return memory_rows.rows_of(self)


class Lifecycle(RuleBasedStateMachine):
    """Workers that live, die and come back as zombies, and people who interfere."""

    leases: Bundle[Lease] = Bundle("leases")
    """Every lease ever given; most of them are stale soon."""
    jobs: Bundle[int] = Bundle("jobs")

    make_store: type[ModelStore | WatchedStore] = ModelStore

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.store = self.make_store(StoreOptions(pinned=self.time.now))
        self.heartbeats = self.store.heartbeats()
        self.tokens = itertools.count(1)
        self.given: dict[int, list[Lease]] = {}
        self.ended: dict[int, State] = {}

    # -- people and producers -----------------------------------------------------------------------

    @rule(
        target=jobs,
        serial=st.sampled_from([None, None, "q", "r"]),
        key=st.sampled_from([None, None, "k", "l"]),
        mode=st.sampled_from(list(KeyMode)),
        delay=st.sampled_from([None, None, 5.0]),
        max_attempts=st.sampled_from([1, 2, 25]),
        max_resets=st.sampled_from([None, 0, 1]),
    )
    def enqueue(
        self,
        serial: str | None,
        key: str | None,
        mode: KeyMode,
        delay: float | None,
        max_attempts: int,
        max_resets: int | None,
    ) -> int:
        new = NewJob(
            task="t",
            serial=serial,
            key=key,
            key_mode=mode,
            delay=delay,
            max_attempts=max_attempts,
            max_resets=max_resets,
        )
        job = do(self.store.jobs.enqueue(new))
        assert key is None or job.key == key, "I14: a keyed enqueue gives the job that holds the key"
        self._may_have_left(job.id)
        return job.id

    @rule(job=jobs, action=st.sampled_from(["cancel", "cancel", "retry", "retry", "remove"]))
    def act(self, job: int, action: str) -> None:
        answer = do(getattr(self.store.admin, action)(job))
        assert answer.job_id == job
        if action != "cancel":
            self._may_have_left(job)

    @rule(key=st.sampled_from(["k", "l"]))
    def remove_key(self, key: str) -> None:
        removed = do(self.store.admin.remove_key(key)).job_id
        if removed is not None:
            self._may_have_left(removed)

    @rule(
        job=jobs,
        call=st.sampled_from(["complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "reschedule_jobs"]),
        attempts=st.sampled_from([None, 0, 1, 30]),
        max_attempts=st.sampled_from([None, 2, 25]),
    )
    def administer(self, job: int, call: str, attempts: int | None, max_attempts: int | None) -> None:
        value = (Reschedule(attempts=attempts, max_attempts=max_attempts),) if call == "reschedule_jobs" else ()
        live = {row.id: row for row in self.store.rows() if row.lease_until and row.lease_until >= self.time.now()}
        changed = {one.id for one in do(getattr(self.store.admin, call)([job], *value))}
        assert changed <= {job} - live.keys(), "I4: a live lease is skipped"
        assert {row.id: row for row in self.store.rows() if row.id in live} == live, "I4: a live lease is untouched"
        assert all(row.token is None for row in self.store.rows() if row.id in changed), "I4: its holder is fenced out"
        self.ended = {job_id: state for job_id, state in self.ended.items() if job_id not in changed}

    @rule(worker=WORKERS)
    def force_unlock(self, worker: str) -> None:
        held = {row.id: row.epoch for row in self.store.rows() if row.worker == worker}
        changed = {one.id for one in do(self.store.admin.force_unlock_workers([worker]))}
        assert changed == held.keys(), "I3: nothing is left under an unlocked worker"
        assert all(row.epoch == held[row.id] + 1 for row in self.store.rows() if row.id in changed), "epochs grow"

    # -- workers ------------------------------------------------------------------------------------

    @rule(target=leases, worker=WORKERS, limit=st.integers(1, 3), suspects=SELDOM)
    def claim(self, worker: str, limit: int, suspects: bool) -> Any:
        request = ClaimRequest(
            worker=worker, token=f"token{next(self.tokens)}", limit=limit, lease=LEASE, suspects=suspects
        )
        claims = do(self.store.claim(request))
        for claim in claims:
            earlier = self.given.setdefault(claim.lease.job_id, [])
            assert all(claim.lease.epoch > lease.epoch for lease in earlier), "epochs grow at every claim"
            earlier.append(claim.lease)
        return multiple(*(claim.lease for claim in claims))

    @rule(lease=leases, outcome=OUTCOMES, repeat=st.booleans())
    def settle(self, lease: Lease, outcome: Outcome, repeat: bool) -> None:
        def call() -> Reply:
            row = self._row(lease.job_id)
            attempts, most = (row.attempts, row.max_attempts) if row is not None else (1, 25)
            what = settle(outcome, attempts=attempts, max_attempts=most, backoff=lambda attempt: 1.0)
            (verdict,) = do(self.store.settle([(lease, what)], repeat=repeat))
            return verdict

        held, verdict = self._fenced(lease, call)
        # A settlement as the reply: it was recorded instead, for the row knew of a cancellation; or was before, by this
        # very lease.
        settled = verdict is Verdict.SETTLED or (isinstance(verdict, Settlement) and held)
        assert settled == held, "I4: a stale lease is reported"
        if isinstance(verdict, Settlement) and not held:
            row = self._row(lease.job_id)
            assert row is not None
            assert (row.settled_token, row.state) == (lease.token, verdict.state)

    @rule(lease=leases, call=st.sampled_from(["beat", "release", "reset_lease"]))
    def use(self, lease: Lease, call: str) -> None:
        match call:
            case "beat":
                held, pulse = self._fenced(lease, lambda: do(self.heartbeats.beat([lease], LEASE)))
                assert ((lease.job_id, lease.token) in pulse.lost) != held, "I4: a stale lease is told so"
            case "release":
                self._fenced(lease, lambda: do(self.heartbeats.release([lease])))
            case _:
                held, taken = self._fenced(lease, lambda: do(self.heartbeats.reset_lease(lease)))
                assert bool(taken) == held, "I4: a stale lease is told so"

    @rule(lease=leases)
    def abandon(self, lease: Lease) -> None:
        do(self.heartbeats.abandon(lease.token))
        assert all(row.token != lease.token for row in self.store.rows()), "an abandoned token holds nothing"

    @rule(slack=st.sampled_from([0.0, 5.0]))
    def reset_stalled(self, slack: float) -> None:
        taken = {reset.job_id for reset in do(self.heartbeats.reset_stalled(slack))}
        assert all(row.token is None for row in self.store.rows() if row.id in taken)
        late = self.time.now() - timedelta(seconds=slack)
        overdue = [row for row in self.store.rows() if row.lease_until is not None and row.lease_until < late]
        assert not overdue, f"I3: {overdue}"

    @rule(worker=WORKERS)
    def reset_worker(self, worker: str) -> None:
        do(self.heartbeats.reset_worker(worker))
        assert all(row.worker != worker for row in self.store.rows()), "I3: nothing is left under a dead worker"

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def advance(self, seconds: float) -> None:
        self.time.pass_by(seconds)

    # -- promises -----------------------------------------------------------------------------------

    @invariant()
    def terminal_states_absorb(self) -> None:
        for row in self.store.rows():
            before = self.ended.get(row.id)
            assert before is None or row.state is before, f"I2: {row.id} went from {before} to {row.state}; {EXPLICIT}"
            if row.state.terminal:
                self.ended[row.id] = row.state

    @invariant()
    def at_most_one_lease_is_valid(self) -> None:
        for job_id, leases in self.given.items():
            row = self._row(job_id)
            valid = [lease for lease in leases if row is not None and row.token == lease.token]
            assert valid in ([], leases[-1:]), "I5: only the newest lease of a job may be valid"

    @invariant()
    def queues_are_serial(self) -> None:
        running = Counter(row.serial for row in self.store.rows() if row.serial and row.state is State.PROCESSING)
        assert all(number == 1 for number in running.values()), f"I12: {running}"

    @invariant()
    def a_key_names_one_live_job(self) -> None:
        live = (State.COMPLETED, State.CANCELED)
        keys = Counter(row.key for row in self.store.rows() if row.key and row.state not in live)
        assert all(number == 1 for number in keys.values()), f"I14: {keys}"

    @invariant()
    def rows_satisfy_the_checks(self) -> None:
        rows = self.store.rows()
        assert len({row.id for row in rows}) == len(rows), "a job lies in one place only"
        for row in rows:
            check(row)

    # -- means --------------------------------------------------------------------------------------

    def _fenced(self, lease: Lease, call: Callable[[], T]) -> tuple[bool, T]:
        """Make a call under a lease; if it is stale by what the rows say, nothing may change."""
        before = {row.id: row for row in self.store.rows()}
        row = before.get(lease.job_id)
        held = row is not None and row.state is State.PROCESSING and row.token == lease.token
        answer = call()
        if not held:
            assert {row.id: row for row in self.store.rows()} == before, f"I4: stale {lease} changed something"
        return held, answer

    def _may_have_left(self, job_id: int) -> None:
        """An explicit call was made: if the job left a terminal state by it, that was allowed."""
        row = self._row(job_id)
        if row is None or not row.state.terminal:
            self.ended.pop(job_id, None)

    def _row(self, job_id: int) -> Row | memory_rows.Row | None:
        return next((row for row in self.store.rows() if row.id == job_id), None)


def check(row: Row | memory_rows.Row) -> None:
    """The CHECK constraints of a database, and the limits of attempts and resets (I6, I23)."""
    running = row.state is State.PROCESSING
    assert (row.token is not None) == running, row
    assert (row.lease_until is not None) == running, row
    assert (row.worker is not None) == running, row
    assert row.settled_token is None or not running, row
    assert (row.finished_at is not None) == row.state.terminal, row
    assert 0 <= row.attempts <= row.max_attempts, row
    assert row.attempts >= 1 or not running, row
    assert row.resets >= 0, row
    if row.state in (State.QUEUED, State.ERRORED, State.PROCESSING) and row.revision == 0:
        # A key update may lower the limit under the count; the next death then ends it.
        assert row.resets <= allowed_resets(row.max_resets, row.max_attempts), row
    assert row.state is not State.ERRORED or row.loses_retries is None, row
    assert row.loses_retries is None or row.key is None, row
    assert not row.cancel_requested or running or row.state.terminal, row


def do(work: Coroutine[Any, Any, T]) -> T:
    """A call of the model never waits, so it needs no loop."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a call of the model waited for something")


class Time:
    """Stands still until it is told to pass."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> datetime:
        return self._now

    def pass_by(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class StoreLifecycle(Lifecycle):
    """The same on the SQLite store, in memory."""

    make_store = WatchedStore


@pytest.mark.parametrize(("lifecycle", "examples"), [(Lifecycle, 300), (StoreLifecycle, 100)])
def test_the_invariants_hold_in_random_histories(lifecycle: type[Lifecycle], examples: int) -> None:
    run_state_machine_as_test(lifecycle, settings=settings(THOROUGH, max_examples=examples))


def hold_by_id(rows: Rows, lease: Lease) -> Row | None:
    """No guard: whoever names the id."""
    return rows.live.get(lease.job_id)


def hold_by_state(rows: Rows, lease: Lease) -> Row | None:
    """The guard of some serial keys: it must be running, whoever runs it."""
    row = rows.live.get(lease.job_id)
    return row if row is not None and row.state is State.PROCESSING else None


@pytest.mark.parametrize("fence", [hold_by_id, hold_by_state])
def test_without_the_fence_the_promises_break(
    monkeypatch: pytest.MonkeyPatch, fence: Callable[[Rows, Lease], Row | None]
) -> None:
    monkeypatch.setattr(Rows, "held", fence)
    with pytest.raises(AssertionError, match=r"I\d+"):
        run_state_machine_as_test(Lifecycle, settings=UNTIL_BROKEN)


def claims_ignore_busy_serials(rows: Rows) -> set[str]:
    return set()


def test_without_the_lock_of_a_queue_the_promises_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "running_serials", claims_ignore_busy_serials)
    with pytest.raises(AssertionError, match="I12"):
        run_state_machine_as_test(Lifecycle, settings=UNTIL_BROKEN)


def test_a_copy_of_the_rows_does_not_follow_the_store() -> None:
    """The machine compares images: they must be images."""
    store = ModelStore(StoreOptions(pinned=Time().now))
    do(store.jobs.enqueue(NewJob(task="t")))
    (before,) = store.rows()
    saved = copy(before)
    do(store.admin.cancel(1))
    assert before == saved
    assert list(store.rows()) != [before]
