"""``os._exit`` in a module that is being imported raises SystemExit. Everywhere else it ends the process, as always."""

from __future__ import annotations

import os

import pytest

from cronjobs.engine.config.import_path import RefusingExit


def in_a_copy(code: int) -> int:
    """Call ``os._exit`` in a forked copy, and return the copy's exit code."""
    child = os.fork()
    if not child:
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_it_is_refused_only_in_the_block_and_only_in_this_process() -> None:
    really = os._exit
    with RefusingExit():
        with RefusingExit(), pytest.raises(SystemExit, match=r"os\._exit\(0\) was called"):
            os._exit(0)
        assert in_a_copy(7) == 7
        kept = os._exit  # as ``from os import _exit`` in a module
        with pytest.raises(SystemExit, match=r"os\._exit\(3\) was called"):
            kept(3)
    assert os._exit is really


def test_a_reference_that_the_module_keeps_ends_the_process_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with: list[int] = []
    monkeypatch.setattr(os, "_exit", ended_with.append)
    with RefusingExit():
        kept = os._exit
    with pytest.raises(SystemExit):
        kept(4)
    assert ended_with == [4]
