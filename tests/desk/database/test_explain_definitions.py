"""``explain`` and time: changed definitions, changed clocks, unsettled occurrences, and pruned history."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import update
from support.explained import BEGIN, HOUR, MINUTE, MINUTELY, World, a_night, brake, fail, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.postgres import OWNER

from cronjobs.desk.cli.parse_values import of_day
from cronjobs.desk.insight.instants import asked_on_the_clock
from cronjobs.desk.insight.schedule_history import names_of_its_own
from cronjobs.desk.rules.schedule_names import names_of
from cronjobs.engine.database import tables
from cronjobs.engine.store.schedules import name_now
from cronjobs.engine.store.ticks import record

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

# --- by which definition ----------------------------------------------------------------------------------------------


def an_edit(world: World) -> None:
    """At 08:30:30 on 3 March "15 * * * *" becomes "45 * * * *" and moves to Berlin."""
    world.file(s='cron: "15 * * * *"')
    world.tick()
    world.ticks(utc("2026-03-02T08:15:10"), utc("2026-03-03T08:15:10"), every=HOUR)
    world.file(s='cron: "45 * * * *", timezone: Europe/Berlin')
    world.tick(utc("2026-03-03T08:30:30"))
    world.ticks(utc("2026-03-03T08:45:10"), utc("2026-03-03T11:45:10"), every=HOUR)


@pytest.mark.slow
def test_due_by_the_definition_of_that_day(world: World) -> None:
    an_edit(world)
    told = world.ask("s", "--at", "2026-03-02T20:15Z")
    assert told.verdict == "enqueued"
    assert "by the definition applied on 2026-03-02 08:00:30 by host alpha (15 * * * *)" in told
    told = world.ask("s", "--at", "2026-03-03T10:45")  # Berlin, as it is meant now
    assert told.verdict == "enqueued"
    assert (
        "s was due at 2026-03-03 10:45:00 Europe/Berlin (09:45:00 UTC), by the definition applied on "
        "2026-03-03 09:30:30" in (told)
    )


@pytest.mark.slow
def test_not_due_by_the_definition_of_that_day(world: World) -> None:
    an_edit(world)
    told = world.ask("s", "--at", "2026-03-02T20:45Z")
    assert told.verdict == "not_due"
    assert told.steady == [
        (
            "s was not due at 2026-03-02 20:45:00 UTC, by the definition applied on 2026-03-02 08:00:30 by host alpha "
            "(15 * * * *)."
        ),
        "The previous occurrence was 2026-03-02 20:15:00, the next one was 2026-03-02 21:15:00.",
        (
            "Under the definition applied on 2026-03-03 08:30:30 by host alpha (45 * * * *, Europe/Berlin) "
            "it would have been due."
        ),
    ]


def test_an_occurrence_before_an_edit_in_the_middle_of_an_outage(world: World) -> None:
    world.file(s='cron: "15 * * * *"')
    world.tick()
    world.file(s='cron: "45 * * * *"')
    world.tick(utc("2026-03-02T09:20:00"))
    told = world.ask("s", "--at", "09:15")
    assert told.verdict == "enqueued"
    assert "(15 * * * *)" in told
    assert "A tick of host alpha made job 1 for it at 09:20:00, 5m late." in told
    assert world.ask("s", "--at", "08:45").verdict == "not_due"


def test_by_the_definition_that_a_clock_which_was_ahead_dates_later(world: World) -> None:
    world.file(s='cron: "*/10 * * * *"')
    for timing in ('cron: "*/10 * * * *"', 'cron: "5 * * * *"'):
        world.file(s=timing)
        world.clock.advance(2 * HOUR)
        world.tick()
        world.clock.advance(-2 * HOUR)
        world.tick()
        world.clock.advance(10 * MINUTE)
        world.tick()
    for at, timing, dated in (("08:10", "*/10", "10:00:30"), ("09:05", "5", "10:10:30")):
        if at == "09:05":
            world.tick(utc("2026-03-02T09:05:10"))
        told = world.ask("s", "--at", at)
        assert told.verdict == "enqueued"
        assert f"s was due at 2026-03-02 {at}:00 UTC, by the definition ({timing} " in told
        assert f"applied on 2026-03-02 {dated} by host alpha, when a clock was ahead" in told
    listed = world.say("s", "--from", "2026-03-02T08:00:30Z", "--to", "2026-03-02T09:30Z").out
    assert "08:10:00" in listed
    assert listed.count("not_yet_defined") <= 1


def test_before_it_was_defined(world: World) -> None:
    world.file(other='cron: "0 0 1 1 *"')
    world.tick()
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-02T10:00:00"), host="beta")
    told = world.ask("s", "--at", "09:15")
    assert told.verdict == "not_yet_defined"
    assert told.steady == [
        (
            "s did not exist yet at 2026-03-02 09:15:00 UTC: the schedule was first applied on "
            "2026-03-02 10:00:00 by host beta."
        ),
        "A new schedule never fires for times before it existed.",
        "Under the definition applied on 2026-03-02 10:00:00 by host beta (15 * * * *, UTC) it would have been due.",
    ]


def test_defined_at_an_instant_that_is_still_to_come(world: World) -> None:
    world.file(s='cron: "15 * * * *"')
    world.tick(utc("2026-03-02T10:00:00"))
    world.clock.advance(-HOUR)
    told = world.ask("s", "--at", "08:15")
    assert told.verdict == "not_yet_defined"
    first = "the schedule was first applied on 2026-03-02 10:00:00 by host alpha, when a clock was ahead"
    assert f"s did not exist yet at 2026-03-02 08:15:00 UTC: {first}." in told


def test_retired_and_returned(world: World) -> None:
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"')
    world.tick()
    world.file(other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-02T10:00:00"))
    told = world.ask("s", "--at", "2026-03-02T10:00")
    assert told.verdict == "not_due"  # the old definition was in force up to then
    world.go(utc("2026-03-02T12:30:00"))
    told = world.ask("s", "--at", "12:15")
    assert told.verdict == "retired"
    retired = (
        "a tick on host alpha retired it at 2026-03-02 10:00:00, because the file that was applied then did not have "
        "the schedule for this environment."
    )
    assert f"s was not in force at 2026-03-02 12:15:00 UTC: {retired}" in told
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-02T13:00:00"))
    told = world.ask("s", "--at", "12:15")
    assert told.verdict == "retired"
    assert "for this environment; it came back at 2026-03-02 13:00:00." in told
    assert "A schedule that returns to the file does not make up for the occurrences it missed in between." in told
    assert world.ask("s", "--at", "2026-03-02T13:15").verdict == "pending"


def test_without_a_time_a_retired_schedule_is_called_so(world: World) -> None:
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"')
    world.tick()
    world.tick(utc("2026-03-02T08:15:10"))
    world.file(other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-02T10:00:00"))
    told = world.ask("s")
    assert told.found["at"] == "2026-03-02T09:15:00+00:00"  # it was due before the file without it was applied
    said = (
        "s is retired now: a tick on host alpha retired it at 2026-03-02 10:00:00, because the file that was applied "
        "then "
    )
    assert told.steady[-1] == said + "did not have the schedule for this environment."
    assert "retired now" not in world.ask("s", "--at", "08:15")
    world.go(utc("2026-03-02T11:00:00"))
    [span] = world.ask("s", "--since", "30m").found["occurrences"]
    begins = "s was not in force from 2026-03-02 10:30:00 to 2026-03-02 11:00:00: a tick on host alpha retired it"
    assert span["sentences"][0].startswith(begins)
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"')
    assert world.ask("s").steady[-1].startswith("The file here has the schedule, but no tick has applied that file")


def test_without_a_time_a_changed_definition_and_a_pause_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file(s="every: 5m")
    world.tick()
    world.tick(utc("2026-03-02T08:05:10"))
    assert world.ask("s").steady[-1].startswith("Attempt 1 succeeded")
    world.file(s='cron: "30 * * * *"')
    world.tick(utc("2026-03-02T08:07:02"))
    changed = (
        "The schedule now has the timing 30 * * * *, applied on 2026-03-02 08:07:02 by host alpha. It is due next at "
        "2026-03-02 08:30:00."
    )
    assert world.ask("s").steady[-1] == changed
    brake(world, "pause", "s", "--skip", monkeypatch=monkeypatch)
    paused = "The schedule has been paused by ada since 08:07:02, until someone resumes it."
    assert world.ask("s").steady[-3:] == [changed, paused, "What comes due during the pause is skipped."]
    assert world.ask("s", "--at", "08:05").steady[-1].startswith("Attempt 1 succeeded")


def test_a_renaming_that_no_tick_has_applied_is_named_under_both_names(world: World) -> None:
    world.file(old='cron: "15 * * * *"')
    world.tick()
    world.tick(utc("2026-03-02T08:15:10"))
    world.file(new='cron: "15 * * * *", renamed_from: old')
    said = (
        "The file here renames old to new: the next tick will apply this, and the schedule keeps its history under the "
        "new name."
    )
    for asked in (["new"], ["old"], ["new", "--at", "08:15"]):
        told = world.ask(*asked)
        assert (told.verdict, told.steady[0]) == ("enqueued", said), asked
    world.tick(utc("2026-03-02T08:16:00"))
    assert "renames" not in world.ask("new")
    assert world.ask("old").steady[0] == "old is called new now."


def test_a_renamed_schedule_is_one_life(world: World) -> None:
    world.file(old='cron: "15 * * * *"')
    world.tick()
    world.tick(utc("2026-03-02T08:15:10"))
    world.file(new='cron: "15 * * * *", renamed_from: old')
    world.tick(utc("2026-03-02T09:00:00"))
    world.tick(utc("2026-03-02T09:15:10"))
    told = world.ask("new", "--at", "08:15")
    assert told.verdict == "enqueued"
    assert "by the definition applied on 2026-03-02 08:00:30 by host alpha" in told
    told = world.ask("old", "--at", "09:15")
    assert told.verdict == "enqueued"
    assert "old is called new now." in told


@pytest.mark.parametrize("asked", ["new", "old"])
def test_history_of_a_renamed_schedule_has_what_it_did_under_its_old_name(world: World, asked: str) -> None:
    world.file(old='cron: "15 * * * *", max_attempts: 1', other='cron: "15 * * * *"')
    world.tick()
    world.plan = [fail("early")]
    world.tick(utc("2026-03-02T08:15:10"))
    world.file(new='cron: "15 * * * *", max_attempts: 1, renamed_from: old', other='cron: "15 * * * *"')
    world.tick(utc("2026-03-02T09:00:00"))
    world.tick(utc("2026-03-02T09:15:10"))
    answer = world.cronjobs("history", "--since", "2h", "--schedule", asked)
    assert (answer.code, answer.err) == (0, "")
    assert "early" in answer.out
    shown = world.cronjobs("history", "--since", "2h", "--schedule", asked, "--json").json
    assert sorted(row["schedule"] for row in shown if row["kind"] == "attempt") == ["new", "old"]


def test_a_name_that_two_schedules_have_had_is_nobody_s_own() -> None:
    first, second = BEGIN, BEGIN + HOUR
    renames = [(first, "a", "b"), (second, "x", "a")]
    assert names_of_its_own("b", renames, ["a", "b"]) == {"b"}  # "a" is another schedule now
    assert names_of_its_own("x", renames, ["a", "b"]) == {"a", "x"}
    twice = [*renames, (second + HOUR, "a", "c")]
    assert names_of_its_own("b", twice, ["b", "c"]) == {"b"}
    assert names_of_its_own("c", twice, ["b", "c"]) == {"c", "x"}
    assert names_of_its_own("nobody", twice, ["b", "c"]) == {"nobody"}


def test_names_over_time_keep_those_who_bore_a_name_apart() -> None:
    first, second, third = BEGIN, BEGIN + HOUR, BEGIN + 2 * HOUR
    renames = [(first, "a", "b"), (second, "x", "a"), (third, "a", "c")]
    assert [(each.name, each.since, each.until) for each in names_of("c", renames)] == [
        ("c", third, None),
        ("a", second, third),
        ("x", None, second),
    ]
    assert [each.holds("a", first) for each in names_of("c", renames)] == [False, False, False]
    assert [(each.name, each.since) for each in names_of("b", renames)] == [("b", first), ("a", None)]
    assert [each.holds("a", third) for each in names_of("c", renames)] == [False, False, False]
    assert [each.holds("a", second) for each in names_of("c", renames)] == [False, True, False]
    assert name_now("x", renames) == "c"


def test_an_occurrence_at_the_moment_of_an_edit_belongs_to_the_old_definition(world: World) -> None:
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"')
    world.tick()
    with world.database.write() as connection:
        moment = utc("2026-03-02T08:15:00")
        record(connection, action="retire", subject="s", actor="tick", host="alpha", at=moment)
        connection.execute(update(tables.schedules).values(seen_until=moment, next_at=None))
    world.go(utc("2026-03-02T09:00:00"))
    assert world.ask("s", "--at", "08:15").verdict == "unknown"  # due, and no row: never retired
    assert world.ask("s", "--at", "08:16").verdict == "retired"


def test_a_schedule_that_only_the_file_has(world: World) -> None:
    world.file(other='cron: "0 0 1 1 *"')
    world.tick()
    world.file(s='cron: "15 * * * *"', other='cron: "0 0 1 1 *"', broken='cron: "61 * * * *"')
    told = world.ask("s", "--at", "08:15")
    assert told.verdict == "not_yet_defined"
    assert "no tick has applied it yet" in told
    told = world.ask("broken", "--at", "08:15", code=1)
    assert told.verdict == "unknown"
    assert "its entry is broken" in told


def test_a_schedule_of_a_file_that_ticks_refuse(world: World) -> None:
    world.file(**dict.fromkeys(("a", "b", "c", "d"), "every: 5m"))
    world.tick(utc("2026-03-03T08:00:10"))
    world.file(new="every: 5m")
    for at in ("08:01:10", "08:02:10"):
        world.tick(utc(f"2026-03-03T{at}"))
    told = world.ask("new")
    assert "host alpha has refused the file since 2026-03-03 08:01:10 UTC: " in told
    assert '("cronjobs sync --plan" shows everything that the file would change)' in told
    assert "the next tick will" not in told


def test_an_unknown_schedule_names_near_ones(world: World) -> None:
    a_night(world)
    told = world.ask("nightly-reprot", "--at", "02:15", code=1)
    assert (told.verdict, told.found["subject"]) == ("unknown", "nightly-reprot")
    answer = world.say("nightly-reprot", "--at", "02:15")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == 'there is no schedule or job type "nightly-reprot": did you mean nightly-report?\n'


# --- clocks that change -----------------------------------------------------------------------------------------------


def spring(world: World, cron: str) -> None:
    """The night of 8 March 2026: New York's clocks go from 02:00 to 03:00 at 07:00 UTC."""
    world.file(s=f'cron: "{cron}", timezone: America/New_York')
    world.tick(utc("2026-03-07T20:00:00"))
    world.ticks(utc("2026-03-08T06:30:10"), utc("2026-03-08T08:30:10"), every=30 * MINUTE)


