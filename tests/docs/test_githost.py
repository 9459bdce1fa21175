"""examples/githost: real repositories, real pushes, the real hook, real workers."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.docs.githost import GITHOST, Host, install
from tests.docs.pages import environment
from tests.support import subprocesses
from tests.support.databases import Setup

ABSENT = "0" * 40


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install


@pytest.fixture
def host(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    monkeypatch.syspath_prepend(GITHOST)
    monkeypatch.setattr("sys.executable", f"{subprocesses.programs()}/python")  # which a hook names
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        host = Host(postgres_url, tmp_path, connection)
        yield host
        host.close()


def test_simultaneous_pushes_are_all_recorded(host: Host) -> None:
    attic, cellar = (host.repository(name) for name in ("attic", "cellar"))
    ada, bob, eve = host.clone(attic, "ada"), host.clone(attic, "bob"), host.clone(cellar, "eve")
    tips = [ada.commit("lamp\rand\u2028shade", "chair"), bob.commit("mirror"), eve.commit("wine", "beer")]
    with ThreadPoolExecutor(3) as pool:
        pushes = [
            pool.submit(ada.push, "main", "main:lamp", "main:refs/tags/lamp"),
            pool.submit(bob.push, "main:mirror", "main:bob"),
            pool.submit(eve.push, "main", "main:shelf"),
        ]
        assert [push.result() for push in pushes] == ["", "", ""]
    recorded = {
        *((1, ref, ABSENT, tips[0]) for ref in ("refs/heads/main", "refs/heads/lamp", "refs/tags/lamp")),
        *((1, ref, ABSENT, tips[1]) for ref in ("refs/heads/mirror", "refs/heads/bob")),
        *((2, ref, ABSENT, tips[2]) for ref in ("refs/heads/main", "refs/heads/shelf")),
    }
    assert set(host.events()) == recorded
    first = {*ada("rev-list", "main").split(), *bob("rev-list", "main").split()}
    eve("reset", "--quiet", "--hard", "HEAD~1")
    water = eve.commit("water")
    eve.push("--force", "main", ":shelf")
    eve("--git-dir", str(cellar), "gc", "--quiet", "--prune=now")
    assert set(host.events()) - recorded == {
        (2, "refs/heads/main", tips[2], water),
        (2, "refs/heads/shelf", tips[2], ABSENT),
    }
    host.work_off()
    assert host.rows("SELECT count(*), count(processed_at) FROM githost.push_events") == [(9, 9)]
    assert host.commits(1) == first
    assert host.commits(2) == set(eve("rev-list", "main").split()), "what git has thrown away is in nobody's way"
    sizes = dict(host.rows("SELECT path, size_kib FROM githost.repositories"))
    for path in (attic, cellar):
        counted = ada("--git-dir", str(path), "count-objects", "-v")
        assert sizes[str(path)] == sum(map(int, re.findall(r"^size(?:-pack)?: (\d+)", counted, re.MULTILINE))) > 0


def test_a_push_of_a_killed_worker_is_processed_by_another(host: Host) -> None:
    ada = host.clone(host.repository("attic"), "ada")
    victim = host.work("--lease", "1")
    ada.commit("lamp", "chair")
    with psycopg.connect(host.url) as blocker:
        blocker.execute("LOCK githost.commits IN EXCLUSIVE MODE")
        ada.push("main")
        middle = "wait_event_type = 'Lock' AND query LIKE 'INSERT INTO githost.commits%'"
        host.wait_until(f"EXISTS (SELECT FROM pg_stat_activity WHERE {middle})")
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    time.sleep(1.2)  # its lease
    assert host.commits(1) == set()
    assert host.rows("SELECT processed_at FROM githost.push_events") == [(None,)]
    host.work("--lease", "1")
    host.wait_until("(SELECT processed_at IS NOT NULL FROM githost.push_events)")
    assert host.commits(1) == set(ada("rev-list", "main").split())


def test_a_failed_hook_leaves_nothing_and_the_sweep_finds_the_push(host: Host) -> None:
    ada = host.clone(host.repository("attic"), "ada")
    host.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF EXISTS (SELECT FROM githost.push_events WHERE ref LIKE '%/bad') THEN RAISE 'the disk is full'; END IF;"
        " RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON stowhand.live DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse();"
        'LISTEN "stowhand:wake"'
    )
    one = ada.commit("lamp")
    output = ada.push("main:bad", "main")
    assert "refs/heads/bad not recorded yet; the next sweep will do it: the disk is full" in output
    assert host.events() == [(1, "refs/heads/main", ABSENT, one)], "each ref is a transaction of its own"
    assert host.rows("SELECT count(*) FROM stowhand.jobs") == [(1,)]
    assert len(list(host.connection.notifies(timeout=0))) == 1, "and what is rolled back wakes nobody"
    two = ada.commit("chair")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/silent"
        output = ada.push("main", "main:later", ":bad", DATABASE_URL=place, GITHOST_PATIENCE="0.3")
    assert "3 of 3 refs not recorded yet" in output
    assert "no answer within 0.3 s" in output
    assert len(host.events()) == 1

    host.connection.execute("DROP TRIGGER refuse ON stowhand.live")
    host.add("push:sweep")
    host.add("push:sweep")  # by hand, while the one of the crontab runs
    host.work_off()
    assert host.events()[1:] == [
        (1, "refs/heads/later", ABSENT, two),
        (1, "refs/heads/main", one, two),
    ], "nobody knows of the branch that came and went"
    assert host.commits(1) == {one, two}


def test_a_push_is_processed_once_and_a_deleted_repository_is_poison(host: Host) -> None:
    attic, cellar, shed = (host.repository(name) for name in ("attic", "cellar", "shed"))
    ada, bob, eve = (host.clone(path, f"{path.stem}'s") for path in (attic, cellar, shed))
    ada.commit("lamp")
    bob.commit("wine")
    eve.commit("rake")
    ada.push("main")
    host.add("push:process", '{"push": 1}')
    with ThreadPoolExecutor(1) as pool, psycopg.connect(host.url) as blocker:
        blocker.execute("SELECT FROM githost.push_events FOR UPDATE")
        working = pool.submit(host.work_off)
        both = "wait_event_type = 'Lock' AND query LIKE 'UPDATE githost.push_events%'"
        host.wait_until(f"(SELECT count(*) = 2 FROM pg_stat_activity WHERE {both})")
        blocker.rollback()
        working.result()
    sizes = "SELECT count(*), sum(revision) FROM stowhand.history WHERE task = 'repo:size_recalc'"
    assert host.rows(sizes) == [(1, 0)], "one of two at the same time"
    before = host.rows("SELECT * FROM githost.push_events")
    host.connection.execute("DELETE FROM githost.commits; UPDATE githost.repositories SET size_kib = -1")
    for payload in ('{"push": 1}', '{"push": 1}', '{"push": "one"}', "{}"):
        host.add("push:process", payload)
    bob.push("main")
    eve.push("main")
    host.connection.execute("DELETE FROM githost.repositories WHERE name = 'cellar'")
    shutil.rmtree(shed)
    host.add("repo:size_recalc", '{"repository": 2}')
    host.work_off()
    assert host.rows("SELECT * FROM githost.push_events WHERE repository = 1") == before
    assert host.commits(1) == set(), "the second time had no effect"
    assert host.rows("SELECT size_kib FROM githost.repositories WHERE name = 'attic'") == [(-1,)]
    failed = host.rows("SELECT last_error, attempts FROM stowhand.jobs ORDER BY id")
    assert {attempts for _, attempts in failed} == {1}
    errors = [str(error).partition("\n")[0] for error, _ in failed]
    assert len(errors) == 5
    assert all("Poison: " in error for error in errors[2:]), errors
    assert "push 2 is gone" in errors[2]
    assert f"there is no repository at {shed}" in errors[3]
    assert "repository 2 is gone" in errors[4]


def test_old_pushes_are_deleted_except_the_last_of_each_ref(host: Host) -> None:
    host.repository("attic")
    host.connection.execute(
        "INSERT INTO githost.push_events (repository, ref, old, new, processed_at)"
        " SELECT 1, ref, repeat('0', 40), repeat('0', 40), now() - age * interval '1 day'"
        " FROM (VALUES ('main', 20), ('main', 15), ('main', 13), ('gone', 20), ('late', 20), ('late', NULL))"
        " AS given (ref, age)"
    )
    host.add("push:forget")
    host.work_off()
    assert host.rows("SELECT id FROM githost.push_events ORDER BY id") == [(3,), (4,), (5,), (6,)]


def test_the_tour_runs_as_its_readme_prints_it(postgres_url: str, tmp_path: Path) -> None:
    """Also where a server of the reader's has jobs of other programs, and one that an earlier tour has left."""
    here = shutil.copytree(GITHOST, tmp_path / "githost")  # no .venv is near: the python3 on PATH
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT stowhand.add_job('of_somebody_else'), stowhand.add_job('push:process')")
    environ = environment() | {"DATABASE_URL": postgres_url, "LC_ALL": "C"}
    done = subprocess.run([here / "demo"], env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.search(r"```console\n(.*?)```", (GITHOST / "README.md").read_text(), re.DOTALL)
    assert printed is not None
    assert alike(done.stdout) == alike(printed[1])


def alike(text: str) -> list[str]:
    """Without what differs from run to run, or from machine to machine."""
    text = re.sub(r"\d+ KiB", "SIZE", text)
    text = re.sub(r"(will do it: ).*", r"\1…", re.sub(r"\b[0-9a-f]{7}\b", "COMMIT", text))
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
