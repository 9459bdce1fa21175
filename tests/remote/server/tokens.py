"""Worker tokens for tests, written to the tokens file as by ``stowhand tokens``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from stowhand.remote.server.tokens import TokenFile, TokenRecord, new_token
from stowhand.remote.wire import Scope

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def make_token(
    path: Path,
    name: str,
    *scopes: str,
    tasks: tuple[str, ...] | None = None,
    queues: tuple[str, ...] | None = None,
    serials: tuple[str, ...] | None = None,
) -> str:
    """Make a token, by default with all scopes, and return it."""
    token, token_id, sha256 = new_token()
    record = TokenRecord(
        id=token_id,
        name=name,
        sha256=sha256,
        scopes=scopes or tuple(Scope),
        tasks=tasks,
        queues=queues,
        serials=serials,
        made=MOMENT,
    )
    TokenFile(path).change(lambda tokens: (*tokens, record))
    return token


def revoke(path: Path, name: str) -> None:
    """Revoke the tokens with this name."""

    def revoked(record: TokenRecord) -> TokenRecord:
        return msgspec.structs.replace(record, revoked=MOMENT) if record.name == name else record

    TokenFile(path).change(lambda tokens: tuple(revoked(record) for record in tokens))