def autumn(world: World, cron: str) -> None:
    """The night of 1 November 2026: New York's clocks go back from 02:00 to 01:00 at 06:00 UTC."""
    world.file(s=f'cron: "{cron}", timezone: America/New_York')
    world.tick(utc("2026-10-31T20:00:00"))
    world.ticks(utc("2026-11-01T05:00:10"), utc("2026-11-01T07:30:10"), every=30 * MINUTE)


def test_a_time_that_did_not_exist_ran_right_after_the_gap(world: World) -> None:
    spring(world, "30 2 * * *")
    told = world.ask("s", "--at", "2026-03-08T02:30")
    assert told.verdict == "enqueued"
    assert told.found["at"] == "2026-03-08T07:00:00+00:00"
    assert told.steady[:2] == [
        (
            "s was due at 2026-03-08 03:00:00 America/New_York (07:00:00 UTC), by the definition applied on "
            "2026-03-07 15:00:00 "
            "by host alpha (30 2 * * *)."
        ),
        "The clocks changed: 2026-03-08 02:30 does not exist in America/New_York: the schedule runs at 03:00 instead.",
    ]


def test_a_wildcard_has_no_run_in_the_gap(world: World) -> None:
    spring(world, "*/30 * * * *")
    told = world.ask("s", "--at", "2026-03-08T02:30")
    assert told.verdict == "not_due"
    assert "2026-03-08 02:00, 02:30 do not exist in America/New_York: no run, because a schedule with * in the" in told


