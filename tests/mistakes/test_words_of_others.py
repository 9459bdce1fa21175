"""A word of another library is answered with ours: an option, an attribute, a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import click
import pytest

from stowhand import App, NewJob, Retry, WorkerOptions
from stowhand.app.settings.resolver import unknown_variables
from stowhand.cli.program import root
from stowhand.cli.program import run as run_command
from stowhand.errors import StowhandError
from stowhand.hints import NAMES_BY_FOREIGN_NAME
from stowhand.query import JobFilter, Search
from stowhand.tasks.context import Context
from stowhand.tasks.job_handle import JobHandle

RATE = "a task limits how often its jobs start: @app.task(limits=[Rate(10, per='1m')]), with stowhand.limits"
BOTH = "queue=... is the class of work, and serial=... runs jobs one at a time."
QUEUES = "a worker chooses by queue, the class of work; serial=... of a task or job runs jobs one at a time"
ATTEMPTS = "did you mean 'max_attempts'?"
TIMES = "did you mean 'delay' or 'run_at'?"


def app() -> Any:
    instance = App("memory://")
    instance.task(name="send")(lambda to: None)
    return instance


def declare(**options: Any) -> Callable[[], object]:
    return lambda: app().task(name="x", **options)(lambda: None)


async def worker(**options: Any) -> None:
    async with app() as made:
        made.worker(**options)


def work(**options: Any) -> Callable[[], object]:
    return lambda: asyncio.run(worker(**options))


def task() -> Any:
    return app().task(name="mail")(lambda to: None)


def configure(**options: Any) -> Callable[[], object]:
    return lambda: task().options(**options)


def make(kind: Any, **options: Any) -> Callable[[], object]:
    return lambda: kind(**options)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "task: max_retries": (declare(max_retries=3), f"no task option 'max_retries'; {ATTEMPTS}"),
    "task: retries": (declare(retries=3), f"no task option 'retries'; {ATTEMPTS}"),
    "task: max_retrys": (declare(max_retrys=3), ATTEMPTS),
    "task: rate_limit": (declare(rate_limit="3/s"), f"no task option 'rate_limit'; {RATE}"),
    "task: queue_name": (declare(queue_name="mail"), BOTH),
    "task: lock": (declare(lock="mail"), "did you mean 'serial'?"),
    "task: queueing_lock": (declare(queueing_lock="mail"), "did you mean 'key'?"),
    "task: time_limit": (declare(time_limit=3), "did you mean 'timeout'?"),
    "task: autoretry_for": (declare(autoretry_for=OSError), "did you mean 'retry_on'?"),
    "task: bind": (declare(bind=True), "a task that needs its job has a parameter `ctx: Context`"),
    "task: crontab": (
        declare(crontab="0 7 * * mon"),
        "no task option 'crontab'; did you mean 'cron'? Available: cron,",
    ),
    "task: schedule": (declare(schedule="0 7 * * mon"), "did you mean 'cron'?"),
    "task: every": (declare(every="1h"), "did you mean 'cron'?"),
    "task: periodic": (declare(periodic=60), "did you mean 'cron'?"),
    "task: tz": (declare(tz="Europe/Berlin"), "app.cron('0 7 * * mon', task, tz='Europe/Berlin')"),
    "task: nam": (declare(nam="x"), "vailable: name, "),
    "task: acks_late": (declare(acks_late=True), "a job of a lost worker runs again, as with acks_late=True; leave it"),
    "task: ignore_result": (declare(ignore_result=True), "a task that returns None keeps no result; leave it out"),
    "task: routing_key": (declare(routing_key="mail"), "did you mean 'queue'?"),
    "task: serializer": (
        declare(serializer="json"),
        "arguments and results are JSON; annotate the parameters, and leave",
    ),
    "task: retry_jitter": (declare(retry_jitter=True), "backoff=exponential('30s', cap='1h', jitter=0.2)"),
    "Retry: countdown": (make(Retry, countdown=60), "Retry: no option 'countdown'; did you mean 'delay'?"),
    "Retry: exc": (make(Retry, exc=OSError()), "Retry: no option 'exc'; did you mean 'error'?"),
    "Retry: max_retries": (make(Retry, max_retries=3), "@app.task(max_attempts=5)"),
    "JobFilter: state": (make(JobFilter, state="failed"), "JobFilter: no option 'state'; did you mean 'states'?"),
    "Search: status": (make(Search, status="failed"), "Search: no option 'status'; did you mean 'states'?"),
    "options: countdown": (configure(countdown=5), f"no option 'countdown'; {TIMES}"),
    "options: eta": (configure(eta=5), f"no option 'eta'; {TIMES}"),
    "options: schedule_in": (configure(schedule_in=5), f"no option 'schedule_in'; {TIMES}"),
    "options: schedule_at": (configure(schedule_at=5), "did you mean 'run_at'?"),
    "enqueue: countdown": (
        lambda: task().new_job(to="a", countdown=5),
        "unexpected argument 'countdown'; it takes: to. Options of a job: task.options(delay=… or run_at=…).enqueue(…)",
    ),
    "enqueue: delay": (
        lambda: task().new_job(to="a", delay=5),
        "unexpected argument 'delay'; it takes: to. Options of a job: task.options(delay=…).enqueue(…)",
    ),
    "enqueue: max_retries": (lambda: task().new_job(to="a", max_retries=5), "task.options(max_attempts=…).enqueue(…)"),
    "enqueue: queue_name": (lambda: task().new_job(to="a", queue_name="mail"), f"it takes: to; {BOTH[:-1]}"),
    "enqueue: rate_limit": (lambda: task().new_job(to="a", rate_limit="3/s"), RATE),
    "options: max_retries": (configure(max_retries=5), f"no option 'max_retries'; {ATTEMPTS}"),
    "options: queue_name": (configure(queue_name="mail"), BOTH),
    "options: rate_limit": (configure(rate_limit="3/s"), RATE),
    "NewJob: countdown": (make(NewJob, task="t", countdown=5), TIMES),
    "NewJob: rate_limit": (make(NewJob, task="t", rate_limit="3/s"), RATE),
    "NewJob: retries": (make(NewJob, task="t", retries=3), f"NewJob: no option 'retries'; {ATTEMPTS}"),
    "NewJob: queue_name": (make(NewJob, task="t", queue_name="mail"), BOTH),
    "WorkerOptions: max_retries": (
        make(WorkerOptions, max_retries=3),
        "the number of attempts belongs to a task or to a job: @app.task(max_attempts=5)",
    ),
    "WorkerOptions: rate_limit": (make(WorkerOptions, rate_limit="3/s"), RATE),
    "WorkerOptions: queue_name": (make(WorkerOptions, queue_name="mail"), QUEUES),
    "app.worker: queue_name": (work(queue_name="mail"), f"worker: no option 'queue_name'; {QUEUES}"),
    "app.worker: retries": (work(retries=3), "@app.task(max_attempts=5)"),
    "app.worker: rate_limit": (work(rate_limit="3/s"), RATE),
    "WorkerOptions: max_workers": (make(WorkerOptions, max_workers=3), "did you mean 'concurrency'?"),
    "App: queue_name": (make(App, queue_name="mail"), f"a task or a job has a queue: @app.task(queue='mail'). {BOTH}"),
    "App: rate_limit": (make(App, rate_limit="3/s"), RATE),
    "App: max_retries": (make(App, max_retries=3), ATTEMPTS),
    "App: broker": (make(App, broker="redis://"), "the store is the first argument, and keeps results too: App('"),
    "command: beat": (lambda: root.main(["beat"], standalone_mode=False), "did you mean 'cron'?"),
    "command: flower": (lambda: root.main(["flower"], standalone_mode=False), "did you mean 'web'?"),
    "command: start": (lambda: root.main(["start"], standalone_mode=False), "did you mean 'worker'?"),
    "task.delay": (lambda: task().delay("a"), "'Task' object has no attribute 'delay'; did you mean '.enqueue'?"),
    "task.apply_async": (lambda: task().apply_async(("a",)), "did you mean '.enqueue'?"),
    "task.send": (lambda: task().send("a"), "did you mean '.enqueue'?"),
    "task.defer": (lambda: task().defer(to="a"), "did you mean '.enqueue'?"),
    "task.kiq": (lambda: task().kiq("a"), "did you mean '.enqueue'?"),
    "task.retry": (lambda: task().retry(countdown=60), "for another attempt: raise Retry('why', delay='5m')"),
    "task.map": (lambda: task().map([1]), "did you mean '.enqueue_many'?"),
    "task.s": (lambda: task().s("a"), "did you mean '.new_job'?"),
    "task.configure": (lambda: task().configure(lock="a"), "did you mean '.options'?"),
    "task.options().delay": (lambda: task().options(priority=1).delay("a"), "did you mean '.enqueue'?"),
    "app.send_task": (lambda: app().send_task, "did you mean '.enqueue' or '.add_job'?"),
    "app.enqueue_sync": (lambda: app().enqueue_sync, "without an event loop: app.sync.enqueue(task, …)"),
    "app.sync.delay": (lambda: app().sync.delay, "'Sync' object has no attribute 'delay'; did you mean '.enqueue'?"),
    "app.sync.apply_async": (lambda: app().sync.apply_async, "did you mean '.enqueue'?"),
    "app.sync.send": (lambda: app().sync.send, "did you mean '.enqueue'?"),
    "app.sync.defer": (lambda: app().sync.defer, "did you mean '.enqueue'?"),
    "app.sync.kiq": (lambda: app().sync.kiq, "did you mean '.enqueue'?"),
    "app.sync.send_task": (lambda: app().sync.send_task, "did you mean '.enqueue' or '.add_job'?"),
    "app.sync.revoke": (lambda: app().sync.revoke, "did you mean '.cancel'?"),
    "task.apply": (lambda: task().apply("a"), "to run it at once in this process: call the task as a function"),
    "app.control": (lambda: app().control, "to cancel a job: await app.cancel(id)"),
    "app.AsyncResult": (lambda: app().AsyncResult(1), "did you mean '.job'?"),
    "app.on_after_configure": (lambda: app().on_after_configure, "did you mean '.cron'?"),
    "app.periodic": (lambda: app().periodic, "did you mean '.cron'?"),
    "app.autodiscover_tasks": (lambda: app().autodiscover_tasks, "App(include=['shop.tasks'])"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_word_of_another_library_is_answered_with_ours(mistake: str) -> None:
    call, answer = MISTAKES[mistake]
    with pytest.raises((StowhandError, TypeError, AttributeError, click.ClickException)) as caught:
        call()
    error = caught.value
    assert answer in (error.format_message() if isinstance(error, click.ClickException) else str(error))


def test_an_attribute_of_a_handle_or_of_a_context_is_answered_with_ours() -> None:
    handle: Any = object.__new__(JobHandle)
    context: Any = object.__new__(Context)
    with pytest.raises(AttributeError, match=r"'JobHandle' object has no attribute 'get'; did you mean '\.result'\?"):
        handle.get()
    with pytest.raises(AttributeError, match=r"'Context' object has no attribute 'retry'; for another attempt: raise"):
        context.retry()
    with pytest.raises(AttributeError, match=r"did you mean '\.progress'\?"):
        context.update_state()


@pytest.mark.parametrize("name", ["chain", "chord", "group"])
def test_the_error_for_a_canvas_names_flows(name: str) -> None:
    with pytest.raises(ImportError, match=rf"stowhand has no '{name}': .*ctx.enqueue_after.*a flow.*await gather"):
        exec(f"from stowhand import {name}")


@pytest.mark.parametrize("name", ["Celery", "Queue", "shared_task", "actor", "task"])
def test_a_name_of_another_library_is_answered_with_the_app(name: str) -> None:
    with pytest.raises(ImportError, match=rf"stowhand has no '{name}': an App declares tasks.*App\('postgresql://"):
        exec(f"from stowhand import {name}")


def test_an_attribute_that_no_library_has_is_answered_as_python_does() -> None:
    with pytest.raises(AttributeError) as caught:
        task().enqeue("a")
    assert (caught.value.name, str(caught.value)) == ("enqeue", "'Task' object has no attribute 'enqeue'")


def test_completion_shows_no_attribute_of_another_library() -> None:
    assert {"enqueue", "options"} <= set(dir(task()))
    assert not {"delay", "apply_async", "retry"} & set(dir(task()))
    assert not hasattr(task(), "delay")


def test_a_variable_is_answered_with_ours() -> None:
    ((_, said),) = unknown_variables({"STOWHAND_MAX_RETRIES": "3"})
    assert said.endswith("; did you mean 'STOWHAND_MAX_ATTEMPTS'?")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["worker", "jobs:app", "--max-workers", "3"], "no option '--max-workers'; did you mean '--concurrency'?"),
        (
            ["worker", "--max-attempts", "3"],
            "no option '--max-attempts'; the number of attempts belongs to a task or to",
        ),
        (["worker", "--max-retries", "3"], "or to a job: @app.task(max_attempts=5)"),
        (["worker", "--queue-name", "mail"], "--queue is the class of work, and serial=... of a task or job runs jobs"),
        (["worker", "--rate-limit", "3/s"], RATE),
        (["enqueue", "send", "--rate-limit", "3/s"], RATE),
        (["enqueue", "send", "--max-retries", "3"], "no option '--max-retries'; did you mean '--max-attempts'?"),
        (["enqueue", "send", "--eta", "3"], "no option '--eta'; did you mean '--run-at'?"),
    ],
)
def test_an_option_of_a_command_is_answered_with_ours(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(words) == 2
    assert answer in capsys.readouterr().err


def test_no_word_of_ours_is_taken_for_one_of_another_library() -> None:
    """Among options, ``delay`` is ours; among the attributes of a task it is Celery's."""
    options = {"delay", "run_at", "expires", "timeout", "backoff", "serial", "key", "concurrency", "lease"}
    assert {word for word in options if set(NAMES_BY_FOREIGN_NAME.get(word, ())) & options} == set()
