"""Run each line of these crontabs in three ways in one minute of a real cron: plain, under exec, and under our tick.

    PYTHONPATH=tests python -m support.crontabs.three_ways [--write]    # as root, beside a running Debian cron

In all three ways, a line must get the same environment and leave the same files, byte for byte, with the exceptions
below. ``--write`` stores what cron gave to the plain lines in ``as_cron_ran_them.json``. The everyday tests compare
imported lines with that file. Only the times of the lines are changed, so that all are due in that minute. The lines
are in separate files in /etc/cron.d, so no crontab is changed. The files are removed a few seconds after cron has read
them.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from cronjobs.contrib.exec.wrapping import wrap
from cronjobs.contrib.take_over.as_yaml import as_yaml
from cronjobs.contrib.take_over.convert_lines import Importer
from cronjobs.desk.crontab import block, host
from cronjobs.engine.config.host_timezone import host_timezone
from support.crontabs.sandbox import CRONTABS, HERE, furnish, left

SETTING: Final = re.compile(r"\s*[\"']?\w+[\"']?\s*=")
TIMES: Final = re.compile(r"\s*(@\w+|(\S+\s+){4}\S+)[ \t]+")
CRON_D: Final = Path("/etc/cron.d")
WAYS: Final = ("plain", "exec", "tick")
PATIENCE_S: Final = 170

# What may differ, and why: everything else is a fault.
#   under exec      nothing
#   under a tick    variables that begin with CRONJOBS_: the job's id, its attempt … (``left`` leaves them out)
#                   signals that cron's daemon was started with as ignored, as by "cron -f &": a tick resets them


def due_each_minute(crontab: str, home: Path) -> str:
    """Return *crontab* with its lines due each minute, and with *home* as the home folder."""
    lines = [f"HOME={home}\n"]
    for line in crontab.splitlines():
        if line.startswith("@reboot"):
            continue
        if not line.startswith("#") and line.strip() and not SETTING.match(line):
            line = TIMES.sub("* * * * * ", line, count=1)
        lines.append(line + "\n")
    return "".join(lines)


@dataclass(frozen=True)
class Crontab:
    """One crontab, run in one of the three ways, with its own home folder."""

    name: str
    way: str
    folder: Path
    python: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def file(self) -> Path:
        return CRON_D / f"cronjobs-check-{self.way}-{self.name[:2]}"

    def prepare(self) -> str:
        """Prepare the home folder. Return what cron has to run."""
        self.home.mkdir(parents=True)
        text = due_each_minute(furnish(self.home, self.name), self.home)
        if self.way == "exec":
            done = wrap(text, block.shell_words([str(self.python.with_name("cronjobs"))]), None)
            assert not done.left, done.left
            return done.text
        return self._import(text) if self.way == "tick" else text

    def _import(self, text: str) -> str:
        """Do what "crontab import" and "crontab swap" do. The tick that swap tries makes the schedules known."""
        owner = pwd.getpwuid(os.getuid())
        found = Importer(owner, host_timezone(), "debian", tuple(host.pam_settings())).convert(text)
        assert not found.left, found.left
        config = self.folder / "cronjobs.yaml"
        config.write_text(as_yaml(found, of=self.name, timezone=host_timezone(), sender="root@localhost"))
        wanted = block.block(config, self.python)
        whole = f'MAILTO=""\nHOME={self.home}\n{wanted}'
        tick = host.bare_tick(config, self.python, host.environment(whole, config), limit=timedelta(seconds=50))
        assert tick.works, tick.said
        return whole

    def install(self, text: str) -> None:
        """Install the lines for cron. In /etc/cron.d, a user's name comes before each command."""
        lines = [re.sub(r"^(\* ){5}", "* * * * * root ", line) for line in text.splitlines(keepends=True)]
        self.file.write_text("".join(lines))

    def ends(self) -> Counter[str]:
        """Return how many lines have ended, and how, according to cronjobs' records."""
        return Counter(status for _, status, ended in self._jobs() if ended)

    def unfinished(self) -> list[str]:
        return [
            f"{self.way} {self.name}: {job_type} is {status}" for job_type, status, ended in self._jobs() if not ended
        ]

    def _jobs(self) -> list[tuple[str, str, int | None]]:
        file = self.folder / "cronjobs.db"
        if self.way == "exec":  # the database is in the state folder; one of the crontabs sets HOME
            file = next(self.home.glob("**/cronjobs/exec.db"), file)
        if self.way == "plain" or not file.is_file():
            return []
        with closing(sqlite3.connect(file, timeout=10)) as connection, suppress(sqlite3.OperationalError):
            return connection.execute("SELECT job_type, status, finished_at FROM cronjobs_jobs").fetchall()
        return []  # its tables do not exist yet


