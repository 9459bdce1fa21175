"""The programs under examples/ that need more than a folder: a shop, and PostgreSQL. (The others: tests/tasks.)"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, environment

EXAMPLES = ROOT / "examples"


def run_example(name: str, folder: Path, **environ: str) -> list[str]:
    done = subprocess.run(
        ["python", "-W", "error", str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env=environment() | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_shop_charges_retries_finds_poison_and_packs(tmp_path: Path) -> None:
    assert run_example("shop", tmp_path) == [
        "1 charge completed receipt 1",
        "2 charge completed receipt 2",
        "3 charge failed stowhand.errors.Poison: order 3: 0 cents cannot be charged",
        "4 pack completed order 1: one book on its way",
        "5 pack queued ",
    ]


def test_the_rate_limiter_limits_one_customer_only(tmp_path: Path) -> None:
    assert run_example("rate_limiter", tmp_path) == [
        "8 for customer 1, never more than 2 in 0.5 s",
        "8 others waited for none of them: True",
    ]


@pytest.mark.parametrize("server", ["postgres_url", "older_postgres_url"])
def test_a_postgres_transaction_and_a_trigger_enqueue_on_every_server(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    message = run_example("enqueue_in_a_postgres_transaction", tmp_path, DATABASE_URL=request.getfixturevalue(server))
    first, rolled_back, second, *ended = message
    assert (first, rolled_back, second) == ("order 1", "rolled back: an empty order", "order 3")
    assert sorted(ended) == [
        "completed confirmed 1",
        "completed confirmed 3",
        "completed invoiced 1",
        "completed invoiced 3",
    ]


def test_every_example_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    names = [path.name for path in EXAMPLES.glob("*.py")]
    assert names
    assert not [name for name in names if f"examples/{name}" not in pages]
