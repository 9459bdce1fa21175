"""Proofs that a worker token holds a lease. They are computed, not stored: HMAC-SHA256 with a key of the server.

Two values are derived. The *authorization* of a lease covers the worker token, the job, the claim token and the epoch;
every later call contains it. The *store token* covers the worker token and the client's claim token, and replaces the
latter in the store, so that a stolen claim token is useless with another worker token. Both survive a restart.
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
"""Size of the cache of store tokens."""
UUID_CHARACTERS = 36


class Proofs:
    """Authorizations and store tokens of one server."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod="sha256")
        """HMAC with the key, copied for each signature, which takes half as long as a new HMAC."""
        self._cached_store_token = lru_cache(MAX_CACHED_TOKENS)(self._derive_store_token)

    def store_token(self, grant: Grant, token: str) -> str:
        """Return the store token for the client's claim token. Raises Refused if that is not a uuid."""
        # A batch repeats few tokens many times. Python accepts extra dashes in a uuid, so texts of any length are
        # valid: only those of the usual length are cached.
        if len(token) == UUID_CHARACTERS:
            return self._cached_store_token(grant.id, token)
        return self._derive_store_token(grant.id, token)

    def _derive_store_token(self, token_id: str, token: str) -> str:
        try:
            client_token = uuid.UUID(token)
        except ValueError:
            raise malformed(f"token: {token[:40]!r} is not a uuid", "generate a uuid4 for every claim") from None
        if not token_id:  # without worker tokens all callers have the same rights
            return str(client_token)
        return str(uuid.UUID(bytes=self._sign("claim", token_id, str(client_token))[:16], version=4))

    def authorization(self, grant: Grant, lease: Lease) -> str:
        """Return the authorization of a lease with the client's claim token."""
        return self._sign("lease", grant.id, lease.job_id, lease.token, lease.epoch).hex()

    def verified_lease(self, grant: Grant, proof: Proof) -> Lease | None:
        """Return the lease with the store token; ``None`` if this caller's authorization is not valid."""
        try:
            token = self.store_token(grant, proof.lease.token)
        except Refused:
            return None
        if not _is_id(proof.lease.job_id):
            return None
        client_lease = proof.lease
        expected = self.authorization(grant, client_lease)
        if not hmac.compare_digest(expected.encode(), proof.authorization.encode("utf-8", "replace")):
            return None
        return Lease(client_lease.job_id, token, client_lease.epoch)

    def _sign(self, *parts: object) -> bytes:
        signature = self._keyed.copy()
        signature.update(msgspec.json.encode(parts))
        return signature.digest()


def _is_id(job_id: JobId) -> bool:
    return isinstance(job_id, str) or (isinstance(job_id, int) and not isinstance(job_id, bool))
