"""Readers of the SQL files that create the schema, and of the functions in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from stowhand.stores.database.migrations import Migrations
from stowhand.stores.database.statements import fill
from stowhand.stores.postgres.queue.context import FUNCTION_BODY_QUOTES
from stowhand.stores.postgres.queue.rows import function_fillings

_PACKAGE = files("stowhand.stores.postgres.queue")
MIGRATIONS = Migrations(_PACKAGE / "migrations")
_FUNCTION_PATTERN = re.compile(
    r"^create (?:or replace )?function (?:\"(?:[^\"]|\"\")*\")\.(\w+)\(.*? as (\$\w*\$)(.*?)\2",
    re.MULTILINE | re.DOTALL,
)
FUNCTION_FILES = (
    *("views", "time", "tries", "ends", "uniques", "enqueue", "serials", "claim", "idle", "on_failure", "settle"),
    *("expire", "leases", "jobs"),
    *("add_job", "administer", "cron", "flows", "operate", "throughput", "maintain"),
    *("shared_name",),
    *("finish", "grants"),
)
"""Files in the order of creation: PostgreSQL checks the body of an SQL function when it is created."""


_FREE_CONDITION = "j.worker is null and j.finished_at is null and j.serial is null and j.resets < 2"
INDEX_CONDITIONS = {
    "in_default": f"j.queue is null and {_FREE_CONDITION}",
    "in_other_queue": f"j.queue is not null and {_FREE_CONDITION}",
    "scout": "j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2",
}
"""Conditions of the indexes live_by_task, live_by_queue and live_scouts, for a waiting job ``j``."""
PAYLOAD_DECLARATIONS = ("json default '{}'", "jsonb", "text")
"""Types of the payload of ``add_job``; there is one function for each."""


def sources(functions: list[str]) -> list[tuple[str, str]]:
    """Return the names and bodies of all functions in these texts, as in the catalog."""
    return [(name, body) for text in functions for name, _, body in _FUNCTION_PATTERN.findall(text)]


def digest(body: str) -> str:
    """Return the digest of a function's body. PostgreSQL computes the same."""
    return hashlib.sha256(body.encode()).hexdigest()


def read_functions(fillings: dict[str, str], names: Sequence[str] = FUNCTION_FILES) -> list[str]:
    """Return the texts of the functions, with the schema's name filled in."""
    folder = _PACKAGE / "functions"
    return [
        filled(
            (folder / f"{name}.sql").read_text("utf-8"),
            fillings | function_fillings() | INDEX_CONDITIONS | {"payload": payload},
        )
        for name in names
        for payload in (PAYLOAD_DECLARATIONS if name == "add_job" else PAYLOAD_DECLARATIONS[:1])
    ]


def read_text(name: str, fillings: dict[str, str]) -> str:
    """Return the text of another file in this folder, filled in."""
    return filled((_PACKAGE / name).read_text("utf-8"), fillings)


def filled(text: str, fillings: dict[str, str]) -> str:
    """Return a text of SQL with its {braces} filled.

    A body is quoted with $$. If the schema's name contains $$, it is quoted with QUOTES, which no name contains.
    """
    return fill(text.replace("$$", FUNCTION_BODY_QUOTES) if "$$" in fillings["schema"] else text, fillings)
