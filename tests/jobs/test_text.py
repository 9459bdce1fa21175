"""Text for the failure path: whatever comes in, what goes out can be stored."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stowhand.jobs.text import MAX_ERROR_BYTES, clean

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def test_ordinary_text_is_left_alone() -> None:
    text = "ValueError: naïve — 日本 😀\n  line two\t"
    assert clean(text) == text


def test_nul_becomes_a_visible_mark() -> None:
    assert clean("a\x00b") == "a\ufffdb"


def test_lone_surrogates_become_marks() -> None:
    assert clean("a\ud800b") == "a?b"


def test_a_long_text_keeps_both_ends() -> None:
    text = "first " + "x" * 100_000 + " last"
    cut = clean(text)
    assert cut.startswith("first ")
    assert cut.endswith(" last")
    assert "\n[...]\n" in cut
    assert len(cut.encode()) == MAX_ERROR_BYTES


def test_the_limit_counts_bytes() -> None:
    assert clean("é" * 50, 100) == "é" * 50
    assert len(clean("é" * 51, 100).encode()) <= 100


def test_the_end_gets_more_room_than_the_beginning() -> None:
    head, tail = clean("a" * 1000 + "z" * 1000, 400).split("\n[...]\n")
    assert len(head) < len(tail)


@settings(max_examples=300, derandomize=True, database=None)
@given(ANY_TEXT, st.integers(16, 300))
@example("\ud800" * 200, 16)
@example("😀" * 200, 17)
@example("\x00" * 200, 16)
def test_what_is_cleaned_can_be_stored_and_is_within_its_limit(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    assert "\x00" not in cleaned
    assert len(cleaned.encode("utf-8")) <= limit


@settings(max_examples=200, derandomize=True, database=None)
@given(ANY_TEXT)
def test_cleaning_is_idempotent(text: str) -> None:
    assert clean(clean(text)) == clean(text)
