"""A logger that writes to the logging of the program: ``Logger(log_factory)``, for the runner and its tasks.

``log_factory(scope)`` is called once per scope and returns a function ``log(level, message, meta)``. A scope is a dict
that may have the keys ``label`` ("core", "worker", "job"), ``worker_id``, ``task_identifier``, ``job_id``, and those
added by ``logger.scope(…)``. Levels: "error", "warning", "info", "debug".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stowhand.jobs.text import clean
from stowhand.observe.job_logger import Facts, LineLogger, ScopedLogger, core_logger
from stowhand.observe.logs import LOG_ENTRY_LIMIT, Scope
from stowhand.observe.safe_text import redact, scrub

LogScope = dict[str, Any]
Log = Callable[[str, str, Mapping[str, Any] | None], object]
LogFactory = Callable[[LogScope], Log]
_SCOPE_KEYS = {"worker": "worker_id", "task": "task_identifier", "job_id": "job_id"}
"""Keys of a scope by the fields of ``Scope``."""


class Logger(LineLogger):
    """Logger that writes with the functions of ``log_factory``.

    Exceptions of the factory and its functions are logged by the standard ``logging``, and not raised.
    """

    def __init__(self, log_factory: LogFactory, scope: Mapping[str, Any] | None = None) -> None:
        self._factory = log_factory
        self._scope = dict(scope or {})
        self._write = self._make_log()

    def log_event(
        self,
        level: str,
        message: str,
        facts: Mapping[str, Any],
        traceback: str | None = None,
        values: tuple[object, ...] = (),
    ) -> None:
        """Log an event. Its fields and traceback become the ``meta`` of the program's function."""
        message = message % values if values else message
        self._log(level, message, facts, {} if traceback is None else {"traceback": traceback})

    def scope(self, extra: Mapping[str, Any] | None = None, /, **facts: Any) -> Logger:
        """Return the same logger with further fields in its scope."""
        return Logger(self._factory, {**self._scope, **(extra or {}), **facts})

    def of(self, scope: Scope) -> Logger:
        """Return the same logger for the scope of a worker or job."""
        values = {key: getattr(scope, field) for field, key in _SCOPE_KEYS.items()}
        values = {key: value for key, value in values.items() if value is not None}
        return self.scope({"label": scope.label, **values, **scope.extra})

    def enabled(self, level: str) -> bool:
        """Return True: a factory receives every message."""
        return True

    def _make_log(self) -> Log:
        try:
            return self._factory(dict(self._scope))
        except Exception as error:  # noqa: BLE001 - boundary: the program's code must not end a job
            _report(error)
            return _standard_log(self._scope)

    def _log(self, level: str, message: object, meta_argument: Facts, facts: dict[str, Any]) -> None:
        meta = redact({**meta_argument, **facts} if meta_argument else facts)
        try:
            self._write(level, scrub(clean(str(message), LOG_ENTRY_LIMIT)), meta or None)
        except Exception as error:  # noqa: BLE001 - boundary: the program's code must not end a job
            _report(error)


def _standard_log(scope: Mapping[str, Any]) -> Log:
    """Return a log function that uses the standard ``logging``."""
    fields = {field: scope[key] for field, key in _SCOPE_KEYS.items() if key in scope}
    extra = {key: value for key, value in scope.items() if key not in ("label", *_SCOPE_KEYS.values())}
    logger = ScopedLogger(Scope(str(scope.get("label", "core")), **fields, extra=extra))
    return lambda level, message, meta: getattr(logger, level)(message, meta)


def _report(error: Exception) -> None:
    core_logger().error(f"The program's logger raised {type(error).__name__}: {clean(str(error), 500)}")
