"""Which tasks a worker has: those that stand in the module ``tasks`` of an installed app, or in a module that the
backend names. Only by these is a path found that came out of the database: no job has anything imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from django.apps import apps
from django.tasks import base
from django.utils.module_loading import autodiscover_modules

from stowhand.tasks.loading import import_modules

MODULE = "tasks"


def known_tasks(modules: Iterable[str] = ()) -> dict[str, base.Task]:
    """By path; these modules are imported, and looked into anew each time. ``modules``: further ones, ``"shop.jobs"``
    or ``"shop.jobs.*"``. Raises ConfigurationError."""
    autodiscover_modules(MODULE)
    import_modules(modules)
    found: dict[str, base.Task] = {}
    for module in _modules(modules):
        for one in vars(module).values():
            if isinstance(one, base.Task):
                found.setdefault(one.module_path, one)
    return found


def _modules(names: Iterable[str]) -> Iterator[ModuleType]:
    wanted = [f"{config.name}.{MODULE}" for config in apps.get_app_configs()]
    for name in names:
        whole = name.removesuffix(".*")
        below = [one for one in sys.modules if one.startswith(f"{whole}.")] if whole != name else []
        wanted += [whole, *sorted(below)]
    for name in dict.fromkeys(wanted):
        if (module := sys.modules.get(name)) is not None:
            yield module
