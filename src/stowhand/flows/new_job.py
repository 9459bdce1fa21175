"""New jobs of a flow: ids, and validation before an engine sees them."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from stowhand.clock import wall_clock
from stowhand.errors import ConfigurationError, InvalidJob, a_type
from stowhand.flows.engine import NewFlowJob
from stowhand.jobs import strict_json
from stowhand.jobs.durations import MAX_DURATION_SECONDS, Duration, seconds
from stowhand.jobs.strict_json import encode_plain
from stowhand.observe.propagation import current_correlation_id
from stowhand.protocols.flow_shape import RESERVED_FIELDS, FlowShape

NUMBER_DIGITS = 6
"""Number of hexadecimal digits at the end of an id that number the ids of a batch."""
MAX_NUMBERED_IDS = 16**NUMBER_DIGITS


class Ids:
    """Generator of ids: 48 bits of milliseconds, 12 of a counter, 62 random bits."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> str:
        """Return the next id. If the clock stops or goes back, the counter continues."""
        now = int(wall_clock().timestamp() * 1000) << 12
        self._last = max(now, self._last + 1)
        count = self._last & 0xFFF
        number = (self._last >> 12) << 80 | 0x7 << 76 | count << 64 | 0b10 << 62 | secrets.randbits(62)
        return str(uuid.UUID(int=number))

    def stem(self) -> str:
        """Return the start of up to ``MAX_NUMBERED_IDS`` ids, which ``numbered`` completes. They sort by number."""
        return self.new()[:-NUMBER_DIGITS]


def numbered(stem: str, number: int) -> str:
    """Return an id of a batch."""
    return f"{stem}{number:0{NUMBER_DIGITS}x}"


MAX_CHILDREN_BYTES = 32 * 1024 * 1024
MAX_NAME_CHARS = 512
"""Maximum length of an attribute's name and of a correlation id."""
Correlate = Callable[[], str | None]


def correlate() -> str:
    """Return the correlation id bound in the current context (a job that creates a job), or a new one."""
    return current_correlation_id() or str(uuid.uuid4())


def new_job(
    shape: FlowShape,
    attributes: Mapping[str, object] | None,
    *,
    priority: object = 1,
    correlation_id: object = None,
    delay: Duration | None = None,
    key: object = None,
) -> NewFlowJob:
    """Return the validated job. Raises InvalidJob, which names the error and the limit."""
    max_priority = shape.entry.declared.priorities
    if type(priority) is not int or not 1 <= priority <= max_priority:
        raise InvalidJob(f"priority: got {priority!r}; queue {shape.entry.name!r} has 1 to {max_priority}")
    if correlation_id is not None and (not isinstance(correlation_id, str) or len(correlation_id) > MAX_NAME_CHARS):
        raise InvalidJob(f"correlation_id: use a text of at most {MAX_NAME_CHARS} characters")
    strict_json.encode(correlation_id, what="correlation_id")
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_NAME_CHARS):
        raise InvalidJob(f"key: got {key!r}; use a text of 1 to {MAX_NAME_CHARS} characters")
    strict_json.encode(key, what="key")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidJob(f"attributes: got {a_type(attributes)}; use a dict")
    values = attributes or {}
    return NewFlowJob(
        values={
            _attribute(name): encode_plain(value, what=f"attribute {name!r}", limit=size_limit(name))
            for name, value in values.items()
            if value is not None
        },
        lookups=tuple((name, text) for name in shape.lookup_attributes for text in lookup_values(values.get(name))),
        priority=priority,
        correlation_id=correlation_id,
        delay=None if delay is None else _read_delay(delay),
        key=key,
    )


def size_limit(name: object) -> int:
    """Return the maximum size of an attribute's JSON text in bytes: the parameters of children may be large."""
    return MAX_CHILDREN_BYTES if lists_children(name) else strict_json.MAX_WRITTEN_BYTES


def lists_children(name: object) -> bool:
    """Return whether this attribute lists the parameters of a parent's children."""
    return isinstance(name, str) and name.startswith("children:") and name.endswith(":params")


def lookup_values(value: object) -> list[str]:
    """Return the lookup texts of a value: one of a text or number, one per element of a list, otherwise none."""
    if isinstance(value, list | tuple):
        return [text for item in value if not isinstance(item, list | tuple) for text in lookup_values(item)]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return []
    return [value if isinstance(value, str) else strict_json.encode(value, what="a lookup attribute")]


def read_id(job_id: object) -> str:
    """Return a job's id. Foreign ids of Redis may contain bytes that are not UTF-8. Raises InvalidJob."""
    if not isinstance(job_id, str) or not job_id:
        raise InvalidJob(f"job id: got {job_id!r}; use a text")
    return _encodable(job_id, "a job's id")


def read_ids(job_ids: str | Iterable[object]) -> list[str]:
    """Return the ids of one or several jobs. Raises InvalidJob."""
    return [read_id(job_id) for job_id in ([job_ids] if isinstance(job_ids, str) else job_ids)]


def lookup_text(attribute: str, value: object) -> str:
    """Return the lookup text of a value. Raises ConfigurationError, InvalidJob."""
    texts = [] if isinstance(value, Sequence) and not isinstance(value, str) else lookup_values(value)
    if not texts:
        raise ConfigurationError(f"{attribute}: got {value!r}; jobs are looked up by one text or number")
    return _encodable(texts[0], attribute)


def _encodable(text: str, what: str) -> str:
    try:
        text.encode(errors="surrogateescape")
    except UnicodeError:
        raise InvalidJob(f"{what}: {text!r} has a lone surrogate, which is not valid Unicode") from None
    return text


def _attribute(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidJob(f"attribute {name!r}: names are texts of 1 to {MAX_NAME_CHARS} characters")
    if name in RESERVED_FIELDS:
        raise InvalidJob(f"attribute {name!r} is the job's own")
    strict_json.encode(name, what=f"the name of attribute {name!r}")
    return name


def _read_delay(value: Duration) -> float:
    try:
        delay = seconds(value)
    except ValueError as error:
        raise InvalidJob(f"delay: {error}") from None
    if not 0 <= delay <= MAX_DURATION_SECONDS:
        raise InvalidJob(f"delay: got {value!r}; use 0 s to 100 years")
    return delay
