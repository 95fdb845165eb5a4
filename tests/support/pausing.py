"""Random lives of schedules under pauses, and an oracle that knows the right outcome of each occurrence.

The oracle keeps each occurrence separately, minute by minute, and shares no code with the code that it judges.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cronjobs.engine.config.settings import ScheduleSettings

MINUTE = timedelta(minutes=1)
START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)  # half a minute away from any occurrence
TIMINGS: tuple[Mapping[str, Any], ...] = (
    {"cron": "*/5 * * * *"},
    {"cron": "7 * * * *"},
    {"cron": "15 2 * * *"},
    {"cron": "0 */6 * * *"},
    {"cron": None, "every": timedelta(minutes=20)},
    {"cron": None, "every": timedelta(minutes=45)},
)
WITHIN = (timedelta(minutes=1), timedelta(minutes=40), timedelta(hours=3), timedelta(hours=24))


def is_due(timing: Mapping[str, Any], minute: datetime) -> bool:
    """Whether *timing* (UTC) has an occurrence at that whole minute.

    It knows only the part of cron's grammar in TIMINGS.
    """
    if timing["cron"] is None:
        return int(minute.timestamp()) % int(timing["every"].total_seconds()) == 0
    at_minute, at_hour = timing["cron"].split()[:2]
    return _fits(at_minute, minute.minute) and _fits(at_hour, minute.hour)


def _fits(text: str, value: int) -> bool:
    if text.startswith("*"):
        return value % int(text[2:] or 1) == 0
    return int(text) == value


@dataclass
class Epoch:
    """A span of a schedule's life with one timing. The rest of the definition may change during the span."""

    timing: Mapping[str, Any]
    work: dict[str, Any]

    def settings(self, name: str) -> ScheduleSettings:
        return ScheduleSettings(name=name, overlap="allow", **dict(self.timing), **self.work)


@dataclass
class Occurrence:
    at: datetime
    epoch: Epoch
    skipped: bool
    outcome: str | None = None


@dataclass
class Brake:
    until: datetime | None
    skip: bool


@dataclass
class Life:
    """A schedule, as the oracle sees it. If ``epoch`` is None, no file has the schedule."""

    name: str
    epoch: Epoch | None = None
    occurrences: list[Occurrence] = field(default_factory=list)


