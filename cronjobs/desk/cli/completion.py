"""Fix what typer's ``--install-completion`` writes for zsh."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

INSTALL: Final = "--install-completion"
CALL: Final = '\n_cronjobs_completion "$@"\n'


def mend(home: Path) -> None:
    """Make the completion that typer installed for zsh work on a shell's first Tab.

    On that first Tab, zsh runs the whole file instead of the function. Typer's file only defines the function, so that
    Tab completes nothing (seen with typer 0.29 and zsh 5.9).
    """
    file = home / ".zfunc" / "_cronjobs"
    with suppress(OSError):
        text = file.read_text(encoding="utf-8")
        if "_cronjobs_completion()" in text and CALL.strip() not in text:
            file.write_text(text.rstrip("\n") + "\n" + CALL, encoding="utf-8")


def after_install() -> None:
    """Fix the zsh file if ``--install-completion`` was given. Call this after typer has written the file."""
    if INSTALL in sys.argv[1:]:
        with suppress(RuntimeError):  # Path.home() fails if the home folder is unknown
            mend(Path.home())
