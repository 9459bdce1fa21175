"""The names of the four roles that a schema's rights are granted to. What each may do: functions/grants.sql."""

from __future__ import annotations

import hashlib

from stowhand.stores.database.statements import quote_identifier, quote_text

ROLES = ("enqueuer", "worker", "reader", "admin")
_LONGEST = 63 - len("_enqueuer")


def role_names(schema: str) -> dict[str, str]:
    """``{"worker": "stowhand_worker", …}``. They belong to the whole server, so their names begin with the schema's."""
    first = schema
    if len(schema.encode()) > _LONGEST:
        first = f"stowhand_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"
    return {role: f"{first}_{role}" for role in ROLES}


def role_fillings(schema: str) -> dict[str, str]:
    """For statements: ``{worker}`` is the identifier, ``{worker_text}`` the literal."""
    names = role_names(schema)
    return {role: quote_identifier(name) for role, name in names.items()} | {
        f"{role}_text": quote_text(name) for role, name in names.items()
    }
