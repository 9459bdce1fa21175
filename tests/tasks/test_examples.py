"""The programs under examples/ that show tasks and enqueueing run as they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowhand.tasks.discovery import read_folder
from tests.support import subprocesses

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("enqueue", ["100 newsletters sent; the last one: 1 x 'Newsletter 99' to Oxford"]),
        ("enqueue_from_a_script", ["enqueued job 1 and 1000 more"]),
        ("enqueue_in_a_transaction", ["rolled back: an empty order", "1 order, and one job to confirm it"]),
        ("in_a_web_app", ["lifespan.startup.complete", "202 job", "lifespan.shutdown.complete"]),
        (
            "typed_payloads",
            [
                (
                    "refused: payload of task 'ship': argument 'customer':"
                    " name: String should have at least 1 character; born: Field required"
                ),
                "3 things to London for Ada, paid 12.50",
                "6",
            ],
        ),
    ],
)
def test_an_example_does_what_it_says(program: str, says: list[str], tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STOWHAND_", "PG")) and name != "DATABASE_URL"
    }
    ended = subprocesses.run(
        [subprocesses.PYTHON, "-W", "error", str(EXAMPLES / f"{program}.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == says


def test_the_example_folder_of_tasks_can_be_loaded() -> None:
    folder = read_folder(EXAMPLES / "tasks")
    assert ([definition.name for definition in folder.tasks], folder.skipped_files) == (["hello", "mail/send"], ())
