"""Reads the SQL files beside this one that make the schema, and the functions in them, one by one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from stowhand.stores.database.statements import fill
from stowhand.stores.postgres.queue.context import QUOTES

_FILE = re.compile(r"(\d{6})_\w+\.sql")
_HERE = files("stowhand.stores.postgres.queue")
_FUNCTION = re.compile(
    r"^create (?:or replace )?function (?:\"(?:[^\"]|\"\")*\")\.(\w+)\(.*? as (\$\w*\$)(.*?)\2",
    re.MULTILINE | re.DOTALL,
)
_BREAKING = "-- breaking"
FUNCTIONS = (
    *("views", "time", "tries", "waiters", "uniques", "enqueue", "queues", "claim", "idle", "on_failure", "settle"),
    *("expire", "leases", "inspect", "jobs"),
    *("add_job", "administer", "cron", "flows", "operate", "figures", "throughput", "maintain"),
    *("shared_name",),
    *("finish", "grants"),
)
"""In this order: SQL functions are checked when they are made."""


PAYLOADS = ("json default '{}'", "jsonb", "text")
"""Of ``add_job``, which is made for each."""


class Migration:
    """One numbered file."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.breaking = text.startswith(_BREAKING)
        """Older versions of this package cannot work with it."""


@cache
def newest_known() -> int:
    """The number of this version's last migration."""
    return max(int(match[1]) for file in (_HERE / "migrations").iterdir() if (match := _FILE.fullmatch(file.name)))


def read_migrations(fillings: dict[str, str]) -> list[Migration]:
    """All of them, in order, with the schema's name filled in."""
    folder = _HERE / "migrations"
    found = [(match, file) for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))]
    found.sort(key=lambda pair: pair[0][1])
    return [Migration(int(match[1]), _filled(file, fillings)) for match, file in found]


def sources(functions: list[str]) -> list[tuple[str, str]]:
    """Names and bodies of all functions in these texts, as the catalog has them."""
    return [(name, body) for text in functions for name, _, body in _FUNCTION.findall(text)]


def digest(body: str) -> str:
    """Of a function's body; PostgreSQL computes the same."""
    return hashlib.sha256(body.encode()).hexdigest()


def read_functions(fillings: dict[str, str], names: Sequence[str] = FUNCTIONS) -> list[str]:
    """The texts of the functions, with the schema's name filled in."""
    folder = _HERE / "functions"
    return [
        _filled(folder / f"{name}.sql", fillings | {"payload": payload})
        for name in names
        for payload in (PAYLOADS if name == "add_job" else PAYLOADS[:1])
    ]


def read_text(name: str, fillings: dict[str, str]) -> str:
    """Another file of this folder, filled in."""
    return _filled(_HERE / name, fillings)


def _filled(file: Traversable, fillings: dict[str, str]) -> str:
    """A body is between $$ and $$; where the schema's name contains that, between QUOTES, which no name contains."""
    text = file.read_text("utf-8")
    return fill(text.replace("$$", QUOTES) if "$$" in fillings["schema"] else text, fillings)
