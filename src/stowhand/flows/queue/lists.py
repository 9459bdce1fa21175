"""Parameter lists of children: a long one is stored apart, so that not every step of the job carries it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stowhand.flows.new_job import lists_children
from stowhand.protocols.flow_tables import FlowTables

LONG = 64 * 1024
"""Characters of the JSON text."""


def long_apart(
    fields: Mapping[str, str],
) -> tuple[Mapping[str, str], dict[str, str], tuple[tuple[str, str], ...]]:
    """The fields that the step carries; the list ids of the others, by attribute; and these lists: (id, text)."""
    long = [name for name, text in fields.items() if len(text) > LONG and lists_children(name)]
    if not long:
        return fields, {}, ()
    apart = {name: str(uuid.uuid4()) for name in long}
    rest = {name: text for name, text in fields.items() if name not in apart}
    return rest, apart, tuple((list_id, fields[name]) for name, list_id in apart.items())


async def read_lists(
    tables: FlowTables, apart: Mapping[str, str], names: Iterable[str] | None = None
) -> dict[str, Any]:
    """Decoded, by attribute; ``names``: only these. A list whose job was deleted is ``None``."""
    wanted = apart if names is None else {name: apart[name] for name in names if name in apart}
    found = {name: await tables.kept(list_id) for name, list_id in wanted.items()}
    return {name: None if text is None else msgspec.json.decode(text) for name, text in found.items()}
