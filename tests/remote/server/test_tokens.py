"""Worker tokens: the calls that a token allows, and how long it is valid."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowhand import App, Failure
from stowhand.errors import ConfigurationError
from stowhand.events import InvalidTokensSent, RemoteCallAudited, RequestAnswered, TokenFileUnreadable
from stowhand.remote.server.tokens import TokenFile
from stowhand.testing import MemoryStore
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Client, Reply, claiming, proof, token_of

EVERYTHING = ("claim", "enqueue", "read", "payload")


def test_a_request_without_a_token_is_refused(lend: Lend, tokens: Path) -> None:
    good = token_of(tokens)
    lending = lend()
    assert lending.client(good).claim() == []
    for wrong in ("", "nonsense", good[:-1], good + "x", good.upper(), "stow__", "é"):
        reply = lending.client().request("GET", "/v1/terms", authorization=f"Bearer {wrong}".encode().decode("latin-1"))
        reply.refused(401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"


def test_expired_and_revoked_tokens_are_refused_with_the_same_message(lend: Lend, tokens: Path) -> None:
    expired, revoked = token_of(tokens, "a", expires=-1), token_of(tokens, "b")
    token_id = revoked.split("_")[1]
    lending = lend()
    client = lending.client(revoked)
    assert client.claim() == []
    TokenFile(tokens).change(lambda known: tuple(_revoked(one) if one.id == token_id else one for one in known))
    words = {lending.client(token).get("/v1/terms").refused(401, "unauthorized") for token in (expired, revoked)}
    words.add(lending.client("stow_0_x").get("/v1/terms").refused(401, "unauthorized"))
    assert len(words) == 1
    client.post("claim", **claiming()).refused(401, "unauthorized")


def test_a_poll_ends_when_its_token_is_revoked(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens)
    lending = lend()
    TokenFile(tokens).change(lambda known: known)
    client = lending.client(token)
    known = client.post("due").body["wake_count"]

    def revoke() -> None:
        TokenFile(tokens).change(lambda known: tuple(_revoked(one) for one in known))
        lending.add()

    threading.Timer(0.1, revoke).start()
    client.post("due", wait=30, wake_count=known).refused(401, "unauthorized")


def test_a_token_made_later_closes_an_open_server_for_good(lend: Lend, tokens: Path) -> None:
    lending = lend()
    assert lending.client().claim() == []
    token = token_of(tokens)
    lending.client().get("/v1/terms").refused(401, "unauthorized")
    assert lending.client(token).claim() == []
    tokens.unlink()
    lending.client().get("/v1/terms").refused(401, "unauthorized")
    lending.client(token).get("/v1/terms").refused(401, "unauthorized")


def test_scopes_of_a_later_version_are_read_and_grant_nothing(lend: Lend, tokens: Path) -> None:
    """A server of before them reads a file that has ``act`` and ``add`` in the same way."""
    token = token_of(tokens, "a", "read", "of-tomorrow")
    client = lend().client(token)
    assert client.get("/v1/terms").status == 200
    client.post("claim", **claiming()).refused(403, "out of scope")


def test_the_scopes_of_the_dashboard_grant_no_call(lend: Lend, tokens: Path) -> None:
    client = lend().client(token_of(tokens, "a", "act", "add"))
    client.post("claim", **claiming()).refused(403, "out of scope")
    client.post("enqueue", jobs=[{"task": "t"}]).refused(403, "out of scope")
    client.get("/v1/jobs/1").refused(403, "out of scope")


def test_known_tokens_stay_valid_while_the_file_is_broken(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens)
    lending = lend()
    tokens.write_text("{")
    assert lending.client(token).claim() == []
    assert len(lending.events_of(TokenFileUnreadable)) == 1


@pytest.mark.parametrize(
    ("scopes", "call", "body", "lacks"),
    [
        (("enqueue",), "claim", claiming(), "claim"),
        (("enqueue",), "settle", {"batch": []}, "claim"),
        (("enqueue",), "heartbeat", {"leases": [], "lease": 30.0}, "claim"),
        (("enqueue",), "release", {}, "claim"),
        (("enqueue",), "due", {}, "claim"),
        (("claim", "read"), "enqueue", {"jobs": [{"task": "t"}]}, "enqueue"),
    ],
)
def test_a_call_beyond_the_scopes_is_refused_by_name(
    lend: Lend, tokens: Path, scopes: tuple[str, ...], call: str, body: dict[str, Any], lacks: str
) -> None:
    client = lend_with(lend, tokens, *scopes)
    assert f"the scope {lacks}" in client.post(call, **body).refused(403, "out of scope")


def test_reading_a_job_requires_the_scope_read_and_its_payload_another(lend: Lend, tokens: Path) -> None:
    seers = {scopes: token_of(tokens, "x", *scopes) for scopes in (("claim",), ("read",), ("read", "payload"))}
    lending = lend()
    job_id = lending.add(payload='"secret"')
    answers = {scopes: lending.client(token).get(f"/v1/jobs/{job_id}") for scopes, token in seers.items()}
    answers[("claim",)].refused(403, "out of scope")
    lending.client(seers[("claim",)]).get("/metrics").refused(403, "out of scope")
    assert (answers[("read",)].body["payload"], answers[("read",)].body["result"]) == ("", None)
    assert answers[("read", "payload")].body["payload"] == '"secret"'


def test_a_claim_for_any_task_returns_only_tasks_of_the_token(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens, "a", "claim", tasks=("a", "b"))
    lending = lend()
    for task in ("a", "b", "c"):
        lending.add(task)
    client = lending.client(token)
    assert "'c'" in client.post("claim", **claiming(tasks=["c"])).refused(403, "out of scope")
    assert [claim["task"] for claim in client.claim(5, tasks=["a", "c"])] == ["a"]
    assert [claim["task"] for claim in client.claim(5)] == ["b"]
    assert client.claim(5, tasks=[]) == []


def test_a_token_for_some_queues_claims_enqueues_and_reads_jobs_of_these_alone(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens, "a", "claim", "enqueue", "read", queues=("mail", "bulk"))
    lending = lend()
    hidden, mail = lending.add("a"), lending.add("a", queue="mail")
    client = lending.client(token)
    assert client.post("due", tasks=["a"]).body["seconds"] == 0
    assert "'default'" in client.post("claim", **claiming(queues={"only": ["default"]})).refused(403, "out of scope")
    assert client.claim(5, queues={"excluded": ["mail"]}) == []
    assert [claim["lease"]["job_id"] for claim in client.claim(5)] == [mail]
    assert "set the job's queue" in client.post("enqueue", jobs=[{"task": "a"}]).body["fix"]
    client.post("enqueue", jobs=[{"task": "a", "queue": "night"}]).refused(403, "out of scope")
    (made,) = client.post("enqueue", jobs=[{"task": "a", "queue": "bulk"}]).body["ids"]
    assert client.get(f"/v1/jobs/{made}").body["queue"] == "bulk"
    client.get(f"/v1/jobs/{hidden}").refused(404, "unknown")
    assert client.get("/v1/failures").status == 403


def test_a_token_declares_the_queues_of_its_tasks_and_no_other_queue(lend: Lend, tokens: Path) -> None:
    lending = lend()
    client = lending.client(token_of(tokens, "a", "claim", tasks=("a", "b"), queues=("mail", "x,y")))
    reply = client.post("tasks", queues={"a": "mail", "b": "bulk", "c": "mail"})
    assert reply.body == {"left_out": ["b", "c"]}
    assert "comma" in client.post("tasks", queues={"b": "x,y"}).refused(400, "invalid job")
    for task in ("a", "b", "c"):
        lending.add(task)
    assert [claim["task"] for claim in client.claim(5)] == ["a"]


def test_a_token_for_some_tasks_declares_no_limit_that_others_may_share(lend: Lend, tokens: Path) -> None:
    lending = lend()
    everyone = lending.client(token_of(tokens, "all", "claim"))
    client = lending.client(token_of(tokens, "a", "claim", tasks=("a",)))

    def declare(client: Client, name: str, concurrency: int) -> Reply:
        limits = {name: {"concurrency": concurrency}}
        return client.post("tasks", queues={"a": "default"}, tasks={"a": {"concurrency": name}}, limits=limits)

    assert declare(client, "a", 1).body == {"left_out": []}
    assert "limit 'shared' of the task 'a'" in declare(client, "shared", 9).refused(403, "out of scope")
    assert declare(everyone, "shared", 1).body == {"left_out": []}
    assert declare(client, "shared", 9).body == {"left_out": ["a"]}
    for _ in range(3):
        lending.add("a")
    assert [claim["task"] for claim in client.claim(5)] == ["a"]


def test_enqueueing_is_limited_to_tasks_and_serial_keys(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens, "a", "enqueue", "read", tasks=("a",), serials=("q",))
    lending = lend()
    hidden, client = lending.add("a"), lending.client(token)
    client.post("enqueue", jobs=[{"task": "b", "serial": "q"}]).refused(403, "out of scope")
    client.post("enqueue", jobs=[{"task": "a"}]).refused(403, "out of scope")
    job = client.post("enqueue", jobs=[{"task": "a", "serial": "q", "payload": '"x"'}]).body
    (job_id,) = job["ids"]
    assert job["jobs"][0]["payload"] == ""  # with a key it might be another's
    assert client.get(f"/v1/jobs/{job_id}").status == 200
    client.get(f"/v1/jobs/{hidden}").refused(404, "unknown")


def test_a_failure_job_needs_the_same_rights_unless_the_server_declares_it(lend: Lend, tokens: Path) -> None:
    app = App("memory://")

    @app.task
    def notify(payload: Failure) -> None: ...

    @app.task(on_failure=notify)
    def declared() -> None: ...

    token = token_of(tokens, "a", "enqueue", "claim", tasks=("a", "declared"))
    lending = lend(complete_job=app.registry.with_declaration)
    client = lending.client(token)
    others = {"task": "a", "on_failure": {"task": "notify"}}
    assert "'notify'" in client.post("enqueue", jobs=[others]).refused(403, "out of scope")
    for job in ({"task": "declared"}, {"task": "declared", "on_failure": {"task": "notify"}}):
        assert client.post("enqueue", jobs=[job]).status == 200
    assert client.post("enqueue", jobs=[{"task": "a", "on_failure": {"task": "a"}}]).status == 200
    (claim,) = client.claim(tasks=["a"])
    assert client.settle(claim, then=[others]) == ["unwritten"]


def test_a_key_does_not_reach_a_job_outside_the_tasks_and_queues(lend: Lend, tokens: Path) -> None:
    limited = token_of(tokens, "a", "claim", "enqueue", tasks=("a",))
    queued = token_of(tokens, "q", "enqueue", serials=("q",))
    lending = lend()
    others = lending.add("b", key="k", serial="other")
    own = lending.add("a", key="own")
    for mode in ("replace", "preserve_run_at", "unsafe_dedupe"):
        for token, job in ((limited, {"task": "a"}), (queued, {"task": "b", "serial": "q"})):
            reply = lending.client(token).post("enqueue", jobs=[job, job | {"key": "k", "key_mode": mode}])
            assert "'k'" in reply.refused(403, "out of scope")
    client = lending.client(limited)
    (claim,) = client.claim()
    assert claim["lease"]["job_id"] == own
    assert client.settle(claim, then=[{"task": "a", "key": "k"}]) == ["unwritten"]
    store: Any = lending.store
    kept = lending.do(store.jobs.get(others))
    assert (kept.task, kept.serial, kept.revision) == ("b", "other", 0)
    assert client.post("enqueue", jobs=[{"task": "a", "key": "own"}]).status == 200


def test_a_key_kept_for_a_period_does_not_reveal_a_completed_job_outside_the_token(lend: Lend, tokens: Path) -> None:
    unique = {"key": "k", "key_mode": "unique", "unique_period": 60.0}
    lending = lend()
    everyone = lending.client(token_of(tokens, "all", "claim", "enqueue"))
    job = everyone.post("enqueue", jobs=[{"task": "b"} | unique]).body["ids"]
    assert everyone.settle(*everyone.claim()) == ["settled"]
    limited = lending.client(token_of(tokens, "a", "enqueue", tasks=("a",)))
    assert "'k'" in limited.post("enqueue", jobs=[{"task": "a"} | unique]).refused(403, "out of scope")
    assert everyone.post("enqueue", jobs=[{"task": "b"} | unique]).body["ids"] == job


def test_conditions_are_granted_column_by_column(lend: Lend, tokens: Path) -> None:
    client = lend_with(lend, tokens, "claim", conditions=("size",))
    condition = {"column": "salary", "op": ">", "value": 1}
    assert "'salary'" in client.post("claim", **claiming(conditions=[condition])).refused(403, "out of scope")


def test_a_stolen_lease_changes_nothing(lend: Lend, tokens: Path) -> None:
    own, thief = token_of(tokens, "own"), token_of(tokens, "thief", *EVERYTHING)
    lending = lend()
    job_id, owner, other = lending.add(), lending.client(own), lending.client(thief)
    token = str(uuid.uuid4())
    (claim,) = owner.claim(1, token)
    stolen = proof(claim)
    pair = [claim["lease"]["job_id"], claim["lease"]["token"]]
    assert other.settle(claim) == ["lost"]
    assert other.post("heartbeat", leases=[stolen], lease=30.0).body["lost"] == [pair]
    assert other.post("release", leases=[stolen]).body["lost"] == [pair]
    (audited,) = [event.verdicts for event in lending.events_of(RemoteCallAudited) if event.call == "release"]
    assert audited == ("unchanged: lost",)
    other.post("release", token=token)
    other.post("logs", proof=stolen).refused(409, "lease lost")
    assert other.claim(1, token) == []
    made_up = {**claim, "authorization": "0" * 64}
    another = {**claim, "lease": {**claim["lease"], "job_id": job_id + 1}}
    later = {**claim, "lease": {**claim["lease"], "epoch": 2}}
    assert owner.settle(made_up, another, later) == ["lost", "lost", "lost"]
    assert lending.state(job_id) == "processing"
    assert owner.post("heartbeat", leases=[stolen], lease=30.0).body["lost"] == []
    assert owner.settle(claim) == ["settled"]


def test_a_lease_can_be_settled_and_a_token_released_after_a_restart(lend: Lend, tokens: Path) -> None:
    store, worker = MemoryStore(), token_of(tokens)
    first = lend(store)
    ids = [first.add(), first.add()]
    token = str(uuid.uuid4())
    (claim,) = first.client(worker).claim()
    (_,) = first.client(worker).claim(1, token)
    first.stop()
    second = lend(store)
    client = second.client(worker)
    assert client.settle(claim) == ["settled"]
    assert client.post("release", token=token).body["abandoned"]
    assert [second.state(job_id) for job_id in ids] == ["completed", "queued"]
    assert client.claim(1, token) == []


def test_an_address_with_many_wrong_tokens_must_wait_but_valid_tokens_need_not(lend: Lend, tokens: Path) -> None:
    good = token_of(tokens)
    lending = lend()
    client = lending.client("stow_x_y")
    statuses = [client.get("/v1/terms").status for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert int(client.get("/v1/terms").headers["retry-after"]) > 0
    assert lending.client(good).get("/v1/terms").status == 200
    assert len(lending.events_of(InvalidTokensSent)) == 1


def test_no_secret_is_logged_or_stored(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens)
    lending = lend()
    lending.client(token).get("/v1/terms")
    kept = tokens.read_text()
    assert token not in kept
    assert token.split("_", 2)[2] not in kept
    (event,) = lending.events_of(RequestAnswered)
    assert (event.token_id, event.status) == (token.split("_")[1], 200)
    assert token not in repr(lending.emitted)
    for file in (tokens, tokens.with_name("tokens.json.secret")):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_tokens_file_counts_once_its_mode_is_fixed(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens)
    lending = lend()
    client = lending.client(token)
    assert client.get("/v1/terms").status == 200
    spread = tokens.with_name("spread")
    revoked = [msgspec.structs.replace(one, revoked=one.made) for one in TokenFile(tokens).read()]
    spread.write_bytes(msgspec.json.encode({"version": 1, "tokens": revoked}))
    spread.chmod(0o644)
    spread.replace(tokens)
    assert client.get("/v1/terms").status == 200  # what was known before still holds
    assert len(lending.events_of(TokenFileUnreadable)) == 1
    tokens.chmod(0o600)
    client.get("/v1/terms").refused(401, "unauthorized")


def test_a_tokens_file_that_other_users_can_open_is_refused(tokens: Path) -> None:
    token_of(tokens)
    tokens.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        TokenFile(tokens).read()


def test_concurrent_changes_of_the_tokens_file_are_all_kept(tokens: Path) -> None:
    threads = [threading.Thread(target=lambda: [token_of(tokens) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(TokenFile(tokens).read()) == 20


def test_a_change_that_fails_leaves_the_old_tokens(tokens: Path) -> None:
    token_of(tokens)
    before = tokens.read_bytes()

    def fail(known: Any) -> Any:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        TokenFile(tokens).change(fail)
    assert tokens.read_bytes() == before
    assert sorted(path.name for path in tokens.parent.iterdir()) == ["tokens.json"]


def lend_with(lend: Lend, tokens: Path, *scopes: str, **limits: Any) -> Any:
    token = token_of(tokens, "w", *scopes, **limits)
    return lend().client(token)


def _revoked(one: Any) -> Any:
    return msgspec.structs.replace(one, revoked=one.made)
