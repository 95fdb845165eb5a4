"""The database of a user without a project is in a folder that only this user can open."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cronjobs.contrib.exec.target import has_runs, no_project, open_target
from cronjobs.errors import UsageError


def test_a_state_folder_that_others_can_write_to_is_neither_written_nor_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a home it is /tmp/cronjobs-UID: who makes it first would own the database, and read what is recorded."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "cronjobs"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="is not ours alone, so exec can record no runs there"):
        open_target(no_project())
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)
    with closing(open_target(no_project())):
        assert has_runs()
    folder.chmod(0o777)
    assert not has_runs()
