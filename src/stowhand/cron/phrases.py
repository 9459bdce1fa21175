"""Time phrases as a crontab has them: ``4w3d2h1m``, whole numbers each with its unit, added up."""

from __future__ import annotations

import re

UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
"""Seconds."""
_PHRASE = re.compile(r"(?:[0-9]{1,12}[wdhms])+")
_PART = re.compile(r"([0-9]+)([wdhms])")


def parse_phrase(text: str) -> int:
    """Seconds. Raises ValueError with a sentence."""
    if not _PHRASE.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no time phrase; write for example 30m, 2d or 4w3d2h1m (units: w d h m s)")
    return sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))


def say_phrase(seconds: int) -> str:
    """The phrase with the largest units that ``parse_phrase`` reads back as the same number."""
    phrase = ""
    for unit, size in UNITS.items():
        number, seconds = divmod(seconds, size)
        phrase += f"{number}{unit}" if number else ""
    return phrase or "0s"
