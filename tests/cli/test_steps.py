"""``stowhand jobs steps`` and ``jobs fork``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Stowhand
from tests.cli.test_app_store import Place
from tests.cli.test_json_keys import keys

ORDER = """\
from stowhand import App, Context

app = App({arguments})

@app.task()
async def order(ctx: Context, number: int) -> None:
    await ctx.step("charge", lambda: "x" * 200)
    await ctx.event(f"paid:{number}")
"""


def test_the_steps_of_a_waiting_workflow_are_listed_and_it_is_forked(call: Stowhand, folder: Path) -> None:
    place = Place(folder)
    app = place.write("'sqlite:///orders.db'", ORDER)
    store = ("--connection", "sqlite:///orders.db")
    assert call("migrate", *store).code == 0
    call("enqueue", "order", '{"number": 42}', *store)
    assert call("worker", app, "--once").code == 0
    listed = call("jobs", "steps", 1, *store)
    assert "1 (order) waits for event:paid:42" in listed.out
    assert "charge" in listed.out
    assert "x" * 100 not in listed.out
    rows = call("jobs", "steps", 1, "--json", *store).rows()
    assert keys(rows) == "at error name place remaining until value"
    assert rows[0]["value"] == "x" * 200
    assert "it waits for the event 'paid:42'" in call("jobs", "explain", 1, *store).out
    assert call("jobs", "fork", 1, "--from", "charge", *store).out == "2\n"
    assert call("jobs", "fork", 1, "--from", "missing", *store).code != 0
    assert call("jobs", "steps", 99, *store).code == 1
