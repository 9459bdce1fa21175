"""Parsing and formatting of sizes in bytes: ``512MB``, ``1.5GiB``."""

from __future__ import annotations

import re

BYTES_BY_UNIT = {
    "GiB": 2**30,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
    "B": 1,
}
_BYTES_BY_LOWER_CASE_UNIT = {unit.lower(): size for unit, size in BYTES_BY_UNIT.items()}
_SIZE_PATTERN = re.compile(r"(\d{1,15}(?:\.\d{0,9})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse a size into bytes. A plain number is bytes. Raises ValueError with a suggestion."""
    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example 512MB or 1GiB")
    unit = match[2].lower() or "b"
    if unit not in _BYTES_BY_LOWER_CASE_UNIT:
        raise ValueError(f"{match[2]!r} is not a unit of memory; available: {', '.join(BYTES_BY_UNIT)}")
    return round(float(match[1]) * _BYTES_BY_LOWER_CASE_UNIT[unit])


def format_size(size: int) -> str:
    """Return the shortest phrase that ``parse_size`` reads back as the same size."""
    unit = next(unit for unit, bytes_of in BYTES_BY_UNIT.items() if size % bytes_of == 0 and size >= bytes_of)
    return f"{size // BYTES_BY_UNIT[unit]}{unit}"
