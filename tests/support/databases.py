"""Databases on a running PostgreSQL: made for one test, dropped after it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from tests.support.emptying import Snapshot

# What a test's database looks like before the test: given the URL of an empty database, fills it.
Setup = Callable[[str], None]


OFTEN = 60
"""How many tests use one database: what was removed stays in the server's catalogs for a while."""


@dataclass
class Used:
    """A database that may be lent again.

    Its connection stays open beside those of the tests: a new one would read all that it looks at from the catalogs
    (33 ms of processor time, 8 on one that has). No test counts connections that do not bear the package's names.
    """

    url: str
    connection: psycopg.Connection[Any]
    snapshot: Snapshot
    times: int = 0


class Kept:
    """A connection that tests use one after the other, each as if it were new: see `Used` for what a new one costs.

    Closed with the database that it is to.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def lend(self) -> Iterator[psycopg.Connection[Any]]:
        """Each statement is committed at once, and none is prepared."""
        if self._connection is None or not _is_as_new(self._connection):
            self.close()
            self._connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        yield self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Databases:
    """A server reached by URL, as a place to make databases. The database in the URL is only connected to."""

    def __init__(self, admin_url: str) -> None:
        if not admin_url.startswith(("postgresql://", "postgres://")):
            raise ValueError(f"DATABASE_URL must start with postgresql://, not {admin_url.split(':')[0]!r}")
        self._admin_url = admin_url
        self._templates: dict[Setup, str] = {}
        self._spare: dict[Setup | None, list[Used]] = {}

    @cached_property
    def version(self) -> int:
        """The server's major version."""
        with psycopg.connect(self.admin_url) as connection:
            return connection.info.server_version // 10_000

    @property
    def admin_url(self) -> str:
        """The URL of a database that always exists."""
        return self._admin_url

    def url(self, database: str) -> str:
        """The same server, another database."""
        return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", rf"\g<1>/{database}", self.admin_url)

    def create_database(self, template: str | None = None) -> str:
        """Make a database with a name of its own, a copy of `template` if given. Returns its URL."""
        name = f"stowhand_test_{uuid.uuid4().hex[:12]}"
        # template0: nobody's leftovers, and no waiting for somebody connected to template1.
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template or "template0")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop it, whoever is still connected."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", _name(url))

    @contextmanager
    def lend(self, setup: Setup | None) -> Iterator[str]:
        """A database as `setup` prepares it, for one test: one of before that could be emptied, else a new one."""
        spare = self._spare.setdefault(setup, [])
        used = spare.pop() if spare else self._make(setup)
        again = False
        try:
            yield used.url
            used.times += 1
            again = used.times < OFTEN and used.snapshot.restore(used.connection)
        finally:
            if again:
                spare.append(used)
            else:
                used.connection.close()
                self.drop_database(used.url)

    def _make(self, setup: Setup | None) -> Used:
        url = self.create_database(template=self.template(setup))
        connection = psycopg.connect(url, autocommit=True)
        return Used(url, connection, Snapshot.of(connection))

    def template(self, setup: Setup | None) -> str | None:
        """The name of a database prepared by `setup`, made once per server: migrations are paid once."""
        if setup is None:
            return None
        if setup not in self._templates:
            url = self.create_database()
            setup(url)
            self._templates[setup] = _name(url)
        return self._templates[setup]

    def drop_templates(self) -> None:
        """For a server that outlives the test run."""
        for url in self.close_connections():
            self.drop_database(url)
        for name in self._templates.values():
            self.drop_database(self.url(name))
        self._templates.clear()

    def close_connections(self) -> list[str]:
        """Those to databases that might have been lent again; their URLs."""
        spare = [used for spare in self._spare.values() for used in spare]
        self._spare.clear()
        for used in spare:
            used.connection.close()
        return [used.url for used in spare]

    def _execute(self, statement: str, *names: str) -> None:
        identifiers = [sql.Identifier(name) for name in names]
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*identifiers))


def _is_as_new(connection: psycopg.Connection[Any]) -> bool:
    """False: it is closed, was cut off or was left in the middle of something."""
    try:
        connection.execute("discard all")
    except psycopg.Error:
        return False
    return connection.autocommit


def _name(url: str) -> str:
    match = re.match(r"\w+://[^/?]*/([^?]+)", url)
    if match is None:
        raise ValueError(f"no database is named in {url!r}")
    return match[1]
