"""One option: its sentence, and what it may be, wherever it is given: a keyword, a flag, a variable, a key of a file.

A field of an options struct is ``Annotated[type, Seconds("…")]``. An option reads what Python gives (``read``) and text
(``parse``), which may have a higher least; both raise ValueError with half a sentence that says what would be right.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, a_type, hint
from stowhand.jobs.durations import MAX_DURATION_SECONDS, parse_duration, say_duration, seconds
from stowhand.jobs.sizes import parse_size, say_size
from stowhand.retry import PRESETS as BACKOFFS
from stowhand.retry import named

PREFIX = "STOWHAND_"


class Option(msgspec.Struct, frozen=True):
    """One option, declared at its field. What follows from the field is filled in by ``options_of``."""

    doc: str
    unset: str = ""
    """What holds where it is not given, if that is no fixed value."""
    called: str = ""
    """Its name as a setting, where that is not the field's."""
    short: tuple[str, ...] = ()
    """Further spellings of the flag."""
    on: Literal["worker", "store", "serve", "settings", "python"] = "worker"
    """The commands with its flag: ``stowhand worker``; every command that opens a store; ``stowhand serve``; none: the
    environment and the file alone; or it is no setting at all."""
    metavar: str = "TEXT"
    words: tuple[str, ...] = ()
    """All that may be given in text, if it is one of a few."""
    field: str = ""
    default: Any = None
    may_be_none: bool = False

    @property
    def name(self) -> str:
        """Of the setting, and in the file: ``poll_interval``."""
        return self.called or self.field

    @property
    def flag(self) -> str:
        """``--poll-interval``"""
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and what else it is called in the environment and in a file: ``workers`` is ``jobs``."""
        others = (short.removeprefix("--").replace("-", "_") for short in self.short if short.startswith("--"))
        return (self.name, *others)

    @property
    def variables(self) -> tuple[str, ...]:
        """``STOWHAND_POLL_INTERVAL``, and by its other names."""
        return tuple(PREFIX + name.upper() for name in self.names)

    @property
    def said_default(self) -> str:
        """For people; empty: nothing."""
        return self.unset or self.say(self.default)

    def read(self, given: Any) -> Any:
        """The value of what Python gives."""
        return given

    def parse(self, text: str) -> Any:
        """The value of a text."""
        return self.read(text)

    def say(self, value: Any) -> str:
        """The text that ``parse`` reads as this value; empty: there is none."""
        return "" if value is None else str(value)


class Seconds(Option, frozen=True):
    """A duration. In Python a plain number is seconds."""

    least: float | None = None
    """``None``: more than 0."""
    metavar: str = "SECONDS"
    typed_least: float = 0
    """Of text. A program may have a use for less: a test."""
    unit: str = "s"
    """Of a plain number in text."""
    none: str = ""
    """The word for ``None`` in text."""

    def read(self, given: Any) -> Any:
        if isinstance(given, timedelta | str):
            given = seconds(given)
        refuse_other(given, int | float, "seconds, a timedelta, or a phrase such as '30s'")
        if self.least == 0 and not given >= 0:  # true of nan, too
            raise ValueError(f"{given!r} given, must not be negative")
        if self.least != 0 and not given > 0:
            raise ValueError(f"{given!r} given, must be more than 0")
        if self.least is not None and given < self.least:
            raise ValueError(f"{given!r} given, must be at least {self.least:g} s")
        if given > MAX_DURATION_SECONDS:
            raise ValueError(f"{reprlib.repr(given)} given, the limit is 100 years")
        return given

    def parse(self, text: str) -> Any:
        if self.none and text.strip().lower() == self.none:
            return None
        given = parse_duration(text, self.unit)
        least = max(self.typed_least, self.least or 0)
        if given < least:
            # Of what is kept, 0 is meant as "for ever", and would delete at once.
            word = f", or {self.none}" if self.none else ""
            plain = f"; a plain number is {self.unit}" if self.unit != "s" else ""
            raise ValueError(f"{text.strip()} given, must be at least {least:g} s{word}{plain}")
        return given

    def say(self, value: float | None) -> str:
        return self.none if value is None else say_duration(value)


class Whole(Option, frozen=True):
    """A whole number within limits."""

    least: int = 1
    most: int = 10_000
    metavar: str = "N"

    def read(self, given: Any) -> Any:
        refuse_other(given, int, "a whole number")
        if not self.least <= given <= self.most:
            raise ValueError(f"{reprlib.repr(given)} given, must be from {self.least} to {self.most}")
        return given

    def parse(self, text: str) -> Any:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{reprlib.repr(text)} is not a whole number") from None
        return self.read(number)


class Size(Option, frozen=True):
    """A number of bytes: in text with a unit."""

    least: int = 1
    metavar: str = "SIZE"

    def read(self, given: Any) -> Any:
        if isinstance(given, str):
            given = parse_size(given)
        refuse_other(given, int, "bytes, or a phrase such as '512MB' or '1GiB'")
        if given < self.least:
            raise ValueError(f"{given} bytes given, must be at least {say_size(self.least)}; write for example 512MB")
        return given

    def say(self, value: int | None) -> str:
        return "" if value is None else say_size(value)


class Switch(Option, frozen=True):
    """On or off."""

    negated: bool = False
    """As text it says the opposite: ``no_prepared_statements``."""

    def read(self, given: Any) -> bool:
        refuse_other(given, bool, "True or False")
        return bool(given)

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in _SWITCHES:
            raise ValueError(f"{text!r} given, must be true or false")
        return _SWITCHES[word] is not self.negated

    def say(self, value: bool) -> str:
        return str(value is not self.negated).lower()


_SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


class Text(Option, frozen=True):
    """Text, of which ``check`` may ask more; or one of a few words, in any case."""

    check: Callable[[str], str] = str

    def read(self, given: Any) -> str:
        refuse_other(given, str, " or ".join(self.words) or "text")
        if not self.words:
            return self.check(given)
        return one_of(given, self.words)


class Names(Option, frozen=True):
    """Several names. In text with commas between them; as a flag it may be repeated."""

    check: Callable[[Any], Any] = tuple

    def read(self, given: Any) -> Any:
        return self.check(given)

    def parse(self, text: str) -> Any:
        return self.check(tuple(name.strip() for name in text.split(",") if name.strip()))

    def say(self, value: Iterable[str]) -> str:
        return ",".join(value)


class Wait(Option, frozen=True):
    """How long to wait before the next attempt: a function, or one of its names."""

    words: tuple[str, ...] = tuple(BACKOFFS)

    def read(self, given: Any) -> Any:
        names = ", ".join(self.words)
        refuse_other(given, str | Callable, f"a function of the attempt's number, or a name: {names}")
        try:
            return named(given)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    def say(self, value: Any) -> str:
        return next(name for name, policy in BACKOFFS.items() if policy is value)


class Made(Option, frozen=True):
    """An object that the program makes."""

    of: Any = object
    what: str = ""
    check: Callable[[Any], Any] | None = None

    def read(self, given: Any) -> Any:
        refuse_other(given, self.of, self.what)
        return given if self.check is None else self.check(given)


@cache
def options_of(declaring: type) -> Mapping[str, Option]:
    """The options that a struct, or a TypedDict, declares, by field."""
    defaults: Mapping[str, Any] = {}
    if issubclass(declaring, msgspec.Struct):
        defaults = dict(zip(declaring.__struct_fields__[::-1], declaring.__struct_defaults__[::-1], strict=False))
    found = {}
    for field, annotated in get_type_hints(declaring, include_extras=True).items():
        type_of, *about = get_args(annotated) or (annotated,)
        for option in about:
            if isinstance(option, Option):
                may_be_none = NoneType in get_args(type_of)
                found[field] = msgspec.structs.replace(
                    option, field=field, default=defaults.get(field), may_be_none=may_be_none
                )
    return MappingProxyType(found)


def read_fields(made: msgspec.Struct) -> list[str]:
    """Put every field's value in its place as its option reads it. What is wrong is returned."""
    problems = []
    for field, option in options_of(type(made)).items():
        given = getattr(made, field)
        try:
            if given is not None or not option.may_be_none:
                msgspec.structs.force_setattr(made, field, option.read(given))
        except ValueError as error:
            problems.append(complaint(field, error))
    return problems


def complaint(name: str, error: ValueError) -> str:
    """What is wrong, and with what: the limits of jobs name that themselves."""
    return str(error) if isinstance(error, InvalidJob) else f"{name}: {error}"


def one_of(given: str, words: Iterable[str]) -> str:
    """The word that is meant, in whatever case. Raises ValueError."""
    for word in (known := tuple(words)):
        if word.lower() == given.strip().lower():
            return word
    raise ValueError(f"{given!r} given, must be one of {', '.join(known)}{hint(given, known)}")


def whole(given: str) -> int:
    """A number that is one. Raises ValueError."""
    if not given.removeprefix("-").isdecimal() or not given.isascii() or len(given) > 19:
        raise ValueError(f"{given[:40]!r} is no whole number")
    return int(given)


def refuse_other(given: object, kinds: Any, words: str) -> None:
    """Raises ValueError for what is of another type."""
    # bool is an int to Python; True as a number is a mistake.
    if not isinstance(given, kinds) or (isinstance(given, bool) and kinds is not bool):
        raise ValueError(f"{a_type(given)} given; give {words}")
