"""Runs of exec that wait in the state folder for the database."""

import resource
from pathlib import Path

import pytest

from cronjobs.exec import spool

pytestmark = pytest.mark.either


def test_where_only_a_part_of_a_run_has_room_its_end_is_kept_without_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = {"began": 1.0, "token": "abc", "status": 1024, "output": "a" * 20_000}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        why = spool.put("here", run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    [name] = spool.waiting("here")
    assert (why, spool.read(name)) == (None, run | {"output": "", "output_dropped": True})
    assert [each.name for each in (tmp_path / "cronjobs" / spool.FOLDER).iterdir()] == [name], "nothing else is left"


def test_what_waits_for_any_project_is_known_with_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for where, began in (("one", 1_790_000_060.5), ("two", 1_790_000_000.25)):
        assert spool.put(where, {"began": began, "token": "t"}) is None
    (tmp_path / "cronjobs" / spool.FOLDER / "notes.json").touch()
    assert len(spool.waiting("one")) == 1
    assert sorted(map(spool.began, spool.waiting(None))) == [0.0, 1_790_000_000.25, 1_790_000_060.5]
