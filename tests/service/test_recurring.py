"""The items of a process: where they are read from, at the start and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.errors import ConfigurationError
from stowhand.events import CronReloaded, Events
from stowhand.service.recurring_items import RecurringItems
from stowhand.service.task_loader import LoadedTasks
from stowhand.tasks.registry import Registry
from stowhand.testing import MemoryStore


def recurring(folder: Path, said: list[CronReloaded], crontab: str | None = None) -> RecurringItems:
    store = StoreSettings(connection=ResolvedStore(url="sqlite:///unused.db", source="a test"))
    settings = WorkerSettings(store=store, tasks=str(folder / "tasks"), crontab=crontab)
    events = Events()
    events.on(CronReloaded, said.append)
    return RecurringItems(settings, LoadedTasks(Registry()), MemoryStore(), events)


def test_the_default_crontab_may_appear_later_but_must_then_stay(tmp_path: Path) -> None:
    lines: list[CronReloaded] = []
    one = recurring(tmp_path, lines)
    assert not one.scheduler.items
    file = tmp_path / "crontab"
    file.write_text("* * * * * t")
    one.reload()
    assert lines[-1] == CronReloaded(("t",), None)
    file.rename(tmp_path / "moved")  # as an editor does for a moment
    one.reload()
    assert [item.identifier for item in one.scheduler.items] == ["t"]
    assert lines[-1] == CronReloaded(("t",), f"crontab {file}: No such file or directory")
    file.write_text("# nothing any more")
    one.reload()
    assert not one.scheduler.items


def test_a_named_file_must_exist_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere: No such file or directory"):
        recurring(tmp_path, [], crontab=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="Is a directory"):
        recurring(tmp_path, [], crontab=str(tmp_path))
