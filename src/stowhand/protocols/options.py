"""Options: their declaration for every source (keyword, flag, variable, key of a file), and the options of a worker.

A field of an options struct is ``Annotated[type, Seconds("…")]``. An option reads values from Python (``read``) and
from text (``parse``), which may have a higher minimum. Both raise ValueError with the allowed values.
"""

from __future__ import annotations

import reprlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from datetime import timedelta
from functools import cache
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, a_type, hint
from stowhand.jobs import limits
from stowhand.jobs.durations import MAX_DURATION_SECONDS, format_duration, parse_duration, seconds
from stowhand.jobs.lifecycle import Backoff
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.jobs.sizes import format_size, parse_size
from stowhand.retry import BACKOFFS_BY_NAME, AnyBackoff, exponential, natural, resolve_backoff

if TYPE_CHECKING:
    from stowhand.protocols.store import Terms


VARIABLE_PREFIX = "STOWHAND_"


class Option(msgspec.Struct, frozen=True):
    """One option, declared at its field. ``options_of`` adds name, default and type of the field."""

    doc: str
    unset: str = ""
    """Description of the default, if it is not a fixed value."""
    called: str = ""
    """The name of the setting, if it differs from the field's."""
    short: tuple[str, ...] = ()
    """Further spellings of the flag."""
    on: Literal["worker", "store", "serve", "settings", "python"] = "worker"
    """Where it can be set: as a flag of ``stowhand worker``, of every command that opens a store, or of ``stowhand
    serve``; in the environment and the file only; or in Python only."""
    metavar: str = "TEXT"
    words: tuple[str, ...] = ()
    """All allowed texts, if there are only a few."""
    field: str = ""
    default: Any = None
    may_be_none: bool = False

    @property
    def name(self) -> str:
        """The name of the setting and in the file, such as ``poll_interval``."""
        return self.called or self.field

    @property
    def flag(self) -> str:
        """``--poll-interval``"""
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the environment and in a file, the main name first."""
        others = (short.removeprefix("--").replace("-", "_") for short in self.short if short.startswith("--"))
        return (self.name, *others)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables, such as ``STOWHAND_POLL_INTERVAL``."""
        return tuple(VARIABLE_PREFIX + name.upper() for name in self.names)

    @property
    def said_default(self) -> str:
        """The default as displayed text; empty without one."""
        return self.unset or self.say(self.default)

    def read(self, value: Any) -> Any:
        """Return the checked value. Raises ValueError."""
        return value

    def parse(self, text: str) -> Any:
        """Return the value of a text. Raises ValueError."""
        return self.read(text)

    def say(self, value: Any) -> str:
        """Return the text that ``parse`` reads as this value; empty if there is none."""
        return "" if value is None else str(value)


class Seconds(Option, frozen=True):
    """A duration. In Python a plain number is seconds."""

    minimum: float | None = None
    """Minimum; ``None``: more than 0."""
    metavar: str = "SECONDS"
    typed_least: float = 0
    """Minimum of a text. Python values may be smaller, as in tests."""
    unit: str = "s"
    """Unit of a plain number in text."""
    none: str = ""
    """The word for ``None`` in text."""

    def read(self, value: Any) -> Any:
        if isinstance(value, timedelta | str):
            value = seconds(value)
        require_type(value, int | float, "seconds, a timedelta, or a phrase such as '30s'")
        if self.minimum == 0 and not value >= 0:  # true of nan, too
            raise ValueError(f"got {value!r}, must not be negative")
        if self.minimum != 0 and not value > 0:
            raise ValueError(f"got {value!r}, must be more than 0")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"got {value!r}, must be at least {self.minimum:g} s")
        if value > MAX_DURATION_SECONDS:
            raise ValueError(f"got {reprlib.repr(value)}, the limit is 100 years")
        return value

    def parse(self, text: str) -> Any:
        if self.none and text.strip().lower() == self.none:
            return None
        value = parse_duration(text, self.unit)
        least = max(self.typed_least, self.minimum or 0)
        if value < least:
            # For retention, users may write 0 to mean "forever", but it would delete at once.
            word = f", or {self.none}" if self.none else ""
            plain = f"; a plain number is {self.unit}" if self.unit != "s" else ""
            raise ValueError(f"got {text.strip()}, must be at least {least:g} s{word}{plain}")
        return value

    def say(self, value: float | None) -> str:
        return self.none if value is None else format_duration(value)


class IntegerOption(Option, frozen=True):
    """A whole number within limits."""

    minimum: int = 1
    maximum: int = 10_000
    metavar: str = "N"

    def read(self, value: Any) -> Any:
        require_type(value, int, "a whole number")
        if not self.minimum <= value <= self.maximum:
            raise ValueError(f"got {reprlib.repr(value)}, must be from {self.minimum} to {self.maximum}")
        return value

    def parse(self, text: str) -> Any:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{reprlib.repr(text)} is not a whole number") from None
        return self.read(number)