class Oracle:
    """Computes in a simple, slow way what must be true."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.lives: dict[int, Life] = {}
        self.brakes: dict[str, Brake] = {}  # by the schedule's name; "" stands for all schedules
        self.last_skipped: dict[str, bool] = {}  # whether the last pause of that name had skip, even if it has ended

    def brakes_on(self, life: Life, at: datetime) -> list[Brake]:
        found = [self.brakes[name] for name in ("", life.name) if name in self.brakes]
        return [brake for brake in found if brake.until is None or brake.until > at]

    def advance(self, by: timedelta) -> None:
        minute = self.now.replace(second=0) + MINUTE
        self.now += by
        while minute <= self.now:
            for life in self.lives.values():
                if life.epoch is not None and is_due(life.epoch.timing, minute):
                    skipped = any(brake.skip for brake in self.brakes_on(life, minute))
                    life.occurrences.append(Occurrence(minute, life.epoch, skipped))
            minute += MINUTE

    def settle(self, life: Life) -> None:
        """Do what a tick must do now."""
        if brakes := self.brakes_on(life, self.now):
            if all(brake.skip for brake in brakes):
                self.put_aside(life)
            return
        owed = [each for each in life.occurrences if each.outcome is None]
        for each in owed:
            each.outcome = "skipped" if each.skipped else None
        group: list[Occurrence] = []
        for each in [each for each in owed if not each.skipped]:
            if group and group[-1].epoch.work != each.epoch.work:
                self._catch_up(group)
                group = []
            group.append(each)
        self._catch_up(group)

    def put_aside(self, life: Life) -> None:
        """Set aside what is owed up to now. Later edits of the schedule do not change it."""
        if life.epoch is not None:
            life.epoch = Epoch(life.epoch.timing, dict(life.epoch.work))

    def _catch_up(self, group: Sequence[Occurrence]) -> None:
        if not group:
            return
        work = group[0].epoch.work
        reach = 2 * MINUTE if work["catch_up"] == "none" else max(work["catch_up_within"], 2 * MINUTE)
        near = [each for each in group if self.now - each.at < reach]
        for each in group:
            each.outcome = "missed"
        if work["catch_up"] == "all":
            for each in near[-work["catch_up_limit"] :]:
                each.outcome = "enqueued"
        else:
            for each in near:
                each.outcome = "coalesced" if each is not near[-1] else "enqueued"


class World(Protocol):
    """The real system, in which the same acts happen.

    *host* is 0 or 1. A life keeps its number when it gets another name.
    """

    def advance(self, by: timedelta) -> None: ...
    def apply(self, host: int, file: Sequence[ScheduleSettings]) -> None: ...
    def tick(self, hosts: Sequence[int]) -> None: ...
    def pause(self, name: str, until: datetime | None, skip: bool) -> None: ...
    def resume(self, name: str) -> None: ...
    def ledger(self, name: str) -> list[tuple[str, int, datetime, datetime]]: ...
    def runs(self, name: str) -> list[datetime]: ...


@dataclass
class Story:
    """A random sequence of acts, done in a *world* and reported to the oracle. If a test fails, read ``acts``."""

    world: World
    seed: int
    schedules: int = 1
    start: datetime = START
    acts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.oracle = Oracle(self.start)
        for number in range(self.schedules):
            self.oracle.lives[number] = Life(f"t{self.seed}s{number}", self.epoch())
        self.apply()

    def epoch(self) -> Epoch:
        return Epoch(self.random.choice(TIMINGS), self.work())

    def work(self) -> dict[str, Any]:
        choose = self.random.choice
        limit = self.random.randint(1, 4)
        within = choose(WITHIN)
        return {"job": "t.say", "catch_up": choose(("none", "latest", "latest", "all"))} | {
            "catch_up_within": within,
            "catch_up_limit": limit,
        }

    # --- acts ---------------------------------------------------------------------------------------------------------

    def play(self, acts: int) -> None:
        does = {
            self.move: 6,
            self.tick: 4,
            self.pause: 3,
            self.resume: 3,
            self.retime: 2,
            self.edit: 2,
            self.rename: 1,
            self.remove: 1,
            self.add: 2,
        }
        for act in self.random.choices(list(does), list(does.values()), k=acts):
            act()
        self.end()

    def move(self) -> None:
        minutes = self.random.choice((1, 3, 10, 45, 130, 600, 1500))
        self.note(f"move {minutes}m")
        self.world.advance(minutes * MINUTE)
        self.oracle.advance(minutes * MINUTE)

    def tick(self) -> None:
        """Let both hosts tick. The second host finds settled what the first has settled."""
        self.note("tick")
        self.world.tick(self.random.sample((0, 1), 2))
        for life in self.oracle.lives.values():
            self.oracle.settle(life)

    def pause(self) -> None:
        name = self.random.choice(["", *(life.name for life in self.oracle.lives.values())])
        span = self.random.choice((None, 7, 90, 1000))
        until = None if span is None else self.oracle.now + span * MINUTE
        skip = self.random.random() < 0.25
        self.note(f"pause {name or 'all'} until={until} skip={skip}")
        self.world.pause(name, until, skip)
        if self.oracle.last_skipped.get(name):  # first record what that pause skipped, and everything else that is due
            for life in self.oracle.lives.values():
                if name in ("", life.name):
                    self.oracle.put_aside(life)
                    self.oracle.settle(life)
        self.oracle.brakes[name] = Brake(until, skip)
        self.oracle.last_skipped[name] = skip

    def resume(self) -> None:
        if self.oracle.brakes:
            self.resume_one(self.random.choice(sorted(self.oracle.brakes)))

    def resume_one(self, name: str) -> None:
        self.note(f"resume {name or 'all'}")
        self.world.resume(name)
        self.oracle.brakes.pop(name)
        for life in self.oracle.lives.values():
            self.oracle.settle(life)

    def retime(self) -> None:
        if life := self.choose(there=True):
            assert life.epoch is not None
            timing = self.random.choice([timing for timing in TIMINGS if timing is not life.epoch.timing])
            work = self.work() if self.random.random() < 0.3 else life.epoch.work
            self.note(f"retime {life.name} {timing} {work}")
            self.leave(life, Epoch(timing, dict(work)))

    def edit(self) -> None:
        """Change anything but the timing. Owed occurrences then follow the new definition."""
        if life := self.choose(there=True):
            assert life.epoch is not None
            self.oracle.settle(life)
            work = self.work()
            self.note(f"edit {life.name} {work}")
            if self.oracle.brakes_on(life, self.oracle.now):
                life.epoch.work = work
                self.apply()
            else:
                self.leave(life, Epoch(life.epoch.timing, work))

    def rename(self) -> None:
        if life := self.choose(there=True):
            old, life.name = life.name, life.name + "x"
            self.note(f"rename {old} {life.name}")
            if old in self.oracle.brakes:
                self.oracle.brakes[life.name] = self.oracle.brakes.pop(old)
            if old in self.oracle.last_skipped:
                self.oracle.last_skipped[life.name] = self.oracle.last_skipped.pop(old)
            self.apply(renamed={life.name: old})

    def remove(self) -> None:
        if life := self.choose(there=True):
            self.note(f"remove {life.name}")
            self.leave(life, None)

    def add(self) -> None:
        if life := self.choose(there=False):
            self.note(f"add {life.name}")
            self.leave(life, self.epoch())

    def leave(self, life: Life, then: Epoch | None) -> None:
        self.oracle.settle(life)
        life.epoch = then
        self.apply()

    def apply(self, renamed: Mapping[str, str] | None = None) -> None:
        """Deploy a file.

        A tick applies it and settles the rest, and the other host ticks with the same file a moment later.
        """
        file = [
            life.epoch.settings(life.name) if not renamed or life.name not in renamed else self.moved(life, renamed)
            for life in self.oracle.lives.values()
            if life.epoch is not None
        ]
        self.world.apply(self.random.choice((0, 1)), file)
        self.tick()

    def moved(self, life: Life, renamed: Mapping[str, str]) -> ScheduleSettings:
        assert life.epoch is not None
        fields = dict(life.epoch.timing) | life.epoch.work
        return ScheduleSettings(name=life.name, overlap="allow", renamed_from=renamed[life.name], **fields)

    def choose(self, *, there: bool) -> Life | None:
        found = [life for life in self.oracle.lives.values() if (life.epoch is not None) is there]
        return self.random.choice(found) if found else None

    def end(self) -> None:
        """End every pause and run a tick. Afterwards nothing may be owed."""
        for name in sorted(self.oracle.brakes):
            self.resume_one(name)
        self.tick()

    def note(self, act: str) -> None:
        self.acts.append(f"{self.oracle.now:%d %H:%M:%S} {act}")

    # --- the judgement ------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        for life in self.oracle.lives.values():
            self.judge_one(life, self.world.ledger(life.name), self.world.runs(life.name))

    def judge_one(self, life: Life, rows: Iterable[tuple[str, int, datetime, datetime]], runs: list[datetime]) -> None:
        rows = sorted(rows, key=lambda row: row[3])
        said = f"seed {self.seed}, {life.name}:\n" + "\n".join(self.acts)
        for each in life.occurrences:
            of_it = [row[0] for row in rows if row[2] <= each.at <= row[3]]
            assert of_it == [each.outcome], f"{each.at}: {of_it}, and must be {each.outcome}\n{said}\n{rows}"
        assert sum(row[1] for row in rows) == len(life.occurrences), f"{rows}\n{said}"
        assert sorted(runs) == [each.at for each in life.occurrences if each.outcome == "enqueued"], said
