"""The tree of exceptions.

StowhandError
├── Misuse                    a call that cannot work: raised by a handler, its job fails at once
│   ├── ConfigurationError    a setting is missing, unknown or contradicts another     (exit code 2)
│   │   └── CrontabError      lines of a crontab, or items, that are wrong; names each
│   └── InvalidJob            a job that may not be enqueued; names field and limit    (a ValueError)
├── UnknownTask               no task has this name; suggests the nearest one          (a LookupError)
├── DuplicateTask             two functions claim one task name
├── ResourceUnavailable       a resource of a task could not be opened: the worker ends
├── UnknownJob                there never was a job with this id                       (a LookupError)
├── NoResult                  the job has no result
│   ├── JobFailed             it has permanently failed: with its error, class and attempts
│   ├── JobCanceled           it was canceled
│   ├── JobRemoved            it was removed while the caller waited
│   ├── JobReplaced           another job with its key replaced it
│   ├── JobNotVisible         the transaction that enqueued it is open, or was rolled back
│   └── ResultNotKept         it has ended and its result, or its outcome, was not kept; or it was not committed
├── UndecodablePayload        a row whose payload no worker can read; that job alone fails
├── StoreError
│   ├── StoreUnreachable      the store does not answer                                (exit code 3)
│   ├── StoreRefused          the login, or the worker token, has no right to this call
│   ├── StoreTooSlow          a read-only store did not answer within its ``read_timeout``
│   ├── QueueFull             a flow's queue has its maximum length: nothing was created
│   ├── OutcomeUnknown        the reply to an enqueue was lost: it may be committed
│   ├── LeaseLost             a write of an attempt that lost its lease: nothing was changed
│   ├── LogRefused            no such entry, or the log of an attempt that is over
│   ├── TableUnsuitable       a user's table or view cannot be used as it is; names the DDL that fixes it
│   └── SchemaError           the store's schema does not suit this version            (exit code 4)
│       ├── SchemaMissing     nothing is installed
│       ├── SchemaOutdated    an older schema: run ``stowhand migrate``
│       └── SchemaTooNew      a newer, breaking schema: upgrade this program
└── NonRetryable              raised by a handler: fail at once, even if attempts are left
    └── Poison                the same, with the outcome ``poison`` in metrics
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn, TypeVar

from stowhand.hints import KNOWN_NAMES_BY_FOREIGN_NAME, NAMES_BY_FOREIGN_NAME, find_advice, find_equivalents

T = TypeVar("T")

__all__ = [
    "ConfigurationError",
    "CrontabError",
    "DuplicateTask",
    "InvalidJob",
    "JobCanceled",
    "JobFailed",
    "JobNotVisible",
    "JobRemoved",
    "JobReplaced",
    "LeaseLost",
    "LogRefused",
    "Misuse",
    "NoResult",
    "OutcomeUnknown",
    "PayloadMismatch",
    "Poison",
    "QueueFull",
    "ResourceUnavailable",
    "ResultNotKept",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "StoreError",
    "StoreRefused",
    "StoreTooSlow",
    "StoreUnreachable",
    "TableUnsuitable",
    "UndecodablePayload",
    "UnknownJob",
    "UnknownTask",
]
"""``StowhandError`` and ``NonRetryable`` are names of ``stowhand``."""


class StowhandError(Exception):
    """The base of all exceptions of this package."""


class Misuse(StowhandError):
    """A call that cannot work, such as waiting for a job inside a job. Raised by a handler, its job fails at once: each
    further attempt would repeat what the handler did before that call."""


class ConfigurationError(Misuse):
    """A setting is missing, unknown, or contradicts another one. All problems are reported at once."""


class CrontabError(ConfigurationError):
    """Lines of a crontab, or cron items, that are wrong: the message has one line for each. No item was accepted."""


class InvalidJob(Misuse, ValueError):
    """A job that may not be enqueued. Nothing was written. The message names the field and the limit."""


class UnknownTask(StowhandError, LookupError):
    """No task with this name is registered."""


class DuplicateTask(StowhandError):
    """Two functions were registered with the same task name."""


class ResourceUnavailable(StowhandError):
    """A resource of a task could not be opened, has ended by itself, or is not open."""


class UnknownJob(StowhandError, LookupError):
    """There never was a job with this id."""


class NoResult(StowhandError):
    """The job has no result."""

    def __init__(self, message: str, job_id: int = 0) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(NoResult):
    """The job has permanently failed."""

    def __init__(
        self, message: str, job_id: int = 0, *, error: str = "", error_class: str | None = None, attempts: int = 0
    ) -> None:
        super().__init__(message, job_id)
        self.error = error
        """The last error: the title on the first line, then the traceback, which is not for visitors of a web page."""
        self.error_class = error_class
        """The dotted path of the error's class, ``WorkerDied`` or ``by hand``; ``None`` if unknown."""
        self.attempts = attempts
        """The number of attempts."""


class JobCanceled(NoResult):
    """The job was canceled."""


class JobRemoved(NoResult):
    """The job was removed while the caller waited."""


class JobReplaced(NoResult):
    """Another job with its key replaced the job and took its id. Its result would be another one."""


class JobNotVisible(NoResult):
    """The transaction that enqueued the job is still open, or was rolled back."""


class ResultNotKept(NoResult):
    """The job has ended, but its result or its outcome was not kept. By id: it may also never have been committed."""


class UndecodablePayload(StowhandError):
    """A stored payload that no version of the program can read: not strict JSON, or beyond the limits."""