class Size(Option, frozen=True):
    """A number of bytes: in text with a unit."""

    minimum: int = 1
    metavar: str = "SIZE"

    def read(self, value: Any) -> Any:
        if isinstance(value, str):
            value = parse_size(value)
        require_type(value, int, "bytes, or a phrase such as '512MB' or '1GiB'")
        if value < self.minimum:
            raise ValueError(
                f"got {value} bytes, must be at least {format_size(self.minimum)}; write for example 512MB"
            )
        return value

    def say(self, value: int | None) -> str:
        return "" if value is None else format_size(value)


class Switch(Option, frozen=True):
    """A Boolean."""

    negated: bool = False
    """True if the setting is the opposite of the field: ``no_prepared_statements``."""

    def read(self, value: Any) -> bool:
        require_type(value, bool, "True or False")
        return bool(value)

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in _BOOLEANS:
            raise ValueError(f"got {text!r}, must be true or false")
        return _BOOLEANS[word] is not self.negated

    def say(self, value: bool) -> str:
        return str(value is not self.negated).lower()


_BOOLEANS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


class Text(Option, frozen=True):
    """Text that ``check`` accepts, or one of a few words in any case."""

    check: Callable[[str], str] = str

    def read(self, value: Any) -> str:
        require_type(value, str, " or ".join(self.words) or "text")
        if not self.words:
            return self.check(value)
        return parse_word(value, self.words)


class Names(Option, frozen=True):
    """Several names, separated by commas in text. The flag may be repeated."""

    check: Callable[[Any], Any] = tuple

    def read(self, value: Any) -> Any:
        return self.check(value)

    def parse(self, text: str) -> Any:
        return self.check(tuple(name.strip() for name in text.split(",") if name.strip()))

    def say(self, value: Iterable[str]) -> str:
        return ",".join(value)


