"""What a flow is: queues that a job passes one after another, declared once for any store. Pure: no I/O, no clock.

first ──▶ second ──▶ third                     each queue names the next, or a result chooses it (``next_queue``)
             │
             ├── second:kid                    a parent fans out into children, and goes on when all have ended
             └── second:other
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, a_type, suggest
from stowhand.jobs.durations import seconds
from stowhand.jobs.lifecycle import allowed_resets
from stowhand.jobs.limits import check_name
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.retry import AnyBackoff, takes_error

NAME_LIMIT = 40
"""Characters of a flow's, a queue's and a limiter's name: flow, parent and child together make one task's name."""
MAX_PRIORITIES = 100
DEFAULT_KEY_LIFE_SECONDS = 86_400.0
RESERVED_FIELDS = ("id", "flowName", "priority", "correlationId")
"""Reserved fields of a job's hash: an attribute with one of these names is refused."""


class Layout(StrEnum):
    """How a flow's jobs are laid out in Redis."""

    CLASSIC = "classic"
    """The founding document's keys. One priority; beside workers of the published original."""
    PRIORITY = "priority"
    """Its later keys: priorities, and queues that several flows share."""


class Limiter(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """So many jobs in so much time; the others wait for a later window."""

    reservoir: int
    """Jobs in one window."""
    interval: float
    """Seconds of a window; a timedelta is taken too."""
    group_by: str | None = None
    """An attribute: each of its values has a reservoir of its own. ``None``: one for all."""
    id: str | None = None
    """Queues whose limiters have one id share it; ``None``: the queue's name."""

    def __post_init__(self) -> None:
        _read_seconds(self, "interval")
        if type(self.reservoir) is not int or self.reservoir < 1:
            raise ConfigurationError(f"limiter: a reservoir of {self.reservoir!r}; give a whole number from 1")
        if not _is_number(self.interval) or not 0.001 <= self.interval <= DEFAULT_KEY_LIFE_SECONDS:
            raise ConfigurationError(
                f"limiter: an interval of {self.interval!r}; give 0.001 s to a day, or a timedelta"
            )
        for field in ("group_by", "id"):
            if getattr(self, field) is not None:
                _check_name(f"limiter: {field}", getattr(self, field), 512)


class Queue(msgspec.Struct, frozen=True, metaclass=SuggestingMeta):
    """One step of a flow."""

    name: str
    attributes_to_get: Sequence[str] | None = None
    """The attributes that its worker function receives; ``None``: all."""
    next_queue: str | Mapping[str, str] | None = None
    """Where a completed job goes: a queue, or by the flow's name (a queue that flows share); ``None``: it is done."""
    priorities: int = 1
    """1 is served first."""
    priority_change: int | Mapping[str, int] = 0
    """Added to a job's priority on its way to the next queue; by flow, or one for all."""
    max_retries: int = 0
    max_resets: int | None = None
    """How often a worker may die while running a job; ``None``: 5, or 0 where ``max_retries`` is 0."""
    backoff: AnyBackoff | None = None
    """How long to wait after the n-th failure: a function of n, or of n and the error; ``None``: at once."""
    delayable: bool = False
    """Its worker function may raise ``DelayError``."""
    limiter: Limiter | None = None
    max_length: int | None = None
    """Jobs that may wait in it, where they are created there: more are refused. ``None``: a million in Redis, where
    they are in memory; SQL stores know no such limit."""
    gather: bool = True
    """Of a parent: put the results of its children into one attribute. ``False``: they are read in pages
    (``Flow.get_children``), as they are where together they would be more than one attribute may be."""
    children_must_succeed: bool = False
    """Of a parent: it fails if one of its children has failed. Its retry makes only those children anew."""
    children: Sequence[Queue] = ()
    """Makes the queue a parent, which fans out into these and waits for them."""

    def __post_init__(self) -> None:
        _check_name("queue", self.name, NAME_LIMIT)
        if self.attributes_to_get is not None:
            names = _read_names(f"queue {self.name!r}: attributes_to_get", self.attributes_to_get)
            msgspec.structs.force_setattr(self, "attributes_to_get", names)
        _read_queues(self, "children", f"queue {self.name!r}")
        _raise_problems(f"queue {self.name!r}", self._problems())

    def _problems(self) -> Iterator[str]:
        yield from self._number_problems()
        yield from self._parent_problems()
        backoff: object = self.backoff
        if backoff is not None and not callable(backoff):
            yield f"backoff: {a_type(backoff)} given; give a function of the attempt's number"
        elif self.backoff is not None:
            try:
                takes_error(self.backoff)
            except ConfigurationError as error:
                yield str(error)
        for field, kind, expected in (
            ("next_queue", str, "a queue's name"),
            ("priority_change", int, "a whole number"),
        ):
            yield from _map_problems(field, getattr(self, field), kind, expected)
        limiter: object = self.limiter
        if limiter is not None and not isinstance(limiter, Limiter):
            yield f"limiter: {a_type(limiter)} given; give Limiter(reservoir=…, interval=…)"

    def _parent_problems(self) -> Iterator[str]:
        for field in ("gather", "children_must_succeed"):
            if not isinstance(getattr(self, field), bool):
                yield f"{field}: {getattr(self, field)!r} given; give True or False"
        if self.children_must_succeed and not self.children:
            yield "children_must_succeed is given, but the queue has no children"
        for child in self.children:
            if child.children or child.next_queue is not None:
                yield f"its child {child.name!r} has children, or a next queue, of its own; a child ends where it is"

    def _number_problems(self) -> Iterator[str]:
        for field, minimum, maximum in (("priorities", 1, MAX_PRIORITIES), ("max_retries", 0, 10_000)):
            value = getattr(self, field)
            if type(value) is not int or not minimum <= value <= maximum:
                yield f"{field}: {value!r} given; give a whole number from {minimum} to {maximum}"
        for field, minimum in (("max_resets", 0), ("max_length", 1)):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < minimum):
                yield f"{field}: {value!r} given; give a whole number from {minimum}, or None"

    def next_for(self, flow: str) -> str | None:
        """The next queue of a job of that flow; ``None``: it is done."""
        return (
            self.next_queue
            if self.next_queue is None or isinstance(self.next_queue, str)
            else self.next_queue.get(flow)
        )

    def change_for(self, flow: str) -> int:
        """What is added to its priority on the way."""
        change = self.priority_change
        return change.get(flow, 0) if isinstance(change, Mapping) else change


