"""The tables of exceptions name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract import flow_offers, table_offers
from tests.contract.offers import HTTP_SKIPS, HTTP_SKIPS_FILES

FOLDER = Path(__file__).parent


def test_every_exception_names_a_test_of_this_suite() -> None:
    files = {path.stem for path in FOLDER.glob("test_*.py")}
    text = "".join(path.read_text() for path in FOLDER.glob("test_*.py"))
    tests = set(re.findall(r"^async def (test_\w+)", text, re.MULTILINE))
    named = {name.partition("[")[0] for name in (*table_offers.TESTS, *flow_offers.TESTS, *HTTP_SKIPS)}
    assert named <= tests
    assert files >= table_offers.FILES | flow_offers.FILES | HTTP_SKIPS_FILES
