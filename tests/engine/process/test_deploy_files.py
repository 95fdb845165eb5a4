"""``examples/deploy``: the script that ticks in a container ends as documented, and a rotated log is created again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.commands import LINUX_ONLY, started, until

from cronjobs import events
from cronjobs.engine.tick.log import Log

pytestmark = pytest.mark.either

SCRIPT = Path(__file__).parents[3] / "examples" / "deploy" / "ticks.sh"
# The minute is over when the test says so.
SLEEP = """#!/bin/sh
[ "$1" = 1 ] && [ -e "$STAGE/stopped-early" ] && exec /bin/sleep 1
echo "sleep" >>"$STAGE/said"
exec /bin/sleep 3600
"""
TICK = """#!/bin/sh
echo "tick $*" >>"$STAGE/said"
trap 'echo "told to stop" >>"$STAGE/said"; exit 143' TERM
while [ ! -e "$STAGE/tick-may-end" ]; do /bin/sleep 0.02; done
"""


class Container:
    """The script as the first process of a container, with a clock and a cronjobs of the test's."""

    def __init__(self, stage: Path, script: Path = SCRIPT) -> None:
        self.stage = stage
        for name, text in (("sleep", SLEEP), ("cronjobs", TICK)):
            (stage / name).write_text(text)
            (stage / name).chmod(0o755)
        path = f"{stage}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["sh", str(script)], env={"PATH": path, "STAGE": str(stage)}, start_new_session=True
        )

    def said(self) -> list[str]:
        file = self.stage / "said"
        return file.read_text().splitlines() if file.exists() else []

    def wake(self) -> None:
        """The minute is over."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    found = Container(tmp_path)
    yield found
    if found.process.poll() is None:
        os.killpg(found.process.pid, signal.SIGKILL)
        found.process.wait()


@LINUX_ONLY
def test_a_stop_between_two_ticks_ends_it_at_once(container: Container) -> None:
    until(lambda: container.said() == ["sleep"])
    container.process.terminate()
    assert container.process.wait(20) == 0
    assert container.said() == ["sleep"]


@LINUX_ONLY
@pytest.mark.parametrize("of", ["sleep", "cronjobs"])
def test_a_stop_that_comes_before_the_shell_knows_whom_it_started_is_passed_on(tmp_path: Path, of: str) -> None:
    early = tmp_path / "early.sh"
    before, started, after = SCRIPT.read_text().partition(f"    {of} ")
    early.write_text(before + started + after.replace("pid=$!", "kill -TERM $$; pid=$!", 1))
    mark = tmp_path / "stopped-early"
    if of == "sleep":
        mark.touch()
    container = Container(tmp_path, early)
    if of == "cronjobs":
        until(lambda: container.said() == ["sleep"])
        mark.touch()
        container.wake()
    try:
        assert container.process.wait(20) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(container.process.pid, signal.SIGKILL)
        container.process.wait()


@LINUX_ONLY
def test_it_ticks_again_and_a_stop_waits_for_the_tick(container: Container) -> None:
    until(lambda: container.said() == ["sleep"])
    container.wake()
    until(lambda: container.said() == ["sleep", "tick run-due --fail-on never"])
    (container.stage / "tick-may-end").touch()
    until(lambda: container.said()[2:] == ["sleep"])
    (container.stage / "tick-may-end").unlink()
    container.wake()
    until(lambda: len(container.said()) == 4)
    container.process.terminate()
    assert container.process.wait(20) == 0
    assert container.said()[4:] == ["told to stop"]


@LINUX_ONLY
def test_a_stop_waits_for_long_jobs_and_tells_them(container: Container, tmp_path: Path) -> None:
    until(lambda: container.said() == ["sleep"])
    long = tmp_path / "long.sh"
    long.write_text(f"trap 'echo \"long job stops\" >>{tmp_path}/said; exit 0' TERM\necho up >>{tmp_path}/up\n")
    with long.open("a") as file:
        file.write("while :; do /bin/sleep 0.02; done\n")
    words = ["sh", str(long), "-m", "cronjobs.engine.tick.long_job_process", "7"]
    ours = os.environ | {"TICKS_OF": str(container.process.pid)}
    with started(words, env=ours) as job, started(words) as foreign:
        until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text() == "up\nup\n")
        (tmp_path / "sleep").unlink()
        shutil.copy("/bin/true", tmp_path / "sleep")  # by which it waits for the long jobs to end
        container.process.terminate()
        assert job.wait(20) == 0
        assert container.process.wait(20) == 0
        assert foreign.poll() is None
    assert container.said().count("long job stops") == 1


def test_a_log_that_was_renamed_is_written_anew_for_its_user_alone(tmp_path: Path) -> None:
    file, rotated = tmp_path / "cronjobs.log", tmp_path / "cronjobs.log.1"
    running = Log(file)
    running.write(events.Event("tick.began", {}))
    file.rename(rotated)
    running.write(events.Event("tick.ended", {}))  # a long job: to the file that it has opened
    assert not file.exists()
    Log(file).write(events.Event("tick.began", {}))
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(rotated.read_text().splitlines()) == 2
    assert len(file.read_text().splitlines()) == 1
