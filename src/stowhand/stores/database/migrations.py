"""The numbered migrations of a store's schema, compared with those that a database has.

The first is the baseline: it creates the whole schema. Lower numbers belong to schemas from before the first release.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cached_property
from importlib.resources.abc import Traversable

from stowhand.errors import SchemaError, SchemaOutdated, SchemaTooNew
from stowhand.protocols.queue_store import SchemaStatus

HOW_TO_INSTALL = (
    "run `stowhand migrate` or start a worker, which installs it; in a store that only an App names:"
    " `stowhand migrate -A MODULE:APP` (or `-c URL`), app.sync.install(), or `await app.open(install=True)`"
)
BASELINE_NUMBER = 100
_FILE_NAME = re.compile(r"(\d+)\w*\.sql")
_BREAKING_HEADER = "-- breaking"

Applied = tuple[int, bool, str | None]
"""One row of the ledger: number, whether it is breaking, fingerprint."""


class Migration:
    """One numbered migration file."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.breaking = text.startswith(_BREAKING_HEADER)
        """Whether older versions can no longer work with the schema."""
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()


class Migrations:
    """All migrations of one store, in a folder of SQL files."""

    def __init__(self, folder: Traversable) -> None:
        self._folder = folder

    @cached_property
    def all(self) -> list[Migration]:
        """All migrations, ordered by number."""
        files = [(match, file) for file in self._folder.iterdir() if (match := _FILE_NAME.fullmatch(file.name))]
        migrations = [Migration(int(match[1]), file.read_text("utf-8")) for match, file in files]
        return sorted(migrations, key=lambda migration: migration.number)

    @cached_property
    def newest(self) -> int:
        """The number of the last migration."""
        return self.all[-1].number

    def status(self, applied: Iterable[Applied], location: str, removal: str) -> SchemaStatus:
        """Compare a ledger with these migrations.

        Args:
            applied: The rows of the ledger.
            location: Where the schema is, for the error.
            removal: How to remove the schema, for the error: an imperative.

        Raises:
            SchemaError: The schema is from before the first release.

        """
        fingerprints = {migration.number: migration.fingerprint for migration in self.all}
        installed, breaking = None, False
        for number, is_breaking, fingerprint in applied:
            if number < BASELINE_NUMBER or fingerprints.get(number, fingerprint) != fingerprint:
                raise SchemaError(
                    f"{location} was made by a version of before the first release (its migration {number} is not the"
                    f" one of this version) and cannot be upgraded: {removal}, then run `stowhand migrate`"
                )
            installed = max(number, installed or 0)
            breaking = breaking or (bool(is_breaking) and number > self.newest)
        return SchemaStatus(installed, self.newest, breaking)

    def check(self, status: SchemaStatus, location: str) -> None:
        """Raise SchemaOutdated or SchemaTooNew unless this version can work with an installed schema."""
        if status.installed is not None and status.installed < self.newest:
            raise SchemaOutdated(
                f"{location} has number {status.installed}, this version needs {self.newest}: run `stowhand migrate`"
            )
        self.refuse_newer(status, location)

    def refuse_newer(self, status: SchemaStatus, location: str) -> None:
        """Raise SchemaTooNew if a newer version has made a breaking change."""
        if status.breaking:
            raise SchemaTooNew(
                f"{location} has number {status.installed}, this version knows {self.newest}: upgrade this program"
            )

    def missing(self, status: SchemaStatus) -> list[Migration]:
        """Return the migrations that are not applied yet, in order."""
        return [migration for migration in self.all if migration.number > (status.installed or 0)]
