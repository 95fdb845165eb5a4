"""How ``init`` writes the planned files."""

import os
import stat
from pathlib import Path

import pytest

from cronjobs.desk.init.plan import InitPlan
from cronjobs.desk.init.write import write
from cronjobs.errors import CronjobsError

pytestmark = pytest.mark.either


def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path) -> None:
    """If root ran init and .gitignore were a link to /dev/null, init would replace that device for everybody."""
    device = tmp_path / "device"
    os.mkfifo(device)
    app = tmp_path / "app"
    app.mkdir()
    (app / ".gitignore").symlink_to(device)
    with pytest.raises(CronjobsError, match=r"/\.gitignore: this is not a regular file: nothing was written"):
        write(app, InitPlan({"cronjobs.yaml": "job_types: {}\n"}, ignore=("*.log",)))
    assert stat.S_ISFIFO(device.stat().st_mode)
    assert [each.name for each in app.iterdir()] == [".gitignore"]
