"""What proves a lease, and which claim token the store knows."""

from __future__ import annotations

import uuid

import pytest

from stowhand.jobs.lease import Lease
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.tokens import Grant
from stowhand.remote.wire import Proof

ADA, BOB = Grant(id="ada"), Grant(id="bob")


def test_a_proof_is_good_for_one_worker_token_one_job_one_claim_one_epoch_and_one_key() -> None:
    token, proofs = str(uuid.uuid4()), Proofs(b"k" * 32)
    lease = Lease(7, token, 3)
    good = Proof(lease=lease, authorization=proofs.authorization(ADA, lease))
    result = proofs.verified_lease(ADA, good)
    assert result is not None
    assert (result.job_id, result.epoch, result.token) == (7, 3, proofs.store_token(ADA, token))
    others = (Lease("7", token, 3), Lease(8, token, 3), Lease(7, str(uuid.uuid4()), 3), Lease(7, token, 4))
    for other in others:
        assert proofs.verified_lease(ADA, Proof(lease=other, authorization=good.authorization)) is None
    assert proofs.verified_lease(BOB, good) is None
    assert Proofs(b"o" * 32).verified_lease(ADA, good) is None
    assert Proofs(b"k" * 32).verified_lease(ADA, good) == result


def test_each_worker_token_maps_a_claim_token_to_another_store_token() -> None:
    token, proofs = str(uuid.uuid4()), Proofs(b"k" * 32)
    assert len({token, proofs.store_token(ADA, token), proofs.store_token(BOB, token)}) == 3
    assert proofs.store_token(ADA, token.upper()) == proofs.store_token(ADA, token)
    assert proofs.store_token(Grant(id=""), token) == token
    with pytest.raises(Refused, match="is not a uuid"):
        proofs.store_token(ADA, "x")
