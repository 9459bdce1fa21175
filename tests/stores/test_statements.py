"""Statements in files: named, filled in, and parts of them written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowhand.stores.database.statements import load_statements

TEXT = """-- What stands before the first name is for readers.

-- part: due
run_at <= %s and {table}.state = 'queued'

-- name: first
select 1 from {table} where {due}

-- name: all
select 2 from {table} where {due}
"""


def loaded(folder: Path, text: str) -> dict[str, bytes]:
    file = folder / "statements.sql"
    file.write_text(text)
    return load_statements(file, {"table": '"live"'})


def test_a_part_is_filled_into_every_statement_that_names_it(tmp_path: Path) -> None:
    due = b"""run_at <= %s and "live".state = 'queued'"""
    assert loaded(tmp_path, TEXT) == {
        "first": b'select 1 from "live" where ' + due,
        "all": b'select 2 from "live" where ' + due,
    }


@pytest.mark.parametrize("again", ["-- name: first\nselect 3", "-- part: first\nand true", "-- part: due\nand true"])
def test_a_duplicate_name_is_refused(tmp_path: Path, again: str) -> None:
    with pytest.raises(ValueError, match=r"declared twice in statements\.sql"):
        loaded(tmp_path, f"{TEXT}\n{again}\n")


def test_a_missing_filling_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="unheard_of"):
        loaded(tmp_path, "-- name: first\nselect {unheard_of}\n")
