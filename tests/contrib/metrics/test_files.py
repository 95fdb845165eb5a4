"""Only the named regular files are read or replaced."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cronjobs.contrib.metrics import textfile
from cronjobs.desk.cli import report
from cronjobs.errors import CronjobsError

pytestmark = pytest.mark.either


@pytest.mark.parametrize(
    "put", [lambda file: textfile.write(file, ["x 1"]), lambda file: report._put(file, b"x")], ids=["metrics", "report"]
)
@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_device_or_pipe_is_never_replaced_by_a_file(
    tmp_path: Path, put: Callable[[Path], None], through_a_link: bool
) -> None:
    """If root ran "cronjobs report --out /dev/stdout", it would replace that link for everybody."""
    device = tmp_path / "device"
    os.mkfifo(device)
    link = tmp_path / "link"
    link.symlink_to(device)
    with pytest.raises(CronjobsError, match="this is not a regular file"):
        put(link if through_a_link else device)
    assert (link.is_symlink(), stat.S_ISFIFO(device.stat().st_mode)) == (True, True)
    assert len([*tmp_path.iterdir()]) == 2
