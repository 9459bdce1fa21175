"""Every exception, one tree.

StowhandError
├── Misuse                    a call that cannot work: raised by a handler, its job fails at once
│   ├── ConfigurationError    a setting is missing, unknown or contradicts another     (exit code 2)
│   │   └── CrontabError      lines of a crontab, or items, that are wrong; names each
│   └── InvalidJob            a job that may not be enqueued; says what, and the limit (a ValueError)
├── UnknownTask               no such task here; suggests the nearest name             (a LookupError)
├── DuplicateTask             two functions claim one task name
├── ResourceUnavailable       what a task asks for could not be opened: its worker ends
├── UnknownJob                there is no job of this id, and there never was          (a LookupError)
├── NoResult                  a job whose result was asked for has none
│   ├── JobFailed             it has failed for good: with its error, class and attempts
│   ├── JobCanceled           it was canceled
│   ├── JobRemoved            it was removed while it was waited for
│   ├── JobReplaced           another job took its place under its key
│   ├── JobNotVisible         the transaction that it was enqueued in is open, or was rolled back
│   └── ResultNotKept         it has ended; what it returned, or how it ended, was not kept
├── UndecodablePayload        a row whose payload no worker can read; that job alone fails
├── StoreError
│   ├── StoreUnreachable      the store does not answer                                (exit code 3)
│   ├── StoreRefused          the login, or the worker token, has no right to this
│   ├── StoreTooSlow          a store that is only read did not answer within its ``read_timeout``
│   ├── QueueFull             a flow's queue holds as many jobs as it may: nothing was created
│   ├── OutcomeUnknown        the reply to an enqueue was lost: committed, or not
│   ├── LeaseLost             a write of an attempt that no longer holds its record: nothing was changed
│   ├── LogRefused            no such entry, or the log of an attempt that is over
│   ├── TableUnsuitable       a user's table, or view, cannot be served as it is; names the DDL that fixes it
│   └── SchemaError           the store's schema does not suit this version            (exit code 4)
│       ├── SchemaMissing     nothing is installed
│       ├── SchemaOutdated    an older schema: run ``stowhand migrate``
│       └── SchemaTooNew      a newer, breaking schema: upgrade this program
└── NonRetryable              raised by a handler: fail at once, whatever attempts are left
    └── Poison                the same, and counted apart in the metrics
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from stowhand.hints import our_words, sentence

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
    """No task of that name is registered here."""


class DuplicateTask(StowhandError):
    """Two functions were registered under one task name."""


class ResourceUnavailable(StowhandError):
    """A resource that a task asks for could not be opened, has ended by itself, or is not open."""


class UnknownJob(StowhandError, LookupError):
    """There is no job of this id, and there never was."""


class NoResult(StowhandError):
    """A job whose result was asked for has none."""

    def __init__(self, message: str, job_id: int = 0) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(NoResult):
    """It has failed for good."""

    def __init__(
        self, message: str, job_id: int = 0, *, error: str = "", error_class: str | None = None, attempts: int = 0
    ) -> None:
        super().__init__(message, job_id)
        self.error = error
        """Its last error: the title on the first line, the traceback below it."""
        self.error_class = error_class
        """The dotted path of the error's class, ``WorkerDied``, or ``by hand``; ``None``: its worker did not say."""
        self.attempts = attempts
        """Attempts that it has had."""


class JobCanceled(NoResult):
    """It was canceled."""


class JobRemoved(NoResult):
    """It was removed while it was waited for."""


class JobReplaced(NoResult):
    """Another job took its place, and its id, under its key: what comes of that one is another result."""


class JobNotVisible(NoResult):
    """The transaction that it was enqueued in is still open, or was rolled back."""


class ResultNotKept(NoResult):
    """It has ended; what it returned, or how it ended, was not kept."""


class UndecodablePayload(StowhandError):
    """A stored payload that no version of the program can read: it is no strict JSON, or beyond the limits."""


class PayloadMismatch(StowhandError):
    """A stored payload, or a result, is valid JSON that this version of its task cannot take; during a deploy another
    version may."""


class StoreError(StowhandError):
    """The store refused or failed."""


class StoreUnreachable(StoreError):
    """The store does not answer. The message never contains a password."""


class StoreRefused(StoreError):
    """The store answers, and refuses this call to this login or this worker token. The call has changed nothing."""


class StoreTooSlow(StoreError):
    """A question to a store that is only read took longer than its ``read_timeout``. The store itself is well."""


class QueueFull(StoreError):
    """A queue holds as many jobs as it may. Nothing was written; the same call succeeds once there is room."""


class OutcomeUnknown(StoreError):
    """The connection broke while an enqueue was being committed: it may or may not be there.

    Repeat it with the same ``key``: with a key a repeat yields one job.
    """


class LeaseLost(StoreError):
    """The attempt does not hold its record any more: another worker has it, or it is deleted. Nothing was changed."""


class LogRefused(StoreError):
    """There is no such entry in the execution log, or the attempt that it belongs to is over. Nothing was changed."""


class TableUnsuitable(StoreError):
    """A user's table or view cannot be served as it is. The message names each problem and the DDL that fixes it."""


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


def a_type(given: object) -> str:
    """``an int``"""
    name = type(given).__qualname__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


MAX_LISTED_WORDS = 24
SYNONYMS = {
    "pool_size": "max_pool_size",
    "max_pool_size": "pool_size",
    "prepared_statements": "no_prepared_statements",
    "no_prepared_statements": "prepared_statements",
}
"""Options that Python and the settings name differently, both ways."""


def hint(given: object, known: Iterable[str], likeness: float = 0.6, others: Mapping[str, str] = SYNONYMS) -> str:
    """Return ``; did you mean 'x'?``, or another hint; empty: no known word is near.

    Args:
        given: the unknown word.
        known: words that are known in its place.
        likeness: from 0 to 1: how near a known word must be.
        others: known words by further names.

    """
    words = list(known)
    if (text := sentence(given, words)) is not None:
        return f"; {text}."
    meant = our_words(given, words) or _near(given, words, likeness, others)[:1]
    return f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""


def suggest(given: object, known: Iterable[str]) -> str:
    """Return the end of a complaint about an unknown word: ``; did you mean 'x'? there are: …``"""
    words = sorted(map(str, known), key=str.lower)
    if not words:
        return "; there are none"
    near = our_words(given, words) or _near(given, words, 0.6, SYNONYMS)
    listed = list(dict.fromkeys((*near, *words)))
    shown = ", ".join(listed[:MAX_LISTED_WORDS]) + (", …" if len(listed) > MAX_LISTED_WORDS else "")
    if (text := sentence(given, words)) is not None:
        return f"; {text}. There are: {shown}"
    return f"{hint(given, words) or ';'} there are: {shown}"


def unknown_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have, with a hint where another library has it.

    Python itself adds the nearest attribute of the object.
    """
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    known = dir(type(owner))
    if (advice := sentence(name, known)) is not None:
        return AttributeError(f"{text}; {advice}")
    meant = " or ".join(f"'.{word}'" for word in our_words(name, known))
    return AttributeError(f"{text}; did you mean {meant}?" if meant else text)


def _near(given: object, known: Collection[str], likeness: float, others: Mapping[str, str]) -> list[str]:
    """The nearest first; at most three."""
    spelt = {name.lower(): word for name, word in others.items() if word in known}
    spelt |= {word.lower(): str(word) for word in known}
    return [spelt[name] for name in difflib.get_close_matches(str(given).lower(), spelt, 3, likeness)]
