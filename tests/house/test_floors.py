"""House rule: who may import what, where the layers of pyproject.toml cannot say it."""

from __future__ import annotations

from tests.support.sources import Source, package_sources

# Driver -> the rooms that may import it. Every other room asks database/ or is given a store.
DRIVERS = {
    "psycopg": ("database", "stores"),
    "psycopg_pool": ("database", "stores"),
    "httpx": ("stores/http",),
    "redis": ("stores/redis",),
    "opentelemetry": ("observe",),
    "starlette": ("lending",),
    "uvicorn": ("lending",),
    "sqlite3": ("database", "stores", "demo"),  # the demo keeps a ledger of its own, outside the queue
}

# Room -> what it never imports. A store and the worker meet only in the protocols of store.py.
STRANGERS = {
    "worker": ("stowhand.stores",),
    "stores": ("stowhand.worker", "stowhand.resetter"),
    "stores/postgres": ("stowhand.stores.sqlite",),
    "stores/sqlite": ("stowhand.stores.postgres",),
    "stores/table": ("stowhand.stores.postgres", "stowhand.stores.sqlite", "stowhand.stores.http"),
    "stores/table/postgres": ("stowhand.stores.table.sqlite",),
    "stores/table/sqlite": ("stowhand.stores.table.postgres",),
    "stores/http": ("stowhand.stores.postgres", "stowhand.stores.sqlite", "stowhand.stores.table", "stowhand.database"),
    "stores/redis": (
        "stowhand.stores.postgres",
        "stowhand.stores.sqlite",
        "stowhand.stores.table",
        "stowhand.stores.http",
        "stowhand.database",
    ),
}


def test_drivers_are_imported_only_by_the_rooms_that_drive() -> None:
    found = [
        f"{source.name}:{line} imports {module}"
        for source in package_sources()
        for module, line in source.imports()
        if (rooms := DRIVERS.get(module)) and not any(_is_in(source, room) for room in rooms)
    ]
    assert not found, "\n".join(found)


def test_strangers_do_not_import_each_other() -> None:
    found = [
        f"{source.name}:{line} imports {module}"
        for source in package_sources()
        for room, strangers in STRANGERS.items()
        if _is_in(source, room)
        for module, line in source.imports()
        if any(module == stranger or module.startswith(f"{stranger}.") for stranger in strangers)
    ]
    assert not found, "\n".join(found)


def test_nobody_inside_imports_the_front_door() -> None:
    """`from stowhand import X` inside the package would tie every room to every other. The top floor may."""
    rooms = {source.name.split("/")[0].removesuffix(".py") for source in package_sources()}
    found = [
        f"{source.name}:{line} imports {module}"
        for source in package_sources()
        for module, line in source.imports()
        if module.startswith("stowhand.") and module.count(".") == 1 and source.name != "__init__.py"
        if not _is_in(source, "cli")
        if module.removeprefix("stowhand.") not in rooms
    ]
    assert not found, f"import from the room that defines the name: {found}"


def _is_in(source: Source, room: str) -> bool:
    return source.name == f"{room}.py" or source.name.startswith(f"{room}/")
