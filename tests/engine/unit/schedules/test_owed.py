"""What a schedule owes after pauses: single cases by hand, and random lives compared with an oracle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.pausing import MINUTE, START, Story

from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.rules.occurrences import Range
from cronjobs.engine.schedules.definition import definition
from cronjobs.engine.schedules.planning import (
    TIMING,
    Owed,
    Part,
    Pause,
    Piece,
    Plan,
    held_back,
    pieces_from,
    settle,
    stored_pieces,
)

CASES = int(os.environ.get("PAUSE_CASES", "300"))
HOUR = timedelta(hours=1)


def at(hour: int, minute: int = 0, day: int = 2) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=START.tzinfo)


def hourly(**fields: Any) -> dict[str, Any]:
    return definition(ScheduleSettings(**({"name": "s", "job": "t.say", "cron": "0 * * * *"} | fields)))


def owed(**fields: Any) -> Owed:
    given: dict[str, Any] = {"name": "s", "definition": hourly(), "seen_until": START}
    return Owed(**(given | fields))


def pause(since: datetime = START, until: datetime | None = None, *, skip: bool = False) -> Pause:
    return Pause(since, until, skip, "paused by ada: deploy")


def outcomes(part: Part) -> list[tuple[str, Range | None]]:
    """The outcomes of the occurrences that do not run, each with their range."""
    missed = [("missed", part.missed), ("missed", part.dropped)]
    return [("skipped", part.skipped), *missed, ("coalesced", part.coalesced)]


def told(plan: Plan | None) -> list[tuple[str, int, datetime]]:
    """Each part as what became of how many, and the last of them."""
    assert plan is not None
    found = []
    for part in plan.parts:
        for outcome, what in outcomes(part):
            found += [(outcome, what.count, what.last)] if what else []
        found += [("run", 1, instant) for instant in part.run]
    return found


def test_nothing_is_settled_while_a_pause_is_in_force() -> None:
    assert settle(owed(), [pause()], START + 5 * HOUR) is None
    assert held_back(owed(), [pause()], START + 5 * HOUR) == Range(at(9), at(13), 5)


def test_at_the_end_of_a_pause_catch_up_decides_once_about_the_whole_span() -> None:
    plan = settle(owed(), [pause(until=START + 4 * HOUR)], START + 5 * HOUR)
    assert told(plan) == [("coalesced", 4, at(12)), ("run", 1, at(13))]
    assert plan is not None
    assert [(each.what.count, each.by) for each in plan.held] == [(4, "paused by ada: deploy")]
    assert (plan.seen_until, plan.next_at, plan.pieces) == (START + 5 * HOUR, at(14), ())


@pytest.mark.parametrize(
    ("catch_up", "became"),
    [
        ("none", [("missed", 5, at(13))]),
        ("latest", [("missed", 2, at(10)), ("coalesced", 2, at(12)), ("run", 1, at(13))]),
        ("all", [("missed", 2, at(10)), ("missed", 1, at(11)), ("run", 1, at(12)), ("run", 1, at(13))]),
    ],
)
def test_what_is_beyond_catch_up_is_missed_and_the_reason_names_the_pause(catch_up: str, became: list[Any]) -> None:
    schedule = hourly(catch_up=catch_up, catch_up_within=3 * HOUR, catch_up_limit=2)
    now = START + 5 * HOUR + 5 * MINUTE
    plan = settle(owed(definition=schedule), [pause(until=now)], now)
    assert told(plan) == became
    assert plan is not None
    assert plan.parts[0].why.startswith("held back by a pause")
    assert plan.parts[0].dropped is None or plan.parts[0].why_dropped.startswith("held back by a pause")


def test_without_a_pause_the_reason_names_none() -> None:
    plan = settle(owed(definition=hourly(catch_up="none")), [], START + 5 * HOUR + 5 * MINUTE)
    assert plan is not None
    assert plan.parts[0].why == "no tick fired it in time (catch_up: none)"
    assert plan.held == ()


def test_a_definition_that_goes_leaves_a_piece_behind() -> None:
    plan = settle(owed(), [pause()], START + 3 * HOUR, leaving=True)
    assert told(plan) == []
    assert plan is not None
    assert plan.pieces == (Piece(hourly(), START, START + 3 * HOUR),)
    assert plan.seen_until == START + 3 * HOUR


def test_a_definition_that_owes_nothing_leaves_no_piece() -> None:
    plan = settle(owed(), [pause()], START + 5 * MINUTE, leaving=True)
    assert plan is not None
    assert plan.pieces == ()


def test_pieces_that_differ_in_timing_alone_are_one_decision() -> None:
    """The night's run was moved while it was held back: one run, of the newest, stands for both."""
    piece = Piece(hourly(), START, START + 2 * HOUR)
    moved = hourly(cron="30 * * * *")
    plan = settle(owed(definition=moved, seen_until=piece.end, pieces=(piece,)), [], START + 4 * HOUR)
    assert told(plan) == [("coalesced", 2, at(10)), ("coalesced", 1, at(10, 30)), ("run", 1, at(11, 30))]
    assert plan is not None
    assert {part.into for part in plan.parts} == {at(11, 30)}


