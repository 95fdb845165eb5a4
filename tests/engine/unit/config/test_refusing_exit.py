"""``os._exit`` in a module that is being imported raises SystemExit. Everywhere else it ends the process, as always."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cronjobs.engine.config.import_path import RefusingExit

# In a process of its own, because the tests' process has threads, which a fork does not copy.
FORKS = """
import os
from cronjobs.engine.config.import_path import RefusingExit

with RefusingExit():
    child = os.fork()
    if not child:
        os._exit(7)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_it_is_refused_only_in_the_block() -> None:
    really = os._exit
    with RefusingExit():
        with RefusingExit(), pytest.raises(SystemExit, match=r"os\._exit\(0\) was called"):
            os._exit(0)
        with pytest.raises(SystemExit, match=r"os\._exit\(3\) was called"):
            os._exit(3)
    assert os._exit is really


def test_a_forked_copy_ends() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60).returncode == 7


def test_a_reference_that_the_module_keeps_ends_the_process_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with: list[int] = []
    monkeypatch.setattr(os, "_exit", ended_with.append)
    with RefusingExit():
        kept = os._exit
    with pytest.raises(SystemExit):
        kept(4)
    assert ended_with == [4]