def test_a_time_in_the_gap_that_the_schedule_does_not_name(world: World) -> None:
    spring(world, "30 2 * * *")
    told = world.ask("s", "--at", "2026-03-08T02:20")
    assert told.verdict == "not_due"
    assert told.steady[0] == "2026-03-08 02:20 did not exist in America/New_York: the clocks went forward."
    assert told.steady[1].startswith("s was not due at 2026-03-08 02:20 America/New_York, by the definition")


def test_a_fixed_time_runs_in_the_first_pass_of_the_doubled_hour_only(world: World) -> None:
    autumn(world, "30 1 * * *")
    told = world.ask("s", "--at", "2026-11-01T01:30")
    assert (told.verdict, told.found["at"]) == ("enqueued", "2026-11-01T05:30:00+00:00")
    assert "s was due at 2026-11-01 01:30:00 -0400 America/New_York (05:30:00 UTC)" in told
    assert "comes twice in America/New_York: the schedule runs the first time only." in told
    told = world.ask("s", "--at", "2026-11-01T01:30-05:00")
    assert told.verdict == "not_due"
    assert "2026-11-01 01:30 comes twice in America/New_York: the schedule runs the first time only." in told


def test_a_wildcard_runs_in_both_passes(world: World) -> None:
    autumn(world, "*/30 * * * *")
    told = world.ask("s", "--at", "2026-11-01T01:30")
    assert (told.verdict, told.found["at"]) == ("enqueued", "2026-11-01T05:30:00+00:00")
    assert "this is the first of its two runs" in told
    assert "The other run of 2026-11-01 01:30 is at 2026-11-01 01:30:00 -0500." in told
    second = world.ask("s", "--at", "2026-11-01T01:30-05:00")
    assert second.verdict == "enqueued"
    assert "this is the second of its two runs" in second
    assert second.facts["job"]["id"] == told.facts["job"]["id"] + 2


