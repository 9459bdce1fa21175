"""House rule: private names of libraries are listed here, and the installed versions have them.

What they are used for is tested beside each use; this test names the library that has changed.
"""

from __future__ import annotations

import ast
import asyncio

import aiosqlite
import psycopg
import pytest
import redis.asyncio
import uvicorn
from redis.asyncio.cluster import ClusterNode
from sqlalchemy import NestedTransaction

from tests.support.sources import package_sources

pytestmark = pytest.mark.xdist_group("sources")

AIOSQLITE = {"_conn", "_execute"}
"""Work in one piece in the connection's thread: enqueue_in."""
PSYCOPG = {"_adapters", "_autocommit"}
"""Set by ``ctx.connection`` of a transactional handler, a subclass of psycopg's connection."""
SQLALCHEMY = {"_previous_nested", "_savepoint"}
"""The names of the open savepoints: what is enqueued in one is forgotten with it."""
REDIS_POOL, REDIS_NODE, REDIS_CONNECTION = (
    {"_available_connections", "_in_use_connections"},
    {"_connections"},
    {"_writer"},
)
"""Sockets at a fork."""
STANDARD_LIBRARY = {"_current_frames", "_exit", "_getframe"}
"""Documented."""
LISTED = AIOSQLITE | SQLALCHEMY | REDIS_POOL | REDIS_NODE | REDIS_CONNECTION | STANDARD_LIBRARY


def test_private_names_of_libraries_are_listed() -> None:
    trees = [(source.name, source.tree) for source in package_sources()]
    own = {name for _, tree in trees for name in _defined(tree)}
    result = {
        (node.attr, name)
        for name, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own
    }
    assert [f"{where}: {name}" for name, where in sorted(result) if name not in LISTED] == []


def test_the_listed_names_are_there() -> None:
    assert set(dir(aiosqlite.Connection)) >= AIOSQLITE
    inits = [vars(base)["__init__"] for base in psycopg.AsyncConnection.__mro__ if "__init__" in vars(base)]
    assert {name for init in inits if hasattr(init, "__code__") for name in init.__code__.co_names} >= PSYCOPG
    assert set(dir(NestedTransaction)) >= SQLALCHEMY
    assert set(dir(uvicorn.Server)) >= {"capture_signals"}, "not private, but not documented either"

    async def made() -> None:
        assert set(dir(redis.asyncio.ConnectionPool())) >= REDIS_POOL
        assert set(dir(ClusterNode("localhost", 1))) >= REDIS_NODE
        assert set(dir(redis.asyncio.Connection())) >= REDIS_CONNECTION

    asyncio.run(made())


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.AST) -> set[str]:
    """Private names that this module defines: functions, classes, variables, and attributes of ``self`` and ``cls``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names
