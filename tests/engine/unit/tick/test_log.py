"""The tick's log on a disk that stores only a part of a line."""

import os
import resource
from pathlib import Path

import pytest

from cronjobs.engine.tick.log import Log
from cronjobs.events import Event

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
