"""What enqueue accepts PostgreSQL accepts too, as json and as jsonb, and the text that comes back can be read."""

from __future__ import annotations

from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings

from stowhand.jobs import strict_json
from tests.jobs.test_strict_json import VALUES


def test_postgres_accepts_what_encode_accepts_and_gives_it_back(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(VALUES)
        def round_trip(value: Any) -> None:
            text = strict_json.encode(value)
            row = connection.execute("select %s::json::text, %s::jsonb::text", (text, text)).fetchone()
            assert row is not None
            assert strict_json.decode(row[0]) == value

        round_trip()
