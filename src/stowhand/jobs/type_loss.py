"""Values that come back from JSON as another type: a Decimal as text, a set as a list, a key that is a number as text.

A tuple may come back as a list. Everything else must come back as what it was, or is refused where it is enqueued.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from stowhand.errors import InvalidJob, a_type
from stowhand.jobs import strict_json

PLAIN_SCALARS = frozenset({str, int, float, bool, type(None)})
_STR = frozenset({str})
_JSON_TYPES = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a dict"}


class TypeLoss(msgspec.Struct, frozen=True):
    """One value that comes back as another type."""

    path: str
    """Where it is within the whole: ``.lines[0].amount``; empty: it is the whole."""
    value: object
    arrives: str
    """What it comes back as: ``text``."""
    is_key: bool = False
    """It is a key of the dict at ``path``."""

    def __str__(self) -> str:
        what = f"its key {str(self.value)[:40]}, {a_type(self.value)}," if self.is_key else a_type(self.value)
        return f"{what} would arrive as {self.arrives}"


def is_plain(value: object) -> bool:
    """Return whether JSON has a type for every value in it. ``strict_json.encode``, called first, limits its depth."""
    kind = type(value)
    values: Iterable[object]
    if isinstance(value, dict):
        values = value.values()
        if kind is not dict or not _STR.issuperset(map(type, value)):
            return False
    elif kind is list or kind is tuple:
        values = cast("Iterable[object]", value)
    else:
        return kind in PLAIN_SCALARS
    return PLAIN_SCALARS.issuperset(map(type, values)) or all(map(is_plain, values))


def encode_plain(value: object, *, what: str = "payload", limit: int = strict_json.SIZE_LIMIT) -> str:
    """``value`` as strict JSON text, where no annotation says what its parts are. Raises InvalidJob for a part that
    would come back as another type, and as ``strict_json.encode`` does.
    """
    text = strict_json.encode(value, what=what, limit=limit)
    if not is_plain(value) and (loss := find_loss(value, strict_json.decode(text, limit=2 * limit))) is not None:
        raise InvalidJob(f"{what}{loss.path}: {loss}; give {loss.arrives}")
    return text


def find_loss(value: object, arrived: object, *, typed: bool = False) -> TypeLoss | None:
    """Return the first value in ``value`` whose counterpart in ``arrived`` has another type.

    ``typed``: an annotation says the type of each part, so an equal value will do: a StrEnum for a ``str``.
    """
    return next(_losses(value, arrived, "", typed), None)


def _losses(value: Any, arrived: Any, path: str, typed: bool) -> Iterator[TypeLoss]:
    kind = type(value)
    if kind in PLAIN_SCALARS or (typed and value == arrived):
        return
    if kind is dict:
        yield from _losses_in_dict(value, arrived, path, typed)
    elif kind is list or kind is tuple:
        if isinstance(arrived, list | tuple):  # else it has become what the annotation asks for: a set, a model
            for index, (one, other) in enumerate(zip(value, arrived, strict=False)):
                yield from _losses(one, other, f"{path}[{index}]", typed)
    elif kind is not type(arrived):
        yield TypeLoss(path, value, _JSON_TYPES.get(type(arrived)) or a_type(arrived))
    elif isinstance(value, set | frozenset):
        yield from (TypeLoss(path, one, "another type") for one in value if one not in arrived)
    else:
        for name in _field_names(kind):
            yield from _losses(getattr(value, name), getattr(arrived, name), f"{path}.{name}", typed)


def _losses_in_dict(value: dict[Any, Any], arrived: Any, path: str, typed: bool) -> Iterator[TypeLoss]:
    if isinstance(arrived, dict):
        keys = {key: key for key in arrived}
        for key, item in value.items():
            if key in keys and (typed or type(keys[key]) is type(key)):
                yield from _losses(item, arrived[key], f"{path}.{key}", typed)
            elif type(key) is not str:  # a text that is not there: a TypedDict leaves out what it does not know
                yield TypeLoss(path, key, "text", is_key=True)
    else:  # given for a model
        for name, item in value.items():
            if isinstance(name, str) and hasattr(arrived, name):
                yield from _losses(item, getattr(arrived, name), f"{path}.{name}", typed)


def _field_names(kind: Any) -> Iterable[str]:
    """Of a dataclass, a named tuple, an attrs, msgspec or pydantic model; of anything else none."""
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    if hasattr(kind, "__attrs_attrs__"):
        return [one.name for one in kind.__attrs_attrs__]
    found = (getattr(kind, name, ()) for name in ("_fields", "__struct_fields__", "model_fields"))
    return next(filter(None, found), ())
