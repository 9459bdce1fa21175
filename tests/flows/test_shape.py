"""A flow is checked where it is declared: every mistake is named, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.flows.new_job import lookup_values, new_job
from stowhand.protocols.flow_shape import FlowShape, Layout, Limiter, Queue


def shape(*queues: Queue, **details: Any) -> FlowShape:
    return FlowShape(name="demo", queues=queues or (Queue("first"),), **details)


def test_a_flow_lists_each_parent_followed_by_its_children() -> None:
    kid, other = Queue("kid", max_retries=2), Queue("other")
    instance = shape(Queue("first", next_queue="second"), Queue("second", children=(kid, other)))
    assert [queue.name for queue in instance.all_queues()] == ["first", "second", "second:kid", "second:other"]
    assert instance.entry.name == "first"
    queue = instance.find_queue("second:kid")
    assert (queue.parent, queue.max_attempts, queue.allowed_resets) == ("second", 3, 5)
    assert instance.find_queue("second").is_parent
    assert instance.find_queue("first").allowed_resets == 0, "a queue without retries fails what its worker died under"


def test_an_unknown_queue_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"flow 'demo' has no queue 'frist'; did you mean 'first'\? Available"):
        shape(Queue("first"), Queue("second")).find_queue("frist")


def test_where_a_job_goes_may_depend_on_its_flow() -> None:
    shared = Queue("send", next_queue={"demo": "after", "else": "x"}, priority_change={"demo": 1})
    instance = shape(shared, Queue("after"), layout="priority")
    queue = instance.find_queue("send")
    assert (queue.declared.next_for("demo"), queue.declared.next_for("else"), queue.declared.next_for("none")) == (
        "after",
        "x",
        None,
    )
    assert (queue.declared.change_for("demo"), queue.declared.change_for("none")) == (1, 0)
    assert instance.layout is Layout.PRIORITY


def test_durations_may_be_timedeltas() -> None:
    assert Limiter(reservoir=1, interval=timedelta(milliseconds=250)).interval == 0.25  # type: ignore[arg-type]
    assert shape(key_life=timedelta(hours=3)).key_life == 10_800


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no queues": (lambda: FlowShape(name="demo", queues=()), "use at least one Queue"),
    "a lone queue": (lambda: FlowShape(name="demo", queues=Queue("a")), "use a list of Queue"),  # type: ignore[arg-type]
    "a name": (lambda: FlowShape(name="demo", queues=("a",)), "the list contains 'a'; use Queue"),  # type: ignore[arg-type]
    "two of one name": (lambda: shape(Queue("a"), Queue("a")), "two queues are named 'a'"),
    "unknown next": (lambda: shape(Queue("a", next_queue="b")), "its next queue 'b' is not a queue of this flow"),
    "unknown next in a map": (lambda: shape(Queue("a", next_queue={"demo": "b"})), "its next queue 'b'"),
    "a number as next": (lambda: Queue("a", next_queue=3), "next_queue: got 3; use a queue's name"),  # type: ignore[arg-type]
    "priorities of classic": (lambda: shape(Queue("a", priorities=2)), "layout='priority'"),
    "no priority": (lambda: Queue("a", priorities=0), "priorities: got 0; use a whole number from 1 to 100"),
    "True": (lambda: Queue("a", max_retries=True), "max_retries: got True"),
    "negative resets": (lambda: Queue("a", max_resets=-1), "max_resets: got -1"),
    "a colon": (lambda: Queue("a:b"), "contains a colon"),
    "a brace": (lambda: FlowShape(name="{a}", queues=(Queue("a"),)), "brace"),
    "a star": (lambda: Queue("a*"), "star"),
    "a line break": (lambda: Queue("a\nb"), "queue"),
    "too long": (lambda: Queue("a" * 41), "40"),
    "attributes as a text": (lambda: Queue("a", attributes_to_get="userId"), "use a list of names"),
    "a child with children": (
        lambda: Queue("a", children=(Queue("b", children=(Queue("c"),)),)),
        "a child can have neither",
    ),
    "a child that goes on": (lambda: Queue("a", children=(Queue("b", next_queue="a"),)), "a child can have neither"),
    "a limiter of nothing": (lambda: Limiter(reservoir=0, interval=1), "reservoir: got 0"),
    "an interval of nothing": (lambda: Limiter(reservoir=1, interval=0), "interval: got 0"),
    "an interval of NaN": (lambda: Limiter(reservoir=1, interval=float("nan")), "interval: got nan"),
    "a dict as limiter": (lambda: Queue("a", limiter={"reservoir": 1}), "use Limiter"),  # type: ignore[arg-type]
    "backoff as a number": (lambda: Queue("a", backoff=3), "backoff: got an int"),  # type: ignore[arg-type]
    "unknown layout": (lambda: shape(layout="modern"), "use 'classic' or 'priority'"),
    "keys that collide": (
        lambda: shape(Queue("demo", children=[Queue("userId")]), lookup_attributes=["userId"]),
        "its queue 'demo' has the name of the flow",
    ),
    "braces in a tag": (lambda: shape(hash_tag="{a}"), "a short text without braces"),
    "no life": (lambda: shape(key_life=0), "key_life: got 0"),
    "lookups as a text": (lambda: shape(lookup_attributes="userId"), "use a list of names"),
    "a lookup of its own": (lambda: shape(lookup_attributes=["id"]), "'id' is a reserved field"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_shape_is_named(mistake: str) -> None:
    declare, words = MISTAKES[mistake]
    with pytest.raises(ConfigurationError) as refused:
        declare()
    assert words in str(refused.value)


def test_all_mistakes_of_a_queue_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"priorities: got 0.*max_retries: got -1"):
        Queue("a", priorities=0, max_retries=-1)


# -- a job to be created ---------------------------------------------------------------------------


def test_a_job_has_json_text_by_attribute_without_null_values() -> None:
    job = new_job(shape(), {"userId": 1, "text": 'a "b"', "nothing": None, "list": [1, None]})
    assert job.values == {"userId": "1", "text": '"a \\"b\\""', "list": "[1,null]"}


def test_lookups_of_lists_numbers_and_other_values() -> None:
    looked = shape(lookup_attributes=["userId", "roleIds", "nothing", "flag", "missing"])
    job = new_job(looked, {"userId": 1, "roleIds": [4, "x", None, {"a": 1}], "nothing": None, "flag": True})
    assert job.lookups == (("userId", "1"), ("roleIds", "4"), ("roleIds", "x"))
    assert lookup_values(1.5) == ["1.5"]
    assert lookup_values("") == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"attributes": ["a"]}, "use a dict"),
        ({"attributes": {"id": 1}}, "'id' is the job's own"),
        ({"attributes": {1: 1}}, "names are texts"),
        ({"attributes": {"a": float("nan")}}, "NaN"),
        ({"attributes": {"a": "\ud800"}}, "surrogate"),
        ({"attributes": {"a": object()}}, "attribute 'a'"),
        ({"attributes": {}, "priority": 2}, "queue 'first' has 1 to 1"),
        ({"attributes": {}, "priority": True}, "priority: got True"),
        ({"attributes": {}, "delay": -1}, "delay: got -1"),
        ({"attributes": {}, "delay": float("nan")}, "delay: got nan"),
        ({"attributes": {}, "correlation_id": "x" * 513}, "512"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_job_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        new_job(shape(), **given)
    assert words in str(refused.value)
