"""How records leave processing, and the fence: what does not hold its record any more changes nothing."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement, with_state
from stowhand.protocols.store import RefusedSettlement, Verdict
from tests.stores.table.postgres.jobs import (
    CANCELED,
    COLUMNS,
    ERRORED,
    FAILED,
    SETTLEMENTS,
    SNOOZED,
    TABLE,
    Jobs,
    Served,
    new_token,
)

STATES = [state for state in State if state is not State.PROCESSING]
TOKEN_COLUMN = f"create table jobs (id bigserial primary key, {COLUMNS}, token uuid)"


async def started(jobs: Jobs, served: Served, **columns: Any) -> Lease:
    (job_id,) = jobs.add(**columns)
    lease = await served.take()
    assert lease.job_id == job_id
    return lease


async def test_completed(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served)
        assert await served.settle(lease) is Verdict.SETTLED
    row = jobs.row(lease.job_id)
    assert (row["state"], row["failure_message"], row["num_failures"]) == ("completed", None, 0)
    assert row["finished_at"] >= row["started_at"]
    assert row["worker_hostname"] == f"w1/{lease.token}"


async def test_errored_counts_and_is_due_later(jobs: Jobs) -> None:
    async with jobs.served(max_num_retries=2) as served:
        lease = await started(jobs, served, num_resets=1)
        assert await served.settle(lease, ERRORED) is Verdict.SETTLED
    row = jobs.row(lease.job_id)
    assert (row["state"], row["failure_message"], row["num_failures"], row["num_resets"]) == (
        "errored",
        "it failed",
        1,
        1,
    )
    assert (row["process_after"] - row["finished_at"]).total_seconds() == 60


async def test_failed_counts(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served, num_failures=1)
        assert await served.settle(lease, FAILED) is Verdict.SETTLED
    row = jobs.row(lease.job_id)
    assert (row["state"], row["failure_message"], row["num_failures"]) == ("failed", "it is broken", 2)


async def test_canceled_does_not_count(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served)
        assert await served.settle(lease, CANCELED) is Verdict.SETTLED
    row = jobs.row(lease.job_id)
    assert (row["state"], row["failure_message"], row["num_failures"]) == ("canceled", "not wanted", 0)
    assert row["finished_at"] is not None


async def test_snoozed_returns_to_the_queue_without_using_an_attempt(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served, queued_at=("now() - interval '1 hour'",))
        assert await served.settle(lease, SNOOZED) is Verdict.SETTLED
        assert await served.ids() == []
    row = jobs.row(lease.job_id)
    assert (row["state"], row["num_failures"], row["started_at"], row["finished_at"]) == ("queued", 0, None, None)
    assert (row["process_after"] - row["queued_at"]).total_seconds() == 60
    assert row["worker_hostname"] == "w1"


async def test_a_requested_cancellation_changes_every_outcome_but_completion(jobs: Jobs) -> None:
    async with jobs.served() as served:
        for state in STATES:
            lease = await started(jobs, served)
            jobs.sql("update jobs set cancel = true")
            turns = state not in (State.COMPLETED, State.CANCELED)
            message = with_state(SETTLEMENTS[state], State.CANCELED)
            assert await served.settle(lease, SETTLEMENTS[state]) == (message if turns else Verdict.SETTLED)
            again = await served.settle(lease, SETTLEMENTS[state], repeat=True)
            assert again == (message if turns else Verdict.ALREADY_SETTLED)
            row = jobs.row(lease.job_id)
            assert (row["state"], row["num_failures"]) == ("completed" if state is State.COMPLETED else "canceled", 0)


async def test_a_repeat_is_recognized_and_another_outcome_changes_nothing(jobs: Jobs) -> None:
    async with jobs.served() as served:
        for state in SETTLEMENTS:
            if state is not State.QUEUED:  # the way back to the queue leaves no trace of the token
                await known(jobs, served, state)


async def known(jobs: Jobs, served: Served, state: State) -> None:
    lease = await started(jobs, served)
    assert await served.settle(lease, SETTLEMENTS[state], repeat=True) is Verdict.SETTLED
    before = jobs.row(lease.job_id)
    assert await served.settle(lease, SETTLEMENTS[state], repeat=True) is Verdict.ALREADY_SETTLED
    for other in STATES:
        if other is not state:
            message = (Verdict.LOST, Verdict.ALREADY_SETTLED, with_state(SETTLEMENTS[other], State.CANCELED))
            assert await served.settle(lease, SETTLEMENTS[other], repeat=True) in message
    assert jobs.row(lease.job_id) == before


async def test_a_different_message_is_a_different_settlement(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served)
        await served.settle(lease, FAILED)
        other = Settlement(State.FAILED, AttemptOutcome.FAILED, error="another reason")
        assert await served.settle(lease, other, repeat=True) is Verdict.LOST


async def test_without_a_row_a_first_settlement_is_lost_and_a_repeat_unknown(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served)
        jobs.sql("delete from jobs")
        assert await served.settle(lease) is Verdict.LOST
        assert await served.settle(lease, repeat=True) is Verdict.UNKNOWN


async def _taken_away(jobs: Jobs, served: Served, lease: Lease, how: str) -> None:
    match how:
        case "reset":
            await served.heartbeats.reset_lease(lease)
        case "release":
            await served.heartbeats.release([lease])
        case "abandon":
            await served.heartbeats.abandon(lease.token)
        case "their reset":  # of the original program: the mark stays
            jobs.sql("update jobs set state = 'queued', started_at = null, num_resets = num_resets + 1")
        case "their claim":
            known = ", token = null" if "token" in jobs.row(lease.job_id) else ""
            jobs.sql(f"update jobs set state = 'processing', worker_hostname = 'executor-1', started_at = now(){known}")


@pytest.mark.parametrize("ddl", [TABLE, TOKEN_COLUMN])
@pytest.mark.parametrize("how", ["reset", "release", "abandon", "their reset", "their claim"])
async def test_a_zombie_changes_nothing(jobs: Jobs, ddl: str, how: str) -> None:
    jobs.make(ddl)
    own: dict[str, Any] = {} if ddl == TABLE else {"alternate_column_names": {"lease_token": "token"}}
    async with jobs.served(**own) as served:
        zombie = await started(jobs, served)
        await _taken_away(jobs, served, zombie, how)
        for _ in range(2):
            before = jobs.row(zombie.job_id)
            for settlement in SETTLEMENTS.values():
                assert await served.settle(zombie, settlement, repeat=True) is Verdict.LOST
            assert (await served.heartbeats.beat([zombie], 30)).lost == {(zombie.job_id, zombie.token)}
            assert list(await served.heartbeats.release([zombie])) == []
            assert list(await served.heartbeats.reset_lease(zombie)) == []
            assert await served.heartbeats.abandon(zombie.token)
            assert jobs.row(zombie.job_id) == before
            if how == "their claim":
                return
            await served.claim(worker="w1")  # the same worker has it again: the token tells them apart


async def test_an_unknown_token_changes_nothing_in_any_state(jobs: Jobs) -> None:
    async with jobs.served() as served:
        for state in State:
            (job_id,) = jobs.add(state=state.value, failure_message="old", worker_hostname="w1")
            before, stranger = jobs.row(job_id), Lease(job_id, new_token(), 1)
            for settlement in SETTLEMENTS.values():
                assert await served.settle(stranger, settlement) is Verdict.LOST
            assert (await served.heartbeats.beat([stranger], 30)).lost == {(job_id, stranger.token)}
            assert list(await served.heartbeats.release([stranger])) == []
            assert jobs.row(job_id) == before


async def test_the_guard_compares_pairs_and_not_two_lists(jobs: Jobs) -> None:
    jobs.add(2)
    async with jobs.served() as served:
        first, second = await served.take(), await served.take()
        crossed = [Lease(first.job_id, second.token, 1), Lease(second.job_id, first.token, 1)]
        both = [(crossed[0], COMPLETED), (crossed[1], FAILED), (first, ERRORED)]
        assert list(await served.table.settle(both)) == [Verdict.LOST, Verdict.LOST, Verdict.SETTLED]
        assert (await served.heartbeats.beat(crossed, 30)).lost == {(lease.job_id, lease.token) for lease in crossed}
        assert jobs.states() == ["errored", "processing"]


async def test_many_are_settled_in_any_order_and_duplicates_once(jobs: Jobs) -> None:
    jobs.add(5)
    async with jobs.served() as served:
        leases = [taken.lease for taken in await served.claim()]
        batch = list(zip(leases[::-1], SETTLEMENTS.values(), strict=True))
        *replies, again = await served.table.settle([*batch, (leases[4], FAILED)])
        assert set(replies) == {Verdict.SETTLED}
        assert again == batch[0][1], "what was recorded for the lease when it was first named"
        assert jobs.states() == [state.value for state in reversed(SETTLEMENTS)]


async def test_a_locked_record_is_busy_and_the_others_are_settled(jobs: Jobs) -> None:
    jobs.add(3)
    async with jobs.served() as served:
        leases = [taken.lease for taken in await served.claim()]
        with jobs.locked("id = 2"):
            result = await served.table.settle([(lease, COMPLETED) for lease in leases])
            assert list(result) == [Verdict.SETTLED, Verdict.BUSY, Verdict.SETTLED]
            assert (await served.heartbeats.beat(leases[1:2], 30)).busy == {(2, leases[1].token)}
            assert list(await served.heartbeats.release(leases[1:2])) == leases[1:2]
        assert await served.settle(leases[1]) is Verdict.SETTLED


async def test_rows_that_refer_to_a_record_do_not_make_it_busy(jobs: Jobs) -> None:
    """A handler's own transaction, which has inserted rows with a foreign key to its record."""
    jobs.make(TABLE, "create table parts (job bigint references jobs)")
    async with jobs.served() as served:
        lease = await started(jobs, served)
        with psycopg.connect(jobs.url) as other:
            other.execute("insert into parts values (%s)", (lease.job_id,))
            assert not (await served.heartbeats.beat([lease], 30)).busy
            assert await served.settle(lease) is Verdict.SETTLED
            other.rollback()


