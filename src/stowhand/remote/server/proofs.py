"""Proof that a lease was lent to a worker token, without remembering it: HMAC-SHA256 with a key of the server.

Two values are derived. The *authorization* of a lease covers the worker token, the job, the claim token and the epoch;
every later call sends it. And the client's claim token is replaced in the store by one derived from it and the worker
token, so that a stolen claim token is useless under another worker token. Both survive a restart of the server.
"""

from __future__ import annotations

import hmac
import uuid
from functools import lru_cache

import msgspec

from stowhand.jobs.lease import JobId, Lease
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.server.tokens import Grant
from stowhand.remote.wire import Proof

MAX_CACHED_TOKENS = 1024
"""The cache of store tokens, by claim token."""
UUID_CHARACTERS = 36


class Proofs:
    """Makes authorizations, and checks them."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod="sha256")
        """Keyed once: a copy takes half as long as keying."""
        self._known = lru_cache(MAX_CACHED_TOKENS)(self._store_token)

    def store_token(self, grant: Grant, token: str) -> str:
        """Return the store's claim token for the client's. Raises Refused if that is not a uuid."""
        # A batch names few tokens, each many times. Only of the usual length: with more dashes a uuid may be any.
        return (self._known if len(token) == UUID_CHARACTERS else self._store_token)(grant.id, token)

    def _store_token(self, token_id: str, token: str) -> str:
        try:
            client_token = uuid.UUID(token)
        except ValueError:
            raise malformed(f"token: {token[:40]!r} is no uuid", "make one for every claim: uuid4") from None
        if not token_id:  # without worker tokens all callers are the same
            return str(client_token)
        return str(uuid.UUID(bytes=self._sign("claim", token_id, str(client_token))[:16], version=4))

    def prove(self, grant: Grant, lease: Lease) -> str:
        """Return the authorization of a lease, which contains the client's claim token."""
        return self._sign("lease", grant.id, lease.job_id, lease.token, lease.epoch).hex()

    def lease(self, grant: Grant, proof: Proof) -> Lease | None:
        """Return the lease with the store's token; ``None`` if the authorization is not this caller's."""
        try:
            token = self.store_token(grant, proof.lease.token)
        except Refused:
            return None
        if not _is_id(proof.lease.job_id):
            return None
        client_lease = proof.lease
        expected = self.prove(grant, client_lease)
        if not hmac.compare_digest(expected.encode(), proof.authorization.encode("utf-8", "replace")):
            return None
        return Lease(client_lease.job_id, token, client_lease.epoch)

    def _sign(self, *parts: object) -> bytes:
        signed = self._keyed.copy()
        signed.update(msgspec.json.encode(parts))
        return signed.digest()


def _is_id(job_id: JobId) -> bool:
    return isinstance(job_id, str) or (isinstance(job_id, int) and not isinstance(job_id, bool))
