"""The tick's log on a disk that stores only a part of a line."""

import os
import resource
from datetime import timedelta
from pathlib import Path

import pytest

from cronjobs.engine.tick.log import Log
from cronjobs.engine.tick.result import Counts, Result
from cronjobs.events import Event, line, tick_ended

pytestmark = pytest.mark.either


def test_a_line_that_the_disk_takes_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    Log(tmp_path / "log").write(Event("tick.ended", {"ended": "nothing is due"}))
    assert (tmp_path / "log").read_text().endswith('Z tick.ended ended="nothing is due"\n')


def test_a_list_of_objects_is_written_as_json(tmp_path: Path) -> None:
    kept = [{"ticks": 1, "cause": "it's down"}]
    Log(tmp_path / "log").write(Event("tick.ended", {"kept_from_starting": kept, "left": ["a", "b"]}))
    said = r'kept_from_starting="{\"ticks\": 1, \"cause\": \"it' + "'" + r's down\"}" left="a, b"'
    assert (tmp_path / "log").read_text().endswith(f"Z tick.ended {said}\n")


def test_a_line_that_found_room_for_its_beginning_only_is_a_fault_at_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        log.write(Event("tick.ended", {"ended": "nothing is due"}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "log").stat().st_size == 20
    assert log.fault is not None
    assert "the log cannot be written" in log.fault


def test_a_ticks_last_line_has_only_plain_facts() -> None:
    since = "2026-03-02T03:00:00+00:00"
    kept = [{"ticks": 2, "since": since, "why": "no such file"}, {"ticks": 1, "since": since, "why": "unset"}]
    result = Result(
        counts=Counts(claimed=1, succeeded=1),
        occurrences={"enqueued": 1},
        options={"queue": "mail"},
        broken={"run.budget": "not a duration"},
        kept_from_starting=kept,
    )
    assert line(tick_ended(result.did(), "nothing is due", timedelta(seconds=1))) == (
        'tick.ended ended="nothing is due" duration_ms=1000 claimed=1 succeeded=1 occurrences_enqueued=1 '
        f'kept_from_starting=3 kept_from_starting_since={since} kept_from_starting_why="no such file, unset" '
        'options_queue=mail broken="run.budget: not a duration"'
    )
