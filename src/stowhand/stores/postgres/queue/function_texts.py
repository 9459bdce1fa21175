"""Reads the SQL files that create the schema, and the functions in them.

The texts contain {placeholders}. A placeholder without a filling raises KeyError.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from stowhand.stores.database.migrations import Migrations
from stowhand.stores.database.statements import fill
from stowhand.stores.postgres.queue.context import FUNCTION_BODY_QUOTES
from stowhand.stores.postgres.queue.rows import function_fillings

_FOLDER = files("stowhand.stores.postgres.queue")
MIGRATIONS = Migrations(_FOLDER / "migrations")
# Its groups are the name of a function, the quotes around its body, and the body.
_FUNCTION_PATTERN = re.compile(
    r"^create (?:or replace )?function (?:\"(?:[^\"]|\"\")*\")\.(\w+)\(.*? as (\$\w*\$)(.*?)\2",
    re.MULTILINE | re.DOTALL,
)
FUNCTION_FILES = (
    "views",
    "time",
    "tries",
    "ends",
    "uniques",
    "enqueue",
    "serials",
    "claim",
    "limits",
    "idle",
    "on_failure",
    "workflows",
    "settle",
    "expire",
    "leases",
    "jobs",
    "add_job",
    "administer",
    "cron",
    "flows",
    "operate",
    "throughput",
    "maintain",
    "shared_name",
    "finish",
    "grants",
)
"""Names of the files, in the order of creation.

PostgreSQL checks the body of an SQL function when the function is created, so what it names is created before it."""
_IS_WAITING = "j.worker is null and j.finished_at is null and j.resets < 2"
INDEX_CONDITIONS = {
    "in_default": f"j.queue is null and j.serial is null and {_IS_WAITING}",
    "in_other_queue": f"j.queue is not null and j.serial is null and {_IS_WAITING}",
    "scout": f"j.serial is not null and not j.absorbed and {_IS_WAITING}",
}
"""Conditions of the indexes live_by_task, live_by_queue and live_scouts, by placeholder, for a row ``j`` of ``live``.

They describe a waiting job without its state: see claim.sql."""
PAYLOAD_DECLARATIONS = ("json default '{}'", "jsonb", "text")
"""Declarations of the payload of ``add_job``. The function is created once with each."""


def sources(functions: list[str]) -> list[tuple[str, str]]:
    """Return the name and body of each function in these texts. The body is equal to that in the catalog."""
    return [(name, body) for text in functions for name, _, body in _FUNCTION_PATTERN.findall(text)]


def digest(body: str) -> str:
    """Return the digest of a function's body. The installer compares it with one that PostgreSQL computes."""
    return hashlib.sha256(body.encode()).hexdigest()


def read_functions(fillings: dict[str, str], names: Sequence[str] = FUNCTION_FILES) -> list[str]:
    """Return the texts of these function files, filled in: one for each file, and several for ``add_job``."""
    fillings = fillings | function_fillings() | INDEX_CONDITIONS
    texts = []
    for name in names:
        text = (_FOLDER / "functions" / f"{name}.sql").read_text("utf-8")
        if name == "add_job":
            texts += [filled(text, fillings | {"payload": payload}) for payload in PAYLOAD_DECLARATIONS]
        else:
            texts.append(filled(text, fillings))
    return texts


def read_text(name: str, fillings: dict[str, str]) -> str:
    """Return the text of another file in this folder, filled in."""
    return filled((_FOLDER / name).read_text("utf-8"), fillings)


def filled(text: str, fillings: dict[str, str]) -> str:
    """Return a text of SQL with its {placeholders} filled.

    Bodies of functions are quoted with $$. If the schema's name contains $$, the quotes are FUNCTION_BODY_QUOTES, which
    no such name contains.
    """
    if "$$" in fillings["schema"]:
        text = text.replace("$$", FUNCTION_BODY_QUOTES)
    return fill(text, fillings)
