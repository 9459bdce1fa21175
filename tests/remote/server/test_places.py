"""Places for connections: who goes when there are too many."""

from __future__ import annotations

from stowhand.remote.server.places import Places


def test_a_newcomer_takes_the_place_of_the_stranger_that_came_first_and_asks_nothing() -> None:
    busy = {"a"}
    places = Places[str](16, busy.__contains__)
    assert [places.enter(name, name) for name in "abcd"] == [None] * 4
    assert places.enter("e", "e") == "b"
    assert places.enter("f", "f") == "c"
    busy.update("def")
    assert places.enter("g", "g") == "g"


def test_one_address_crowds_out_itself_alone() -> None:
    places = Places[str](1000, lambda one: False, 2)
    assert [places.enter(name, "there") for name in "ab"] == [None, None]
    assert places.enter("c", "here") is None
    assert places.enter("d", "there") == "a"
    assert places.enter("e", "here") is None


def test_who_was_let_in_is_never_put_out_and_strangers_keep_places() -> None:
    places = Places[str](8, lambda one: False)
    for name in "abcdef":
        places.enter(name, name)
        assert places.know(name)
    assert places.enter("g", "g") is None
    assert not places.know("g")
    assert places.enter("h", "h") is None
    assert places.enter("i", "i") == "g"
    places.leave("a")
    assert places.know("i")
    assert places.is_known("i")
