"""A database with the roles, and somebody who can log in for each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo

from stowhand.stores.postgres.queue.context import ROLE_KINDS, role_names
from tests.support.databases import Databases
from tests.support.schema import install


class Logins:
    """``url("worker")`` is the database as seen by a login with that role; ``stranger`` has none."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._suffix = uuid.uuid4().hex[:8]

    def name(self, role: str) -> str:
        return f"{role}_{self._suffix}"

    def url(self, role: str) -> str:
        return make_conninfo(self.owner, user=self.name(role), password="secret")

    def install(self, *, roles: bool = False) -> None:
        install(self.owner, roles=roles)


@contextmanager
def with_roles(server: Databases) -> Iterator[Logins]:
    """Everything is gone afterwards, the roles too, which belong to the server."""
    url = server.create_database()
    logins = Logins(url)
    names = [logins.name(role) for role in (*ROLE_KINDS, "stranger")]
    try:
        logins.install(roles=True)
        for name, role in zip(names, (*ROLE_KINDS, None), strict=True):
            exec_all(url, f"create role {name} login password 'secret'")
            if role is not None:
                exec_all(url, f"grant {role_names('stowhand')[role]} to {name}")
        yield logins
    finally:
        server.drop_database(url)
        with psycopg.connect(server.admin_url, autocommit=True) as connection:
            for name in (*names, *role_names("stowhand").values()):
                connection.execute(f"drop role if exists {name}".encode())


def exec_all(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