class PayloadMismatch(StowhandError):
    """A stored payload or result is valid JSON, but does not match this version of its task. During a deploy another
    version may match."""


class StoreError(StowhandError):
    """The store refused or failed."""


class StoreUnreachable(StoreError):
    """The store does not answer. The message never contains a password."""


class StoreRefused(StoreError):
    """The login or the worker token has no right to this call. Nothing was changed."""


class StoreTooSlow(StoreError):
    """A query to a read-only store took longer than its ``read_timeout``."""


class QueueFull(StoreError):
    """A queue has its maximum length. Nothing was written; the same call succeeds once there is room."""


class OutcomeUnknown(StoreError):
    """The connection broke during the commit of an enqueue: the job may or may not exist.

    Repeat the call with the same ``key``, which yields one job.
    """


class LeaseLost(StoreError):
    """The attempt has lost its lease: another worker has the record, or it was deleted. Nothing was changed."""


class LogRefused(StoreError):
    """The execution log has no such entry, or its attempt is over. Nothing was changed."""


class TableUnsuitable(StoreError):
    """A user's table or view cannot be used as it is. The message names each problem and the DDL that fixes it."""


class SchemaError(StoreError):
    """The store's schema does not suit this version of the package."""


class SchemaMissing(SchemaError):
    """No schema is installed. A worker installs it; ``stowhand migrate`` does too; enqueueing never does."""


class SchemaOutdated(SchemaError):
    """The schema is older than this package; a worker never upgrades one. Run ``stowhand migrate``."""


class SchemaTooNew(SchemaError):
    """The schema carries a newer, breaking change. Upgrade this package."""


class NonRetryable(StowhandError):
    """Raised by a handler, or found in a cause chain: the job fails at once."""


class Poison(NonRetryable):
    """A job that can never succeed (malformed payload, vanished row): failed at once, outcome ``poison``."""


def a_type(value: object) -> str:
    """Return the name of the value's type with an article, such as ``an int``."""
    name = type(value).__qualname__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


MAX_LISTED_WORDS = 24
SYNONYMS = {
    "pool_size": "max_pool_size",
    "max_pool_size": "pool_size",
    "prepared_statements": "no_prepared_statements",
    "no_prepared_statements": "prepared_statements",
}
"""Options that Python and the settings name differently, both ways."""


def hint(
    word: object, known: Iterable[str], min_similarity: float = 0.6, synonyms: Mapping[str, str] = SYNONYMS
) -> str:
    """Return ``; did you mean 'x'?``, or another hint; an empty text if no known word is similar.

    Args:
        word: the unknown word.
        known: the words that are valid in its place.
        min_similarity: the minimum similarity of a suggested word, 0 to 1.
        synonyms: known words by their synonyms.

    """
    known_words = list(known)
    if (text := find_advice(word, known_words)) is not None:
        return f"; {text}."
    suggestions = find_equivalents(word, known_words) or _near(word, known_words, min_similarity, synonyms)[:1]
    return f"; did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else ""


def suggest(word: object, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown word: ``; did you mean 'x'? Available: …``"""
    known_words = sorted(map(str, known), key=str.lower)
    if not known_words:
        return "; none is available"
    near = find_equivalents(word, known_words) or _near(word, known_words, 0.6, SYNONYMS)
    listed = list(dict.fromkeys((*near, *known_words)))
    shown = ", ".join(listed[:MAX_LISTED_WORDS]) + (", …" if len(listed) > MAX_LISTED_WORDS else "")
    if (text := find_advice(word, known_words)) is not None:
        return f"; {text}. Available: {shown}"
    if hint_text := hint(word, known_words):
        return f"{hint_text} Available: {shown}"
    return f"; available: {shown}"


class _ForeignAttribute:
    """Attribute that another library has and the class has not: reading it raises AttributeError with the hint."""

    __slots__ = ("_attributes", "_name")

    def __init__(self, name: str, attributes: frozenset[str]) -> None:
        self._name, self._attributes = name, attributes

    def __get__(self, owner: object, kind: type) -> NoReturn:
        hint_text = find_advice(self._name, self._attributes)
        if hint_text is None:
            equivalents = [f"'.{ours}'" for ours in NAMES_BY_FOREIGN_NAME[self._name] if ours in self._attributes]
            hint_text = f"did you mean {' or '.join(equivalents)}?"
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}; {hint_text}")


def explain_foreign_attributes(kind: type[T]) -> type[T]:
    """Class decorator: an attribute that other libraries have, and ``kind`` has not, raises AttributeError with a hint.

    A ``__getattr__`` could do this, but it slows every access to every attribute down.
    """
    attributes = frozenset(dir(kind))
    foreign_names = KNOWN_NAMES_BY_FOREIGN_NAME.keys() - attributes
    for name in foreign_names:
        if not attributes.isdisjoint(KNOWN_NAMES_BY_FOREIGN_NAME[name]):
            setattr(kind, name, _ForeignAttribute(name, attributes))
    kind.__dir__ = lambda self: sorted(set(object.__dir__(self)) - foreign_names)  # type: ignore[method-assign]
    return kind


def _near(word: object, known: Collection[str], min_similarity: float, synonyms: Mapping[str, str]) -> list[str]:
    """Return at most three known words, the nearest first."""
    by_lower_case = {name.lower(): word for name, word in synonyms.items() if word in known}
    by_lower_case |= {word.lower(): str(word) for word in known}
    nearest = difflib.get_close_matches(str(word).lower(), by_lower_case, 3, min_similarity)
    return [by_lower_case[name] for name in nearest]