@pytest.mark.parametrize(
    ("wall", "zone", "at", "exists"),
    [
        ("2026-03-08T01:59", "America/New_York", "2026-03-08T06:59", True),
        ("2026-03-08T02:00", "America/New_York", "2026-03-08T07:00", False),
        ("2026-03-08T02:59", "America/New_York", "2026-03-08T07:00", False),
        ("2026-03-08T03:00", "America/New_York", "2026-03-08T07:00", True),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:30", False),  # half an hour
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-30T10:00", False),  # Apia left out a whole day
    ],
)
def test_times_in_a_gap_mean_the_change(wall: str, zone: str, at: str, exists: bool) -> None:
    asked = asked_on_the_clock(datetime.fromisoformat(wall), zone)
    assert (asked.at, asked.exists) == (utc(at), exists)


@pytest.mark.parametrize(
    ("now", "given", "wall"),
    [
        ("2026-10-25T00:10", "02:30", "2026-10-24T02:30"),  # 02:10, the first pass
        ("2026-10-25T01:10", "02:30", "2026-10-25T02:30"),  # 02:10 again: the clock showed 02:30 40 minutes ago
        ("2026-10-25T01:10", "03:30", "2026-10-24T03:30"),
        ("2026-10-25T01:10", "yesterday 02:30", "2026-10-24T02:30"),
        ("2026-03-29T01:10", "02:30", "2026-03-29T02:30"),  # 03:10, just after the gap
    ],
)
def test_a_time_of_day_in_a_repeated_hour_means_the_last_one_shown(now: str, given: str, wall: str) -> None:
    assert of_day(given, utc(now).astimezone(ZoneInfo("Europe/Berlin"))) == datetime.fromisoformat(wall)