class BackoffOption(Option, frozen=True):
    """A backoff: a function, or the name of a preset."""

    words: tuple[str, ...] = tuple(BACKOFFS_BY_NAME)

    def read(self, value: Any) -> Any:
        names = ", ".join(self.words)
        require_type(value, str | Callable, f"a function of the attempt's number, or a name: {names}")
        try:
            return resolve_backoff(value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    def say(self, value: Any) -> str:
        return next(name for name, policy in BACKOFFS_BY_NAME.items() if policy is value)


class ObjectOption(Option, frozen=True):
    """An object that the program creates."""

    of: Any = object
    what: str = ""
    check: Callable[[Any], Any] | None = None

    def read(self, value: Any) -> Any:
        require_type(value, self.of, self.what)
        return value if self.check is None else self.check(value)


@cache
def options_of(declaring: type) -> Mapping[str, Option]:
    """Return the options that a struct or a TypedDict declares, by field."""
    defaults: Mapping[str, Any] = {}
    if issubclass(declaring, msgspec.Struct):
        defaults = dict(zip(declaring.__struct_fields__[::-1], declaring.__struct_defaults__[::-1], strict=False))
    options = {}
    for field, annotated in get_type_hints(declaring, include_extras=True).items():
        field_type, *metadata = get_args(annotated) or (annotated,)
        for option in metadata:
            if isinstance(option, Option):
                may_be_none = NoneType in get_args(field_type)
                options[field] = msgspec.structs.replace(
                    option, field=field, default=defaults.get(field), may_be_none=may_be_none
                )
    return MappingProxyType(options)


def read_fields(struct: msgspec.Struct) -> list[str]:
    """Replace each field by the value that its option reads. Return the problems."""
    problems = []
    for field, option in options_of(type(struct)).items():
        value = getattr(struct, field)
        try:
            if value is not None or not option.may_be_none:
                msgspec.structs.force_setattr(struct, field, option.read(value))
        except ValueError as error:
            problems.append(problem_text(field, error))
    return problems


def problem_text(name: str, error: ValueError) -> str:
    """Return the problem with the option's name. Errors of job limits already name the field."""
    return str(error) if isinstance(error, InvalidJob) else f"{name}: {error}"


def parse_word(value: str, words: Iterable[str]) -> str:
    """Return the matching word, in any case. Raises ValueError."""
    allowed = tuple(words)
    for word in allowed:
        if word.lower() == value.strip().lower():
            return word
    raise ValueError(f"got {value!r}, must be one of {', '.join(allowed)}{hint(value, allowed)}")


def parse_integer(value: str) -> int:
    """Return the whole number in a text. Raises ValueError."""
    if not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > 19:
        raise ValueError(f"{value[:40]!r} is not a whole number")
    return int(value)


def require_type(value: object, kinds: Any, words: str) -> None:
    """Raise ValueError for a value of another type."""
    # bool is a subclass of int, but True is not a number here.
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise ValueError(f"got {a_type(value)}; use {words}")


LOOK_AHEAD_SECONDS = 0.25
LISTENING_POLL_SECONDS = 10.0
Flags = Callable[[], Iterable[str] | Awaitable[Iterable[str] | None] | None]
"""Returns the currently forbidden flags. Called before every claim, so it should be fast."""
OUTAGE_BACKOFF: Backoff = exponential(base=0.1, cap=5.0)
"""Delay after n consecutive failures of a store call. An outage may last for days."""
MAX_ONCE_FAILURES = 9
"""Consecutive failures of claims or claim hooks after which a run with ``once`` ends: about 20 seconds."""
NAME_LIMIT = 255
VERSION_LIMIT = 128
DEFAULT_LEASE_SECONDS = 30.0
MIN_INTERVAL_SECONDS = 0.001
"""Minimum of a poll interval or a timeout in text. With less the worker would do nothing else."""
MIN_MEMORY_BYTES = 16 * 2**20
"""Python alone uses this much; a smaller number probably lacks its unit."""
MIN_LEASE_SECONDS = 1.0
"""With a shorter lease, a short pause of the machine would count as a lost worker."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of a worker. Durations are in seconds; a ``timedelta`` or a phrase such as "30s" is accepted too."""

    name: Annotated[
        str | None,
        Text(
            "The worker's name.",
            unset="host, pid and a random id, or the supervisor's choice",
            check=one_line,
            on="python",
        ),
    ] = None
    tasks: Annotated[
        tuple[str, ...] | None,
        Names("Claim only jobs of these tasks.", unset="all", check=_check_tasks, on="python"),
    ] = None
    queues: Annotated[
        tuple[str, ...] | None,
        Names(
            "Claim only jobs of these queues. Several: repeated, or with commas between them.",
            unset="all queues",
            short=("--queue",),
            metavar="QUEUE",
            check=_check_queues,
        ),
    ] = None
    exclude_queues: Annotated[
        tuple[str, ...],
        Names(
            "Do not claim jobs of these queues. Several: as above.",
            short=("--exclude-queue",),
            metavar="QUEUE",
            check=_check_excluded_queues,
        ),
    ] = ()
    concurrency: Annotated[
        int, IntegerOption("Number of jobs to run at once, in each process.", short=("-j", "--jobs", "--workers"))
    ] = 4
    poll_interval: Annotated[
        float | None,
        Seconds(
            "Interval of polls for jobs without a wake-up, in milliseconds or as a phrase (2s).",
            unset="2000, or 10000 while wake-ups arrive",
            typed_least=MIN_INTERVAL_SECONDS,
            metavar="MS",
            unit="ms",
        ),
    ] = None
    lease: Annotated[
        float,
        Seconds(
            "Time without a heartbeat after which a worker counts as lost and its jobs are reset.",
            minimum=MIN_LEASE_SECONDS,
        ),
    ] = DEFAULT_LEASE_SECONDS
    heartbeat_interval: Annotated[
        float | None, Seconds("Interval of renewals of the leases.", unset="a third of the lease", on="python")
    ] = None
    grace: Annotated[
        float,
        Seconds(
            "Time for running jobs to end when the worker stops.",
            unset="25s; with --preset service as long as --timeout",
            minimum=0,
        ),
    ] = 25.0
    timeout: Annotated[
        float | None,
        Seconds(
            "Time limit of one attempt, unless its task sets one.",
            unset="no limit",
            typed_least=MIN_INTERVAL_SECONDS,
        ),
    ] = None
    backoff: Annotated[
        AnyBackoff,
        BackoffOption(
            f"Delay between attempts, unless the task sets it: {', '.join(BACKOFFS_BY_NAME)}.", metavar="NAME"
        ),
    ] = natural
    forbidden_flags: Annotated[
        tuple[str, ...] | Flags,
        Names(
            "Do not claim jobs with any of these flags. Several: repeated, or with commas between them.",
            short=("--forbidden-flag",),
            metavar="FLAG",
            check=_check_flags,
        ),
    ] = ()
    """Names, or a function that returns names or ``None``. Called before every claim, which then takes one job."""
    app_version: Annotated[
        str | None,
        Text(
            "The version of the application, which is listed with its workers and the time of its first start.",
            unset="not known",
            check=_app_version,
        ),
    ] = None
    fair: Annotated[
        bool,
        Switch(
            "Let tasks take turns, so that many jobs of one task do not delay the others. Without it, all jobs are"
            " claimed in the order of priority and run time."
        ),
    ] = False
    once: Annotated[bool, Switch("Run until nothing is due, then end.")] = False
    look_ahead: Annotated[
        int,
        IntegerOption(
            "Maximum number of jobs to claim ahead of free slots, limited to 250 ms of work; 0: none.",
            minimum=0,
            on="python",
        ),
    ] = 500
    max_jobs: Annotated[
        int | None,
        IntegerOption(
            "Number of jobs after which the worker ends; with --processes another process replaces it.",
            maximum=1_000_000_000,
            unset="no limit",
        ),
    ] = None
    max_age: Annotated[
        float | None,
        Seconds(
            "Age at which the worker stops claiming and ends, as above, when no job runs.",
            unset="no limit",
            typed_least=1.0,
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        Size(
            "Memory of the process (512MB, 1GiB) above which the worker stops claiming and ends, as above, when no job"
            " runs.",
            unset="no limit",
            minimum=MIN_MEMORY_BYTES,
        ),
    ] = None
    sweep_interval: Annotated[
        float,
        Seconds(
            "Interval of searches for jobs of lost workers, while jobs run and for one lease after that; six times as"
            " long when idle.",
            on="python",
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        problems = read_fields(self)
        # The store's terms may replace a default lease; ``under`` checks that one.
        has_own_lease = not problems and self.lease != DEFAULT_LEASE_SECONDS
        if has_own_lease and (problem := heartbeat_problem(self.every_beat, self.lease, "lease")) is not None:
            problems.append(problem)
        if not problems and self.queues is not None and not set(self.queues).difference(self.exclude_queues):
            problems.append("queues, exclude_queues: every queue is excluded; name others")
        if problems:
            raise ConfigurationError("; ".join(problems))

    @property
    def every_beat(self) -> float:
        """The interval of renewals of one lease, in seconds."""
        return self.heartbeat_interval if self.heartbeat_interval is not None else self.lease / 3

    def under(self, terms: Terms | None) -> WorkerOptions:
        """Return the options adjusted to the store's terms. Raises ConfigurationError."""
        if terms is None:
            if (problem := heartbeat_problem(self.every_beat, self.lease, "lease")) is not None:
                raise ConfigurationError(problem)
            return self
        if terms.backoff is not None and self.backoff is not natural:
            raise ConfigurationError(
                "backoff: on this store the store's own options set the delay of a retry (for a table: retry_after);"
                " set it there, or for single records in the handler's policy"
            )
        beat = self.heartbeat_interval if self.heartbeat_interval is not None else terms.heartbeat_interval
        if terms.cancel_interval is not None:
            beat = min(terms.lease / 3 if beat is None else beat, terms.cancel_interval)
        if beat is not None and (problem := heartbeat_problem(beat, terms.lease, "stalled_max_age")) is not None:
            raise ConfigurationError(problem)
        options = copy(self)  # not replace(): a store's terms may have a shorter lease than worker options allow
        msgspec.structs.force_setattr(options, "lease", terms.lease)
        msgspec.structs.force_setattr(options, "heartbeat_interval", beat)
        return options

    def poll(self, *, is_listening: bool) -> float:
        """Return the seconds between two polls of an idle worker."""
        if self.poll_interval is not None:
            return self.poll_interval
        return LISTENING_POLL_SECONDS if is_listening else 2.0


def _check_tasks(value: object) -> tuple[str, ...]:
    return limits.read_names("tasks", value)


def _check_queues(value: object) -> tuple[str, ...]:
    names = _read_queues("queues", value)
    if not names:
        raise InvalidJob("queues: empty; name queues, or leave it out for all of them")
    return names


def _check_excluded_queues(value: object) -> tuple[str, ...]:
    return () if value is None else _read_queues("exclude_queues", value)


def _read_queues(field: str, value: object) -> tuple[str, ...]:
    return tuple(limits.check_queue(field, name) for name in limits.read_names(field, value))


def _check_flags(value: Any) -> Any:
    return value if callable(value) else limits.read_forbidden(value)


def _app_version(text: str) -> str:
    return limits.check_name("app_version", text, VERSION_LIMIT)


def one_line(name: str) -> str:
    """Return the name of a worker if it is one line. Raises ValueError."""
    return limits.check_name("name", name, NAME_LIMIT)


def heartbeat_problem(beat: float, lease: float, name: str) -> str | None:
    """Return the problem if heartbeats are too rare: one may be lost and one late before the lease expires."""
    if beat * 3 <= lease * 1.000001:  # three times 0.1 is more than 0.3
        return None
    return (
        f"heartbeat_interval: got {beat:g} s; {name} ({lease:g} s) must last at least three beats: "
        f"3 x {beat:g} s = {3 * beat:g} s"
    )
