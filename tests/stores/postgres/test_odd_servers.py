"""Servers, logins and names that are set up otherwise than usual: it works, or is refused with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stowhand.errors import ConfigurationError, StoreError, StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import StoreOptions, Verdict
from stowhand.stores.database.link import Dialer
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.verbs import claim


async def everything(store: PostgresStore) -> None:
    """Install, enqueue in each way, claim, beat, settle with and without a result, look, maintain."""
    await store.schema.install()
    await store.open()
    await store.jobs.enqueue(NewJob(task="t"))
    await store.jobs.enqueue(NewJob(task="t", key="k", flags=("a",)))
    await store.jobs.enqueue_many([NewJob(task="t", serial="q")] * 2)
    claims = await claim(store, 9)
    heartbeats = store.heartbeats()
    leases = [each.lease for each in claims]
    assert not (await heartbeats.beat(leases, 30.0)).lost
    ends = [COMPLETED, *(Settlement(State.COMPLETED, AttemptOutcome.OK, result="1") for _ in leases[1:])]
    assert set(await store.settle(list(zip(leases, ends, strict=True)))) == {Verdict.SETTLED}
    assert len(leases) == 3, "one of a serial key"
    await heartbeats.maintain()
    await heartbeats.close()
    assert await store.schema.foreign_changes() == []
    await store.close()


TRYING = ("a%b", "100%s", "x$$y", "$$", 'we"ird', "it's", "back\\slash", "{schema}")


@pytest.mark.parametrize("schema", [" ".join(TRYING), *(pytest.param(one, marks=pytest.mark.rare) for one in TRYING)])
def test_a_schema_name_may_contain_any_characters(empty_url: str, run: Any, schema: str) -> None:
    run(everything(PostgresStore(empty_url, StoreOptions(schema=schema))))


def test_a_schema_name_that_cannot_be_quoted_is_refused_before_connecting() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot hold \$stowhand\$ too"):
        PostgresStore("postgresql:///nowhere", StoreOptions(schema="a$$b$stowhand$c"))


@pytest.mark.parametrize("setting", ["default_transaction_isolation=serializable", "standard_conforming_strings=off"])
def test_the_store_works_with_any_settings_of_the_login(empty_url: str, run: Any, setting: str) -> None:
    run(everything(PostgresStore(make_conninfo(empty_url, options=f"-c {setting}"))))


def test_concurrent_claims_succeed_if_serializable_is_the_default(own_url: str, run: Any) -> None:
    """Ours are read committed: locks decide, and nobody is told to try again (40001)."""
    url = make_conninfo(own_url, options="-c default_transaction_isolation=serializable")

    async def story() -> None:
        stores = [PostgresStore(url) for _ in range(3)]
        await stores[0].jobs.enqueue_many([NewJob(task="t", serial=f"q{n % 5}" if n % 2 else None) for n in range(60)])

        async def drain(store: PostgresStore, worker: str) -> int:
            done = 0
            while claims := await claim(store, 4, worker=worker):
                await store.settle([(each.lease, COMPLETED) for each in claims])
                done += len(claims)
            return done

        assert sum(await asyncio.gather(*(drain(store, f"w{n}") for n, store in enumerate(stores)))) == 60
        for store in stores:
            await store.close()

    run(story())


def test_no_other_statement_is_sent_with_the_usual_default(own_url: str, run: Any) -> None:
    async def story() -> None:
        store = PostgresStore(own_url)
        usual = await Dialer(store._context.address).dial("x")
        assert not usual.needs_transaction
        await usual.close()
        odd = make_conninfo(own_url, options="-c default_transaction_isolation=serializable")
        other = await PostgresStore(odd)._context.dialer.dial("x")
        assert other.needs_transaction
        await other.close()

    run(story())


REFUSED: dict[str, tuple[str, type[Exception], str]] = {
    "NULL in arrays": ("array_nulls=off", ConfigurationError, "ALTER ROLE"),
    "read-only": ("default_transaction_read_only=on", StoreUnreachable, "target_session_attrs=read-write"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_unsuitable_settings_are_refused_with_the_reason(own_url: str, run: Any, why: str) -> None:
    setting, error, said = REFUSED[why]

    async def story() -> None:
        store = PostgresStore(make_conninfo(own_url, options=f"-c {setting}"))
        with pytest.raises(error, match=said):
            await used(store)
        await store.close()

    async def used(store: PostgresStore) -> None:
        await store.open()
        await store.jobs.enqueue(NewJob(task="t"))

    run(story())


@pytest.mark.parametrize("state", [psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName])
def test_a_pooler_that_mixes_up_prepared_statements_is_reported_with_the_option(
    own_url: str, state: type[Exception]
) -> None:
    message = str(PostgresStore(own_url)._context.translate(state()))
    assert "--no-prepared-statements" in message
    assert isinstance(PostgresStore(own_url)._context.translate(state()), StoreError)
