"""What an installation leaves in a database, as SQL: `pg_dump` of the schema, without what differs from run to run.

`python -m tests.support.dump` (scripts/dump-schema) writes docs/reference/schema.sql anew, and the missing migration
of Django's.
"""

from __future__ import annotations

import difflib
import re
import subprocess
from pathlib import Path

from tests.support import django_migrations
from tests.support.binaries import PREFERRED_MAJOR, find_postgres
from tests.support.schema import install
from tests.support.servers import PostgresServer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "schema.sql"
HEAD = """\
-- The schema `stowhand` as `stowhand migrate` leaves it in an empty database, read from the database by pg_dump 18.
-- For reading; `stowhand migrate --plan` prints what is run. Not shown: the days of the history (`history_YYYYMMDD`),
-- and rights: nothing is PUBLIC's, and what each role may do stands in roles.md.
-- Written by scripts/dump-schema; a test compares.
"""
_SESSION = re.compile(r"^(SET \w+ = .*;|SELECT pg_cat.*set_config.*;|\\(un)?restrict .*|-- Dumped .*)$", re.MULTILINE)
_BANNER = re.compile(r"^--\n-- .*\n--$", re.MULTILINE)
_DAYS = "history_2*"


def find_pg_dump(server: int) -> Path | None:
    """A pg_dump that can read a server of that major version."""
    able = [one.bindir / "pg_dump" for one in find_postgres() if one.version >= server]
    return next((program for program in able if program.is_file()), None)


def dump(program: Path, url: str, *, rights: bool, schema: str = "stowhand") -> str:
    """The schema of the database at ``url``; ``rights``: with every GRANT and REVOKE, and who owns what."""
    options = [] if rights else ["--no-owner", "--no-privileges"]
    done = subprocess.run(
        [program, "-d", url, "--schema-only", f"--schema={schema}", f"--exclude-table={schema}.{_DAYS}", *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    text = _BANNER.sub("", _SESSION.sub("", done.stdout))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def page(program: Path, url: str) -> str:
    """What docs/reference/schema.sql says, given a database with a fresh schema."""
    return HEAD + "\n" + dump(program, url, rights=False)


def differences(left: str, right: str) -> str:
    """The lines that differ; empty when none does."""
    return "\n".join(difflib.unified_diff(left.splitlines(), right.splitlines(), lineterm="", n=1))


def main() -> None:
    """Write the page."""
    binaries = find_postgres()[0]
    program = find_pg_dump(binaries.version)
    if program is None or binaries.version != PREFERRED_MAJOR:
        raise SystemExit(f"PostgreSQL {PREFERRED_MAJOR} with its pg_dump is needed; scripts/setup installs it")
    with PostgresServer(binaries) as server:
        url = server.create_database()
        install(url)
        PAGE.write_text(page(program, url))
    django_migrations.write()


if __name__ == "__main__":
    main()
