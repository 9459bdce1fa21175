"""Reading of the settings file: ``stowhand.toml``, or else ``[tool.stowhand]`` in ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowhand.app.settings.settings import SETTINGS, SETTINGS_BY_NAME
from stowhand.errors import a_type, hint, suggest
from stowhand.protocols.options import Names

OWN_FILE = "stowhand.toml"
PROJECT_FILE = "pyproject.toml"


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a file, as text by setting name."""

    name: str = ""
    """Name of the file; empty if there is none."""
    values: dict[str, str] = {}
    problems: tuple[str, ...] = ()
    ignored: str = ""
    """Name of a second file with settings, which is ignored; empty if there is none."""


def read_settings_file(folder: Path) -> SettingsFile:
    """Read the settings of a folder. Never raises: errors are in ``problems``."""
    own, project = folder / OWN_FILE, folder / PROJECT_FILE
    try:
        if own.is_file():
            table = _load(own)
            ignored = PROJECT_FILE if _project_table(project) else ""
            return _checked(OWN_FILE, table, ignored)
        return _checked(PROJECT_FILE, _project_table(project), "")
    except _Unreadable as error:
        return SettingsFile(problems=(str(error),))


class _Unreadable(Exception):
    """The file exists and cannot be read."""


def _project_table(path: Path) -> dict[str, Any]:
    table = _load(path).get("tool", {}).get("stowhand", {}) if path.is_file() else {}
    return table if isinstance(table, dict) else {}


def _load(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _Unreadable(f"{path.name}: {error}") from None


def _checked(name: str, table: dict[str, Any], ignored: str) -> SettingsFile:
    values: dict[str, str] = {}
    problems: list[str] = []
    for key, value in table.items():
        name_in_python = key.replace("-", "_")
        if name_in_python not in SETTINGS_BY_NAME:
            problems.append(
                f"{name}: unknown setting {key!r}{hint(name_in_python, SETTINGS) or suggest(name_in_python, SETTINGS)}"
            )
            continue
        setting = SETTINGS_BY_NAME[name_in_python].name
        if setting in values:
            problems.append(f"{name}: {key} is another name of {setting}, which is given too; leave out one of them")
        elif isinstance(value, list) and isinstance(SETTINGS[setting], Names):
            values[setting] = ",".join(map(str, value))
        elif not isinstance(value, str | int | float):
            problems.append(f"{name}: {key}: got {a_type(value)}; use a single value")
        else:
            values[setting] = str(value).lower() if isinstance(value, bool) else str(value)
    return SettingsFile(name=name if table else "", values=values, problems=tuple(problems), ignored=ignored)
