"""The declaration of a flow: the queues that a job passes one after another, the same for any store. Pure functions.

first ──▶ second ──▶ third                     each queue names the next, or a result chooses it (``next_queue``)
             │
             ├── second:kid                    a parent creates children, and continues when all have ended
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
"""Maximum characters of a name of a flow, queue or limiter. The names of flow, parent and child form a task's name."""
MAX_PRIORITIES = 100
DEFAULT_KEY_LIFE_SECONDS = 86_400.0
RESERVED_FIELDS = ("id", "flowName", "priority", "correlationId")
"""Reserved fields of a job's hash. Attributes with these names are refused."""


class Layout(StrEnum):
    """The layout of a flow's keys in Redis."""

    CLASSIC = "classic"
    """The keys of the published original, whose workers may serve the flow too. It has one priority."""
    PRIORITY = "priority"
    """The keys of its later version, with priorities, and with queues that several flows share."""


class Limiter(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """A limit of jobs per period. Jobs beyond it wait for a later window."""

    reservoir: int
    """Maximum number of jobs in one window."""
    interval: float
    """Duration of a window, in seconds or as a timedelta."""
    group_by: str | None = None
    """An attribute: each of its values has its own reservoir. ``None``: all jobs share one."""
    id: str | None = None
    """Queues whose limiters have the same id share one reservoir; ``None``: the queue's name."""

    def __post_init__(self) -> None:
        _read_seconds(self, "interval")
        if type(self.reservoir) is not int or self.reservoir < 1:
            raise ConfigurationError(f"limiter: reservoir: got {self.reservoir!r}; use a whole number from 1")
        if not _is_number(self.interval) or not 0.001 <= self.interval <= DEFAULT_KEY_LIFE_SECONDS:
            raise ConfigurationError(f"limiter: interval: got {self.interval!r}; use 0.001 s to a day, or a timedelta")
        for field in ("group_by", "id"):
            if getattr(self, field) is not None:
                _check_name(f"limiter: {field}", getattr(self, field), 512)


class Queue(msgspec.Struct, frozen=True, metaclass=SuggestingMeta):
    """One step of a flow."""

    name: str
    attributes_to_get: Sequence[str] | None = None
    """The attributes that its worker function receives; ``None``: all."""
    next_queue: str | Mapping[str, str] | None = None
    """The queue that receives a completed job. In a queue that flows share: a map from the flow's name to that queue.
    ``None``: the job is finished."""
    priorities: int = 1
    """The number of priorities. Priority 1 is served first."""
    priority_change: int | Mapping[str, int] = 0
    """Added to a job's priority when it moves to the next queue: one number, or a map from the flow's name to one."""
    max_retries: int = 0
    max_resets: int | None = None
    """How often a worker may be lost while it runs a job; ``None``: 5, or 0 if ``max_retries`` is 0."""
    backoff: AnyBackoff | None = None
    """Returns the seconds to wait after the n-th failure: a function of n, or of n and the error. ``None``: 0."""
    delayable: bool = False
    """Whether its worker function may raise ``DelayError``."""
    limiter: Limiter | None = None
    max_length: int | None = None
    """Maximum number of waiting jobs; the creation of more is refused. ``None``: a million in Redis, which keeps jobs
    in memory, and no limit in SQL stores."""
    gather: bool = True
    """For a parent: put the results of its children into one attribute. If it is false, or if the results exceed the
    size of an attribute, they are read in pages (``Flow.get_children``)."""
    children_must_succeed: bool = False
    """For a parent: fail it if one of its children has failed. Its retry creates only these children again."""
    children: Sequence[Queue] = ()
    """Child queues. They make the queue a parent, which creates jobs in them and waits for these."""

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
            yield f"backoff: got {a_type(backoff)}; use a function of the attempt's number"
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
            yield f"limiter: got {a_type(limiter)}; use Limiter(reservoir=…, interval=…)"

    def _parent_problems(self) -> Iterator[str]:
        for field in ("gather", "children_must_succeed"):
            if not isinstance(getattr(self, field), bool):
                yield f"{field}: got {getattr(self, field)!r}; use True or False"
        if self.children_must_succeed and not self.children:
            yield "children_must_succeed: the queue has no children; leave it out"
        for child in self.children:
            if child.children or child.next_queue is not None:
                yield f"its child {child.name!r} has children or a next queue; a child can have neither"

    def _number_problems(self) -> Iterator[str]:
        for field, minimum, maximum in (("priorities", 1, MAX_PRIORITIES), ("max_retries", 0, 10_000)):
            value = getattr(self, field)
            if type(value) is not int or not minimum <= value <= maximum:
                yield f"{field}: got {value!r}; use a whole number from {minimum} to {maximum}"
        for field, minimum in (("max_resets", 0), ("max_length", 1)):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < minimum):
                yield f"{field}: got {value!r}; use a whole number from {minimum}, or None"

    def next_for(self, flow: str) -> str | None:
        """Return the next queue of a job of this flow; ``None`` if the job is finished."""
        return (
            self.next_queue
            if self.next_queue is None or isinstance(self.next_queue, str)
            else self.next_queue.get(flow)
        )

    def change_for(self, flow: str) -> int:
        """Return the number that is added to the priority of a job of this flow when it moves on."""
        change = self.priority_change
        return change.get(flow, 0) if isinstance(change, Mapping) else change


