"""``cronjobs status --watch`` on its own terminal: it redraws in place, survives errors, and restores the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from support.lookingrows import NOW
from support.project import BARE, CRONJOBS, Project

from cronjobs.desk.cli.watch import ENTER, HOME, LEAVE
from cronjobs.engine.database import tables

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases


class Terminal:
    """A command on a terminal of 80 columns and 24 lines, which is kept open until the modes were compared."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(80, 24)
        self.modes = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [*CRONJOBS, *words],
            cwd=folder,
            env=BARE | {"TERM": "xterm", "PYTHONUTF8": "1"} | env,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        self.seen = ""

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self.ours, (lines, columns))

    def wait_for(self, text: str, since: int = 0) -> int:
        """Where *text* ends in what was seen."""
        while text not in self.seen[since:]:
            self.read()
        return self.seen.index(text, since) + len(text)

    def read(self) -> None:
        assert select.select([self.ours], [], [], 30)[0], self.seen
        self.seen += os.read(self.ours, 65536).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def ends(self) -> int:
        """Wait for the exit code, and read the terminal meanwhile: otherwise the process could not end."""
        for _ in range(600):
            if select.select([self.ours], [], [], 0.05)[0]:
                self.read()
            elif self.process.poll() is not None:
                return self.process.returncode
        raise AssertionError(self.seen)

    @property
    def screens(self) -> list[list[str]]:
        """The lines of each screen that was drawn whole."""
        drawn = self.seen.split(HOME)[1:]
        return [each.split("\x1b[J")[0].replace("\x1b[K", "").split("\r\n") for each in drawn if "\x1b[J" in each]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for end in (self.ours, self.theirs):
            with suppress(OSError):
                os.close(end)


@pytest.fixture
def lite(sqlite_migrated: str, tmp_path: Path) -> Project:
    found = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    found.write()
    return found


@pytest.fixture
def watched(lite: Project) -> Iterator[Any]:
    """Begin ``status --watch``; it is ended with the test."""
    begun: list[Terminal] = []

    def begin(*words: str, **env: str) -> Terminal:
        begun.append(Terminal(lite.folder, "status", "--watch", *words, **env))
        return begun[-1]

    yield begin
    for terminal in begun:
        terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["q", "\x03", signal.SIGTERM, signal.SIGINT])
def test_it_draws_again_in_place_and_leaves_the_terminal_as_it_was(
    watched: Any, lite: Project, end: str | signal.Signals
) -> None:
    terminal = watched("0.2")
    place = terminal.wait_for("no tick has ever reached this")
    assert terminal.seen.startswith(ENTER)
    assert lite.run("run-due").code == 0
    place = terminal.wait_for("all well", place)
    assert "\n\x1b[2J" not in terminal.seen
    terminal.wait_for(HOME, place)
    if isinstance(end, str):
        terminal.type(end)
    else:
        terminal.process.send_signal(end)
    assert terminal.ends() == 0
    assert terminal.seen.endswith(LEAVE)
    assert termios.tcgetattr(terminal.theirs) == terminal.modes
    assert all(len(screen) <= 24 for screen in terminal.screens)


@pytest.mark.slow
def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(watched: Any, lite: Project) -> None:
    terminal = watched("3600")
    terminal.wait_for("\x1b[J")
    terminal.type("\x1a")
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    place = terminal.wait_for(LEAVE)
    assert termios.tcgetattr(terminal.theirs) == terminal.modes
    terminal.process.send_signal(signal.SIGCONT)
    place = terminal.wait_for(ENTER, place)
    terminal.wait_for("\x1b[J", place)
    terminal.type("q")
    assert terminal.ends() == 0
    assert termios.tcgetattr(terminal.theirs) == terminal.modes


@pytest.mark.slow
def test_a_terminal_that_changes_its_size_is_filled_at_once(watched: Any, lite: Project) -> None:
    common = {"definition": {}, "fingerprint": "f", "seen_until": NOW, "next_at": NOW + timedelta(days=3000)}
    lite.execute(insert(tables.schedules).values([common | {"name": f"s{number:02}"} for number in range(60)]))
    terminal = watched("3600")
    terminal.wait_for("\x1b[J")
    terminal.resize(60, 50)
    terminal.wait_for("\x1b[J", len(terminal.seen))
    small, large = terminal.screens
    assert len(small) <= 24
    assert 24 < len(large) <= 50
    shown = [sum(line.startswith("s") and " none yet" in line for line in screen) for screen in (small, large)]
    assert shown[0] < shown[1] < 60
    assert any(f"… and {60 - shown[1]} more (--all" in line for line in large)


@pytest.mark.slow
def test_while_the_database_is_away_it_says_so_and_goes_on(watched: Any, lite: Project) -> None:
    assert lite.run("run-due").code == 0
    terminal = watched("0.2")
    place = terminal.wait_for("all well")
    file = lite.url.removeprefix("sqlite:///")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{file}{suffix}").rename(f"{file}{suffix}.away")
    place = terminal.wait_for("no data since", place)
    place = terminal.wait_for("state at the last refresh", place)
    terminal.wait_for("all well", place)
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{file}{suffix}.away").rename(f"{file}{suffix}")
    for _ in range(200):
        if "no data since" not in "".join(terminal.screens[-1]):
            break
        terminal.read()
    terminal.type("q")
    assert terminal.ends() == 0


@pytest.mark.slow
def test_an_error_that_nobody_expected_leaves_the_terminal_as_it_was(watched: Any, lite: Project) -> None:
    (lite.folder / "sitecustomize.py").write_text(
        "from cronjobs.desk.insight import gathering\n"
        "def look(*_): raise RuntimeError('a bug')\n"
        "gathering.look = look\n"
    )
    terminal = watched("0.2", PYTHONPATH=f"{lite.folder}:{BARE.get('PYTHONPATH', '')}")
    assert terminal.ends() == 70
    assert "RuntimeError: a bug" in terminal.seen.partition(LEAVE)[2]
    assert termios.tcgetattr(terminal.theirs) == terminal.modes


@pytest.mark.parametrize("words", [["--watch"], ["--watch", "--json"], ["--watch", "0"], ["5"]])
def test_without_a_terminal_or_a_sensible_number_it_is_refused(lite: Project, words: list[str]) -> None:
    answer = lite.call("status", *words)
    assert (answer.code, answer.out) == (2, "")
    assert "--watch" in answer.err
