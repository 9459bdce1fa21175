"""From text to a setting's value. Each raises ValueError with half a sentence that says what would be right."""

from __future__ import annotations

from collections.abc import Callable

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.durations import parse_duration
from stowhand.stores.url import scheme_of, store_url

LOOPBACK = "127.0.0.1"


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number within limits."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not least <= number <= most:
            raise ValueError(f"{number} given, must be from {least} to {most}")
        return number

    return parse


def duration(least: float, unit: str = "s") -> Callable[[str], float]:
    """A duration in seconds; ``unit`` is that of a plain number."""

    def parse(text: str) -> float:
        seconds = parse_duration(text, unit)
        if seconds < least:
            raise ValueError(f"{text} given, must be at least {least:g} s")
        return seconds

    return parse


class OneOf:
    """One of a few words, in any case."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, text: str) -> str:
        for word in self.words:
            if word.lower() == text.strip().lower():
                return word
        raise ValueError(f"{text!r} given, must be one of {', '.join(self.words)}")


def http_address(text: str) -> str:
    """``PORT`` or ``HOST:PORT``, in one spelling. Without a host it is this machine alone."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535) or (colon and not host):
        raise ValueError(f"{text!r} given, must be PORT or HOST:PORT")
    return f"{f'[{host}]' if ':' in host else host or LOOPBACK}:{int(port)}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of what ``http_address`` gave."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def yes_or_no(text: str) -> bool:
    """A switch in the environment or a file."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{text!r} given, must be true or false")


def schema_name(text: str) -> str:
    """A name that PostgreSQL keeps whole: it cuts names at 63 bytes without a word."""
    if not text or "\x00" in text or len(text.encode()) > 63:
        raise ValueError(f"{text!r} is no schema name; 1 to 63 bytes")
    return text


def listen_address(text: str) -> str:
    """A PostgreSQL store, in one spelling. Checked, for a wrong one would only make the worker slower, unnoticed."""
    try:
        url = store_url(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if scheme_of(url) != "postgresql":
        raise ValueError("only PostgreSQL can be listened to; give postgresql://…")
    return url


def kept_for(text: str) -> float | None:
    """How long completed jobs are kept."""
    return None if text.strip().lower() == "none" else duration(1)(text)


def kept_until(text: str) -> float | None:
    """How long failed jobs are kept."""
    return None if text.strip().lower() == "handled" else duration(1)(text)


def flag_names(text: str) -> tuple[str, ...]:
    """Flags with commas between them."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        limits.check_name("flags", name, limits.FLAG_LIMIT)
    return names
