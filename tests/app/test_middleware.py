"""What an App puts around the attempts of its tasks: order, hooks, mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stowhand.app.app import App, task_handler
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import Snooze
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import HOOK_NAMES, ClaimContext, ClaimDecision, Handler
from stowhand.protocols.store import Claim
from stowhand.retry import constant
from stowhand.tasks.middleware import MiddlewareChain
from stowhand.testing import MemoryStore
from stowhand.worker.policy import Policy
from tests.conftest import Run


class Whole:
    """A handler with every hook, each a different object."""

    def __init__(self) -> None:
        for hook in HOOK_NAMES:
            setattr(self, hook, lambda *given: given)

    async def handle(self, ctx: Attempt[Any], record: Any) -> object:
        return None


def bare(inner: Handler) -> Handler:
    class Bare:
        async def handle(self, ctx: Attempt[Any], record: Any) -> object:
            return await inner.handle(ctx, record)

    return Bare()


def with_own(hook: str, own: object) -> Callable[[Handler], Handler]:
    def middleware(inner: Handler) -> Handler:
        instance = bare(inner)
        setattr(instance, hook, own)
        return instance

    return middleware


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_a_hook_that_no_middleware_defines_is_the_inner_handlers(hook: str) -> None:
    inner = Whole()
    around = MiddlewareChain(middleware=(bare, bare)).wrap(inner)
    assert getattr(around, hook) is getattr(inner, hook)


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_a_hook_that_a_middleware_defines_is_its_own(hook: str) -> None:
    async def asynchronous(*given: Any) -> None: ...

    def plain(*given: Any) -> None: ...

    own = plain if hook in ("policy", "encode", "retryable", "on_enqueue") else asynchronous
    around = MiddlewareChain(middleware=(bare, with_own(hook, own), bare)).wrap(Whole())
    assert getattr(around, hook) is own


def test_without_middleware_a_handler_is_run_as_it_is() -> None:
    inner = task_handler(App(store=MemoryStore()))
    assert MiddlewareChain().wrap(inner) is inner


async def worked(app: App, **options: Any) -> None:
    worker = app.worker(once=True, **options)
    await worker.run()


def test_the_first_middleware_is_outermost_and_gets_what_the_task_gives_and_raises(run: Run) -> None:
    lines: list[str] = []

    def named(name: str) -> Callable[[Handler], Handler]:
        def middleware(inner: Handler) -> Handler:
            async def handle(ctx: Attempt[Any], record: Any) -> object:
                lines.append(f"{name} in")
                try:
                    return await inner.handle(ctx, record)
                except ValueError as error:
                    lines.append(f"{name} {error}")
                    raise
                finally:
                    lines.append(f"{name} out")

            class Made:
                pass

            instance: Any = Made()
            instance.handle = handle
            return instance  # type: ignore[no-any-return]

        return middleware

    app = App(store=MemoryStore(), middleware=[named("a"), named("b")])

    @app.task(max_attempts=1)
    def broken() -> None:
        lines.append("task")
        raise ValueError("no")

    async def scenario() -> Job | None:
        async with app:
            job = await broken.enqueue()
            await worked(app)
            return await (await app.open()).jobs.get(job.id)

    job = run(scenario())
    assert lines == ["a in", "b in", "task", "b no", "b out", "a no", "a out"]
    assert job is not None
    assert job.state is State.FAILED
    assert "ValueError: no" in (job.last_error or "")


def test_under_a_middleware_a_task_keeps_its_timeout_its_backoff_and_its_results_encoding(run: Run) -> None:
    app = App(store=MemoryStore(), middleware=[bare])

    @app.task(timeout=0.05, backoff=constant(1234))
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task
    async def odd() -> object:
        return {"a": 1.5, "when": (1, 2)}

    async def scenario() -> tuple[Job | None, Job | None]:
        async with app:
            late, good = await slow.enqueue(), await odd.enqueue()
            await worked(app)
            jobs = (await app.open()).jobs
            return await jobs.get(late.id), await jobs.get(good.id)

    late, good = run(scenario())
    assert late is not None
    assert "timed out" in (late.last_error or "")
    assert late.finished_at is None
    assert 1200 < (late.run_at - late.created_at).total_seconds() < 1300
    assert good is not None
    assert good.result == {"a": 1.5, "when": [1, 2]}


class Hooked:
    """Every hook of a middleware, noted as it is called."""

    def __init__(self, inner: Handler, said: list[str]) -> None:
        self._inner: Any = inner
        self._said = said

    async def pre_claim(self, ctx: ClaimContext) -> object:
        self._said.append("pre_claim")
        return ClaimDecision(limit=ctx.free)

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        self._said.append("pre_handle")

    async def handle(self, ctx: Attempt[Any], record: Any) -> object:
        self._said.append("handle")
        return await self._inner.handle(ctx, record)

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        self._said.append("post_handle")

    def policy(self, claim: Claim[Any]) -> Policy:
        self._said.append("policy")
        return Policy(timeout=7, backoff=self._inner.policy(claim).backoff)

    def encode(self, result: object) -> str:
        self._said.append("encode")
        return '"encoded"'

    def retryable(self, error: BaseException) -> bool:
        self._said.append("retryable")
        return not isinstance(error, KeyError)


def test_the_hooks_of_a_middleware_are_called_as_a_handlers_are(run: Run) -> None:
    lines: list[str] = []
    app = App(store=MemoryStore(), middleware=[lambda inner: Hooked(inner, lines)])

    @app.task
    async def fine() -> str:
        await asyncio.sleep(0)  # from the first wait on its time is limited: by the policy
        return "as it is"

    @app.task
    async def hopeless() -> None:
        raise KeyError("x")

    async def scenario() -> tuple[Job | None, Job | None]:
        async with app:
            one, other = await fine.enqueue(), await hopeless.enqueue()
            await worked(app, concurrency=1)
            jobs = (await app.open()).jobs
            return await jobs.get(one.id), await jobs.get(other.id)

    one, other = run(scenario())
    assert one is not None
    assert one.result == "encoded"
    assert other is not None
    assert other.state is State.FAILED, "not retryable, though it has attempts left"
    assert set(lines) == {"pre_claim", "pre_handle", "handle", "post_handle", "encode", "retryable", "policy"}
    assert lines.count("pre_handle") == lines.count("handle") == lines.count("post_handle") == 2


def test_a_middleware_may_decide_without_calling_the_task(run: Run) -> None:
    def closed(inner: Handler) -> Handler:
        class Closed:
            async def handle(self, ctx: Attempt[Any], record: Any) -> object:
                return Snooze(3600)

        return Closed()

    app = App(store=MemoryStore(), middleware=[closed])
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)

    async def scenario() -> Job | None:
        async with app:
            job = await work.enqueue()
            await worked(app)
            return await (await app.open()).jobs.get(job.id)

    job = run(scenario())
    assert job is not None
    assert (job.state, job.attempts, ran) == (State.QUEUED, 0, [])


def no_argument() -> None: ...


def gives_a_text(inner: Handler) -> Any:
    return "x"


@pytest.mark.parametrize("option", ["middleware", "on_enqueue"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (no_argument, "use a list of functions"),
        ("module.name", "use a list of functions"),
        ([3], "an int in the list; use functions only"),
    ],
)
def test_what_cannot_stand_around_is_refused_when_the_app_is_made(option: str, given: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        App(store=MemoryStore(), **{option: given})  # type: ignore[arg-type]
    assert option in str(raised.value)


def test_a_middleware_that_returns_no_handler_is_named_in_the_error_at_start(run: Run) -> None:
    app = App(store=MemoryStore(), middleware=[gives_a_text])

    @app.task
    async def work() -> None: ...

    async def scenario() -> None:
        async with app:
            app.worker()

    with pytest.raises(ConfigurationError, match="middleware gives_a_text: handler: got 'x'"):
        run(scenario())


def test_an_on_enqueue_that_returns_no_job_raises_in_the_caller(run: Run) -> None:
    def forgets(job: NewJob) -> NewJob:
        return None  # type: ignore[return-value]

    app = App(store=MemoryStore(), on_enqueue=[forgets])

    async def scenario() -> None:
        async with app:
            await app.enqueue(NewJob(task="x"))

    with pytest.raises(Exception, match=r"on_enqueue .*forgets returned a NoneType; return a NewJob"):
        run(scenario())
