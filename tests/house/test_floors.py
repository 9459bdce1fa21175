"""House rule: who may import what, where the layers of pyproject.toml cannot say it."""

from __future__ import annotations

import pytest

from tests.support.sources import Source, package_sources

pytestmark = pytest.mark.xdist_group("sources")

# Driver -> the rooms that may import it. Every other room is given a store.
DRIVERS = {
    "psycopg": ("stores/database", "stores/callers", "stores/postgres"),
    "psycopg_pool": ("stores/database", "stores/postgres"),
    "httpx": ("remote/client",),
    "redis": ("flows/redis",),
    "opentelemetry": ("observe",),
    "starlette": ("remote/server", "web/asgi"),
    "uvicorn": ("http_server",),
    "jinja2": ("web/board",),
    "sqlalchemy": ("stores/callers",),
    "sqlite3": ("stores/database", "stores/callers", "stores/sqlite"),
}

# Room -> what it never imports. A store and the worker meet only in the protocols.
STRANGERS = {
    "stores": ("stowhand.worker",),
    "remote/client": ("stowhand.worker", "stowhand.remote.server"),
    "remote/server": ("stowhand.remote.client",),
    "flows/redis": ("stowhand.stores", "stowhand.worker", "stowhand.flows.queue"),
    "flows/queue": ("stowhand.flows.redis",),
    "stores/database": ("stowhand.stores.postgres", "stowhand.stores.sqlite", "stowhand.stores.table"),
    "stores/kernel": (
        "stowhand.stores.postgres",
        "stowhand.stores.sqlite",
        "stowhand.stores.table",
    ),
    "stores/callers": ("stowhand.stores.postgres", "stowhand.stores.sqlite", "stowhand.stores.table"),
    "stores/postgres": ("stowhand.stores.sqlite",),
    "stores/sqlite": ("stowhand.stores.postgres",),
    "stores/table": ("stowhand.stores.postgres.queue", "stowhand.stores.sqlite.queue"),
    "stores/postgres/shared": (
        "stowhand.stores.postgres.queue",
        "stowhand.stores.postgres.table",
        "stowhand.stores.table",
    ),
    "stores/postgres/queue": ("stowhand.stores.postgres.table", "stowhand.stores.table"),
    "stores/sqlite/queue": ("stowhand.stores.sqlite.table", "stowhand.stores.table"),
    "stores/postgres/table": ("stowhand.stores.postgres.queue",),
    "stores/sqlite/table": ("stowhand.stores.sqlite.queue",),
}


def test_drivers_are_imported_only_by_their_rooms() -> None:
    rows = [
        f"{source.name}:{line} imports {module}"
        for source in package_sources()
        for module, line in source.imports
        if (rooms := DRIVERS.get(module)) and not any(_is_in(source, room) for room in rooms)
    ]
    assert not rows, "\n".join(rows)


def test_rooms_import_only_from_rooms_below_them() -> None:
    rows = [
        f"{source.name}:{line} imports {module}"
        for source in package_sources()
        for room, strangers in STRANGERS.items()
        if _is_in(source, room)
        for module, line in source.imports
        if any(module == stranger or module.startswith(f"{stranger}.") for stranger in strangers)
    ]
    assert not rows, "\n".join(rows)


def test_no_room_imports_the_public_modules() -> None:
    """`from stowhand import X` inside the package would tie every room to every other. The top floor may."""
    rooms = {source.name.split("/")[0].removesuffix(".py") for source in package_sources()}
    rows = [
        f"{source.name}:{line} imports {module}"
        for source in package_sources()
        for module, line in source.imports
        if module.startswith("stowhand.") and module.count(".") == 1 and source.name != "__init__.py"
        if not _is_in(source, "cli")
        if module.removeprefix("stowhand.") not in rooms
    ]
    assert not rows, f"import from the room that defines the name: {rows}"


def _is_in(source: Source, room: str) -> bool:
    return source.name == f"{room}.py" or source.name.startswith(f"{room}/")