class FlowQueue(msgspec.Struct, frozen=True):
    """A queue of a flow, with its full name, and with its parent if it is a child."""

    name: str
    """``queue``, or ``parent:child``."""
    declared: Queue
    """The queue as the flow declares it."""
    parent: str | None = None

    @property
    def max_attempts(self) -> int:
        return self.declared.max_retries + 1

    @property
    def allowed_resets(self) -> int:
        """How often a worker may be lost while it runs a job before the job fails."""
        return allowed_resets(self.declared.max_resets, self.max_attempts)

    @property
    def is_parent(self) -> bool:
        return bool(self.declared.children)


class FlowShape(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """A whole flow. Its names are unique, and every next queue exists; otherwise ConfigurationError is raised."""

    name: str
    queues: Sequence[Queue]
    """The queues. Jobs start in the first."""
    lookup_attributes: Sequence[str] = ()
    """Attributes by which jobs can be found: a text or a number, or a list of these with one entry for each element."""
    key_life: float = DEFAULT_KEY_LIFE_SECONDS
    """Seconds for which a job is kept: from its creation in Redis, from its end in SQL stores (their history)."""
    layout: Layout | str = Layout.CLASSIC
    hash_tag: str | None = None
    """For Redis Cluster: every key begins with ``{hash_tag}:``, so that one slot holds the flow."""

    def __post_init__(self) -> None:
        _check_name("flow", self.name, NAME_LIMIT)
        _read_queues(self, "queues", f"flow {self.name!r}")
        lookups = _read_names(f"flow {self.name!r}: lookup_attributes", self.lookup_attributes)
        msgspec.structs.force_setattr(self, "lookup_attributes", lookups)
        _read_seconds(self, "key_life")
        try:
            msgspec.structs.force_setattr(self, "layout", Layout(self.layout))
        except ValueError:
            raise ConfigurationError(f"layout: got {self.layout!r}; use 'classic' or 'priority'") from None
        _raise_problems(f"flow {self.name!r}", self._problems())

    def _problems(self) -> Iterator[str]:
        if not self.queues:
            yield "queues: use at least one Queue"
            return
        names = [queue.name for queue in self.all_queues()]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"two queues are named {name!r}"
        queue_names = {queue.name for queue in self.queues}
        for queue in self.queues:
            next_name = queue.next_for(self.name)
            if next_name is not None and next_name not in queue_names:
                yield f"queue {queue.name!r}: its next queue {next_name!r} is not a queue of this flow"
        if self.layout is Layout.CLASSIC and any(queue.declared.priorities > 1 for queue in self.all_queues()):
            yield "the classic layout has one priority; use layout='priority'"
        if not _is_number(self.key_life) or not 1 <= self.key_life <= 366 * 86_400:
            yield f"key_life: got {self.key_life!r}; use 1 s to a year, or a timedelta"
        for queue in self.queues:
            if queue.name == self.name and {child.name for child in queue.children} & set(self.lookup_attributes):
                yield (
                    f"its queue {queue.name!r} has the name of the flow, and one of its children the name of a lookup"
                    " attribute; rename one of them"
                )
        if self.hash_tag is not None and not _is_tag(self.hash_tag):
            yield f"hash_tag: got {self.hash_tag!r}; use a short text without braces"

    def all_queues(self) -> Iterator[FlowQueue]:
        """Yield every queue, each parent followed by its children."""
        for queue in self.queues:
            yield FlowQueue(queue.name, queue)
            for child in queue.children:
                yield FlowQueue(f"{queue.name}:{child.name}", child, parent=queue.name)

    def find_queue(self, name: str) -> FlowQueue:
        """Return the queue with this full name. Raises ConfigurationError with a suggestion."""
        for queue in self.all_queues():
            if queue.name == name:
                return queue
        raise ConfigurationError(self.unknown_queue_message(name))

    def unknown_queue_message(self, name: str) -> str:
        """Return the message for an unknown full name, with a suggestion."""
        names = (queue.name for queue in self.all_queues())
        return f"flow {self.name!r} has no queue {name!r}{suggest(name, names)}"

    @property
    def entry(self) -> FlowQueue:
        """The queue in which jobs start."""
        return next(self.all_queues())


def _raise_problems(owner: str, problems: Iterable[str]) -> None:
    if message := "; ".join(f"{owner}: {problem}" for problem in problems):
        raise ConfigurationError(message)


def _read_seconds(options: msgspec.Struct, field: str) -> None:
    value: object = getattr(options, field)
    if isinstance(value, timedelta | str):
        try:
            msgspec.structs.force_setattr(options, field, seconds(value))
        except ValueError as error:
            raise ConfigurationError(f"{field}: {error}") from None


def _read_queues(options: msgspec.Struct, field: str, owner: str) -> None:
    value: object = getattr(options, field)
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{owner}: {field}: got {a_type(value)}; use a list of Queue")
    queues = tuple(value)
    for queue in queues:
        if not isinstance(queue, Queue):
            raise ConfigurationError(f"{owner}: {field}: the list contains {queue!r}; use Queue(…)")
    msgspec.structs.force_setattr(options, field, queues)


def _map_problems(field: str, value: object, kind: type, expected: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        if not all(isinstance(flow, str) and type(item) is kind for flow, item in value.items()):
            yield f"{field}: got {value!r}; use a map from a flow's name to {expected}"
    elif type(value) is not kind and not (field == "next_queue" and value is None):
        yield f"{field}: got {value!r}; use {expected}, or a map from a flow's name to one"


def _check_name(field: str, value: Any, limit: int) -> None:
    try:
        check_name(field, value, limit)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if limit == NAME_LIMIT and any(sign in value for sign in ":/{}* "):
        raise ConfigurationError(
            f"{field}: {value!r} contains a colon, slash, brace, star or blank, which are reserved for keys"
        )


def _read_names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{field}: got {a_type(value)}; use a list of names")
    names = tuple(value)
    for name in names:
        _check_name(field, name, 512)
        if field.endswith("lookup_attributes") and name in RESERVED_FIELDS:
            raise ConfigurationError(f"{field}: {name!r} is a reserved field of a job; choose another name")
    return names


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_tag(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_LIMIT and not any(sign in value for sign in "{} \r\n\x00")
