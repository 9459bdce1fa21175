"""Places for connections: who goes when there are too many."""

from __future__ import annotations

from stowhand.remote.server.slow_requests import Places


def test_a_newcomer_takes_the_place_of_the_stranger_that_came_first_and_asks_nothing() -> None:
    busy = {"a"}
    places = Places[str](16, busy.__contains__)
    assert [places.add(name, name) for name in "abcd"] == [None] * 4
    assert places.add("e", "e") == "b"
    assert places.add("f", "f") == "c"
    busy.update("def")
    assert places.add("g", "g") == "g"


def test_one_address_crowds_out_itself_alone() -> None:
    places = Places[str](1000, lambda one: False, 2)
    assert [places.add(name, "there") for name in "ab"] == [None, None]
    assert places.add("c", "here") is None
    assert places.add("d", "there") == "a"
    assert places.add("e", "here") is None


def test_who_was_let_in_is_never_put_out_and_strangers_keep_places() -> None:
    places = Places[str](8, lambda one: False)
    for name in "abcdef":
        places.add(name, name)
        assert places.admit(name)
    assert places.add("g", "g") is None
    assert not places.admit("g")
    assert places.add("h", "h") is None
    assert places.add("i", "i") == "g"
    places.remove("a")
    assert places.admit("i")
    assert places.is_admitted("i")
