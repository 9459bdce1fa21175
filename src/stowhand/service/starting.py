"""Why a worker cannot start: everything that is wrong, at once, and not one mistake after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stowhand.app.settings.settings import WorkerSettings
from stowhand.errors import ConfigurationError, SchemaError, SchemaMissing, StoreUnreachable, StowhandError
from stowhand.service.loading import load_tasks
from stowhand.service.opening import store_of
from stowhand.service.recurring import items_in_file
from stowhand.service.reloading import check_watch
from stowhand.service.status_server import StatusServer


def with_the_rest(settings: WorkerSettings, first: StowhandError) -> StowhandError:
    """``first``, or an error that tells besides what else is wrong: each a line of its own, in the order of a start."""
    of_the_store = isinstance(first, StoreUnreachable | SchemaError)
    checks: list[Callable[[WorkerSettings], object]] = [_listen, check_watch, load_tasks, items_in_file]
    if str(first).startswith(f"{settings.app!r}: "):
        checks.remove(load_tasks)  # what it has imported before it failed would not bear to be imported again
    found: list[str] = []
    for check in checks if of_the_store else (*checks, _open):
        try:
            check(settings)
        except StowhandError as error:
            found.append(str(error))
    found = [*found, str(first)] if of_the_store else [str(first), *found]
    wrong = list(dict.fromkeys(found))
    return ConfigurationError("\n".join(wrong)) if len(wrong) > 1 else first


def _listen(settings: WorkerSettings) -> None:
    if settings.http is not None:
        StatusServer(settings.http, {}).close()


def _open(settings: WorkerSettings) -> None:
    """As a worker would, but nothing is installed."""

    async def look() -> None:
        store = store_of(settings.store)
        try:
            await store.open()
        except SchemaMissing:
            return
        finally:
            await store.close()

    asyncio.run(look())
