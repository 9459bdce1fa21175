"""``stowhand cron check``: no store, no schema, only a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Stowhand

CRONTAB = """\
# mail
30 4 * * 1 send_weekly_email ?fill=2d&max=10 {onboarding:false}
0 9 * * 1-5 report ?tz=Europe/Berlin&id=berlin
"""
START = "2026-03-27T12:00:00Z"


@pytest.fixture
def crontab(folder: Path) -> Path:
    file = folder / "crontab"
    file.write_text(CRONTAB)
    return file


def test_check_shows_how_each_item_was_understood_and_its_next_five_runs(call: Stowhand, crontab: Path) -> None:
    ended = call("cron", "check", "crontab", "--from", START)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        'crontab line 2: 30 4 * * 1 send_weekly_email ?fill=2d&max=10 {"onboarding":false}',
        "  2026-03-30 04:30:00Z  Mon 04:30 UTC",
        "  2026-04-06 04:30:00Z  Mon 04:30 UTC",
        "  2026-04-13 04:30:00Z  Mon 04:30 UTC",
        "  2026-04-20 04:30:00Z  Mon 04:30 UTC",
        "  2026-04-27 04:30:00Z  Mon 04:30 UTC",
        "crontab line 3: 0 9 * * 1-5 report ?id=berlin&tz=Europe/Berlin",
        "  2026-03-30 07:00:00Z  Mon 09:00 Europe/Berlin",
        "  2026-03-31 07:00:00Z  Tue 09:00 Europe/Berlin",
        "  2026-04-01 07:00:00Z  Wed 09:00 Europe/Berlin",
        "  2026-04-02 07:00:00Z  Thu 09:00 Europe/Berlin",
        "  2026-04-03 07:00:00Z  Fri 09:00 Europe/Berlin",
    ]


def test_check_calls_the_option_queue_a_serial_key(call: Stowhand, folder: Path) -> None:
    (folder / "crontab").write_text("0 4 * * * a ?queue=mail\n0 5 * * * b ?work_queue=mail\n")
    lines = call("cron", "check", "crontab").out.splitlines()
    assert lines[1] == "  serial key mail: its jobs run one at a time"
    assert sum("serial key" in line for line in lines) == 1


def test_check_with_json_prints_an_object_for_each_item(call: Stowhand, crontab: Path) -> None:
    first, second = call("cron", "check", "--json", "--from", START).rows()
    assert first["runs"][0] == "2026-03-30T04:30:00Z"
    assert (first["identifier"], first["task"], first["tz"], first["fill"]) == (
        *["send_weekly_email"] * 2,
        "UTC",
        172_800,
    )
    assert (second["identifier"], second["tz"], len(second["runs"])) == ("berlin", "Europe/Berlin", 5)


def test_without_from_the_runs_start_now(call: Stowhand, crontab: Path) -> None:
    crontab.write_text("* * * * * t")
    (row,) = call("cron", "check", "--json").rows()
    assert row["runs"][0] > "2026"


def test_an_invalid_file_is_code_2_with_all_its_errors(call: Stowhand, crontab: Path) -> None:
    crontab.write_text("0 4 * * * good\n0 25 * * MON bad\n* * * * * worse ?fil=2d\n")
    ended = call("cron", "check", "crontab")
    assert (ended.code, ended.out) == (2, "")
    assert [line.strip() for line in ended.err.splitlines()] == [
        "error: crontab line 2: hour '25': 25 is not within 0 to 23",
        "crontab line 2: weekday 'MON': names are not supported; write 1",
        "crontab line 3: no option 'fil'; did you mean 'fill'?",
    ]


def test_an_unreadable_file_is_code_2(call: Stowhand, folder: Path) -> None:
    missing = call("cron", "check", "nowhere")
    assert (missing.code, missing.out) == (2, "")
    assert "nowhere" in missing.err
    (folder / "odd").write_bytes(b"\xff\xfe")
    assert "UTF-8" in call("cron", "check", "odd").err
    assert call("cron", "check", folder).code == 2


def test_an_empty_crontab_says_so(call: Stowhand, crontab: Path) -> None:
    crontab.write_text("# nothing\n")
    ended = call("cron", "check")
    assert (ended.code, ended.out, ended.err) == (0, "", "No items in crontab.\n")


def test_a_crontab_cannot_control_the_terminal(call: Stowhand, crontab: Path) -> None:
    crontab.write_text('* * * * * t {"a": "\\u202e\\u009b2J"}\n')
    ended = call("cron", "check")
    assert ended.code == 0
    assert "\u202e" not in ended.out
    assert "\u009b" not in ended.out


@pytest.mark.parametrize("when", ["tomorrow", "+5m", "2026-01-01T00:00:00"])
def test_from_takes_a_time(call: Stowhand, crontab: Path, when: str) -> None:
    ended = call("cron", "check", "--from", when)
    assert (ended.code, ended.out) == (2, "")
    assert "--from" in ended.err


def test_nothing_is_opened_or_installed(call: Stowhand, crontab: Path, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert call("cron", "check").code == 0
    assert sorted(path.name for path in folder.iterdir()) == before
