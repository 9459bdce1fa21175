"""Who was lent what, proved without remembering it: HMAC-SHA256 with a key of the server's.

Two things are derived. The *authorization* of a lease covers the worker token, the job, the claim token and the epoch;
every later call bears it. And a claim token of a client becomes a claim token of the store's that depends on the worker
token: whoever else learns a claim token holds one that stands for nothing. Both survive a restart of the server.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid

import msgspec

from stowhand.jobs.lease import JobId, Lease
from stowhand.remote.server.grants import Grant
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.wire import Proof


class Proofs:
    """Makes proofs, and checks them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def store_token(self, grant: Grant, token: str) -> str:
        """The claim token in the store for the one that this client made. Raises Refused when it is no uuid."""
        try:
            given = uuid.UUID(token)
        except ValueError:
            raise malformed(f"token: {token[:40]!r} is no uuid", "make one for every claim: uuid4") from None
        if not grant.id:  # everybody is the same where there are no tokens
            return str(given)
        return str(uuid.UUID(bytes=self._sign("claim", grant.id, str(given))[:16], version=4))

    def prove(self, grant: Grant, lease: Lease) -> str:
        """The authorization of a lease that bears the client's own token."""
        return self._sign("lease", grant.id, lease.job_id, lease.token, lease.epoch).hex()

    def lease(self, grant: Grant, proof: Proof) -> Lease | None:
        """The lease in the store that this proves; ``None`` when it proves nothing: made for another, or made up."""
        try:
            token = self.store_token(grant, proof.lease.token)
        except Refused:
            return None
        if not _is_id(proof.lease.job_id):
            return None
        right = self.prove(grant, proof.lease)
        if not hmac.compare_digest(right.encode(), proof.authorization.encode("utf-8", "replace")):
            return None
        return msgspec.structs.replace(proof.lease, token=token)

    def _sign(self, *parts: object) -> bytes:
        return hmac.digest(self._secret, msgspec.json.encode(parts), hashlib.sha256)


def _is_id(job_id: JobId) -> bool:
    return isinstance(job_id, str) or (isinstance(job_id, int) and not isinstance(job_id, bool))
