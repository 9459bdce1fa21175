"""``stowhand limits``: what a limit allows, who uses it, and values that an operator sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Stowhand

APP = """
from stowhand import App
from stowhand.limits import Concurrency, Rate

app = App()

@app.task(limits=[Concurrency(2, name="mail"), Rate(5, per="1s", burst=2)])
def send() -> None: ...

@app.task(limits=[Concurrency(3, key="customer")])
def call(customer: int) -> None: ...
"""


@pytest.fixture
def limited(call: Stowhand, folder: Path) -> Stowhand:
    (folder / "shop.py").write_text(APP)
    assert call("worker", "shop:app", "--once").code == 0
    return call


def test_limits_are_listed(limited: Stowhand) -> None:
    limited("enqueue", "send")
    limited("enqueue", "send", "--run-at", "+1h")
    heads, *rows = limited("limits", "list").out.splitlines()
    assert heads.split() == ["LIMIT", "IN", "EFFECT", "STATE", "USED", "WAITING", "DUE", "DECLARED", "TASKS"]
    assert [" ".join(row.split()) for row in rows] == [
        "call 3 at once per key open - 0 0 - call",
        "mail 2 at once open 0 2 1 - send",
        "send 5 per 1s, burst 2 open - 2 1 - send",
    ]


def test_a_limit_is_overridden_and_reset(limited: Stowhand) -> None:
    assert limited("limits", "set", "mail", "--concurrency", 1).out == "mail: set (in effect: 1 at once)\n"
    assert limited("limits", "set", "mail", "--concurrency", 1).out == "mail: unchanged (it is already set so)\n"
    assert limited("limits", "set", "send", "--rate", "100/1m").out == "send: set (in effect: 100 per 1m, burst 2)\n"
    assert limited("limits", "set", "send", "--burst", 1).out == "send: set (in effect: 100 per 1m)\n"
    keyed = limited("limits", "set", "call", "--key-concurrency", 0)
    assert keyed.out == "call: set (in effect: 0 at once per key)\n"
    assert limited("worker", "shop:app", "--once").code == 0, "a declaration leaves overrides as they are"
    shown = limited("limits", "list").out.splitlines()
    assert " ".join(shown[2].split()) == "mail 1 at once open 0 0 0 2 at once send"
    (row,) = [row for row in limited("limits", "list", "--json").rows() if row["name"] == "send"]
    unset = dict.fromkeys(("concurrency", "key_concurrency", "key_rate", "key_rate_seconds", "key_burst"))
    assert row["override"] == {"rate": 100, "rate_seconds": 60.0, "burst": 1, **unset}
    assert row["declared"] == {"rate": 5, "rate_seconds": 1.0, "burst": 2, **unset}
    assert row["values"] == row["override"]
    assert limited("limits", "reset", "mail").out == "mail: reset (in effect: 2 at once)\n"
    assert limited("limits", "reset", "mail").out == "mail: unchanged (it has no override and no hold)\n"


def test_a_limit_of_zero_starts_nothing_until_it_is_reset(limited: Stowhand) -> None:
    limited("limits", "set", "mail", "--concurrency", 0)
    limited("enqueue", "send")
    assert limited("worker", "shop:app", "--once").code == 0
    assert "its limit 'mail' (0 at once) starts nothing" in limited("jobs", "explain", 1).out
    assert "start nothing: mail; stowhand limits reset LIMIT" in limited("doctor").out
    limited("limits", "reset", "mail")
    limited("worker", "shop:app", "--once")
    assert len(limited("jobs", "list", "--state", "completed", "--json").rows()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "mail"), "name a value: --concurrency N, --rate N/PERIOD or --burst N"),
        (("set", "mail", "--concurrency", "-1"), "got -1; use a whole number"),
        (("set", "mail", "--rate", "5"), "'5' is not a rate; write for example 5/1s or 100/1m"),
        (("set", "mail", "--rate", "5/fortnight"), "'fortnight' is not a"),
        (("set", "mail", "--rate", "5/1s"), "limit 'mail' has no rate: its tasks declare none"),
        (("set", "nothing", "--burst", "1"), "there is no limit 'nothing': a worker declares limits when it starts"),
        (("reset", "nothing"), "there is no limit 'nothing'"),
    ],
)
def test_a_wrong_change_is_refused(limited: Stowhand, arguments: tuple[str, ...], message: str) -> None:
    refused = limited("limits", *arguments)
    assert refused.code == 2
    assert message in " ".join(refused.err.split())


def test_a_store_without_limits_says_so(call: Stowhand) -> None:
    call("migrate")
    empty = call("limits", "list")
    assert (empty.code, empty.out) == (0, "")
    assert empty.err.strip() == "No limits: workers declare them when they start."


def test_one_key_is_paused_and_resumed(limited: Stowhand) -> None:
    assert limited("limits", "pause", "call", "eu").out == "call: eu: paused\n"
    assert "already paused" in limited("limits", "pause", "call", "eu").out
    assert limited("serials", "list").out == "", "it is not a serial key"
    assert limited("limits", "resume", "call", "eu").out == "call: eu: resumed\n"
