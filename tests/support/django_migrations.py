"""The migrations of `stowhand.django`: a file for each pair of numbers of the schema, in PostgreSQL and in SQLite.

Written by `scripts/dump-schema`, as the next file, when a number has grown.
"""

from __future__ import annotations

import re
from pathlib import Path

from stowhand.stores.postgres.queue import function_texts
from stowhand.stores.sqlite.queue import schema
from tests.support.sources import PACKAGE

FOLDER = PACKAGE / "django" / "migrations"
_TEXT = '''"""The tables at number {postgres} of PostgreSQL, {sqlite} of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres={postgres}, sqlite={sqlite}{after})
'''


def there() -> list[tuple[Path, tuple[int, int]]]:
    """The files in order, each with its numbers."""
    rows = []
    for file in sorted(FOLDER.glob("0*.py")):
        numbers = re.search(r"postgres=(\d+), sqlite=(\d+)", file.read_text())
        assert numbers is not None, file
        rows.append((file, (int(numbers[1]), int(numbers[2]))))
    return rows


def now() -> tuple[int, int]:
    """The numbers of this version."""
    return function_texts.MIGRATIONS.newest, schema.MIGRATIONS.newest


def write() -> None:
    """Adds the file that is missing."""
    files = there()
    if files and files[-1][1] == now():
        return
    postgres, sqlite = now()
    after = f', after="{files[-1][0].stem}"' if files else ""
    name = f"{len(files) + 1:04}_schema.py"
    (FOLDER / name).write_text(_TEXT.format(postgres=postgres, sqlite=sqlite, after=after))
