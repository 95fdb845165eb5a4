"""A fault of the user's code, as cron mails it. Ticks that load no code do not report it as over.

Each tick is a process in cron's environment, at a minute that the test chooses.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.cases import judge
from support.ticking import Project, first_on_path

# Imported by Python itself as it starts: this process's clock is ahead by so many seconds.
LATER = """
import os, time
from datetime import UTC, datetime
ahead, real = float(os.environ["AHEAD_S"]), time.time
time.time = lambda: real() + ahead
from cronjobs import clock
clock.SystemClock.now = lambda self: datetime.fromtimestamp(time.time(), UTC)
"""
GOOD = "from cronjobs import job\n@job('p.{name}')\ndef {name}(): pass\n"
GENERATOR = "from cronjobs import job\n@job('p.{name}')\ndef {name}(): yield\n"
BROKEN = "import no_such_module_of_{name}\n"
AT_FAULT = {BROKEN: "module {name}", GENERATOR: "where=p.{name}"}


@dataclass
class Hour:
    """A project whose ticks a test starts minute by minute, and what cron mailed of them, by minute."""

    project: Project
    mails: dict[int, str] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)

    def write(self, **modules: str) -> None:
        for name, source in modules.items():
            (self.project.folder / f"{name}.py").write_text(source.format(name=name))

    def tick(self, minute: int, *options: str, config: str = "cronjobs.yaml") -> str:
        env = first_on_path(self.project.folder / "later") | {"AHEAD_S": str(minute * 60)}
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # two versions of a module may have one size and one second
        argv = [sys.executable, "-m", "cronjobs", "run-due", "--config", str(self.project.folder / config), *options]
        tick = self.project.start(argv=argv, env=env)
        self.codes[minute] = tick.wait()
        if mail := tick.stdout + tick.stderr:
            self.mails[minute] = mail
        return mail

    def loaded(self) -> list[bool]:
        """For each tick, whether it loaded the handlers."""
        return [
            bool(row[0]) for row in self.project.sql("SELECT job_types IS NOT NULL FROM cronjobs_ticks ORDER BY id")
        ]


@pytest.fixture
def new_hour(new_project: Callable[[str], Project], sqlite_migrated: Path) -> Callable[[], Hour]:
    def make() -> Hour:
        project = new_project("sqlite:///jobs.db")
        shutil.copy(sqlite_migrated, project.folder / "jobs.db")
        project.url = f"sqlite:///{project.folder}/jobs.db"
        project.configure(imports="[handlers, one, two]")
        (project.folder / "later").mkdir()
        (project.folder / "later" / "sitecustomize.py").write_text(LATER)
        hour = Hour(project)
        hour.write(one=GOOD, two=GOOD)
        return hour

    return make


@pytest.mark.slow
@pytest.mark.parametrize("broken", AT_FAULT)
def test_a_fault_of_the_code_is_mailed_at_once_then_hourly_and_once_when_it_is_over(
    new_hour: Callable[[], Hour], broken: str
) -> None:
    hour = new_hour()
    where = AT_FAULT[broken].format(name="one")
    assert [hour.tick(minute) for minute in (0, 1)] == ["", ""]
    hour.write(one=broken)
    for minute in (2, 3, 4, 10, 11, 40, 61, 63, 64):
        if minute in (2, 10, 63):
            hour.project.add("t.quick")
        mail = hour.tick(minute)
        assert (where in mail) == (minute in (2, 63)), (minute, mail)
        assert mail.count("\n") == (minute in (2, 63)), mail
    hour.write(one=GOOD)
    assert re.match(r"cronjobs: over after 1h[34]m: config\.fault", hour.tick(65))  # ticks take real seconds
    assert hour.tick(66) == hour.tick(67) == ""
    assert {code for minute, code in hour.codes.items() if 2 <= minute <= 64} == {3}
    assert {code for minute, code in hour.codes.items() if not 2 <= minute <= 64} == {0}
    assert hour.loaded()[-2:] == [False, False], "an idle tick loads no code again"


@pytest.mark.slow
def test_faults_that_come_go_and_change_are_said_as_they_are(new_hour: Callable[[], Hour]) -> None:
    def case(dice: random.Random) -> None:
        hour = new_hour()
        hour.tick(0)
        state: dict[str, str] = {}  # what the modules are, by their names, since the last tick that could see it
        mailed: dict[str, int] = {}  # the causes that cron's user takes for lasting, with the minute of the last mail
        minute = 0
        for _ in range(12):
            minute += dice.choice((1, 1, 1, 2, 20))
            if dice.random() < 0.4:
                state[dice.choice(("one", "two"))] = dice.choice((GOOD, BROKEN, GENERATOR))
                hour.write(**state)
                hour.project.add("t.quick")  # a tick that works: only such a one can see what a deploy has changed
            elif dice.random() < 0.3:
                hour.project.add("t.quick")
            faults = {AT_FAULT[source].format(name=name) for name, source in state.items() if source != GOOD}
            mail = hour.tick(minute).splitlines()
            assert hour.codes[minute] == (3 if faults else 0), (minute, faults, mail)
            over = [line for line in mail if "over after" in line]
            told = [line for line in mail if line not in over]
            for where in faults:
                expected = where not in mailed or minute - mailed[where] >= 60
                assert any(where in line for line in told) == expected, (minute, where, mail)
                if expected:
                    mailed[where] = minute
            for line in over:
                assert not any(where in line for where in faults), line
            assert len(told) <= len(faults)
            mailed = {where: at for where, at in mailed.items() if where in faults}

    judge(case, few=1, many=40)


@pytest.mark.slow
def test_a_fault_seen_in_a_terminal_is_one_for_idle_ticks_too(new_hour: Callable[[], Hour]) -> None:
    hour = new_hour()
    assert hour.tick(0) == ""
    hour.write(one=GENERATOR)
    hour.project.add("t.quick")
    hour.tick(1, "--verbose")
    told = hour.tick(2)
    assert "where=p.one" in told
    assert f" --config {hour.project.folder / 'cronjobs.yaml'} check\n" in told
    assert hour.codes == {0: 0, 1: 3, 2: 3}


@pytest.mark.slow
def test_a_tick_that_cannot_reach_the_database_ends_no_fault_of_the_code(new_hour: Callable[[], Hour]) -> None:
    hour = new_hour()
    hour.write(one=BROKEN)
    hour.project.add("t.quick")
    assert "one" in hour.tick(0)
    file = hour.project.folder / "jobs.db"
    file.rename(file.with_suffix(".away"))
    assert "over" not in hour.tick(1)
    file.with_suffix(".away").rename(file)
    back = hour.tick(2)
    assert "one" not in back, back
    assert hour.codes == {0: 3, 1: 4, 2: 3}


@pytest.mark.slow
def test_a_handler_renamed_on_its_only_host_is_3_from_the_first_tick_on(new_hour: Callable[[], Hour]) -> None:
    hour = new_hour()
    hour.project.add("p.one")
    hour.tick(0)
    hour.write(one=GOOD.replace("{name}", "other"))
    hour.project.add("p.one")
    assert "explain p.one" in hour.tick(1)
    hour.tick(2)
    hour.write(one=GOOD)
    assert "over" in hour.tick(3)
    assert hour.codes == {0: 0, 1: 3, 2: 3, 3: 0}


@pytest.mark.slow
def test_a_tick_of_another_file_on_this_host_ends_no_fault_of_this_files_code(new_hour: Callable[[], Hour]) -> None:
    hour = new_hour()
    whole = (hour.project.folder / "cronjobs.yaml").read_text()
    (hour.project.folder / "other.yaml").write_text(whole.replace("[handlers, one, two]", "[handlers]"))
    hour.write(one=BROKEN)
    for minute, config in enumerate(["cronjobs.yaml", "other.yaml"] * 2):
        hour.project.add("t.quick")
        hour.tick(minute, config=config)
    assert hour.tick(4) == ""
    assert hour.codes == {0: 3, 1: 0, 2: 3, 3: 0, 4: 3}
    hour.write(one=GOOD)
    assert "over" in hour.tick(5)