def test_pieces_of_other_work_are_decided_each_by_their_own_definition() -> None:
    piece = Piece(hourly(payload={"old": 1}, catch_up="all"), START, START + 2 * HOUR)
    plan = settle(owed(seen_until=piece.end, pieces=(piece,)), [], START + 4 * HOUR)
    assert told(plan) == [("run", 1, at(9)), ("run", 1, at(10)), ("coalesced", 1, at(11)), ("run", 1, at(12))]
    assert plan is not None
    assert [part.schedule.payload for part in plan.parts] == [{"old": 1}, {}]


def test_a_limit_of_catch_up_holds_for_all_pieces_together() -> None:
    piece = Piece(hourly(catch_up="all", catch_up_limit=3), START, START + 2 * HOUR)
    now = hourly(catch_up="all", catch_up_limit=3, cron="30 * * * *")
    plan = settle(owed(definition=now, seen_until=piece.end, pieces=(piece,)), [], START + 4 * HOUR)
    assert told(plan) == [("missed", 1, at(9)), ("run", 1, at(10)), ("run", 1, at(10, 30)), ("run", 1, at(11, 30))]


def test_a_retired_schedule_still_settles_its_pieces() -> None:
    piece = Piece(hourly(), START, START + 2 * HOUR)
    plan = settle(Owed("s", None, piece.end, (piece,)), [], START + 9 * HOUR)
    assert told(plan) == [("coalesced", 1, at(9)), ("run", 1, at(10))]
    assert plan is not None
    assert (plan.seen_until, plan.next_at, plan.pieces) == (piece.end, None, ())


def test_a_pause_that_skips_records_what_came_due_in_it_and_nothing_else() -> None:
    skipping = pause(START + HOUR, START + 3 * HOUR, skip=True)
    plan = settle(owed(), [skipping], START + 5 * HOUR)
    assert told(plan) == [("coalesced", 1, at(9)), ("skipped", 2, at(11)), ("coalesced", 1, at(12)), ("run", 1, at(13))]
    during = settle(owed(), [replace(skipping, until=None)], START + 3 * HOUR)
    assert told(during) == [("skipped", 2, at(11))]
    assert during is not None
    assert [(piece.start, piece.end < START + HOUR) for piece in during.pieces] == [(START, True)]


def test_a_pause_that_postpones_wins_over_one_that_skips_until_it_is_over() -> None:
    both = [pause(START + HOUR, skip=True), pause()]
    assert settle(owed(), both, START + 3 * HOUR) is None


def test_an_occurrence_at_the_very_end_of_a_pause_is_not_in_it() -> None:
    plan = settle(owed(), [pause(until=at(10), skip=True)], START + 2 * HOUR)
    assert told(plan) == [("skipped", 1, at(9)), ("run", 1, at(10))]


def test_what_cannot_be_read_keeps_what_it_owes_and_stops_nothing_else() -> None:
    bad = Piece({"job": "t.say", "cron": "61 * * * *"}, START - HOUR, START)
    good = Piece(hourly(), START, START + 2 * HOUR)
    plan = settle(owed(seen_until=good.end, pieces=(bad, good)), [], START + 3 * HOUR)
    assert told(plan) == [("coalesced", 2, at(10)), ("run", 1, at(11))]
    assert plan is not None
    assert plan.pieces == (bad,)
    assert len(plan.faults) == 1
    broken = settle(owed(definition=bad.definition, pieces=(good,)), [], START + 3 * HOUR)
    assert broken is not None
    assert (broken.seen_until, told(broken)) == (START, [("coalesced", 1, at(9)), ("run", 1, at(10))])


