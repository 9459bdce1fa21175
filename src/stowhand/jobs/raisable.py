"""Outcomes that a handler may raise as well as return: exceptions that are frozen values at the same time.

An ``Exception``, and no ``BaseException``: what encloses a handler's own code (a transaction, a framework's context)
cleans up after exceptions, and often after these alone. So ``except Exception`` in a handler catches one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

from stowhand.errors import suggest
from stowhand.jobs.durations import MAX_DURATION_SECONDS, Duration, seconds
from stowhand.jobs.tries import class_path, error_title


class RaisableOutcome(Exception):
    """Base of the outcomes that may be raised: equal, hashed, shown and copied by their fields.

    Traceback, cause, context and notes are those of a raised exception. They can be set, and are no part of the value.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:  # a checker would take any argument

        def __new__(cls, *args: Any, **given: Any) -> Self:
            for name in given:
                if name not in cls.__match_args__:
                    raise TypeError(f"{cls.__name__}: no option {name!r}{suggest(name, cls.__match_args__)}")
            return super().__new__(cls, *args)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == _values_of(other)

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__match_args__)})"

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__match_args__ and name in vars(self):
            kind = type(self).__name__
            raise AttributeError(f"{kind}.{name} cannot be changed; make another {kind}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__match_args__:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be removed")
        super().__delattr__(name)

    def __reduce__(self) -> tuple[Any, ...]:
        # As Exception would do it, the constructor would be called with the positional arguments alone.
        return _restored, (type(self), dict(vars(self)))

    def __replace__(self, **changes: Any) -> Self:
        """Return a copy with other fields, as ``copy.replace`` does from Python 3.13 on."""
        return type(self)(**{name: getattr(self, name) for name in self.__match_args__} | changes)

    def _read_error(self, error: str | BaseException, error_class: str | None) -> tuple[str, str | None]:
        """Return text and class of an error. An exception becomes the cause, as with ``raise … from``."""
        if not isinstance(error, BaseException):
            return error, error_class
        self.__cause__ = error
        return error_title(error), error_class or class_path(error)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)


def _values_of(other: object) -> tuple[object, ...]:
    assert isinstance(other, RaisableOutcome)
    return other._values()  # noqa: SLF001 - of the same class


def _restored(kind: type[RaisableOutcome], attributes: dict[str, Any]) -> RaisableOutcome:
    outcome = kind.__new__(kind)
    vars(outcome).update(attributes)
    return outcome


def read_outcome_delay(outcome: str, delay: Duration) -> float:
    """Return the seconds, at most a hundred years.

    Raises ValueError for what is no duration, and for a negative one: a loop of such outcomes never rests. That is an
    error like any other and is tried again: a delay often comes from a reply, such as ``Retry-After``.
    """
    try:
        wait = seconds(delay)
        if math.isnan(wait):
            raise ValueError("nan given; give seconds, a timedelta or a phrase such as '30s'")
        if wait < 0:
            raise ValueError(f"{wait:g} seconds; it must not be negative: give 0, or max(0, …)")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{outcome}: delay: {error}") from None
    return min(wait, MAX_DURATION_SECONDS)
