"""House rule: each number of the schema has a migration of Django's, so that `manage.py migrate` installs it."""

from __future__ import annotations

from itertools import pairwise

from tests.support.django_migrations import now, there


def test_the_newest_migration_has_the_numbers_of_the_schema() -> None:
    assert there()[-1][1] == now(), "scripts/dump-schema writes the next one"


def test_migrations_are_numbered_without_a_gap_and_name_their_predecessor() -> None:
    files = [file for file, _ in there()]
    later = [f"{number:04}_schema" for number in range(2, len(files) + 1)]
    assert [file.stem for file in files] == ["0001_baseline", *later]
    for before, file in pairwise(files):
        assert f'after="{before.stem}"' in file.read_text(), file.name


def test_numbers_grow() -> None:
    numbers = [pair for _, pair in there()]
    assert numbers == sorted(set(numbers))
