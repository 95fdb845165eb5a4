"""``cronjobs next``: when an expression, a schedule, or everything in the file is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from support.project import Answer, Project

from cronjobs import fire_times
from cronjobs.testing import FakeClock

BERLIN = ("--timezone", "Europe/Berlin")
FILE = """
database: ${NOT_SET_HERE}
timezone: Europe/Berlin
schedules:
  nightly: {cron: "30 2 * * *", job: x}
  new-york: {cron: "0 9 * * *", timezone: America/New_York, job: x}
  cache: {every: 10m, job: x}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder."""
    return Project(tmp_path, "")


def with_file(project: Project, text: str = FILE) -> Project:
    (project.folder / "cronjobs.yaml").write_text(text)
    return project


def lines(answer: Answer, code: int = 0) -> list[str]:
    assert (answer.code, answer.err) == (code, "")
    return answer.out.splitlines()


def refused(answer: Answer, code: int = 2) -> str:
    assert (answer.code, answer.out) == (code, "")
    return answer.err


# --- an expression ----------------------------------------------------------------------------------------------------


def test_an_expression_needs_neither_a_file_nor_a_database(project: Project) -> None:
    assert lines(project.call("next", "30 2 * * *", "--from", "2026-11-20", "-n", "2")) == [
        "local (UTC)                 UTC               remark",
        "Fri 2026-11-20 02:30 +0000  2026-11-20 02:30",
        "Sat 2026-11-21 02:30 +0000  2026-11-21 02:30",
    ]
    assert list(project.folder.iterdir()) == []


def test_two_day_fields_are_said_to_be_joined_by_or(project: Project) -> None:
    answer = project.call("next", "0 9 1 * 1", "-n", "1")
    assert answer.err.startswith(
        'note: "0 9 1 * 1" is due when the day of the month is 1, and also when the weekday is 1'
    )
    assert project.call("next", "0 9 1 * *", "-n", "1").err == ""
    assert project.call("next", "@monthly", "-n", "1").err == ""


def test_a_time_that_the_clocks_skip_is_shown_where_it_runs(project: Project) -> None:
    # Germany's summer time of 2026 begins on 29 March, 02:00 (tzdata 2026)
    moved = "2026-03-29 02:30 does not exist in Europe/Berlin: the schedule runs at 03:00 instead"
    assert lines(project.call("next", "30 2 * * *", *BERLIN, "--from", "2026-03-28", "-n", "3")) == [
        "local (Europe/Berlin)       UTC               remark",
        "Sat 2026-03-28 02:30 +0100  2026-03-28 01:30",
        f"Sun 2026-03-29 03:00 +0200  2026-03-29 01:00  {moved}",
        "Mon 2026-03-30 02:30 +0200  2026-03-30 00:30",
    ]


def test_times_that_merge_say_so(project: Project) -> None:
    found = project.call("next", "30,45 2 * * *", *BERLIN, "--from", "2026-03-29", "-n", "1", "--json").json
    assert found == [
        {
            "schedule": None,
            "local": "2026-03-29T03:00:00+02:00",
            "utc": "2026-03-29T01:00:00+00:00",
            "remark": "2026-03-29 02:30, 02:45 do not exist in Europe/Berlin: one run at 03:00 stands for them",
        }
    ]


def test_the_two_passes_of_an_hour_are_told_apart(project: Project) -> None:
    # and end on 25 October, 03:00
    found = lines(project.call("next", "*/30 2 * * *", *BERLIN, "--from", "2026-10-25", "-n", "4"))
    assert [line[:26] for line in found[1:]] == [
        "Sun 2026-10-25 02:00 +0200",
        "Sun 2026-10-25 02:30 +0200",
        "Sun 2026-10-25 02:00 +0100",
        "Sun 2026-10-25 02:30 +0100",
    ]
    assert found[1].endswith("comes twice in Europe/Berlin: this is the first of its two runs")
    assert found[3].endswith("comes twice in Europe/Berlin: this is the second of its two runs")


@pytest.mark.parametrize("expression", ["*/7 3-5 * * 1-5", "@monthly", "0 0 29 2 *"])
def test_it_shows_what_fire_times_yields_five_of_them(project: Project, expression: str) -> None:
    found = project.call("next", expression, *BERLIN, "--from", "2026-11-20T00:00Z", "--json").json
    due = islice(fire_times(expression, "Europe/Berlin", datetime(2026, 11, 20, tzinfo=UTC)), 5)
    assert [entry["utc"] for entry in found] == [instant.isoformat() for instant in due]


def test_an_interval_can_be_asked_for_as_schedules_list_prints_it(project: Project) -> None:
    found = lines(project.call("next", "every 90s", "--from", "2026-11-20T00:00", "-n", "2"))
    assert [line.split()[2] for line in found[1:]] == ["00:00:00", "00:01:30"]


@pytest.mark.parametrize(
    ("expression", "column"),
    [("61 2 * * *", 1), ("0  24 * * *", 4), ("0 0 30 2 *", 5), ("0\t0 * * 8", 9), ("* * * *", 7), ("0 0 ⎋ * *", 5)],
)
def test_a_caret_stands_under_what_is_wrong(project: Project, expression: str, column: int) -> None:
    said, shown, caret = refused(project.call("next", expression)).splitlines()
    assert said.startswith(f"column {column}: ")
    assert caret.strip() == "^"
    assert shown[caret.index("^")] == expression[column - 1]


def test_of_a_long_expression_the_part_with_the_mistake_is_shown(project: Project) -> None:
    minutes = ",".join(map(str, range(60)))
    _, shown, caret = refused(project.call("next", f"{minutes},60,{minutes[:60]} * * * *")).splitlines()
    assert shown[caret.index("^") :].startswith("60,")
    assert len(shown) < 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["30", "2", "cronjobs.yaml"], 'in quotes: cronjobs next "30 2 * * *"'),  # a shell's *
        (["@dialy"], "is not a name that cron knows"),
        (["every 10x"], "is not a duration"),
        (["every 500ms"], "whole number of seconds"),
        (["every 10m", "--timezone", "Berlin"], "did you mean Europe/Berlin"),
        (["@daily", "--timezone", "Berlin"], "did you mean Europe/Berlin?"),
        (["@daily", "--timezone", "Berlin/Europe"], "did you mean Europe/Berlin?"),
        (["@daily", "--from", "tomorrow"], "is not an ISO time"),
        (["@daily", "--from", "0001-01-01"], "is not an ISO time"),
        ([""], "5 fields, but this one has 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(project: Project, arguments: list[str], said: str) -> None:
    assert said in refused(project.call("next", *arguments))


def test_control_characters_do_not_reach_the_terminal(project: Project) -> None:
    assert "\x1b" not in refused(project.call("next", "0 0 \x1b[2J * *"))
    assert "\x1b" not in refused(project.call("next", "every \x1b[2J"))
    assert "\x1b" not in refused(project.call("next", "@daily", "--from", "\x1b[2J"))


# --- from when --------------------------------------------------------------------------------------------------------


def test_it_begins_with_now_and_from_includes_its_instant(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronjobs.desk.cli.next.SYSTEM", FakeClock(datetime(2026, 11, 20, 12, tzinfo=UTC)))
    [now] = project.call("next", "0 * * * *", "-n", "1", "--json").json
    assert now["utc"] == "2026-11-20T13:00:00+00:00"
    [at_once] = project.call("next", "0 * * * *", "-n", "1", "--json", "--from", "2026-11-20T13:00:00+01:00").json
    assert at_once["utc"] == "2026-11-20T12:00:00+00:00"


def test_an_end_of_time_is_said(project: Project) -> None:
    answer = project.call("next", "@daily", "--from", "9999-12-31")
    assert (answer.code, answer.out) == (0, "")
    assert "nothing more is due" in answer.err


# --- the file ---------------------------------------------------------------------------------------------------------


def test_without_a_name_all_schedules_of_24_hours_come_in_order(project: Project) -> None:
    assert lines(with_file(project).call("next", "--from", "2026-11-20T12:00")) == [
        "local                                        UTC               schedule  remark",
        "Fri 2026-11-20 12:00 +0100 Europe/Berlin     2026-11-20 11:00  cache     the first of 144 in 24 h",
        "Fri 2026-11-20 09:00 -0500 America/New_York  2026-11-20 14:00  new-york",
        "Sat 2026-11-21 02:30 +0100 Europe/Berlin     2026-11-21 01:30  nightly",
    ]
    assert [path.name for path in project.folder.iterdir()] == ["cronjobs.yaml"]


def test_json_leaves_none_out(project: Project) -> None:
    found = with_file(project).call("next", "--from", "2026-11-20T12:00", "--json").json
    assert [entry["schedule"] for entry in found].count("cache") == 144
    assert len(found) == 146
    assert [entry["utc"] for entry in found] == sorted(entry["utc"] for entry in found)


def test_a_frequent_schedule_still_tells_of_a_clock_change(project: Project) -> None:
    with_file(project, 'timezone: Europe/Berlin\nschedules: {often: {cron: "*/20 * * * *", job: x}}\n')
    [_, line] = lines(project.call("next", "--from", "2026-10-25"))
    assert line.endswith(
        "the first of 72 in 24 h; 2026-10-25 02:00, 02:20, 02:40 come twice in Europe/Berlin: "
        "the schedule runs both times"
    )


def test_a_count_stands_in_for_the_24_hours(project: Project) -> None:
    with_file(project, 'schedules: {weekly: {cron: "0 0 * * 1", job: x}, yearly: {cron: "@yearly", job: x}}\n')
    answer = project.call("next", "--from", "2026-12-15")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "nothing is due in these 24 h; the next is weekly in 6d (-n 1 shows it)\n"
    found = project.call("next", "--from", "2026-12-15", "-n", "3", "--json").json
    assert [entry["schedule"] for entry in found] == ["weekly", "weekly", "yearly"]


def test_a_schedule_is_shown_on_its_own_clocks_unless_others_are_asked_for(project: Project) -> None:
    with_file(project)
    at = ("--from", "2026-11-20T00:00Z", "-n", "1")
    assert lines(project.call("next", "new-york", *at)) == [
        "local (America/New_York)    UTC               schedule  remark",
        "Fri 2026-11-20 09:00 -0500  2026-11-20 14:00  new-york",
    ]
    [_, line] = lines(project.call("next", "new-york", *BERLIN, *at))
    assert line.startswith("Fri 2026-11-20 15:00 +0100  2026-11-20 14:00")
    assert len(lines(project.call("next", "cache"))) == 6


def test_an_expression_is_meant_in_the_timezone_of_the_file(project: Project) -> None:
    with_file(project)
    assert "local (Europe/Berlin)" in project.call("next", "@daily").out
    (project.folder / "cronjobs.yaml").write_text("schedules: [")
    assert "local (UTC)" in project.call("next", "@daily").out
    assert "cronjobs.yaml:2:1: YAML" in refused(project.call("next", "@daily", "--config", "cronjobs.yaml"), 3)


def test_a_name_that_is_none_is_answered_with_the_nearest(project: Project) -> None:
    with_file(project)
    assert 'no schedule "nighly"' in refused(project.call("next", "nighly"))
    assert "did you mean nightly?" in refused(project.call("next", "nighly"))
    assert 'an expression looks like "30 2 * * *" or "every 10m"' in refused(project.call("next", "10m"))


def test_a_bad_entry_is_said_and_the_others_are_shown(project: Project) -> None:
    with_file(project, FILE + '  bad: {cron: "61 * * * *", job: x}\n')
    said = "cronjobs.yaml:8:16: schedules.bad.cron: minute 61 is not in 0–59\n"
    everything = project.call("next", "--from", "2026-11-20T12:00")
    assert (everything.code, len(everything.out.splitlines()), everything.err) == (3, 4, said)
    assert refused(project.call("next", "bad"), 3) == said
    assert project.call("next", "nightly").code == 0


def test_a_schedule_of_another_environment_is_not_said_to_come(project: Project) -> None:
    with_file(
        project, 'environment: staging\nschedules: {mail: {cron: "@daily", job: x, environments: [production]}}\n'
    )
    assert 'is not for environment "staging"' in refused(project.call("next", "mail"))
    assert project.call("next", "--json").json == []


def test_a_file_without_schedules_says_so(project: Project) -> None:
    answer = with_file(project, "timezone: UTC\n").call("next")
    assert (answer.code, answer.out, answer.err) == (0, "", "the file has no schedule that runs here\n")


def test_a_year_of_minutes_is_counted_in_no_time(project: Project) -> None:
    found = project.call("next", "* * * * *", "--from", "2026-01-01", "-n", "10000", "--json").json
    first, last = (datetime.fromisoformat(found[place]["utc"]) for place in (0, -1))
    assert last - first == timedelta(minutes=9999)
