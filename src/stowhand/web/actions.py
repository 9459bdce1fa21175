"""Changes from the dashboard: actions on jobs, pauses, limits, and jobs run again with changes. Each is audited.

After a form, the browser is redirected to the form's page, which shows the result for each job. An invalid field raises
InvalidField; the form of a job is shown again with the error. An error of the store is audited and raised again.

A form that is sent twice acts once. An action requests a state of a job, so a repeat finds the job in this state. The
key of an added job is computed from its form, so a repeat returns the same job. Only a fork has no key: a repeat adds
another one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from stowhand.app.answers import answer_for, answers_of, fail, reschedule, retry_failed
from stowhand.app.app import App
from stowhand.clock import stopwatch
from stowhand.errors import InvalidJob, SchemaError, StoreError, StoreRefused
from stowhand.events import DashboardChanged, Events
from stowhand.jobs import limits
from stowhand.jobs.durations import RunTime, parse_run_time
from stowhand.jobs.fields import OPTION_FIELDS
from stowhand.jobs.job import Job, KeyMode, NewJob, State
from stowhand.jobs.task_limits import LimitValues, format_rate, parse_rate
from stowhand.observe.propagation import without_carried
from stowhand.observe.redacted_json import redacted_text, restored_text
from stowhand.protocols.flow_tables import is_step
from stowhand.protocols.operator import LimitChange, LimitRow, Operator, QueueChange, SerialChange, TaskChange
from stowhand.protocols.options import parse_integer, parse_word
from stowhand.protocols.queue_store import ActionResult, Answer, QueueStore, Reschedule, require_part
from stowhand.protocols.search import MAX_SEARCH_RESULTS, Search
from stowhand.protocols.validation import is_storable
from stowhand.web.access import own_page
from stowhand.web.job import job_of, read_id
from stowhand.web.jobs import JOBS_PER_PAGE, search_of
from stowhand.web.reader import Reader
from stowhand.web.request import (
    Forbidden,
    Form,
    InvalidField,
    PageNotFound,
    Reply,
    Request,
    Right,
    View,
    Visitor,
    fields_of,
    read,
    redirect,
)

T = TypeVar("T")
FORM_KEY_SECONDS = 86_400.0
"""Seconds after a job was added in which sending its form again adds no other job."""
MAX_NAMED_JOBS = 5
"""Maximum number of jobs that a question lists with their tasks."""
MAX_FORM_PAYLOAD_LENGTH = 20_000
"""Maximum number of characters of a payload that a form shows."""
FORM_FIELDS = ("payload", "serial", "priority", "max_attempts", "when", "once")
"""Fields of the form that adds a job. ``once`` is a random text, different each time that the form is shown."""
JobChange = Callable[[QueueStore, Sequence[int], Request], Awaitable[Sequence[Answer]]]


class Action(msgspec.Struct, frozen=True):
    """An action on jobs."""

    label: str
    act: JobChange
    states: frozenset[State]
    """States of the jobs that the action changes."""
    warning: str = ""
    """Text of a question before the action; empty if the action needs no question."""


async def _reschedule(store: QueueStore, ids: Sequence[int], request: Request) -> Sequence[Answer]:
    when = _when(request)
    priority = _number(request, "priority")
    if when == RunTime() and priority is None:
        raise InvalidField("Reschedule: use a time (2030-01-31T09:00:00Z, or +5m) or a priority (smaller runs first)")
    changes = Reschedule(run_at=when.run_at, priority=priority)
    return await _change_time(store, ids, changes, when.delay, result_for_failed=ActionResult.DONE)


async def _run_now(store: QueueStore, ids: Sequence[int], _: Request) -> Sequence[Answer]:
    return await _change_time(store, ids, Reschedule(), 0.0, result_for_failed=ActionResult.REFUSED)


async def _change_time(
    store: QueueStore,
    ids: Sequence[int],
    changes: Reschedule,
    delay: float | None,
    *,
    result_for_failed: ActionResult,
) -> Sequence[Answer]:
    """Change when jobs run. A failed job gets the new values but stays failed.

    ``delay``: seconds from now, instead of the changes' run time. ``result_for_failed``: the result for a failed job.
    """

    def answer(job: Job) -> Answer:
        if job.state is State.FAILED:
            return Answer(job.id, result_for_failed, "it has failed; retry it")
        return answer_for(job)

    return await answers_of(store, ids, partial(reschedule, to=changes, delay=delay), answer)


_WAITING_STATES = frozenset({State.QUEUED, State.ERRORED})
JOB_ACTIONS = {
    # This action is first, because the enter key in a field of the form sends the first one, and only this one uses
    # the fields.
    "reschedule": Action("Reschedule", _reschedule, _WAITING_STATES),
    "run": Action("Run now", _run_now, _WAITING_STATES),
    "retry": Action(
        "Retry",
        lambda store, ids, _: store.admin.retry_jobs(ids),
        _WAITING_STATES | {State.FAILED, State.CANCELED},
    ),
    "cancel": Action(
        "Cancel", lambda store, ids, _: store.admin.cancel_jobs(ids), _WAITING_STATES | {State.PROCESSING}
    ),
    "complete": Action(
        "Complete",
        lambda store, ids, _: answers_of(store, ids, lambda store, ids: store.admin.complete_jobs(ids)),
        _WAITING_STATES | {State.FAILED},
        "A job that you complete counts as if it had run.",
    ),
    "fail": Action(
        "Fail",
        lambda store, ids, request: fail(store, ids, request.form_value("reason").strip() or None),
        _WAITING_STATES,
        "A job that you fail runs again only if it is retried.",
    ),
    "remove": Action(
        "Remove",
        lambda store, ids, _: store.admin.remove_jobs(ids),
        _WAITING_STATES | {State.FAILED, State.CANCELED},
        "A removed job cannot be restored.",
    ),
}
STATES_BY_MATCHING_ACTION = {"retry": frozenset({State.FAILED}), "cancel": _WAITING_STATES | {State.PROCESSING}}
"""For each action that a list offers on all its matching jobs: the states of the jobs that it changes."""
MAX_MATCHING_JOBS = 10_000
"""Maximum number of jobs that one form changes. Further matches need another form."""
JOBS_PER_CALL = 1000
SEARCH_SECONDS = 5.0
"""Maximum time for finding the matching jobs."""
SEARCH_PIECE_SECONDS = 0.5
"""Maximum time of one piece of that search. The time limit is checked between the pieces."""
NamedChange = QueueChange | SerialChange | TaskChange | LimitChange
PAUSE_ACTIONS: dict[str, Callable[[Operator, str], Awaitable[NamedChange]]] = {
    "pause serial": lambda operate, name: operate.pause_serial(name),
    "resume serial": lambda operate, name: operate.resume_serial(name),
    "pause queue": lambda operate, name: operate.pause_queue(name),
    "resume queue": lambda operate, name: operate.resume_queue(name),
    "pause task": lambda operate, name: operate.pause_task(name),
    "resume task": lambda operate, name: operate.resume_task(name),
    "reset limit": lambda operate, name: operate.reset_limit(name),
}
"""Actions on a serial key, queue, task or limit. The button has the action's name, and its value is that of the key,
queue, task or limit."""


class ActionPages:
    """Pages that change jobs. ``add_task_options`` adds to a new job the options that its task declares."""

    def __init__(self, events: Events, add_task_options: Callable[[NewJob], NewJob] = lambda job: job) -> None:
        self._events = events
        self._add_task_options = add_task_options

    async def act(self, request: Request, reader: Reader) -> View | Reply:
        """Act on the jobs that the form selects, or on the serial key, task, queue or limit of its button."""
        for pause_action in PAUSE_ACTIONS:
            if pause_action in request.form:
                return await self._pause(request, reader, pause_action)
        action_name = request.form_value("action")
        action = JOB_ACTIONS.get(action_name)
        if action is None:
            raise InvalidField(
                f"unknown action {action_name!r}. Available: {', '.join([*JOB_ACTIONS, *PAUSE_ACTIONS])}"
            )
        has_new_values = any(request.form_value(name).strip() for name in ("when", "priority"))
        if has_new_values and action_name != "reschedule":
            raise InvalidField(f"When, Priority: only Reschedule takes them; leave them empty for {action.label}")
        ids = [read_id(value) for value in dict.fromkeys(request.form.get("id", ()))]
        if len(ids) > JOBS_PER_PAGE:
            raise InvalidField(f"id: {len(ids)} jobs at once; the maximum is {JOBS_PER_PAGE}")
        if not ids:
            return _redirect_back(request, ["No job was selected."])
        if action.warning and not request.form_value("sure"):
            return await _question(request, reader, action, ids)
        operation = reader.change(lambda store: action.act(store, ids, request))
        answers = await self._audit_errors(request, action_name, ids, operation)
        self._audit_answers(request, action_name, answers)
        return _redirect_back(request, _messages(action, answers), is_removed=action_name == "remove")

    async def _pause(self, request: Request, reader: Reader, action_name: str) -> Reply:
        """Pause or resume a serial key, task or queue, or reset a limit."""
        name = request.form_value(action_name)
        operation = reader.change(lambda store: PAUSE_ACTIONS[action_name](store.operate, name))
        change = await self._audit_errors(request, action_name, [name], operation)
        result = ActionResult.DONE if change.changed else ActionResult.UNCHANGED
        self._audit(request, action_name, [name], [result])
        label = f"{action_name.capitalize()} {name}".rstrip()
        return _redirect_back(request, [f"{label}: {result}"])

    async def act_on_matching(self, request: Request, reader: Reader) -> View | Reply:
        """Retry or cancel all jobs that match the filters of a list. The first request asks, the second one acts."""
        action_name = read("action", request.form_value("action"), _read_matching_action) or "retry"
        action = JOB_ACTIONS[action_name]
        list_request = msgspec.structs.replace(request, query=fields_of(request.form_value("matching")))
        search = await search_of(list_request, reader)
        changed_states = search.requested_states & STATES_BY_MATCHING_ACTION[action_name]
        states = tuple(state for state in State if state in changed_states)
        if not states:
            raise InvalidField(f"{action.label}: it changes no job of this list; choose another state")
        job_ids, is_all = await _find_matching(reader, request, msgspec.structs.replace(search, states=states))
        if not job_ids:
            return _redirect_back(request, ["No job matches anymore."])
        if not request.form_value("sure"):
            return _question_about_matching(request, action, job_ids, states, is_all=is_all)
        counts: Counter[str] = Counter()
        for start in range(0, len(job_ids), JOBS_PER_CALL):
            ids = job_ids[start : start + JOBS_PER_CALL]
            operation = reader.change(partial(_retry_or_cancel, ids=ids, action_name=action_name))
            answers = await self._audit_errors(request, action_name, ids, operation)
            self._audit_answers(request, action_name, answers)
            counts.update(map(_outcome_text, answers))
        lines = [f"{action.label} {number:,} {_noun(number)}: {outcome}" for outcome, number in counts.items()]
        if not is_all:
            lines.append("More jobs match; repeat the action to change them.")
        return _redirect_back(request, lines)

    async def fork(self, request: Request, reader: Reader) -> Reply:
        """Enqueue a copy of a workflow with the steps that it recorded before the step of the button."""
        job_id, step = read_id(request.form_value("id")), request.form_value("step")
        if not is_storable(step):
            raise InvalidField(f"step: {step!r} is not a name of a step")

        async def fork(store: QueueStore) -> Job | None:
            return await require_part(store, "workflows", store.workflows).fork(job_id, step)

        job = await self._audit_errors(request, "fork", [job_id], reader.change(fork))
        if job is None:
            raise PageNotFound(f"There is no job {job_id}. It may have been removed, or its history has expired.")
        self._audit(request, "fork", [job_id, job.id], ["", "added"])
        return redirect(
            request.href("/job", id=job.id), messages=[f"Added job {job.id}: job {job_id} again, from step {step}."]
        )

    async def show_limit(self, request: Request, reader: Reader) -> View:
        """Return the form that overrides the values of a limit."""
        return _limit_form(await _limit_of(request, reader), {})

    async def set_limit(self, request: Request, reader: Reader) -> View | Reply:
        """Override the values that the form changes, or show the form again with the error."""
        row = await _limit_of(request, reader)
        entered = {name: request.form_value(name).strip() for name in _limit_fields(row)}
        try:
            changes = _limit_changes(row, entered)
            operation = reader.change(lambda store: store.operate.set_limit(row.name, changes))
            change = await self._audit_errors(request, "set limit", [row.name], operation)
        except (InvalidJob, InvalidField) as error:
            return _limit_form(row, entered, str(error))
        values = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in entered.items() if value)
        result = f"{ActionResult.DONE if change.changed else ActionResult.UNCHANGED} ({values})"
        self._audit(request, "set limit", [row.name], [result])
        return redirect(request.href("/limits"), messages=[f"Set limit {row.name}: {result}"])

    async def show_form(self, request: Request, reader: Reader) -> View:
        """Return the form for a job like this one."""
        return _form(request, await _original(request, reader), {"once": secrets.token_urlsafe(12)})

    async def run_again(self, request: Request, reader: Reader) -> View | Reply:
        """Add the job of the form, or show the form again with the error."""
        original = await _original(request, reader)
        entered = {name: request.form_value(name) for name in FORM_FIELDS}
        # The values are part of the id, because the same form with other values adds another job.
        form_text = repr([original.id, *entered.values()])
        form_id = hashlib.sha256(form_text.encode()).hexdigest()[:32] if entered["once"] else ""
        try:
            job = self._new_job(request, original, form_id)
            operation = reader.change(lambda store: store.jobs.enqueue(job))
            added_job = await self._audit_errors(request, "run again", [original.id], operation)
        except (InvalidJob, InvalidField) as error:
            return _form(request, original, entered, str(error))
        job_id = added_job.id
        self._audit(request, "run again", [original.id, job_id], ["", "added"])
        return redirect(
            request.href("/job", id=job_id), messages=[f"Added job {job_id}, as job {original.id} with changes."]
        )

    def _new_job(self, request: Request, original: Job, form_id: str) -> NewJob:
        """Return the original job with the values of the form. Raises InvalidJob, InvalidField."""
        if is_step(original.task, original.key):
            raise InvalidJob("a step of a flow runs within its flow; retry it, or create another job of the flow")
        when = _when(request)
        payload = request.form_value("payload")
        if request.may(Right.PAYLOADS):
            # The form does not show a large payload. Its empty field means: unchanged.
            if _is_large(original) and not payload.strip():
                payload = original.payload_text
            else:
                payload = restored_text(payload, original.payload_text)
        options: dict[str, Any] = {field.name: getattr(original, field.name) for field in OPTION_FIELDS}
        options |= {
            "key": None,
            "flags": without_carried(original.flags),
            "serial": request.form_value("serial").strip() or None,
            "priority": _number(request, "priority") or 0,
            "max_attempts": _number(request, "max_attempts"),
        }
        job = NewJob(
            task=original.task,
            payload=payload,
            run_at=when.run_at,
            delay=when.delay,
            **options,
        )
        job = self._add_task_options(limits.check(job))
        if job.key is None and form_id:
            # The key prevents a second job if the form is sent again, for example after a lost reply.
            key = f"again:{form_id}"
            job = msgspec.structs.replace(job, key=key, key_mode=KeyMode.UNIQUE, unique_period=FORM_KEY_SECONDS)
        return job

    async def _audit_errors(self, request: Request, action: str, ids: Sequence[object], operation: Awaitable[T]) -> T:
        """Await a change and return its result. If it fails, audit ``refused`` or ``not known``; raise its error."""
        try:
            return await operation
        except StoreError as error:
            result = "refused" if isinstance(error, StoreRefused) else "not known"
            # A schema error needs no audit, because the schema is checked before any change.
            if not isinstance(error, SchemaError):
                self._audit(request, action, ids, [result for _ in ids])
            raise

    def _audit_answers(self, request: Request, action: str, answers: Sequence[Answer]) -> None:
        self._audit(request, action, [answer.job_id for answer in answers], [answer.result for answer in answers])

    def _audit(self, request: Request, action: str, ids: Sequence[object], results: Sequence[str]) -> None:
        event = DashboardChanged(
            action, request.visitor.name, tuple(map(str, ids)), tuple(map(str, results)), request.address
        )
        self._events.emit(event)


def task_options_adder(app: App) -> Callable[[NewJob], NewJob]:
    """Return a function that adds to a job the options that its task declares.

    The first call of that function imports the App's modules. An earlier import could be circular, because these
    modules may mount this dashboard.
    """

    def add_task_options(job: NewJob) -> NewJob:
        app.discover()
        return app.registry.complete_foreign_job(job)

    return add_task_options


def _read_matching_action(text: str) -> str:
    return parse_word(text, STATES_BY_MATCHING_ACTION)


def _when(request: Request) -> RunTime:
    return read("When", request.form_value("when").strip(), parse_run_time) or RunTime()


def _number(request: Request, name: str) -> int | None:
    return read(name, request.form_value(name).strip(), parse_integer)


async def _question(request: Request, reader: Reader, action: Action, ids: Sequence[int]) -> View:
    """Return a page that asks whether to act, and repeats the form. (A dialog would need a script.)"""
    names = []
    for job_id in ids[:MAX_NAMED_JOBS]:
        job = await reader.job(request.visitor, job_id) if request.may(Right.LOOK) else None
        names.append(f"{job_id}" if job is None else f"{job_id} ({job.task}, {job.state})")
    if len(ids) > MAX_NAMED_JOBS:
        names.append(f"and {len(ids) - MAX_NAMED_JOBS} more")
    # The template adds a token of its own.
    fields = [(name, value) for name, values in request.form.items() if name != "token" for value in values]
    form = Form(
        path="/act",
        button=f"{action.label} {len(ids)} {_noun(len(ids))}",
        hidden=(*fields, ("sure", "yes")),
        field=("reason", "Reason", "text") if action is JOB_ACTIONS["fail"] else None,
    )
    values = {"message": f"{action.label} {', '.join(names)}?", "hint": action.warning, "form": form}
    return View(template="base.html", title="Are you sure?", values=values)


async def _find_matching(reader: Reader, request: Request, search: Search) -> tuple[list[int], bool]:
    """Return the ids of the jobs that match, and whether these are all.

    The search ends at MAX_MATCHING_JOBS, at SEARCH_SECONDS, or if the store offers no search.
    """
    job_ids: list[int] = []
    deadline = stopwatch() + SEARCH_SECONDS
    search = msgspec.structs.replace(search, limit=MAX_SEARCH_RESULTS, budget=SEARCH_PIECE_SECONDS, position="")
    while (result := await reader.search(request.visitor, search)) is not None:
        job_ids += [job.id for job in result.jobs]
        if result.next_position is None:
            return job_ids, True
        if len(job_ids) >= MAX_MATCHING_JOBS or stopwatch() > deadline:
            break
        search = msgspec.structs.replace(search, position=result.next_position)
    return job_ids, False


async def _retry_or_cancel(store: QueueStore, ids: Sequence[int], action_name: str) -> Sequence[Answer]:
    if action_name == "cancel":
        return await store.admin.cancel_jobs(ids)
    return await retry_failed(store, ids)


def _question_about_matching(
    request: Request, action: Action, job_ids: Sequence[int], states: Sequence[State], *, is_all: bool
) -> View:
    jobs = f"{len(job_ids):,} {', '.join(states)} {_noun(len(job_ids))}"
    filters = fields_of(request.form_value("matching")).items()
    filter_texts = [f"{name} {value}" for name, values in filters if name != "state" for value in values]
    condition = f" with {', '.join(filter_texts)}" if filter_texts else ""
    fields = [(name, request.form_value(name)) for name in ("action", "matching", "back")]
    form = Form(path="/act/matching", button=f"{action.label} {jobs}", hidden=(*fields, ("sure", "yes")))
    hint = "" if is_all else f"More jobs match. At most {MAX_MATCHING_JOBS:,} are changed at once."
    values = {"message": f"{action.label} {jobs}{condition}?", "hint": hint, "form": form}
    return View(template="base.html", title="Are you sure?", values=values)


def _noun(number: int) -> str:
    return "job" if number == 1 else "jobs"


def _redirect_back(request: Request, lines: Sequence[str], *, is_removed: bool = False) -> Reply:
    page = own_page(request.form_value("back"))
    if is_removed and page.startswith("/job?"):
        page = "/jobs"  # The page of a removed job no longer exists.
    return redirect(request.prefix + page, messages=lines)


def _messages(action: Action, answers: Sequence[Answer]) -> list[str]:
    """Return a line for each outcome: ``Cancel 17, 18: done``; ``Cancel 19: refused (it has completed already)``."""
    ids_by_outcome: dict[str, list[str]] = {}
    for answer in answers:
        ids_by_outcome.setdefault(_outcome_text(answer), []).append(str(answer.job_id))
    return [f"{action.label} {', '.join(ids)}: {outcome}" for outcome, ids in ids_by_outcome.items()]


def _outcome_text(answer: Answer) -> str:
    return f"{answer.result} ({answer.reason})" if answer.reason else answer.result


async def _limit_of(request: Request, reader: Reader) -> LimitRow:
    """Return the limit of the query."""
    if not request.may(Right.LOOK):
        raise Forbidden("Changing a limit also needs the right “look”.")
    name = request.query_value("name")
    rows: Sequence[LimitRow] = await reader.limits() or ()
    for row in rows:
        if row.name == name:
            return row
    raise PageNotFound(f"There is no limit {name!r}: a worker declares limits when it starts.")


def _limit_fields(row: LimitRow) -> dict[str, str]:
    """Return the fields of the form with the values in effect: those that the tasks of the limit declare."""
    fields = {}
    for prefix, declared, values in (
        ("", row.declared, row.values),
        ("key_", row.declared.of_keys(), row.values.of_keys()),
    ):
        if declared.concurrency is not None:
            fields[f"{prefix}concurrency"] = str(values.concurrency)
        if declared.rate is not None:
            fields |= {f"{prefix}rate": format_rate(values), f"{prefix}burst": str(values.burst or 1)}
    return fields


def _limit_changes(row: LimitRow, entered: dict[str, str]) -> LimitValues:
    """Return the values that differ from those in effect. Raises InvalidField."""
    changes: dict[str, Any] = {}
    for name, current in _limit_fields(row).items():
        text = entered[name]
        if text in ("", current):
            continue
        if not name.endswith("rate"):
            changes[name] = read(name, text, parse_integer)
        elif (rate := read(name, text, parse_rate)) is not None:
            changes[name], changes[f"{name}_seconds"] = rate
    if not changes:
        raise InvalidField("No value differs from the one in effect.")
    return LimitValues(**changes)


def _limit_form(row: LimitRow, entered: dict[str, str], message: str = "") -> View:
    values = {"page": "limit", "message": message, "row": row, "fields": _limit_fields(row) | entered}
    return View(template="jobs.html", title=f"Limit {row.name}", values=values, status=400 if message else 200)


async def _original(request: Request, reader: Reader) -> Job:
    """Return the job with its payload, even if the visitor may not see it: the form hides it then."""
    if not request.may(Right.LOOK):
        raise Forbidden("Running a job again also needs the right “look”.")
    return await job_of(request, reader, Visitor(rights=frozenset({Right.PAYLOADS})))


def _is_large(job: Job) -> bool:
    """Return whether the payload is too large for a form."""
    return len(job.payload_text) > MAX_FORM_PAYLOAD_LENGTH


def _form(request: Request, original: Job, entered: dict[str, str], message: str = "") -> View:
    """Return the form of a job to add. ``entered`` replaces the original's values; ``message`` is an error."""
    may_see_payload = request.may(Right.PAYLOADS)
    fields: dict[str, Any] = {
        "payload": "{}",
        "serial": original.serial or "",
        "priority": original.priority,
        "max_attempts": original.max_attempts,
        "when": "",
    }
    is_large = may_see_payload and _is_large(original)
    if is_large:
        fields["payload"] = ""
    elif may_see_payload:
        # A job that was added by SQL may have a payload that is not JSON. The form then shows an empty object.
        with suppress(msgspec.DecodeError):
            fields["payload"] = msgspec.json.format(redacted_text(original.payload_text), indent=2)
    values = {
        "page": "again",
        "message": message,
        "job": original.id,
        "task": original.task,
        "flags": without_carried(original.flags),
        "is_large": is_large,
        "is_hidden": not may_see_payload or not original.payload_text,
        "fields": fields | entered,
    }
    return View(
        template="jobs.html",
        title=f"Run job {original.id} again, with changes",
        values=values,
        status=400 if message else 200,
    )
