"""One command of a job."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.durations import Duration, seconds

MAX_KEY_BYTES = 255
INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")
"""Variables of the worker that a command inherits, besides every ``LC_…``. No other is inherited, because it may
contain a password."""


class Command(msgspec.Struct, frozen=True):
    """A program, its arguments and its environment. It runs without a shell, unless ``argv`` is ``["sh", "-c", "…"]``.

    Raises ConfigurationError if a value is invalid.
    """

    key: str
    """Name in the execution log, such as ``clone`` or ``step.lint.0``."""
    argv: Sequence[str | Path]
    """The program, which is searched in the command's own PATH, and its arguments."""
    cwd: str | Path | None = None
    """The working folder. ``None`` means the handler's."""
    env: Mapping[str, str] | None = None
    """Environment variables, which take precedence over the handler's."""
    stdin: bytes | str | None = None
    """The input. ``None`` means no input (``/dev/null``)."""
    timeout: Duration | None = None
    """Maximum duration: seconds or a timedelta. ``None`` means the handler's."""

    def __post_init__(self) -> None:
        _check_key(self.key)
        msgspec.structs.force_setattr(self, "argv", self.words)
        read_folder(f"command {self.key}: cwd", self.cwd)
        read_variables(f"command {self.key}: env", self.env)
        read_seconds(f"command {self.key}: timeout", self.timeout)
        if self.stdin is not None and not isinstance(self.stdin, str | bytes):
            raise ConfigurationError(f"command {self.key}: stdin is {a_type(self.stdin)}; use text or bytes")

    @property
    def words(self) -> tuple[str, ...]:
        """``argv`` as text."""
        return _words(self.key, self.argv)

    @property
    def input(self) -> bytes | None:
        """``stdin`` as bytes."""
        return self.stdin.encode() if isinstance(self.stdin, str) else self.stdin


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the worker that a command sees."""
    return {name: value for name, value in environ.items() if name in INHERITED_VARIABLES or name.startswith("LC_")}


def read_folder(label: str, folder: object) -> str | None:
    """Return a folder as text, from text or a path. Raises ConfigurationError."""
    if folder is not None and not isinstance(folder, str | Path):
        raise ConfigurationError(f"{label} is {a_type(folder)}; use a path")
    return None if folder is None else os.fspath(folder)


def read_variables(label: str, variables: object) -> dict[str, str]:
    """Return variables that can be passed to a process. Raises ConfigurationError, which shows no values.

    A value may be a secret.
    """
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise ConfigurationError(f"{label} is {a_type(variables)}; use a mapping of names to values")
    for name, value in variables.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ConfigurationError(f"{label}: {name!r} is not a name of a variable")
        if not isinstance(value, str) or "\0" in value:
            raise ConfigurationError(f"{label}: the value of {name} is not text without NUL; use str(…)")
    return dict(variables)


def read_seconds(label: str, duration: object, *, is_zero_allowed: bool = False) -> float | None:
    """Return a duration in seconds, from a number, a timedelta or a phrase. Raises ConfigurationError."""
    if duration is None:
        return None
    value = math.nan
    if isinstance(duration, int | Duration | str) and not isinstance(duration, bool):
        with suppress(ValueError):
            value = seconds(duration)
    if not math.isfinite(value) or value < 0 or (value == 0 and not is_zero_allowed):
        raise ConfigurationError(f"{label}: got {duration!r}; use seconds, more than 0")
    return value


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key.strip() or len(key.encode()) > MAX_KEY_BYTES:
        raise ConfigurationError(f"command: its key is {key!r}; use 1 to {MAX_KEY_BYTES} bytes of text")


def _words(key: str, argv: object) -> tuple[str, ...]:
    if isinstance(argv, str | bytes):
        raise ConfigurationError(
            f"command {key}: argv is one string; use a list of words, or use a shell: ['sh', '-c', …]"
        )
    if not isinstance(argv, Sequence):
        raise ConfigurationError(f"command {key}: argv is {a_type(argv)}; use a list of words")
    words = tuple(os.fspath(word) if isinstance(word, Path) else word for word in argv)
    for index, word in enumerate(words):
        if not isinstance(word, str) or "\0" in word:
            raise ConfigurationError(f"command {key}: word {index} of argv is not text without NUL; use str(…)")
    if not words or not words[0]:
        raise ConfigurationError(f"command {key}: argv is empty; use a program and its arguments")
    return words
