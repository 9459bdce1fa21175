"""``expires=``: of a task and of one call, on every way in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stowhand import App, NewJob
from stowhand.cron.crontab import parse_crontab
from stowhand.cron.sources import declared
from stowhand.errors import ConfigurationError, InvalidJob


def test_it_holds_on_every_way_in_where_the_app_is_known() -> None:
    app = App("memory://")

    @app.task(expires="10m")
    def remind(customer: int) -> None: ...

    app.cron("* * * * *", remind, {"customer": 7})
    (item,) = declared(parse_crontab('* * * * * remind ?id=other {"customer": 7}'), app.registry)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    jobs = [
        remind.new_job(7),
        remind.options(delay=3).new_job(7),
        app.registry.new_job("remind", {"customer": 7}, {}),
        app.registry.with_declaration(NewJob(task="remind", payload='{"customer":7}')),
        app.cron_items[0].job(at, backfilled=False),
        item.job(at, backfilled=False),
    ]
    assert [job.expires for job in jobs] == [600.0] * len(jobs)
    assert remind.options(expires=timedelta(seconds=30)).new_job(7).expires == 30
    assert remind.options(expires=None).new_job(7).expires is None
    assert app.registry.with_declaration(NewJob(task="remind", payload='{"customer":7}', expires=5.0)).expires == 5


@pytest.mark.parametrize("wrong", [0, "0s", -1, "soon", True, float("nan")])
def test_a_wrong_one_is_refused_with_task_and_option(wrong: Any) -> None:
    app = App("memory://")

    def remind(customer: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"task 'remind'.*: expires: "):
        app.task(expires=wrong)(remind)
    with pytest.raises(InvalidJob, match="expires: "):
        app.task(remind).options(expires=wrong)
