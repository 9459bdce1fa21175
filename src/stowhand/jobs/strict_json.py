"""Strict JSON: a subset of JSON that every reader accepts.

RFC 8259 allows texts that some readers refuse or change: PostgreSQL refuses ``\\u0000``, Python turns ``1e5000`` into
infinity, msgspec writes NaN as ``null``, and a thousand brackets exhaust a stack. The subset has no NUL, no lone
surrogates, no NaN or infinity, and bounded size, depth, digits and exponents. Writers and readers check it.

Checking a small text takes a few substring searches; only a suspicious text is examined exactly.

Without an annotation for a value, a value that would come back as another type (a Decimal as text, a set as a list) is
refused too. A tuple may come back as a list.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload, a_type

SIZE_LIMIT = 1024 * 1024
"""Maximum bytes of UTF-8 in a written text."""
READ_LIMIT = 2 * SIZE_LIMIT
"""Maximum bytes in a text that is read: a store that normalises JSON adds a space after each comma and colon."""
DEPTH_LIMIT = 64
DIGITS_LIMIT = 300
EXPONENT_LIMIT = 308

# Possessive quantifiers avoid backtracking, so hostile text takes linear time.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NUMBER = re.compile(r"-?(\d++)(?:\.\d++)?(?:[eE][+-]?0*+(\d++))?")
_LONG_NUMBER = re.compile(rf"(?<!\d)\d{{{DIGITS_LIMIT + 1}}}")
# Two patterns that begin with a literal are three times as fast as one that begins with a class.
_EXPONENT = re.compile(r"[eE][+-]?\d{3}")
_LONG_EXPONENT = re.compile(r"e[+-]?\d{3}")
_LONG_EXPONENT_UPPER = re.compile(r"E[+-]?\d{3}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*+\\u0000")
_SURROGATE_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LONE_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*+\\u[dD][89a-fA-F]")
_NOT_A_NUMBER_WORD = re.compile(r"\b(?:NaN|Infinity)\b")

LONE_SURROGATE = "a string contains a lone surrogate, which is not valid Unicode"
NOT_A_NUMBER = "NaN and infinity are not JSON numbers; use null or a string"

_decoder = msgspec.json.Decoder()
_validator = msgspec.json.Decoder(msgspec.Raw)


def encode(value: object, *, what: str = "payload", limit: int = SIZE_LIMIT) -> str:
    """Return ``value`` as strict JSON text. Raises InvalidJob that names ``what``, the problem and the limit.

    Dataclasses, attrs, msgspec and pydantic models, datetimes, UUIDs, decimals, enums, bytes (base64) and sets are
    written as msgspec writes them. Keys that are numbers, dates or enums become their text.
    """
    try:
        raw = _encoder.encode(value)
        if b"null" in raw:  # None, or a NaN that msgspec silently replaces
            refuse_nan(value, _write_other)
        _validator.decode(raw)  # msgspec.Raw values are copied without a check
        text = raw.decode()
        problem = find_problem(text, limit)
    except RecursionError:
        problem = f"nested deeper than the limit of {DEPTH_LIMIT}, or it contains itself"
    except UnicodeError:
        problem = LONE_SURROGATE
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        problem = f"cannot be written as JSON: {error}"
    else:
        if problem is None:
            return text
    raise InvalidJob(f"{what}: {problem}")


def canonical(value: object) -> bytes:
    """Return the same text for any order of the value's keys and sets. Raises InvalidJob as ``encode`` does."""
    encode(value, what="unique")
    return _sorting.encode(value)


def decode(text: str, *, limit: int = READ_LIMIT) -> Any:
    """Return the value of a strict JSON text. Raises only UndecodablePayload."""
    return decode_with(_decoder, text, limit=limit)


def decode_with(decoder: msgspec.json.Decoder[Any], text: str, *, limit: int = READ_LIMIT) -> Any:
    """Return the value of a strict JSON text, decoded by this decoder.

    Raises UndecodablePayload. Its cause is a ``msgspec.ValidationError`` if the text is valid but not of that type.
    """
    if (problem := find_problem(text, limit)) is not None:
        raise UndecodablePayload(problem)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise UndecodablePayload(_plain(str(error))) from error
    except TypeError as error:  # the type has a list or an object as a set element or a key
        reason = f"{error} in a set, or as a key of a dict"
        raise UndecodablePayload(reason) from msgspec.ValidationError(reason)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise UndecodablePayload(_explain(text, error)) from error