def test_pieces_are_the_same_after_they_were_stored() -> None:
    pieces = (Piece(hourly(payload={"é": [1, None]}), START, START + HOUR),)
    assert pieces_from(stored_pieces(pieces)) == pieces
    assert stored_pieces(()) is None
    wrong: list[Any] = [[{}], ["x"], 7, [{"definition": {}, "from": "2026-03-02T08:00", "to": "2026-03-02T09:00"}]]
    for bad in wrong:
        with pytest.raises(ValueError, match=r"owed|zone"):
            pieces_from(bad)


# --- random lives -----------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A schedule in memory, written by plans alone."""

    owed: Owed
    ledger: list[tuple[str, int, datetime, datetime]] = field(default_factory=list)
    runs: list[datetime] = field(default_factory=list)
    last: Mapping[str, Any] | None = None


@dataclass
class InMemory:
    """The smallest thing that can be settled: rows, pauses, a clock. It does what sync and a tick do with plans."""

    now: datetime = START
    rows: dict[str, Row] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)

    def advance(self, by: timedelta) -> None:
        self.now += by

    def apply(self, host: int, file: Sequence[ScheduleSettings]) -> None:
        for schedule in file:
            if schedule.renamed_from in self.rows:
                row = self.rows[schedule.name] = self.rows.pop(schedule.renamed_from)
                row.owed = replace(row.owed, name=schedule.name)
                if schedule.renamed_from in self.pauses:
                    self.pauses[schedule.name] = self.pauses.pop(schedule.renamed_from)
        wanted = {schedule.name: definition(schedule) for schedule in file}
        for name in self.rows.keys() | wanted.keys():
            row = self.rows.setdefault(name, Row(Owed(name, None, self.now)))
            was, then = row.owed.definition, wanted.get(name)
            if was == then:
                continue
            timed = was is None or then is None or any(was.get(key) != then.get(key) for key in TIMING)
            self.settle(row, leaving=timed)
            seen_until = self.now if was is None else row.owed.seen_until
            row.owed = replace(row.owed, definition=then, seen_until=seen_until)

    def tick(self, hosts: Sequence[int]) -> None:
        for row in self.rows.values():
            self.settle(row)

    def settle(self, row: Row, *, leaving: bool = False) -> None:
        pauses = [pause for name, pause in self.pauses.items() if name in ("", row.owed.name)]
        plan = settle(row.owed, pauses, self.now, leaving=leaving)
        if plan is None:
            return
        assert plan.faults == ()
        stopped = any(pause.in_force(self.now) for pause in pauses)
        assert not (stopped and any(part.run for part in plan.parts))
        for part in plan.parts:
            for outcome, what in outcomes(part):
                if what:
                    row.ledger.append((outcome, what.count, what.first, what.last))
            row.ledger += [("enqueued", 1, instant, instant) for instant in part.run]
            row.runs += part.run
        row.owed = replace(row.owed, seen_until=plan.seen_until, pieces=pieces_from(stored_pieces(plan.pieces)))

    def pause(self, name: str, until: datetime | None, skip: bool) -> None:
        before = self.pauses.get(name)
        if before is not None and before.skip:
            for row in self.rows.values():
                if name in ("", row.owed.name):
                    self.settle(row, leaving=True)
        self.pauses[name] = pause(self.now, until, skip=skip)

    def resume(self, name: str) -> None:
        if self.pauses[name].in_force(self.now):
            self.pauses[name] = replace(self.pauses[name], until=self.now)
        self.tick([0])

    def ledger(self, name: str) -> list[tuple[str, int, datetime, datetime]]:
        return self.rows[name].ledger

    def runs(self, name: str) -> list[datetime]:
        return self.rows[name].runs


@pytest.mark.slow
def test_whatever_is_done_under_pauses_each_occurrence_ends_as_one_thing() -> None:
    """PAUSE_CASES=10000 is the long form."""
    for seed in range(CASES):
        story = Story(InMemory(), seed)
        story.play(25)
        story.judge()