class FlowQueue(msgspec.Struct, frozen=True):
    """A queue in its flow: with its full name, and its parent if it is a child."""

    name: str
    """``queue``, or ``parent:child``."""
    declared: Queue
    """As the flow declares it."""
    parent: str | None = None

    @property
    def max_attempts(self) -> int:
        return self.declared.max_retries + 1

    @property
    def allowed_resets(self) -> int:
        """How often a worker may die while running a job before the job is failed."""
        return allowed_resets(self.declared.max_resets, self.max_attempts)

    @property
    def is_parent(self) -> bool:
        return bool(self.declared.children)


class FlowShape(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """A whole flow, checked: names are unique, and every queue that is named exists."""

    name: str
    queues: Sequence[Queue]
    """The first is where jobs enter."""
    lookup_attributes: Sequence[str] = ()
    """Jobs can be found by these: a text or a number, or a list of them, one entry for each."""
    key_life: float = DEFAULT_KEY_LIFE_SECONDS
    """Seconds that a job is kept, from its creation (Redis), or from its end (SQL: the store's history)."""
    layout: Layout | str = Layout.CLASSIC
    hash_tag: str | None = None
    """Redis Cluster: every key begins with ``{hash_tag}:``, so that the flow lies in one slot."""

    def __post_init__(self) -> None:
        _check_name("flow", self.name, NAME_LIMIT)
        _read_queues(self, "queues", f"flow {self.name!r}")
        lookups = _read_names(f"flow {self.name!r}: lookup_attributes", self.lookup_attributes)
        msgspec.structs.force_setattr(self, "lookup_attributes", lookups)
        _read_seconds(self, "key_life")
        try:
            msgspec.structs.force_setattr(self, "layout", Layout(self.layout))
        except ValueError:
            raise ConfigurationError(f"layout: {self.layout!r} given; give 'classic' or 'priority'") from None
        _raise_problems(f"flow {self.name!r}", self._problems())

    def _problems(self) -> Iterator[str]:
        if not self.queues:
            yield "queues: give at least one Queue"
            return
        names = [each.name for each in self.all_queues()]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"two queues are named {name!r}"
        for queue in self.queues:
            named = queue.next_queue if isinstance(queue.next_queue, str | None) else queue.next_queue.get(self.name)
            if named is not None and named not in {one.name for one in self.queues}:
                yield f"queue {queue.name!r} goes on to {named!r}, which is no queue of this flow"
        if self.layout is Layout.CLASSIC and any(each.declared.priorities > 1 for each in self.all_queues()):
            yield "the classic layout has one priority; give layout='priority'"
        if not _is_number(self.key_life) or not 1 <= self.key_life <= 366 * 86_400:
            yield f"key_life: {self.key_life!r} given; give 1 s to a year, or a timedelta"
        for queue in self.queues:
            if queue.name == self.name and {child.name for child in queue.children} & set(self.lookup_attributes):
                yield f"its queue {queue.name!r} is named like the flow, and a child of it like a lookup attribute"
        if self.hash_tag is not None and not _is_tag(self.hash_tag):
            yield f"hash_tag: {self.hash_tag!r} given; give a short text without braces"

    def all_queues(self) -> Iterator[FlowQueue]:
        """Every queue, each parent followed by its children."""
        for queue in self.queues:
            yield FlowQueue(queue.name, queue)
            for child in queue.children:
                yield FlowQueue(f"{queue.name}:{child.name}", child, parent=queue.name)

    def find_queue(self, name: str) -> FlowQueue:
        """The queue of that full name. Raises ConfigurationError that suggests."""
        for queue in self.all_queues():
            if queue.name == name:
                return queue
        raise ConfigurationError(self.unknown_queue_message(name))

    def unknown_queue_message(self, name: str) -> str:
        """The flow has no queue of that full name: a sentence that suggests another."""
        known = (queue.name for queue in self.all_queues())
        return f"flow {self.name!r} has no queue {name!r}{suggest(name, known)}"

    @property
    def entry(self) -> FlowQueue:
        """Where jobs enter."""
        return next(self.all_queues())


def _raise_problems(owner: str, problems: Iterable[str]) -> None:
    if message := "; ".join(f"{owner}: {problem}" for problem in problems):
        raise ConfigurationError(message)


def _read_seconds(options: msgspec.Struct, field: str) -> None:
    given: object = getattr(options, field)
    if isinstance(given, timedelta | str):
        try:
            msgspec.structs.force_setattr(options, field, seconds(given))
        except ValueError as error:
            raise ConfigurationError(f"{field}: {error}") from None


def _read_queues(options: msgspec.Struct, field: str, owner: str) -> None:
    given: object = getattr(options, field)
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{owner}: {field}: {a_type(given)} given; give a list of Queue")
    queues = tuple(given)
    for queue in queues:
        if not isinstance(queue, Queue):
            raise ConfigurationError(f"{owner}: {field}: {queue!r} among them; give Queue(…)")
    msgspec.structs.force_setattr(options, field, queues)


def _map_problems(field: str, value: object, kind: type, expected: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        if not all(isinstance(flow, str) and type(each) is kind for flow, each in value.items()):
            yield f"{field}: {value!r} given; a map goes from a flow's name to {expected}"
    elif type(value) is not kind and not (field == "next_queue" and value is None):
        yield f"{field}: {value!r} given; give {expected}, or a map from a flow's name to one"


def _check_name(field: str, value: Any, limit: int) -> None:
    try:
        check_name(field, value, limit)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if limit == NAME_LIMIT and any(sign in value for sign in ":/{}* "):
        raise ConfigurationError(f"{field}: {value!r} has a colon, slash, brace, star or blank, which keys are made of")


def _read_names(field: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{field}: {a_type(given)} given; give a list of names")
    names = tuple(given)
    for name in names:
        _check_name(field, name, 512)
        if field.endswith("lookup_attributes") and name in RESERVED_FIELDS:
            raise ConfigurationError(f"{field}: {name!r} is a job's own, and cannot be looked up")
    return names


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_tag(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_LIMIT and not any(sign in value for sign in "{} \r\n\x00")