def ways_differ(found: dict[str, Any], way: str) -> list[str]:
    """Return where the results of a crontab's other ways differ from those of its plain way."""
    plain, other, differences = found["plain"], found[way], []
    for name in sorted(plain["files"].keys() | other["files"].keys()):
        before, after = plain["files"].get(name), other["files"].get(name)
        if before != after:
            differences += [f"file {name}: {before!r}, {way} {after!r}"]
    if len(plain["runs"]) != len(other["runs"]):
        return [*differences, f"{len(plain['runs'])} programs ran, {way} {len(other['runs'])}"]
    for one, two in zip(plain["runs"], other["runs"], strict=True):
        for fact in one:
            if fact == "env":
                for name in sorted(one["env"].keys() | two["env"].keys()):
                    before, after = one["env"].get(name), two["env"].get(name)
                    if before != after:
                        differences.append(f"{one['words']}: {name} {before!r}, {way} {after!r}")
            elif one[fact] != two[fact]:
                differences.append(f"{one['words']}: {fact} {one[fact]!r}, {way} {two[fact]!r}")
    return differences


def ignored_by_the_daemon() -> int:
    """Return the mask of signals that cron's daemon ignores. The processes that it starts ignore them too."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text() == "cron\n":
                return int((folder / "status").read_text().split("SigIgn:")[1].split()[0], 16)
    return 0


def say(text: str) -> None:
    print(f"crontabs-check: {text}", flush=True)


def run_for_one_minute(crontabs: dict[Crontab, str]) -> None:
    """Let cron start every line once."""
    while not 2 <= time.time() % 60 < 50:
        time.sleep(0.1)
    try:
        for crontab, text in crontabs.items():
            crontab.install(text)
        minute = time.time() // 60
        while time.time() // 60 == minute or time.time() % 60 < 4:
            time.sleep(0.1)
    finally:
        remove(crontabs)


def remove(crontabs: Iterable[Crontab]) -> None:
    for crontab in crontabs:
        crontab.file.unlink(missing_ok=True)


def wait_for(crontabs: dict[Crontab, str], lines: dict[str, int]) -> None:
    """Wait until every run is recorded, and until no background process of a line runs.

    On a busy host, one tick may not start all of its jobs. Later ticks run the rest, and fire no schedule.
    """
    for crontab, text in crontabs.items():
        if crontab.way == "tick":
            crontab.install(f"CRONJOBS_SCHEDULES=off\n{text}")
    give_up_at = time.monotonic() + PATIENCE_S
    waiting: list[str] = ["everything"]
    folders = [f"HOME={crontab.home}".encode() for crontab in crontabs]
    while waiting:
        if time.monotonic() > give_up_at:
            shown = "\n    ".join(waiting + [open_job for crontab in crontabs for open_job in crontab.unfinished()])
            sys.exit(f"crontabs-check: after {PATIENCE_S} s this was not over:\n    {shown}")
        time.sleep(0.5)
        waiting = [
            f"{crontab.way} {crontab.name}: {dict(crontab.ends())} of {lines[crontab.name]}"
            for crontab in crontabs
            if crontab.way != "plain" and crontab.ends().total() != lines[crontab.name]
        ]
        waiting += [f"process {pid}" for pid in _processes_with(folders)]


def _processes_with(settings: list[bytes]) -> list[int]:
    """Return the processes that have one of these marks in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (folder / "environ").read_bytes()
            if any(setting in environment for setting in settings):
                found.append(int(folder.name))
    return found


def main() -> None:
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="crontabs-check-") as temporary:
        python = Path(sys.executable)
        every = [Crontab(name, way, Path(temporary) / f"{way}-{name[:2]}", python) for name in CRONTABS for way in WAYS]
        texts = {crontab: crontab.prepare() for crontab in every}
        lines = {
            crontab.name: sum(line.startswith("* * * * * ") for line in text.splitlines())
            for crontab, text in texts.items()
            if crontab.way == "plain"
        }
        say(f"{sum(lines.values())} lines of {len(lines)} crontabs, each plain, under exec and under a tick")
        run_for_one_minute(texts)
        try:
            wait_for(texts, lines)
        finally:
            remove(texts)
        ignored = ignored_by_the_daemon()
        facts = {
            name: {each.way: left(each.home, "root", ignored=ignored) for each in every if each.name == name}
            for name in CRONTABS
        }
        ends = {(each.name, each.way): each.ends() for each in every}
        if "--write" in sys.argv[1:]:
            plain = {each.name: left(each.home, "root") for each in every if each.way == "plain"}
            (HERE / "as_cron_ran_them.json").write_text(
                json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
            )
    wrong = 0
    for name, found in facts.items():
        differences = [each for way in WAYS[1:] for each in ways_differ(found, way)]
        if ends[name, "exec"] != ends[name, "tick"]:
            differences.append(f"ends: exec {dict(ends[name, 'exec'])}, tick {dict(ends[name, 'tick'])}")
        wrong += len(differences)
        programs = len(found["plain"]["runs"])
        say(f"{name}: {lines[name]} lines, {programs} programs: " + ("the same" if not differences else "NOT the same"))
        for each in differences:
            say(f"    {each}")
    if wrong:
        sys.exit(f"crontabs-check: FAILED: {wrong} differences")
    say("ok")


if __name__ == "__main__":
    main()
