"""Which expressions are accepted, what they mean, and the messages about others.

"Debian" is what `crontab -n` of Debian's cron 3.0pl1-162 says of the same five fields, run once for each row here.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronjobs.engine.crontime.grammar import MAX_LENGTH, NAMES, parse
from cronjobs.errors import CronError

ALL_DAYS = frozenset(range(1, 32))


def minutes(text: str) -> list[int]:
    return sorted(parse(f"{text} * * * *").minutes)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("*", list(range(60))),
        ("0", [0]),
        ("05", [5]),
        ("5-5", [5]),  # croniter 7.0 reads this as "every"
        ("*/15", [0, 15, 30, 45]),
        ("*/60", [0]),
        ("1-20/3", [1, 4, 7, 10, 13, 16, 19]),  # entry.c: for (i = num1; i <= num2; i += num3)
        ("45-45/5", [45]),  # cronsim 2.8 reads this as 45-59/5
        ("30,0,15-17,16", [0, 15, 16, 17, 30]),
    ],
)
def test_a_field_means_what_debian_reads(field: str, expected: list[int]) -> None:
    assert minutes(field) == expected


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("0", {0}),
        ("7", {0}),
        ("sun", {0}),
        ("Mon", {1}),
        ("mon-fri", {1, 2, 3, 4, 5}),  # crontab(5) says ranges of names are not allowed; Debian takes them
        ("SAT,sun", {6, 0}),
        ("sun-tue", {0, 1, 2}),
        ("5-7", {5, 6, 0}),
        ("1-7/2", {1, 3, 5, 0}),
        ("*/2", {0, 2, 4, 6}),
        ("*/7", {0}),
        ("0-7", set(range(7))),
        ("*", set(range(7))),
    ],
)
def test_zero_and_seven_are_sunday(field: str, expected: set[int]) -> None:
    assert parse(f"0 0 * * {field}").weekdays == expected


def test_month_names_count_from_january_in_any_case() -> None:
    assert parse("0 0 1 jan,DEC,mar-May *").months == {1, 3, 4, 5, 12}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_its_five_fields(name: str) -> None:
    named, spelled = parse(name), parse(NAMES[name])
    assert named.source == name
    assert (named.minutes, named.hours, named.days) == (spelled.minutes, spelled.hours, spelled.days)
    assert (named.months, named.weekdays, named.fixed_time) == (spelled.months, spelled.weekdays, spelled.fixed_time)


@pytest.mark.parametrize(
    ("text", "fixed_time"),
    [
        ("30 2 * * *", True),
        ("0-59 0-23 * * *", True),  # every minute, and yet no "*": Debian decides by the character
        ("*/30 2 * * *", False),
        ("30 */2 * * *", False),
        ("@hourly", False),
        ("@daily", True),
    ],
)
def test_a_star_in_the_minute_or_hour_makes_a_wildcard_schedule(text: str, fixed_time: bool) -> None:
    assert parse(text).fixed_time is fixed_time


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("0 0 13 * 5", False),
        ("0 0 1-31 * 5", False),
        ("0 0 * * 5", True),
        ("0 0 13 * *", True),
        ("0 0 */2 * 1", True),  # crontab.guru/cron-bug.html
        ("0 0 13 * */2", True),
    ],
)
def test_a_star_in_a_day_field_makes_both_of_them_count(text: str, both: bool) -> None:
    assert parse(text).both_days_must_match is both


def test_blanks_around_and_between_the_fields_do_not_matter() -> None:
    assert parse(" \t0  12\t1 * * ").day_fields == parse("0 12 1 * *").day_fields


def test_expressions_written_alike_are_equal_and_hashable() -> None:
    assert parse("0 0 * * *") == parse("0 0 * * *")
    assert len({parse("0 0 * * *"), parse("0 0 * * *"), parse("@daily")}) == 2


REFUSED = [
    # text, column, a part of the sentence, and whether Debian takes it
    ("61 * * * *", 1, "minute 61 is not in 0–59", False),
    ("0 24 * * *", 3, "hour 24 is not in 0–23", False),
    ("0 0 0 * *", 5, "day 0 is not in 1–31", False),
    ("0 0 * 13 *", 7, "month 13 is not in 1–12", False),
    ("0 0 * * 8", 9, "weekday 8 is not in 0–7", False),
    ("0 0,25 * * *", 5, "hour 25 is not in 0–23", False),
    ("1-61 * * * *", 3, "minute 61 is not in 0–59", False),
    ("-1 * * * *", 1, "not a whole number", False),
    ("1.5 * * * *", 1, "not a whole number", False),
    ("5x * * * *", 1, '"5x" is not a minute', False),
    ("jan * * * *", 1, '"jan" is not a minute', False),
    ("0 0 * * monfri", 9, 'write "mon-fri" or "mon,fri", not "monfri"', False),
    ("0 0 * january *", 7, 'write "jan", not "january"', False),
    ("1, * * * *", 3, "remove the extra comma", False),
    (",1 * * * *", 1, "remove the extra comma", False),
    ("1,,2 * * * *", 3, "remove the extra comma", False),
    ("5/15 * * * *", 1, 'a step needs a range: write "5-59/15"', False),
    ("*/0 * * * *", 3, "a step must be at least 1", False),
    ("*/x * * * *", 3, '"x" is not a step', False),
    ("*/90 * * * *", 3, "step 90 is longer than the 60 minutes of an hour", True),
    ("22-2 * * * *", 1, 'range "22-2" runs backwards: write "22-59,0-2"', True),
    ("0 0 * * fri-mon", 9, 'write "5-7,0-1"', True),
    ("0 0 * * sat-sun", 9, 'write "6-7"', True),
    ("0 0 * * 7-1", 9, 'write "0-1"', True),
    ("*,5 * * * *", 1, '"*" stands alone', True),
    ("5,* * * * *", 3, '"*" stands alone', True),
    ("5,*/10 * * * *", 3, '"*" stands alone', True),
    ("*5 * * * *", 1, '"*5" is not a minute', True),  # entry.c skips what follows, as in the next three
    ("1-2-3 * * * *", 1, '"1-2-3" is not a minute', True),
    ("*/5/2 * * * *", 1, '"*/5/2" is not a minute', True),
    ("0~30 * * * *", 2, "random time", True),
    ("0 0 * * 1#2", 10, '"#" is Quartz syntax', True),
    ("0 0 30 2 *", 5, "day 30 never comes in feb: choose a day up to 29", True),
    ("0 0 31 2,4,6,9,11 *", 5, "day 31 never comes", True),
    ("0 0 30 2 */2", 5, "day 30 never comes in feb", True),
    ("007 * * * *", 1, 'write "7", not "007"', True),
    ("9999999999999999999999999 * * * *", 1, "minute 99999999999999999999… is not in 0–59", False),
    ("0 0 L * *", 5, "L is Quartz syntax", False),
    ("0 0 L-3 * *", 5, "L is Quartz syntax", False),
    ("0 0 * * 5L", 10, "L is Quartz syntax", False),
    ("0 0 15W * *", 7, "W is Quartz syntax", False),
    ("0 0 LW * *", 5, "LW is Quartz syntax", False),
    ("0 0 ? * *", 5, '"?" is Quartz syntax: write "*"', False),
    ("H * * * *", 1, "H is Jenkins syntax", False),
    ("H/15 * * * *", 1, "H is Jenkins syntax", False),
    ("R * * * *", 1, "R is croniter syntax", False),
    ("@reboot", 1, "@reboot is not a time", True),
    ("@Daily", 1, 'write "@daily"', False),
    ("@every_minute", 1, "write one of @hourly", False),
    ("@every 10m", 1, 'write "every: 10m"', False),
    ("@daily 5", 8, '"@daily" stands alone', None),
    ("", 1, "has 5 fields, but this one has 0", None),
    ("* * *", 5, "has 5 fields, but this one has 3", None),
    ("0 0 0 * * *", 11, 'seconds are not supported; without them this is "0 0 * * *"', None),
    ("0 * * * * *", 11, 'seconds are not supported; without them this is "* * * * *"', None),
    ("30 15 2 * * mon-fri", 13, 'without them this is "15 2 * * mon-fri"', None),
    ("*/10 * * * * *", 14, 'instead of "cron", write "every: 10s", and "linger: true" under "run"', None),
    ("0 0 12 * * ? 2026", 12, 'seconds and years are not supported; without them this is "0 12 * * *"', None),
    ("0 0 12 ? * 2", 12, 'this is "0 12 * * 2" (weekdays count from 0, Sunday, not from 1)', None),
    ("0 12 * * * 2026", 12, 'years are not supported; without them this is "0 12 * * *"', None),
    ("0 0 25 * * *", 12, 'this one has 6: write "minute hour day month weekday"', None),
    ("0 2 * * * /usr/bin/backup --all", 11, "put the command (the rest of the crontab line)", None),
    ("0 2 * * * root run-parts /etc", 11, '(the rest of the crontab line) into the key "command"', None),
    ("٣ * * * *", 1, "(U+0663) cannot be part", False),
    ("1–5 * * * *", 2, "(U+2013) is not a hyphen", False),
    ("*\u00a0* * * *", 2, "U+00A0 cannot be part", False),
    ("*\x00 * * * *", 2, "control character U+0000", None),
    ("* * * * *\n", 10, "control character U+000A", None),
]


@pytest.mark.parametrize(("text", "column", "sentence", "debian_takes_it"), REFUSED)
def test_what_cannot_be_meant_is_refused_where_it_stands(
    text: str, column: int, sentence: str, debian_takes_it: bool | None
) -> None:
    with pytest.raises(CronError) as refusal:
        parse(text)
    assert sentence in str(refusal.value)
    assert refusal.value.column == column
    assert "\n" not in str(refusal.value)


def test_an_overlong_expression_is_refused_unread() -> None:
    with pytest.raises(CronError, match="at most 256 characters, but this one has 100000"):
        parse("1," * 50_000)
    longest = ",".join(["1"] * 200)[: MAX_LENGTH - len(" * * * *")].rstrip(",") + " * * * *"
    assert parse(longest).minutes == {1}


@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 29 2 */7", "0 0 31 1,2 *", "0 0 30 2 1", "0 0 31 4 1-5"])
def test_days_that_come_some_time_are_taken(text: str) -> None:
    assert parse(text)


@given(st.text(max_size=40) | st.text(alphabet="*/-,0123456789 LW#?@ajnmonu", max_size=40))
def test_no_text_raises_anything_but_cron_error(text: str) -> None:
    refusal = refusal_of(text)
    if refusal is None:
        assert parse(text).minutes <= set(range(60))
        assert parse(text).days <= ALL_DAYS
    else:
        assert 1 <= refusal.column <= len(text) + 1
        assert str(refusal).isprintable()


def refusal_of(text: str) -> CronError | None:
    try:
        parse(text)
    except CronError as refusal:
        return refusal
    return None


@given(st.data())
def test_what_is_written_is_what_is_read(data: st.DataObject) -> None:
    low, high = data.draw(st.sampled_from([(0, 59), (0, 23), (1, 31), (1, 12)]))
    items, expected = [], set()
    for _ in range(data.draw(st.integers(1, 4))):
        first = data.draw(st.integers(low, high))
        last = data.draw(st.integers(first, high))
        step = data.draw(st.integers(1, high - low + 1))
        items.append(data.draw(st.sampled_from([f"{first}-{last}/{step}", f"{first:02}-{last:02}/{step}"])))
        expected |= {value for value in range(low, high + 1) if first <= value <= last and (value - first) % step == 0}
    column = {(0, 59): 0, (0, 23): 1, (1, 31): 2, (1, 12): 3}[low, high]
    fields = ["0", "0", "1", "1", "*"]
    fields[2] = "1-31" if column == 3 else fields[2]
    fields[column] = ",".join(items)
    if column == 2:
        fields[3] = "1"
    expression = parse(" ".join(fields))
    assert [expression.minutes, expression.hours, expression.days, expression.months][column] == expected
