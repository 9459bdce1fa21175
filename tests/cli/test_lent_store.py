"""The program on a store that somebody lends: it works, and what cannot be done from afar is refused with the place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowhand.jobs.job import Job, NewJob, State
from stowhand.testing import MemoryStore
from tests.cli.conftest import Ended, Stowhand
from tests.remote.server.tokens import make_token
from tests.support.shared_server import SharedServer


class Lent:
    """A store in memory, its address, and a token."""

    def __init__(self, shared_server: SharedServer, tokens: Path) -> None:
        self.token = make_token(tokens, "ci")
        self.limited = make_token(tokens, "enqueuer", "enqueue", tasks=("hello",))
        self.store = MemoryStore()
        self.url = shared_server.lend(self.store, tokens)

    def job(self, job_id: int) -> Job:
        job = asyncio.run(self.store.jobs.get(job_id))
        assert job is not None
        return job


@pytest.fixture(scope="module")
def shared_server() -> Iterator[SharedServer]:
    with SharedServer() as shared_server:
        yield shared_server


@pytest.fixture
def lent(shared_server: SharedServer, tmp_path: Path) -> Iterator[Lent]:
    lent = Lent(shared_server, tmp_path / "tokens.json")
    yield lent
    shared_server.withdraw(lent.url)


def test_a_worker_runs_the_jobs_of_a_lent_store_and_shows_its_token_nowhere(lent: Lent, stowhand: Stowhand) -> None:
    environ = {"STOWHAND_TOKEN": lent.token, "STOWHAND_CONNECTION": lent.url}
    Path("crontab").write_text("* * * * * hello\n")
    added = stowhand("enqueue", "hello", '{"name": "Ada"}', **environ)
    assert (added.code, added.out) == (0, "1\n")
    worked = stowhand("worker", "--once", "--log-level", "debug", **environ)
    assert worked.code == 0, worked.err
    assert "Hello, Ada" in worked.err
    assert "1 recurring items are not scheduled" in worked.err
    assert lent.url in worked.err
    assert lent.token not in worked.err + worked.out
    assert lent.job(1).state is State.COMPLETED


def test_doctor_reports_that_a_lent_store_is_reached_and_wakes_workers(lent: Lent, call: Stowhand) -> None:
    output = call("doctor", "-c", lent.url, "--token", lent.token)
    assert output.code == 0, output.out
    assert "(lent over HTTP)" in output.out
    assert "received" in output.out
    assert lent.token not in output.out + output.err


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "--jobs", "1"),
        ("jobs", "list"),
        ("jobs", "cancel", "1"),
        ("migrate",),
        ("migrate", "--plan"),
        ("worker", "--schema-only"),
        ("worker", "--once", "--crontab", "crontab"),
        ("worker", "--once", "--history", "1h"),
        ("worker", "--once", "--listen-url", "postgresql:///x"),
        ("jobs", "list", "--schema", "other"),
        ("cron", "list"),
    ],
    ids=" ".join,
)
def test_commands_that_a_lent_store_does_not_support_are_refused_with_its_url(
    lent: Lent, call: Stowhand, command: tuple[str, ...]
) -> None:
    token = () if command[0] == "bench" else ("--token", lent.token)
    output: Ended = call(*command, "-c", lent.url, *token)
    assert (output.code in (1, 2), output.out) == (True, ""), output
    assert "the store itself" in output.err or "another process lends" in output.err, output.err
    assert "another process lends" in output.err or "that store's own URL (" in output.err or token == (), output.err
    assert lent.token not in output.err


def test_failures_are_grouped_for_the_tasks_of_the_token(lent: Lent, call: Stowhand, tmp_path: Path) -> None:
    async def fail() -> None:
        for task in ("a", "a", "b"):
            job = await lent.store.jobs.enqueue(NewJob(task=task))
            await lent.store.admin.permanently_fail_jobs([job.id], "no such customer")

    asyncio.run(fail())
    tokens = tmp_path / "tokens.json"
    for tasks, groups in ((None, [("a", 2), ("b", 1)]), (("b",), [("b", 1)])):
        token = make_token(tokens, "r", "read", tasks=tasks)
        output = call("jobs", "failures", "--json", "-c", lent.url, "--token", token)
        assert output.code == 0, output.err
        assert [(row["task"], row["jobs"]) for row in output.rows()] == groups
        assert {(row["error_class"], row["error"]) for row in output.rows()} == {("by hand", "no such customer")}
    for token in (make_token(tokens, "q", "read", serials=("q",)), lent.limited):
        refused = call("jobs", "failures", "-c", lent.url, "--token", token)
        assert (refused.code, refused.out) == (1, "")
        assert "scope" in refused.err


def test_a_missing_wrong_or_insufficient_token_is_refused_with_the_fix(lent: Lent, call: Stowhand) -> None:
    for token in ("", "stow_0a1b2c3d4e5f_wrong"):
        output = call("enqueue", "hello", "-c", lent.url, *(["--token", token] if token else []))
        assert output.code == 1
        assert "stowhand tokens make" in output.err
        assert not token or token not in output.err
    assert call("enqueue", "hello", "-c", lent.url, "--token", lent.limited).code == 0
    outside = call("enqueue", "other", "-c", lent.url, "--token", lent.limited)
    assert outside.code == 1
    assert "not for the task 'other'" in outside.err
    claims = call("worker", "--once", "-c", lent.url, "--token", lent.limited)
    assert (claims.code, "lacks the scope claim" in claims.err) == (1, True)


def test_a_worker_that_exceeds_its_token_exits(lent: Lent, stowhand: Stowhand, tmp_path: Path) -> None:
    token = make_token(tmp_path / "tokens.json", "mail", queues=("mail",))
    ended = stowhand("worker", "-c", lent.url, "--queue", "bulk", STOWHAND_TOKEN=token)
    assert ended.code == 2
    assert "this token is not for the queue 'bulk'" in ended.err
    assert "Store call failed" not in ended.err


def test_a_token_is_not_sent_in_clear_text_to_another_machine(call: Stowhand) -> None:
    output = call("enqueue", "hello", "-c", "http://jobs.example:1", "--token", "stow_secret")
    assert output.code == 2
    assert "--insecure" in output.err
    assert "stow_secret" not in output.err


@pytest.mark.parametrize("url", ["https://user:pass@host", "https://", "http://a b"])
def test_an_invalid_address_is_refused_without_its_secrets(call: Stowhand, url: str) -> None:
    output = call("enqueue", "hello", "-c", url)
    assert output.code == 2
    assert "lent store" in output.err
    assert "pass" not in output.err.replace("--tls", "")
