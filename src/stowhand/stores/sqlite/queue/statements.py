"""This store's SQL: every statement is in ``sql/<moment>.sql`` under a line ``-- name: <name>``."""

from __future__ import annotations

from importlib.resources import files

from stowhand.stores.database.statements import load_statements


def load(moment: str) -> dict[str, str]:
    """The statements of one file by name."""
    file = files("stowhand.stores.sqlite.queue").joinpath("sql", f"{moment}.sql")
    return {name: text.decode() for name, text in load_statements(file, {}).items()}
