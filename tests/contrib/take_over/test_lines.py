"""A user's crontab is read as cron reads it, line by line.

The expected results are from Debian's cron and its C code.
"""

from __future__ import annotations

import pytest

from cronjobs.contrib.take_over.fields_of_old_cron import BadField, read_fields
from cronjobs.desk.crontab.lines import Cron, CrontabEntry, NoEntry, read, setting, split

BOTH: list[Cron] = ["debian", "cronie"]


@pytest.mark.parametrize(
    ("line", "debian", "cronie"),
    [
        ("A=b", ("A", "b"), ("A", "b")),
        ("  A  =  two words \t", ("A", "two words"), ("A", "two words")),
        ("A='  x  '", ("A", "  x"), ("A", "  x  ")),
        ("""A="'x'" """, ("A", "x"), ("A", "'x'")),
        ("A='it\"s'", ("A", 'it"s'), ("A", 'it"s')),
        ("'A B' = c", ("A B", "c"), ("A B", "c")),
        ('"A"="b=c"', ("A", "b=c"), ("A", "b=c")),
        ("A=x # y", ("A", "x # y"), ("A", "x # y")),
        ('A=""', ("A", ""), ("A", "")),
        ("A=", None, ("A", "")),
        ('A="x" y', None, None),
        ('A="x', None, None),
        ("A B=c", None, None),
        ('"A=B"=c', None, None),
        ("* * * * * A=b c", None, None),
        ("@daily = foo", ("@daily", "foo"), ("@daily", "foo")),
    ],
)
def test_a_setting_is_what_each_cron_takes_for_one(line: str, debian: object, cronie: object) -> None:
    assert (setting(line, "debian"), setting(line, "cronie")) == (debian, cronie)


@pytest.mark.parametrize(
    ("rest", "debian", "cronie"),
    [
        ("date", ("date", ""), ("date", "")),
        (r"date +\%F", ("date +%F", ""), ("date +%F", "")),
        ("mail joe%Joe,%%Hi%", ("mail joe", "Joe,\n\nHi\n"), ("mail joe", "Joe,\n\nHi\n")),
        ("cat%", ("cat", ""), ("cat", "")),
        ("cat%%", ("cat", "\n"), ("cat", "\n")),
        (r"cat%100\% of it", ("cat", "100% of it\n"), ("cat", "100% of it\n")),
        (r"printf 'a\\nb' \x", (r"printf 'a\nb' \x", ""), (r"printf 'a\\nb' \x", "")),
        (r"cat a\\%b", ("cat a\\", "b\n"), ("cat a\\\\", "b\n")),
        (r"cat%a\\b\x", ("cat", "a\\\\b\\x\n"), ("cat", "a\\\\b\\x\n")),
        ("cat%a\\", ("cat", "a\\\n"), ("cat", "a\\\n")),
        ("cat%\\", ("cat", "\\"), ("cat", "\\")),
        ("echo \\", ("echo \\", ""), ("echo \\", "")),
        ("echo a  ", ("echo a  ", ""), ("echo a  ", "")),
    ],
)
def test_a_percent_sign_ends_the_command_unless_it_is_escaped(rest: str, debian: object, cronie: object) -> None:
    assert (split(rest, "debian"), split(rest, "cronie")) == (debian, cronie)


CRONTAB = """\
# at the top

MAILTO=ops
# nightly
#  and only then
\t15 2\t* * *\tbackup --all
A=1
@daily first
A=2
@hourly    second
# cronjobs begin /srv/shop/cronjobs.yaml
* * * * * /venv/bin/python -P -m cronjobs run-due --config /srv/shop/cronjobs.yaml
# cronjobs end /srv/shop/cronjobs.yaml
# cronjobs swapped /srv/shop/cronjobs.yaml: 1 1 * * * gone
5 * * * *
* * * * * * six
5 5
"""


def test_an_entry_has_the_settings_above_it_and_the_comments_right_above_it() -> None:
    first, second, third, *bad = read(CRONTAB, "debian")
    assert first == CrontabEntry(
        6,
        "\t15 2\t* * *\tbackup --all",
        "15 2 * * *",
        "backup --all",
        "backup --all",
        "",
        (("MAILTO", "ops"),),
        ("# nightly", "#  and only then"),
    )
    assert isinstance(second, CrontabEntry)
    assert isinstance(third, CrontabEntry)
    assert (second.when, second.settings, second.comments) == ("@daily", (("MAILTO", "ops"), ("A", "1")), ())
    assert (third.when, third.settings) == ("@hourly", (("MAILTO", "ops"), ("A", "2")))
    assert [(each.number, each.why) for each in bad if isinstance(each, NoEntry)] == [
        (15, "the line has no command"),
        (16, 'the command begins with "*", so the line has one field too many'),
        (17, "the line is neither a setting nor a job with five time fields"),
    ]


def test_a_command_that_is_too_long_for_cron_is_no_entry() -> None:
    for length, kind in ((998, CrontabEntry), (999, NoEntry)):
        [found] = read(f"* * * * * {'x' * length}\n", "debian")
        assert isinstance(found, kind)
        assert isinstance(read(f"* * * * * {'x' * length}\n", "cronie")[0], CrontabEntry)


def test_options_of_cronies_lines_are_no_part_of_the_command() -> None:
    [found] = read("-*/5 * * * * -n  backup -n\n", "cronie")
    assert isinstance(found, CrontabEntry)
    assert (found.when, found.command) == ("*/5 * * * *", "backup -n")


@pytest.mark.parametrize(
    ("when", "minutes", "weekdays"),
    [
        ("*/20 * * * *", {0, 20, 40}, set(range(8))),
        ("*/90 * * * 7", {0}, {0, 7}),
        ("5,10-12,20-30/5 * * * mon-FRI", {5, 10, 11, 12, 20, 25, 30}, {1, 2, 3, 4, 5}),
        ("08 * * * */2", {8}, {0, 2, 4, 6, 7}),
        ("*,3 * * * 1-7/2", set(range(60)), {0, 1, 3, 5, 7}),
        ("@weekly", {0}, {0, 7}),
    ],
)
@pytest.mark.parametrize("cron", BOTH)
def test_fields_select_what_cron_reads_in_them(when: str, minutes: set[int], weekdays: set[int], cron: Cron) -> None:
    found = read_fields(when, cron)
    assert found.minutes == minutes
    assert found.weekdays == weekdays


def test_ranges_that_the_two_crons_read_differently() -> None:
    assert read_fields("* * * * fri-sun", "debian").weekdays == set()
    assert read_fields("* * * * fri-sun", "cronie").weekdays == {0, 5, 6, 7}
    assert read_fields("5-64/50 * * * *", "cronie").minutes == {5, 55}
    with pytest.raises(BadField, match='minute "5-64/50": 64 is not in 0-59'):
        read_fields("5-64/50 * * * *", "debian")


REFUSED = "60 * * * *; * 24 * * *; * * 0 * *; * * * 13 *; * * * * 8; 5/15 * * * *; */0 * * * *; 1, * * * *; x * * * *"
REFUSED += "; * * * sunday *; @Daily; @reboot; -1 * * * *; */x * * * *; jan * * * *"


@pytest.mark.parametrize("when", REFUSED.split("; "))
@pytest.mark.parametrize("cron", BOTH)
def test_fields_that_cron_refuses(when: str, cron: Cron) -> None:
    with pytest.raises(BadField):
        read_fields(when, cron)