async def test_a_refused_settlement_has_its_reason_and_does_not_prevent_others(jobs: Jobs) -> None:
    jobs.add(4)
    async with jobs.served() as served:
        jobs.sql("alter table jobs add check (failure_message <> 'it failed')")
        leases = [taken.lease for taken in await served.claim()]
        batch = [(leases[0], COMPLETED), (leases[1], ERRORED), (leases[2], FAILED), (leases[3], COMPLETED)]
        first, refused, *others = await served.table.settle(batch)
        assert isinstance(refused, RefusedSettlement)
        assert refused.reason.startswith("new row for relation")
        assert {first, *others} == {Verdict.SETTLED}
    assert jobs.states() == ["completed", "processing", "failed", "completed"]


async def test_following_jobs_are_refused(jobs: Jobs) -> None:
    async with jobs.served() as served:
        lease = await started(jobs, served)
        request = Settlement(State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="more"),))
        refused = await served.settle(lease, request)
        assert isinstance(refused, RefusedSettlement)
        assert "INSERT" in refused.reason
    assert jobs.states() == ["processing"]


async def test_other_columns_are_never_touched(jobs: Jobs) -> None:
    jobs.sql("alter table jobs add touched int not null default 0, add extra text not null default 'x'")
    jobs.sql(
        "create or replace function count_touches() returns trigger language plpgsql as"
        " $$ begin if (old.extra, old.path, old.size) is distinct from (new.extra, new.path, new.size)"
        " then raise 'touched'; end if; return new; end $$"
    )
    jobs.sql("create trigger t before update on jobs for each row execute function count_touches()")
    jobs.add(6)
    async with jobs.served() as served:
        leases = [taken.lease for taken in await served.claim()]
        await served.heartbeats.beat(leases, 30)
        batch = list(zip(leases, SETTLEMENTS.values(), strict=False))
        assert set(await served.table.settle(batch)) == {Verdict.SETTLED}
        assert len(await served.heartbeats.reset_lease(leases[5])) == 1


async def test_a_token_column_keeps_the_hostname_without_a_token(jobs: Jobs) -> None:
    jobs.make(TOKEN_COLUMN)
    async with jobs.served(alternate_column_names={"lease_token": "token"}) as served:
        lease = await started(jobs, served)
        row = jobs.row(lease.job_id)
        assert (row["worker_hostname"], str(row["token"])) == ("w1", lease.token)
        assert (await served.heartbeats.beat([lease], 30)).lost == frozenset()
        await served.settle(lease, SNOOZED)
        row = jobs.row(lease.job_id)
        assert (row["worker_hostname"], row["token"]) == ("w1", None)
        jobs.sql("update jobs set process_after = null")
        lease = await served.take()
        assert await served.settle(lease) is Verdict.SETTLED
        assert await served.settle(lease) is Verdict.ALREADY_SETTLED
