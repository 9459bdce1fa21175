"""SQL by name: every statement of this store lies in ``sql/<moment>.sql`` under a line ``-- name: <name>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(moment: str) -> Mapping[str, str]:
    """The statements of one file by name."""
    text = files("stowhand.stores.sqlite").joinpath("sql", f"{moment}.sql").read_text("utf-8")
    pieces = _NAME.split(text)[1:]
    return MappingProxyType({name: body.strip() for name, body in zip(pieces[::2], pieces[1::2], strict=True)})