# --- not settled, or not any more -------------------------------------------------------------------------------------


def test_no_tick_has_settled_it_yet(world: World) -> None:
    a_night(world)
    world.go(utc("2026-11-20T07:20:00"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert told.verdict == "pending"
    assert told.steady[1:] == [
        "It waits for a tick to settle it; the time now is 02:20:00.",
        "The last tick began at 01:58:00 on host alpha.",
    ]


def test_it_is_held_back_by_a_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a_night(world)
    world.go(utc("2026-11-20T07:20:00"))
    brake(world, "pause", "nightly-report", monkeypatch=monkeypatch)
    assert (
        "It is held back: the schedule has been paused by ada since 02:20:00, until someone resumes it."
        in world.ask("nightly-report", "--at", "02:15")
    )


@pytest.mark.parametrize(
    ("edit", "policy", "then"),
    [
        ("", "latest", "coalesced"),
        (", catch_up: none", "none", 'old, and "catch_up: none" makes up only for occurrences younger than 2m.'),
        (", catch_up_within: 1h", "latest", "old, beyond catch_up_within (1h)."),
        (", grace: 2h", "latest", "coalesced"),
        (", priority: 2", "latest", "coalesced"),
        ("45 * * * *", "latest", "coalesced"),
        ("retire", "latest", "enqueued"),
        ("rename", "latest", "coalesced"),
    ],
)
def test_an_edit_during_a_pause_neither_hides_a_held_back_occurrence_nor_what_decides_about_it(
    world: World, monkeypatch: pytest.MonkeyPatch, edit: str, policy: str, then: str
) -> None:
    entry = 'cron: "15 * * * *"'
    other = {f"other{number}": 'cron: "0 0 1 1 *"' for number in range(3)}
    world.file(s=entry, **other)
    world.ticks(utc("2026-03-02T08:14:10"), utc("2026-03-02T08:15:10"))
    brake(world, "pause", "--all", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-02T09:14:10"), utc("2026-03-02T09:16:10"))
    changed = {
        "45 * * * *": {"s": 'cron: "45 * * * *"'},
        "retire": {},
        "rename": {"new": f"{entry}, renamed_from: s"},
    }.get(edit, {"s": entry + edit})
    world.file(**changed, **other)
    world.ticks(utc("2026-03-02T09:20:10"), utc("2026-03-02T09:21:10"))
    at = utc("2026-03-02T09:15:00")
    for asked in ((), ("--at", "09:15")):
        told = world.ask("s", *asked)
        assert told.verdict == "pending", asked
        assert "was due at 2026-03-02 09:15:00 UTC" in told
        assert "It is held back: everything has been paused by ada" in told
        assert f'When the pause ends, "catch_up: {policy}" decides what becomes of it.' in told
        edited = (
            "The schedule has been edited since: the definition applied on 2026-03-02 09:20:10 by host alpha decides"
        )
        assert (edited in told) == (edit in (", catch_up: none", ", catch_up_within: 1h", ", grace: 2h"))
    for end in ("2026-03-02T09:18Z", "2026-03-02T09:21Z"):
        listed = world.ask("s", "--from", "2026-03-02T09:00Z", "--to", end).found["occurrences"]
        assert [each["verdict"] for each in listed if each["at"] == at.isoformat()] == ["pending"]
    world.go(utc("2026-03-02T10:30:00"))
    brake(world, "resume", "--all", monkeypatch=monkeypatch)
    told = world.ask("s", "--at", "09:15")
    assert told.verdict == then if then in ("coalesced", "enqueued") else then in told


def test_it_is_still_to_come(world: World) -> None:
    a_night(world)
    told = world.ask("nightly-report", "--at", "2026-11-21T02:15")
    assert told.verdict == "pending"
    assert told.steady == [
        (
            "nightly-report will be due at 2026-11-21 02:15:00 America/New_York (07:15:00 UTC), by the definition "
            "applied on 2026-11-19 12:00:00 by host alpha (15 2 * * *)."
        ),
        "It is due in 1d.",
    ]
    assert "will not be due" in world.ask("nightly-report", "--at", "2026-11-21T02:16")


@pytest.mark.slow
def test_its_job_is_pruned_and_the_ledger_still_tells(world: World) -> None:
    a_night(world)
    world.tick(utc("2026-11-20T07:15:12"))
    world.ticks(utc("2026-11-20T20:00:00"), utc("2026-12-08T20:00:00"), every=20 * HOUR)
    told = world.ask("nightly-report", "--at", "2026-11-20T02:15")
    assert told.verdict == "enqueued"
    assert told.steady[1:] == [
        "A tick of host alpha made job 1 for it, 12s late.",
        (
            "Its row is gone: it succeeded and was pruned (succeeded jobs are kept for 14d, others for 90d), unless "
            "someone deleted the row."
        ),
    ]
    told = world.ask("1")
    assert told.verdict == "pruned"
    assert told.steady == [
        (
            "Job 1 was made by a tick of host alpha for the occurrence of nightly-report at 2026-11-20 02:15:00 "
            "America/New_York (07:15:00 UTC), 12s late."
        ),
        (
            "Its row is gone: it succeeded and was pruned (succeeded jobs are kept for 14d, others for 90d), unless "
            "someone deleted the row."
        ),
    ]


def test_its_dead_job_is_pruned_and_how_it_ended_is_known(world: World) -> None:
    world.file("retention: {dead: 1d}\n", s='cron: "0 9 * * *", max_attempts: 1')
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T09:00:05"))
    world.tick(utc("2026-03-03T08:00:00"))
    world.tick(utc("2026-03-04T08:00:00"))
    gone = "dead, nobody had dealt with it, and retention removed"
    assert f"It was {gone} its row at 2026-03-04 08:00:00" in world.ask("s", "--at", "2026-03-02T09:00:00")
    assert f"It was {gone} its row at 2026-03-04 08:00:00" in world.ask("1")
    assert f"it was {gone} it at 2026-03-04 08:00:00 UTC" in world.cronjobs("jobs", "show", "1").err
    listed = world.cronjobs("explain", "s", "--from", "2026-03-02T08:00:00", "--to", "2026-03-02T10:00:00").out
    turned = world.cronjobs("explain", "s", "--from", "2026-03-02T10:00", "--to", "2026-03-02T08:00")
    assert "--to (2026-03-02 08:00) is before --from (2026-03-02 10:00): 02:15 without a date means" in turned.err
    assert "job 1, 5.3s late: dead, and pruned before anybody dealt with it" in " ".join(listed.split())
    status = world.cronjobs("status", "--json").json
    [schedule] = [each for each in status["schedules"] if each["name"] == "s"]
    assert schedule["strip"][0] == "dead"


@pytest.mark.slow
def test_older_than_the_ledger(world: World) -> None:
    a_night(world)
    world.tick(utc("2026-11-20T07:15:12"))
    world.ticks(utc("2026-11-20T20:00:00"), utc("2027-02-22T20:00:00"), every=20 * HOUR)
    told = world.ask("nightly-report", "--at", "2026-11-20T02:15")
    assert told.verdict == "beyond_retention"
    assert "by the definition applied on 2026-11-19 12:00:00 by host alpha (15 2 * * *)." in told
    assert "What became of it is no longer recorded: the ledger and the records of ticks are kept for 90d." in told
    assert world.ask("nightly-report", "--at", "2026-11-20T02:16").verdict == "not_due"
    assert world.ask("nightly-report", "--at", "2026-12-20T02:15").verdict in ("enqueued", "coalesced")


@pytest.mark.slow
def test_what_an_earlier_shorter_retention_pruned_is_known_to_be_gone(world: World) -> None:
    world.file("retention: {occurrences: 2d}\n", s='cron: "0 12 * * *"')
    world.tick()
    world.ticks(utc("2026-03-02T12:00:10"), utc("2026-03-09T12:00:10"), every=12 * HOUR)
    world.file(s='cron: "0 12 * * *"')
    world.tick(utc("2026-03-09T13:00:00"))
    assert world.ask("s", "--at", "2026-03-03T12:00").verdict == "beyond_retention"
    assert world.ask("s", "--at", "2026-03-09T12:00").verdict == "enqueued"


def test_a_hole_in_the_ledger_is_called_one(world: World) -> None:
    a_night(world)
    world.tick(utc("2026-11-20T07:15:12"))
    with world.database.write() as connection:
        connection.execute(tables.occurrences.delete())  # which no tick does
    told = world.ask("nightly-report", "--at", "02:15")
    assert told.verdict == "unknown"
    assert "Ticks have settled this schedule's occurrences up to" in told
    assert ", so the ledger should have a row for it, but it has none." in told


def test_what_a_wrong_clock_wrote_does_not_speak_for_what_is_to_come(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2036-03-02T08:00:00"))  # ten years ahead, once
    world.tick(utc("2026-03-02T08:05:10"))
    world.tick(utc("2026-03-02T08:06:10"))
    assert world.ask("s", "--at", "2026-03-02T08:06").verdict == "enqueued"
    assert world.ask("s", "--at", "2026-03-02T08:20").verdict == "pending"


@pytest.mark.connects_as(OWNER)  # nobody else may change the trail
def test_a_definition_that_this_version_cannot_read(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    with world.database.write() as connection:
        connection.execute(update(tables.audit).values(detail={"cron": "61 * * * *"}))
    told = world.ask("s", "--at", "2026-03-02T08:01")
    assert told.verdict == "unknown"
    assert "This version of cronjobs cannot read" in told
