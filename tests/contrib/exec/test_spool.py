"""Runs of exec that wait in the state folder for the database."""

import multiprocessing
import os
import resource
from pathlib import Path

import pytest

from cronjobs.contrib.exec import spool
from cronjobs.engine.probe.state_files import spooled, spooled_at

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
    [name] = spooled("here")
    assert (why, spool.read(name)) == (None, run | {"output": ""})
    assert [each.name for each in (tmp_path / "cronjobs" / spool.FOLDER).iterdir()] == [name], "nothing else is left"


def test_what_waits_for_any_project_is_known_with_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for where, began in (("one", 1_790_000_060.5), ("two", 1_790_000_000.25)):
        assert spool.put(where, {"began": began, "token": "t"}) is None
    (tmp_path / "cronjobs" / spool.FOLDER / "notes.json").touch()
    assert len(spooled("one")) == 1
    assert sorted(map(spooled_at, spooled(None))) == [0.0, 1_790_000_000.25, 1_790_000_060.5]


def test_files_that_vanish_while_the_folder_is_read_refuse_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(3):
        assert spool.put("here", {"began": float(number), "token": "old"}) is None
    real = os.listdir

    def listed(folder: int) -> list[str]:
        """List the files, and remove them at once, as if another process had delivered them just then."""
        names = real(folder)
        for name in names:
            os.unlink(name, dir_fd=folder)
        return names

    monkeypatch.setattr(os, "listdir", listed)
    assert spool.put("here", {"began": 9.0, "token": "new", "output": "kept"}) is None
    monkeypatch.setattr(os, "listdir", real)
    [name] = spooled("here")
    kept = spool.read(name)
    assert kept is not None
    assert kept["output"] == "kept"


def _put_and_deliver(number: int) -> list[str | None]:
    """Put runs into the spool and deliver what is there, as one of many execs does."""
    said = []
    for run in range(20):
        said.append(spool.put("here", {"began": float(run), "token": f"{number}-{run}"}))
        for name in spooled("here")[:2]:
            spool.remove(name)
    return said


def test_eight_execs_that_spool_and_deliver_at_once_refuse_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with multiprocessing.get_context("fork").Pool(8) as pool:
        said = [each for part in pool.map(_put_and_deliver, range(8), chunksize=1) for each in part]
    assert said == [None] * 160


def test_a_run_that_was_put_aside_waits_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert spool.put("here", {"began": 1.0, "token": "t"}) is None
    assert [len(spooled(each)) for each in ("here", "there", "her")] == [1, 0, 0]
    spool.put_aside(spooled("here")[0])
    assert not spooled("here")


@pytest.mark.parametrize("what", ["others may write there", "it is a link"])
def test_nothing_is_made_in_a_folder_that_is_not_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    there = tmp_path / "elsewhere"
    there.mkdir()
    if what == "it is a link":
        (tmp_path / "state" / "cronjobs").symlink_to(there)
    else:
        there = tmp_path / "state" / "cronjobs"
        there.mkdir()
        there.chmod(0o777)
    assert spool.put("here", {"began": 1.0, "token": "t"}) is not None
    assert list(there.iterdir()) == []
