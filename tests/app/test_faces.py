"""The two faces of an App, asynchronous and synchronous: the same calls with the same parameters, and a lesson for a
call of the wrong one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTask

import stowhand
from stowhand import App, Context, State, Task, gather
from stowhand.app.sync import Sync
from stowhand.errors import Misuse
from stowhand.protocols.operator import Operator, QueueChange
from stowhand.protocols.producer import Producer
from stowhand.protocols.queue_store import ActionResult, Administrator, Inspector, Schema, Timetable
from stowhand.tasks.job_handle import JobHandle
from stowhand.tasks.sync_job_handle import SyncJobHandle
from tests.conftest import Run

PARTS = (Producer, Inspector, Administrator, Operator, Timetable, Schema)
ONLY_ASYNCHRONOUS = {
    "open": "the synchronous face connects by itself",
    "open_to_read": "its store has no synchronous face",
}
ONLY_SYNCHRONOUS = {
    "install": "await app.open(install=True)",
    "set_default_max_attempts": "await (await app.open()).settings.set_default_max_attempts(…)",
    "wait_for": "what the others are made of",
}
ONLY_OF_A_STORE = ["register", "report", "schedule", "find_damage", "foreign_changes", "plan", "uninstall"]
"""Methods of schedulers and of ``stowhand migrate``."""
OTHER_TYPES = ["emit_in", "enqueue", "enqueue_in", "enqueue_many", "job"]
"""Methods whose twins take or return other types: a synchronous connection, iterable or handle."""
RUN_BY_ASYNCIO = {"run_all"}
"""It has no synchronous twin: ``asyncio.run(run_all(…))`` is how a program runs its routines."""
ASKED_OF_THE_APP = [
    *("get", "list", "counts", "search"),
    *("retry", "cancel", "remove"),
    *("pause_queue", "resume_queue"),
]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/queue.db")
    app.sync.install()
    yield app
    app.sync.close()


def add_send(app: App) -> Any:
    @app.task
    async def send(to: str, copies: int = 1) -> str:
        return to

    return send


def methods(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_") and callable(getattr(face, name, None))}


def parameters(method: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Return the parameters without their types."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]


def types_of(method: Callable[..., object]) -> dict[str, object]:
    signature = inspect.signature(method)
    types: dict[str, object] = {one.name: one.annotation for one in signature.parameters.values()}
    return types | {"self": None, "return": signature.return_annotation}


def test_every_asynchronous_method_of_an_app_has_a_synchronous_twin() -> None:
    asynchronous = {name for name in methods(App) if inspect.iscoroutinefunction(getattr(App, name))}
    assert asynchronous - methods(Sync) == set(ONLY_ASYNCHRONOUS)
    assert set(ASKED_OF_THE_APP) <= asynchronous


@pytest.mark.parametrize("name", sorted(methods(Sync) - set(ONLY_SYNCHRONOUS)))
def test_a_synchronous_method_has_the_parameters_of_its_asynchronous_twin(name: str) -> None:
    face = App("memory://")
    twins = [part for part in (App, *PARTS) if hasattr(part, name)]
    assert twins, f"app.sync.{name} has no asynchronous twin"
    synchronous = getattr(face.sync, name)
    asynchronous = getattr(face if twins[0] is App else twins[0], name)
    expected = parameters(asynchronous)[twins[0] is not App :]
    assert parameters(synchronous) == expected
    if name not in OTHER_TYPES:
        assert types_of(synchronous) == types_of(asynchronous)
    if name in ASKED_OF_THE_APP:
        assert synchronous.__doc__ == asynchronous.__doc__
    assert not inspect.iscoroutinefunction(synchronous)
    assert synchronous.__name__ == name


def test_the_synchronous_face_of_an_app_has_every_question_and_change_of_an_open_store() -> None:
    assert {name for part in PARTS for name in methods(part)} - methods(Sync) == set(ONLY_OF_A_STORE)


def test_every_asynchronous_method_of_a_task_has_a_synchronous_twin() -> None:
    asynchronous = {name for name in methods(Task) if inspect.iscoroutinefunction(getattr(Task, name))}
    assert asynchronous - methods(Sync) == set()
    assert parameters(Task.enqueue) == parameters(Task.enqueue_sync)
    assert parameters(Task.enqueue_and_wait)[1:] == parameters(Sync.enqueue_and_wait)[2:]  # after self, and the task


def test_both_faces_of_a_handle_have_the_same_methods() -> None:
    assert methods(JobHandle) == methods(SyncJobHandle)
    for name in methods(JobHandle):
        assert parameters(getattr(JobHandle, name)) == parameters(getattr(SyncJobHandle, name)), name


def test_a_task_is_enqueued_with_one_call_on_both_faces(app: App, run: Run) -> None:
    send = add_send(app)

    async def scenario() -> list[JobHandle[Any]]:
        return [await send.enqueue("a", copies=2), await app.enqueue(send, "a", copies=2)]

    handles = [
        *run(scenario),
        send.enqueue_sync("a", copies=2),
        app.sync.enqueue(send, "a", copies=2),
        app.sync.enqueue(send.new_job("a", copies=2)),
    ]
    assert [handle.payload for handle in handles] == [{"to": "a", "copies": 2}] * 5
    assert send.options(priority=3, key="k").enqueue_sync("b").priority == 3


def test_an_app_answers_and_acts_as_its_synchronous_face(app: App, run: Run) -> None:
    send = add_send(app)

    async def scenario() -> None:
        first, second, third = [(await app.enqueue(send, to)).id for to in "abc"]
        result = await app.get(first)
        assert result is not None
        assert result.payload == {"to": "a"}
        assert [job.id for job in await app.list()] == [third, second, first]
        assert (await app.cancel(second)).result is ActionResult.DONE
        assert (await app.retry(second)).result is ActionResult.DONE
        assert (await app.remove(third)).result is ActionResult.DONE
        assert (await app.counts())[State.QUEUED] == 2
        assert [job.id for job in (await app.search()).jobs] == [second, first]
        assert await app.pause_queue("mail") == QueueChange("mail", changed=True)
        assert await app.resume_queue("mail") == QueueChange("mail", changed=True)
        await app.close()

    run(scenario)


CALLS: dict[str, Callable[[App, Any], object]] = {
    "send.enqueue_sync(…)": lambda app, send: send.enqueue("x"),
    "app.sync.enqueue_and_wait(send, …)": lambda app, send: send.enqueue_and_wait("x"),
    "app.sync.enqueue_many(send.new_job(…) for …)": lambda app, send: send.options(delay=1).enqueue_many([]),
    "app.sync.job(1).cancel(…)": lambda app, send: app.sync.enqueue(send, "x").handle.cancel(),
    "app.sync.job(1).result(…)": lambda app, send: app.sync.enqueue(send, "x").handle.result(),
    "app.sync.job(1).wait(…)": lambda app, send: app.sync.enqueue(send, "x").handle.wait(),
    "app.sync.job(1).refresh(…)": lambda app, send: app.sync.enqueue(send, "x").handle.refresh(),
    "app.sync.enqueue(task, …)": lambda app, send: app.enqueue(send, "x"),
    "app.sync.enqueue_and_wait(task, …)": lambda app, send: app.enqueue_and_wait(send, "x"),
    "app.sync.enqueue_many(…)": lambda app, send: app.enqueue_many([]),
    "app.sync.add_job(…)": lambda app, send: app.add_job("send", {"to": "x"}),
    "app.sync.add_jobs(…)": lambda app, send: app.add_jobs([send.new_job("x")]),
    "app.sync.job(…)": lambda app, send: app.job(1),
    "app.sync.gather(…)": lambda app, send: app.gather([1]),
    "app.sync.install() to install a schema (app.sync connects by itself)": lambda app, send: app.open(install=True),
    "app.sync.list(…), app.sync.get(…) and others, which connect by themselves": lambda app, send: app.open_to_read(),
    "app.sync.close()": lambda app, send: app.close(),
    "app.sync.get(…)": lambda app, send: app.get(1),
    "app.sync.list(…)": lambda app, send: app.list(),
    "app.sync.counts(…)": lambda app, send: app.counts(),
    "app.sync.search(…)": lambda app, send: app.search(),
    "app.sync.retry(…)": lambda app, send: app.retry(1),
    "app.sync.cancel(…)": lambda app, send: app.cancel(1),
    "app.sync.remove(…)": lambda app, send: app.remove(1),
    "app.sync.pause_queue(…)": lambda app, send: app.pause_queue("mail"),
    "app.sync.resume_queue(…)": lambda app, send: app.resume_queue("mail"),
}


@pytest.mark.parametrize("instead", CALLS)
def test_an_asynchronous_call_without_an_event_loop_names_the_synchronous_one(app: App, instead: str) -> None:
    send = add_send(app)
    with pytest.raises(Misuse) as raised:
        CALLS[instead](app, send)
    message = str(raised.value)
    assert "without a running event loop" in message
    assert f"Write {instead}, or await it in an 'async def main()' run by asyncio.run(main())" in message


def test_every_asynchronous_call_of_a_program_is_refused_without_an_event_loop(app: App) -> None:
    """Else it makes a coroutine, which a program that forgets ``await`` drops in silence."""
    send = add_send(app)

    @app.task
    async def note(ctx: Context) -> None: ...

    handle = app.sync.enqueue(send, "x").handle
    calls = [getattr(stowhand, name) for name in stowhand.__all__ if name not in RUN_BY_ASYNCIO]
    calls += [getattr(one, name) for one in (app, send, send.options(), note, handle) for name in methods(type(one))]
    asynchronous = [call for call in calls if inspect.iscoroutinefunction(call)]
    assert {gather, app.open, app.close, send.enqueue, note.enqueue, handle.result} <= set(asynchronous)
    for call in asynchronous:
        with pytest.raises(Misuse, match=r"without a running event loop.* Write .*sync.*, or await it in an"):
            dropped(call)


def dropped(call: Callable[[], object]) -> None:
    """Call it, and drop what it returns, without the warning of Python."""
    instance = call()
    if inspect.iscoroutine(instance):
        instance.close()


def test_a_synchronous_call_in_an_event_loop_names_what_to_await(app: App, run: Run) -> None:
    send = add_send(app)

    async def scenario() -> None:
        for call, instead in (
            (lambda: send.enqueue_sync("x"), r"await send\.enqueue\(…\)"),
            (lambda: app.sync.enqueue(send.new_job("x")), r"await app\.enqueue\(…\)"),
            (lambda: app.sync.get(1), r"await app\.get\(…\)"),
            (lambda: app.sync.add_job("x"), r"await app\.add_job\(…\)"),
            (lambda: app.sync.enqueue_many([]), r"await app\.enqueue_many\(…\)"),
            (lambda: app.sync.explain(1), r"await \(await app\.open\(\)\)\.inspect\.explain\(…\)"),
        ):
            with pytest.raises(Misuse, match=rf"inside a running event loop.*{instead}"):
                call()

    run(scenario)
    assert sum(app.sync.counts().values()) == 0


def test_an_asynchronous_method_passes_for_a_coroutine_function(app: App, run: Run) -> None:
    """Frameworks ask for it, to await what they call later."""
    send = add_send(app)
    asynchronous = [send.enqueue, send.options(delay=1).enqueue, app.enqueue, app.get, app.open, app.close, gather]
    assert all(inspect.iscoroutinefunction(one) and asyncio.iscoroutinefunction(one) for one in asynchronous)
    after_the_answer = BackgroundTask(send.enqueue, "x", copies=2)  # made in a thread, by a def endpoint

    async def scenario() -> None:
        await after_the_answer()
        await app.close()

    run(scenario)
    assert [job.payload for job in app.sync.list()] == [{"to": "x", "copies": 2}]