def validate(text: str, *, limit: int = SIZE_LIMIT) -> None:
    """Raise UndecodablePayload unless ``text`` is strict JSON as a whole."""
    decode_with(_decoder, text, limit=limit)


def find_problem(text: str, limit: int) -> str | None:
    """Return the reason to refuse a text, or ``None``. Exact for grammatical JSON."""
    if (
        len(text) <= DEPTH_LIMIT and len(text) * 4 <= limit and "\\" not in text
    ):  # too short for any problem but an exponent
        return _examine(_STRING.sub('""', text)) if _EXPONENT.search(text) else None
    if len(text) * 4 > limit:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > limit:
            return f"{size} bytes, the limit is {limit}: keep the data in a file or a table, and pass its path or id"
    if "\\u0000" in text and _NUL.search(text):
        return "a string contains NUL (\\u0000), which PostgreSQL cannot store"
    if (
        text.count("[") + text.count("{") > DEPTH_LIMIT
        or (len(text) > DIGITS_LIMIT and _LONG_NUMBER.search(text))
        or _LONG_EXPONENT.search(text)
        or _LONG_EXPONENT_UPPER.search(text)
    ):
        return _examine(_STRING.sub('""', text))
    return None


def is_deepest(text: str) -> bool:
    """Return whether a text is nested to the limit, so that it would exceed it inside another value."""
    many = text.count("[") + text.count("{") >= DEPTH_LIMIT
    return many and _is_deeper(_STRING.sub('""', text), DEPTH_LIMIT - 1)


def _is_deeper(bare: str, limit: int) -> bool:
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        if depth > limit:
            return True
    return False


def _examine(bare: str) -> str | None:
    """Return the first problem with depth, digits or exponents in a text whose strings have been emptied."""
    if _is_deeper(bare, DEPTH_LIMIT):
        return f"nested deeper than the limit of {DEPTH_LIMIT}"
    for number in _NUMBER.finditer(bare):
        digits, exponent = number.groups()
        if len(digits) > DIGITS_LIMIT:
            return f"a number of {len(digits)} digits, the limit is {DIGITS_LIMIT}"
        # The length comes first: Python refuses int() of a million digits.
        if exponent and (len(exponent) > 3 or int(exponent) > EXPONENT_LIMIT):
            return f"a number with exponent {exponent[:12]}, the limit is {EXPONENT_LIMIT} either way"
    return None


def _explain(text: str, error: Exception) -> str:
    """Return the reason for a decoding error, also where the decoder's own message would mislead."""
    if not text.strip():
        return "empty, which is not JSON"
    if isinstance(error, UnicodeError) or _LONE_SURROGATE.search(_SURROGATE_PAIR.sub("", text)):
        return LONE_SURROGATE
    if _NOT_A_NUMBER_WORD.search(_STRING.sub('""', text)):
        return f"JSON is malformed: {NOT_A_NUMBER}"
    return _plain(str(error) or type(error).__name__)


def refuse_nan(value: object, write_other: Callable[[Any], object] | None = None) -> None:
    """Raise ValueError for NaN and infinity, which msgspec writes as ``null``. ``write_other`` is the enc_hook."""
    try:
        json.dumps(msgspec.to_builtins(value, enc_hook=write_other, str_keys=True), allow_nan=False)
    except ValueError:
        raise ValueError(NOT_A_NUMBER) from None


def _plain(message: str) -> str:
    return message.replace("`", "'")


def _write_other(value: Any) -> object:
    """Encode a pydantic model, which msgspec cannot. Pydantic is never imported here."""
    if hasattr(type(value), "__pydantic_validator__"):
        return value.model_dump(mode="json")
    if isinstance(value, tuple):  # a key: msgspec writes a tuple value as a list
        raise TypeError("a key of a dict is a tuple; convert it to text")
    raise TypeError(f"{a_type(value)} has no JSON form; give its id, its text or a dict")


_encoder = msgspec.json.Encoder(enc_hook=_write_other)
_sorting = msgspec.json.Encoder(enc_hook=_write_other, order="sorted")


