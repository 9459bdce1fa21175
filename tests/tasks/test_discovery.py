"""A folder of tasks: what becomes a task, what is skipped, and what is an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from stowhand.errors import ConfigurationError, DuplicateTask
from stowhand.tasks.discovery import Folder, load_folder, read_folder
from stowhand.tasks.registry import Registry

NAMED = "name the parameters, or take the whole object as one called 'payload'"
TASK = "def task(payload, helpers): return __name__\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def names(folder: Folder) -> list[str]:
    return [definition.name for definition in folder.tasks]


def test_a_file_is_a_task_by_its_name_and_a_folder_goes_before_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "hello.py": "async def hello(payload, helpers): ...",
            "main_one.py": "def main(): ...",
            "resize-image.py": "def resize_image(payload): ...",
            "mail/send.py": TASK,
            "mail/deep/er.py": TASK,
        },
    )
    assert sorted(names(read_folder(tmp_path))) == ["hello", "mail/deep/er", "mail/send", "main_one", "resize-image"]


def test_the_function_of_the_files_own_name_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"hello.py": "def main(): ...\ndef task(): ...\ndef hello(): ..."})
    assert read_folder(tmp_path).tasks[0].function.__name__ == "hello"


def test_shared_hidden_and_cached_files_are_skipped_silently(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"_shared.py": "1/0", "__init__.py": "1/0", ".hidden.py": "1/0", "__pycache__/x.py": "1/0", "a.py": TASK},
    )
    folder = read_folder(tmp_path)
    assert (names(folder), folder.skipped_files) == (["a"], ())


def test_what_cannot_be_a_task_is_skipped_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": TASK, "2fast.py": "1/0", "with space.py": "1/0", "notes.txt": "", "no.no/b.py": "1/0"})
    folder = read_folder(tmp_path)
    assert names(folder) == ["a"]
    assert folder.skipped_files == (
        "2fast.py: skipped: '2fast' is not a task name; use letters, digits, _ and -, a letter first",
        "no.no: skipped: 'no.no' is not a task name; use letters, digits, _ and -, a letter first",
        "notes.txt: skipped: neither a Python file nor executable; to make it a task, run chmod +x",
        "with space.py: skipped: 'with space' is not a task name; use letters, digits, _ and -, a letter first",
    )


def test_files_outside_the_folder_are_skipped(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"evil.py": "1/0", "more/evil.py": "1/0"})
    root = write(tmp_path / "tasks", {"a.py": TASK, "inner/b.py": TASK})
    (root / "evil.py").symlink_to(outside / "evil.py")
    (root / "more").symlink_to(outside / "more")
    (root / "dangling.py").symlink_to(root / "nowhere.py")
    (root / "loop").symlink_to(root)
    (root / "alias.py").symlink_to(root / "inner" / "b.py")
    folder = read_folder(root)
    assert names(folder) == ["a", "alias", "inner/b"]
    assert folder.skipped_files == (
        "dangling.py: skipped: a broken link",
        f"evil.py: skipped: a link to a file outside the folder, {outside / 'evil.py'}",
        "loop: skipped: a link to a folder",
        f"more: skipped: a link to a file outside the folder, {outside / 'more'}",
    )


def test_what_every_user_may_write_to_is_not_run(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": TASK, "open.py": "1/0", "open_folder/b.py": "1/0"})
    (tmp_path / "open.py").chmod(0o646)
    (tmp_path / "open_folder").chmod(0o777)
    folder = read_folder(tmp_path)
    assert names(folder) == ["a"]
    assert [line.partition(":")[0] for line in folder.skipped_files] == [
        "open.py",
        "open_folder",
    ]
    assert "chmod o-w" in folder.skipped_files[0]
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="every user of this machine may write to it"):
        read_folder(tmp_path)


def test_every_broken_file_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": TASK,
            "empty.py": "",
            "raises.py": "\n\nraise ValueError('no')",
            "leaves.py": "import sys; sys.exit(3)",
            "syntax.py": "def task(:",
            "typed.py": "def task(to: str, subject: str): ...",
            "stars.py": "def task(**named): ...",
        },
    )
    before = set(sys.modules)
    with pytest.raises(ConfigurationError) as caught:
        read_folder(tmp_path)
    assert str(caught.value).splitlines() == [
        f"{tmp_path}: some tasks cannot be loaded",
        "empty.py: it has no function named empty or task or main",
        f"leaves.py: SystemExit: 3 ({tmp_path}/leaves.py, line 1)",
        f"raises.py: ValueError: no ({tmp_path}/raises.py, line 3)",
        f"stars.py: task 'stars': parameter **named: {NAMED}",
        f"syntax.py: SyntaxError: invalid syntax ({tmp_path}/syntax.py, line 1)",
        "typed.py: task 'typed': takes to, subject; a task in a folder takes (payload) or (payload, helpers)",
    ]
    assert not [name for name in set(sys.modules) - before if name.endswith((".raises", ".leaves", ".syntax"))]


@pytest.mark.parametrize("files", [{}, {"_shared.py": ""}])
def test_a_folder_without_tasks_is_an_error_that_shows_what_one_looks_like(
    tmp_path: Path, files: dict[str, str]
) -> None:
    write(tmp_path, files)
    with pytest.raises(
        ConfigurationError,
        match=r"no tasks in this folder; create one, such as hello.py with 'def hello",
    ):
        read_folder(tmp_path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such folder of tasks"):
        read_folder(tmp_path / "tasks")


def test_modules_have_names_of_their_own_and_a_second_load_sees_the_new_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path, {"json.py": TASK, "mail/json.py": TASK})
    first = [definition.function({}, None) for definition in read_folder(tmp_path).tasks]
    write(tmp_path, {"json.py": "def task(payload, helpers): return '_new__'\n"})
    second = [definition.function({}, None) for definition in read_folder(tmp_path).tasks]
    assert len({"json", *first, *second}) == 5
    assert second[0] == "_new__", "of the same length, within the same second: cached bytecode would look fresh"


def test_types_declared_in_a_task_file_are_resolved(tmp_path: Path) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Order:\n    id: int\n    lines: list[Line]\n"
        "@dataclass\nclass Line:\n    text: str\n"
        "def task(order: Order): return order.lines[0].text\n"
    )
    write(tmp_path, {"bill.py": source})
    [task] = read_folder(tmp_path).tasks
    assert task.function(**task.shape.read('{"id":1,"lines":[{"text":"a"}]}')) == "a"


def test_a_folder_is_registered_beside_other_tasks_but_not_twice(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": TASK, "b.py": TASK})
    registry = Registry()
    load_folder(tmp_path, registry)
    assert registry.names == ("a", "b")
    with pytest.raises(DuplicateTask, match="two tasks are named 'a'"):
        load_folder(tmp_path, registry)


@pytest.fixture
def import_path(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As a console script has it: neither the current folder nor the one of the tasks."""
    path = [one for one in sys.path if one]
    monkeypatch.setattr(sys, "path", path)
    return path


def test_tasks_import_what_lies_beside_their_folder(tmp_path: Path, import_path: list[str]) -> None:
    write(
        tmp_path,
        {
            "beside_tasks/__init__.py": "GREETING = 'Hello'",
            "tasks/mail/send.py": "from beside_tasks import GREETING\ndef send(payload): return GREETING",
            "tasks/other.py": "import beside_tasks\ndef other(payload): ...",
        },
    )
    try:
        assert names(read_folder(tmp_path / "tasks")) == ["mail/send", "other"]
        read_folder(tmp_path / "tasks")
        assert import_path.count(str(tmp_path)) == 1
    finally:
        sys.modules.pop("beside_tasks", None)


def test_nothing_is_imported_from_a_parent_that_every_user_may_write_to(tmp_path: Path, import_path: list[str]) -> None:
    write(tmp_path, {"tasks/a.py": TASK})
    tmp_path.chmod(0o777)
    folder = read_folder(tmp_path / "tasks")
    assert str(tmp_path) not in import_path
    why = f"{tmp_path}: tasks cannot import from here, because every user of this machine may write to it"
    assert folder.skipped_files == (why,)
    write(tmp_path, {"tasks/b.py": "import beside_tasks"})
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        read_folder(tmp_path / "tasks")
