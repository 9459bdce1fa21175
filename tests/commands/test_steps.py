"""One step and its entry: when it is written, and what happens when the store is away."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC

import pytest

from stowhand.commands import step
from stowhand.commands.output import MAX_ERROR_BYTES, Output
from stowhand.commands.redaction import Redactor
from stowhand.commands.steps import _STOP_REASONS, END_TIMEOUT_SECONDS, STOPPING_TIMEOUT_SECONDS
from stowhand.errors import ConfigurationError, LogRefused
from stowhand.jobs.execution_log import MAX_OUTPUT_BYTES, ExecutionLogEntry
from stowhand.protocols.attempt import Stop, control_of
from stowhand.testing import FakeClock
from tests.commands.harness import Harness
from tests.conftest import Run


def test_an_entry_is_added_at_the_start_updated_once_a_second_and_final_at_the_end(run: Run) -> None:
    async def story() -> None:
        harness = Harness(clock := FakeClock())
        began = clock.now()
        async with step(harness.ctx, "clone", ["git", "clone"], clock=clock) as entry:
            assert harness.entries == [ExecutionLogEntry(key="clone", command=("git", "clone"), start_time=began)]
            for _ in range(10):
                entry.write(".")
                await clock.advance(0.25)
            assert harness.moments == [0, 1, 2]
            assert harness.entries[0].out == "." * 8, "what had been said when it was written"
            await clock.advance(60)
            assert harness.moments == [0, 1, 2, 3], "nothing new, nothing to write"
            entry.exit_code = 3
            entry.write("!")
            await clock.advance(1)
            assert harness.entries[0].out[-1] == "!"
            assert harness.entries[0].exit_code is None, "it has not ended"
        assert harness.moments[4:] == [62.5, 63.5]
        (final,) = harness.entries
        assert (final.exit_code, final.out, final.duration_ms) == (3, "." * 10 + "!", 63_500)
        assert final.start_time.tzinfo is UTC
        entry.write("too late")
        await clock.advance(60)
        assert (len(harness.moments), harness.entries) == (6, [final])

    run(story())


def test_without_a_code_of_its_own_it_ends_with_0_or_1_and_its_error(run: Run) -> None:
    async def story() -> None:
        harness = Harness(clock := FakeClock())
        async with step(harness.ctx, "good", clock=clock):
            pass

        async def fail() -> None:
            async with step(harness.ctx, "bad", redact=["hunter-22"], clock=clock) as entry:
                entry.write("half a line")
                raise ValueError("no hunter-22")

        with pytest.raises(ValueError, match="no hunter-22"):
            await fail()
        assert [(one.key, one.exit_code, one.out) for one in harness.entries] == [
            ("good", 0, ""),
            ("bad", 1, "half a line\n[ValueError: no ******]\n"),
        ]

    run(story())


def test_where_a_long_error_is_cut_no_half_of_a_secret_is_left(run: Run) -> None:
    secret = "hunter-22-" * 500

    async def story() -> str:
        harness = Harness(clock := FakeClock())
        with pytest.raises(ValueError, match="no"):
            async with step(harness.ctx, "bad", redact=[secret], clock=clock):
                raise ValueError(f"no {secret} {'x' * 30_000} {secret}")
        return harness.entries[0].out

    assert "hunter" not in run(story())


def test_an_update_that_fails_only_warns_and_the_end_is_stored_when_the_store_is_back(run: Run) -> None:
    async def story() -> None:
        harness = Harness(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock) as entry:
                harness.down = True
                for _ in range(3):
                    entry.write(".")
                    await clock.sleep(1.5)

        working = asyncio.ensure_future(work())
        await clock.advance(4.6)
        assert harness.warnings == [
            "clone: its log entry could not be updated: stowhand.errors.StoreUnreachable: the store does not answer"
        ], "once, not for every try"
        await clock.advance(10)
        assert not working.done()
        harness.down = False
        await clock.advance(1)
        await working
        assert (harness.entries[0].exit_code, harness.entries[0].out) == (0, "...")

    run(story())


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("when", ["beginning", "end"])
def test_a_beginning_and_an_end_wait_for_the_store_as_long_as_the_attempt_may_go_on(
    run: Run, when: str, back: bool
) -> None:
    async def story() -> None:
        harness = Harness(clock := FakeClock())
        harness.down = when == "beginning"

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock):
                assert when == "end" or back, "no step is begun that nobody can see"
                harness.down = when == "end"

        working = asyncio.ensure_future(work())
        await clock.advance(300)
        assert not working.done(), "what was done is not thrown away because a log was away"
        harness.down = not back
        if not back:
            control_of(harness.ctx).lost = True
            harness.ctx.cancel("lost")
            working.cancel()
        await clock.advance(STOPPING_TIMEOUT_SECONDS + 1)
        assert working.done()
        assert working.cancelled() is not back
        assert [one.exit_code for one in harness.entries] == ([0] if back else [None] * (when == "end"))
        assert harness.warnings == []

    run(story())


def test_a_refused_end_makes_the_step_fail_at_once(run: Run) -> None:
    async def story() -> float:
        harness = Harness(clock := FakeClock())
        with pytest.raises(LogRefused):
            async with step(harness.ctx, "clone", clock=clock):
                harness.refuses = True
        return clock.monotonic()

    assert run(story()) == 0


@pytest.mark.parametrize(
    ("reason", "within"),
    [
        ("canceled", END_TIMEOUT_SECONDS),
        ("timeout", END_TIMEOUT_SECONDS),
        ("returned", STOPPING_TIMEOUT_SECONDS),
        ("lost", 0.0),
    ],
)
def test_a_stopped_step_stores_its_end_while_the_worker_waits(run: Run, reason: str, within: float) -> None:
    async def story() -> tuple[Harness, float]:
        harness = Harness(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock):
                await clock.sleep(1000)

        since = 0.0
        for down in (False, True):
            harness.down = False
            working = asyncio.ensure_future(work())
            await clock.advance(5)
            harness.down = down
            control_of(harness.ctx).lost = reason == "lost"
            harness.ctx.cancel(reason)
            working.cancel()
            since = clock.monotonic()
            await clock.settle()
            while not working.done():
                await clock.advance(0.25)
            assert working.cancelled(), "the trouble with the log is not what ended it"
        return harness, clock.monotonic() - since

    harness, took = run(story())
    assert harness.entries[0].out == f"[stopped: {_STOP_REASONS[reason]}]\n"
    assert (harness.entries[0].exit_code, harness.entries[0].duration_ms) == (None, 5000)
    assert within <= took <= within + 2
    assert len(harness.warnings) == (0 if reason == "lost" else 1)


@pytest.mark.parametrize("down", [False, True])
def test_cancelled_while_its_beginning_is_stored_no_entry_is_left_without_an_end(run: Run, down: bool) -> None:
    class Slow(Harness):
        async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
            await self.clock.sleep(1)
            return await super().add_execution_log_entry(entry)

    async def story() -> float:
        harness = Slow(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock):
                pytest.fail("it was told to stop before")

        working = asyncio.ensure_future(work())
        await clock.advance(0.5)
        harness.down = down
        harness.ctx.cancel("canceled")
        working.cancel()
        while not working.done():
            await clock.advance(0.25)
        assert working.cancelled()
        assert [(one.out, one.duration_ms is None) for one in harness.entries] == (
            [] if down else [(f"[stopped: {_STOP_REASONS['canceled']}]\n", False)]
        )
        return clock.monotonic()

    assert run(story()) < 0.5 + STOPPING_TIMEOUT_SECONDS + 2


def test_every_reason_of_a_stop_is_logged() -> None:
    assert set(_STOP_REASONS) == {stop.value for stop in Stop} - {Stop.CRASHED.value, Stop.UNABLE.value}


def test_what_is_said_while_an_update_is_on_its_way_goes_out_with_the_next(run: Run) -> None:
    class Slow(Harness):
        async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
            await self.clock.sleep(0.5)
            await super().update_execution_log_entry(number, entry)

    async def story() -> None:
        harness = Slow(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock) as entry:
                entry.write("a")
                await clock.sleep(1.2)
                entry.write("b")
                await clock.sleep(5)

        working = asyncio.ensure_future(work())
        await clock.advance(4)
        assert (harness.entries[0].out, harness.moments) == ("ab", [0, 1.5, 3])
        working.cancel()
        await clock.advance(1)

    run(story())


@pytest.mark.parametrize("back", [True, False])
def test_cancelled_while_its_end_is_stored_it_tries_a_little_longer(run: Run, back: bool) -> None:
    async def story() -> None:
        harness = Harness(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock):
                harness.down = True

        working = asyncio.ensure_future(work())
        await clock.advance(3)
        working.cancel()
        harness.down = not back
        await clock.advance(1 if back else STOPPING_TIMEOUT_SECONDS + 1)
        assert working.cancelled()
        assert harness.entries[0].exit_code == (0 if back else None)
        assert len(harness.warnings) == (0 if back else 1)

    run(story())


def test_cancelled_twice_it_waits_no_more_for_a_store_that_hangs(run: Run) -> None:
    class Hanging(Harness):
        async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
            await self.clock.sleep(1000)

    async def story() -> None:
        harness = Hanging(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock):
                pass

        working = asyncio.ensure_future(work())
        await clock.advance(1)
        for done in (False, True):
            working.cancel()
            await clock.settle()
            assert working.done() is done

    run(story())


def test_the_end_is_stored_after_a_running_update(run: Run) -> None:
    class Slow(Harness):
        async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
            if entry.exit_code is None:
                await self.clock.sleep(5)
            await super().update_execution_log_entry(number, entry)

    async def story() -> None:
        harness = Slow(clock := FakeClock())

        async def work() -> None:
            async with step(harness.ctx, "clone", clock=clock) as entry:
                entry.write("once")
                await clock.sleep(2)

        working = asyncio.ensure_future(work())
        await clock.advance(10)
        await working
        assert harness.moments == [0, 6, 6]
        assert harness.entries[0].exit_code == 0

    run(story())


def test_without_an_execution_log_steps_are_logged_by_the_logger(run: Run) -> None:
    async def story() -> Harness:
        harness = Harness(clock := FakeClock(), keeps_logs=False)
        async with step(
            harness.ctx, "clone", ["git", "clone", "a b", "hunter-22"], redact=["hunter-22"], clock=clock
        ) as e:
            e.write("one\ntw")
            e.write("o hunter-22\nlast")
            await clock.advance(1.5)
        async with step(harness.ctx, "flood", clock=clock) as e:
            e.write("x" * 999 + "\n")
            for _ in range(MAX_OUTPUT_BYTES // 1000 + 10):
                e.write("x" * 999 + "\n")
        return harness

    output = run(story()).said
    assert {level for level, _ in output} == {"info"}
    messages = [message for _, message in output]
    assert messages[:5] == [
        "clone started: git clone 'a b' '******'",
        "one",
        "two ******",
        "last",
        "clone exited with code 0 after 1.5 s",
    ]
    assert messages[-2:] == ["flood: 11 more lines are not shown", "flood exited with code 0 after 0 s"]


def test_many_short_lines_do_not_delay_the_logger() -> None:
    harness = Harness(keeps_logs=False)

    async def story() -> float:
        since = time.thread_time()  # of the processor: the loop's thread may have to wait for it
        async with step(harness.ctx, "flood") as entry:
            entry.write(b"y\n" * 5_000_000)
        return time.thread_time() - since

    assert asyncio.run(story()) < 1, "nothing else on the loop has its turn meanwhile"
    lines = MAX_OUTPUT_BYTES // 2
    assert len(harness.said) == lines + 3
    assert harness.said[-2][1] == f"flood: {5_000_000 - lines} more lines are not shown"


def test_a_command_that_is_one_string_is_refused(run: Run) -> None:
    async def story() -> None:
        async with step(Harness().ctx, "clone", "git clone"):
            pass

    with pytest.raises(ConfigurationError, match="use a list of words"):
        run(story())


def test_a_command_of_very_many_words_is_cut(run: Run) -> None:
    async def story() -> None:
        harness = Harness(clock := FakeClock())
        async with step(harness.ctx, "clone", [""] * 1_000_000, clock=clock):
            assert len(harness.entries[0].command) < 20_000

    run(story())


def test_the_end_of_a_large_output_is_kept_in_limited_memory() -> None:
    output = Output(Redactor())
    for number in range(3000):
        output.feed(f"{number:>999}\n".encode())
    assert len(output._kept) < 3 * MAX_OUTPUT_BYTES
    assert output.text.endswith("2999\n")
    assert len(output.text) > MAX_OUTPUT_BYTES, "so that whoever shortens it sees that something is missing"


def test_an_incomplete_character_is_not_shown() -> None:
    output = Output(Redactor())
    output.feed("naïve ☃".encode()[:-1] + b"")
    assert output.text == "naïve "
    output.feed("☃".encode()[-1:])
    assert output.text == "naïve ☃"
    output.feed(b"\xff\xe2")
    output.end()
    assert output.text == "naïve ☃\ufffd\ufffd"


def test_what_is_held_back_as_the_beginning_of_a_secret_is_shown_at_the_end() -> None:
    output = Output(Redactor(["hunter-22"]))
    output.feed(b"a hun")
    assert output.text == "a "
    output.end()
    assert output.text == "a hun"


def test_the_last_lines_are_few_and_short() -> None:
    output = Output(Redactor())
    output.feed(b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(30)))
    assert [line.split()[0] for line in output.last_lines[1:]] == ["26", "27", "28", "29"]
    assert sum(map(len, output.last_lines)) <= MAX_ERROR_BYTES
