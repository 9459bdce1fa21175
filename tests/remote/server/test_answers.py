"""The memory of answers: it lasts as long as a reply may be missed, and stays small."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from stowhand.jobs.lease import Lease
from stowhand.remote.server import answers
from stowhand.remote.server.answers import Answers, Sent
from stowhand.remote.server.grants import Grant
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.refusals import Refused
from stowhand.remote.wire import Proof
from stowhand.testing import FakeClock

ADA, BOB = Grant(id="ada"), Grant(id="bob")


def sent(token: str, job_id: int = 1, size: int = 10) -> Sent:
    return Sent(Lease(job_id, token, 1), b"x" * size)


def test_an_answer_is_forgotten_after_a_while() -> None:
    clock = FakeClock()
    memory = Answers(clock)
    memory.remember("a", [sent("a")])
    asyncio.run(clock.advance(answers.KEPT - 1))
    memory.of("b")
    assert memory.of("a").sent
    asyncio.run(clock.advance(answers.KEPT + 1))
    memory.of("b")
    assert not memory.of("a").sent


def test_the_memory_is_bounded_in_answers_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_TOKENS", 3)
    monkeypatch.setattr(answers, "BYTES", 100)
    memory = Answers(FakeClock())
    for token in "abcdef":
        memory.remember(token, [sent(token)])
    assert len(memory) == 3
    memory.remember("g", [sent("g", size=95)])
    assert len(memory) == 1
    assert memory.of("g").sent


def test_what_is_held_no_more_leaves_the_memory() -> None:
    memory = Answers(FakeClock())
    memory.remember("a", [sent("a", 1), sent("a", 2)])
    memory.over([Lease(1, "a", 1), Lease(9, "z", 1)])
    assert list(memory.of("a").sent) == [2]
    memory.over([Lease(2, "a", 1)])
    memory.drop_if_empty("a")
    assert len(memory) == 0


def test_a_released_token_is_remembered_although_it_holds_nothing() -> None:
    memory = Answers(FakeClock())
    memory.of("a").released = True
    memory.drop_if_empty("a")
    assert memory.of("a").released


def test_a_proof_is_good_for_one_worker_token_one_job_one_claim_one_epoch_and_one_key() -> None:
    token, proofs = str(uuid.uuid4()), Proofs(b"k" * 32)
    lease = Lease(7, token, 3)
    good = Proof(lease=lease, authorization=proofs.prove(ADA, lease))
    found = proofs.lease(ADA, good)
    assert found is not None
    assert (found.job_id, found.epoch, found.token) == (7, 3, proofs.store_token(ADA, token))
    others = (Lease("7", token, 3), Lease(8, token, 3), Lease(7, str(uuid.uuid4()), 3), Lease(7, token, 4))
    for other in others:
        assert proofs.lease(ADA, Proof(lease=other, authorization=good.authorization)) is None
    assert proofs.lease(BOB, good) is None
    assert Proofs(b"o" * 32).lease(ADA, good) is None
    assert Proofs(b"k" * 32).lease(ADA, good) == found


def test_a_claim_token_stands_for_another_one_under_each_worker_token() -> None:
    token, proofs = str(uuid.uuid4()), Proofs(b"k" * 32)
    assert len({token, proofs.store_token(ADA, token), proofs.store_token(BOB, token)}) == 3
    assert proofs.store_token(ADA, token.upper()) == proofs.store_token(ADA, token)
    assert proofs.store_token(Grant(id=""), token) == token
    with pytest.raises(Refused, match="no uuid"):
        proofs.store_token(ADA, "x")