PLAIN_SCALARS = frozenset({str, int, float, bool, type(None)})
_STR_ONLY = frozenset({str})
_JSON_TYPES = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a dict"}


class TypeLoss(msgspec.Struct, frozen=True):
    """A value that comes back as another type."""

    path: str
    """Its path within the whole value, such as ``.lines[0].amount``; empty for the whole value."""
    value: object
    arrives: str
    """The type that it comes back as, such as ``text``."""
    is_key: bool = False
    """True if it is a key of the dict at ``path``."""

    def __str__(self) -> str:
        subject = a_type(self.value)
        if self.is_key:
            subject = f"its key {str(self.value)[:40]}, {subject},"
        return f"{subject} would arrive as {self.arrives}"


def is_plain(value: object) -> bool:
    """Return whether JSON has a type for every value in it. Call ``encode`` first, which limits the depth."""
    kind = type(value)
    values: Iterable[object]
    if isinstance(value, dict):
        values = value.values()
        if kind is not dict or not _STR_ONLY.issuperset(map(type, value)):
            return False
    elif kind is list or kind is tuple:
        values = cast("Iterable[object]", value)
    else:
        return kind in PLAIN_SCALARS
    return PLAIN_SCALARS.issuperset(map(type, values)) or all(map(is_plain, values))


def encode_plain(value: object, *, what: str = "payload", limit: int = SIZE_LIMIT) -> str:
    """Return a value without annotations as strict JSON text.

    Raises InvalidJob as ``encode`` does, and for a part that would come back as another type.
    """
    text = encode(value, what=what, limit=limit)
    if not is_plain(value) and (loss := find_loss(value, decode(text, limit=2 * limit))) is not None:
        raise InvalidJob(f"{what}{loss.path}: {loss}; give {loss.arrives}")
    return text


def find_loss(value: object, arrived: object, *, typed: bool = False) -> TypeLoss | None:
    """Return the first value in ``value`` whose counterpart in ``arrived`` has another type.

    With ``typed``, an annotation gives the type of each part, so an equal value suffices: a StrEnum for a ``str``.
    """
    return next(_losses(value, arrived, "", typed), None)


def _losses(value: Any, arrived: Any, path: str, typed: bool) -> Iterator[TypeLoss]:
    kind = type(value)
    if kind in PLAIN_SCALARS or (typed and value == arrived):
        return
    if kind is dict:
        yield from _losses_in_dict(value, arrived, path, typed)
    elif kind is list or kind is tuple:
        if isinstance(arrived, list | tuple):  # else the annotation has converted it: to a set, a model
            for index, (item, other) in enumerate(zip(value, arrived, strict=False)):
                yield from _losses(item, other, f"{path}[{index}]", typed)
    elif kind is not type(arrived):
        yield TypeLoss(path, value, _JSON_TYPES.get(type(arrived)) or a_type(arrived))
    elif isinstance(value, set | frozenset):
        yield from (TypeLoss(path, item, "another type") for item in value if item not in arrived)
    else:
        for name in _field_names(kind):
            yield from _losses(getattr(value, name), getattr(arrived, name), f"{path}.{name}", typed)


def _losses_in_dict(value: dict[Any, Any], arrived: Any, path: str, typed: bool) -> Iterator[TypeLoss]:
    if isinstance(arrived, dict):
        keys = {key: key for key in arrived}
        for key, item in value.items():
            if key in keys and (typed or type(keys[key]) is type(key)):
                yield from _losses(item, arrived[key], f"{path}.{key}", typed)
            elif type(key) is not str:  # a text key may be absent: a TypedDict drops unknown keys
                yield TypeLoss(path, key, "text", is_key=True)
    else:  # the dict was converted to a model
        for name, item in value.items():
            if isinstance(name, str) and hasattr(arrived, name):
                yield from _losses(item, getattr(arrived, name), f"{path}.{name}", typed)


def _field_names(kind: Any) -> Iterable[str]:
    """Return the fields of a dataclass, a named tuple, or an attrs, msgspec or pydantic model; else none."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    names = (getattr(kind, name, ()) for name in ("_fields", "__struct_fields__", "model_fields"))
    return next(filter(None, names), ())
