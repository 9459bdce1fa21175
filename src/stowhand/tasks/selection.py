"""Which tasks a worker claims: all, or those that are named, by themselves or by their groups. Made once, at its start.

A group is a class of work that a task belongs to: a word in its declaration, and in no store. A worker that is given
groups claims by the names of their tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, UnknownTask, suggest
from stowhand.jobs import limits
from stowhand.protocols.operating import BUILT_IN
from stowhand.tasks.registry import Registry


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Groups and tasks that a worker was given. Without any: all tasks, and the built-in ones."""

    groups: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None
    """``None``: none is named."""
    exclude_tasks: tuple[str, ...] = ()

    def of(self, registry: Registry, *, lent: bool) -> tuple[str, ...]:
        """Return the names to claim. Built-in tasks belong to no group; those of a lent store run where it is kept.

        Raises UnknownTask, and ConfigurationError for an unknown group and where no task is left.
        """
        _check_groups(self.groups, registry)
        named = [_known(name, registry) for name in self.tasks or ()]
        left_out = {_known(name, registry) for name in self.exclude_tasks}
        everything = not self.groups and self.tasks is None
        chosen = [one.name for one in registry if everything or one.group in self.groups or one.name in named]
        chosen += [name for name in BUILT_IN if name in named or (everything and not lent)]
        left = tuple(name for name in chosen if name not in left_out)
        if not left and (left_out or not everything) and self.tasks != ():
            raise ConfigurationError("group, task, exclude_task: no task is left to claim; name others")
        return left


def read_names(what: str, given: object) -> tuple[str, ...]:
    """Check a list of names. Raises ConfigurationError."""
    try:
        return limits.read_names(what, given)
    except InvalidJob as error:
        raise ConfigurationError(str(error)) from None


def _known(name: str, registry: Registry) -> str:
    if name not in registry and name not in BUILT_IN:
        raise UnknownTask(f"no task {name!r}{suggest(name, (*registry.names, *BUILT_IN))}")
    return name


def _check_groups(groups: Sequence[str], registry: Registry) -> None:
    known = {one.group for one in registry if one.group is not None}
    for group in groups:
        if group not in known:
            none = "" if known else "; a task is put into one by @app.task(group='heavy')"
            raise ConfigurationError(f"no task has the group {group!r}{none or suggest(group, known)}")
