"""Plays a tutorial from the first line to the last: writes its files, runs its commands, and compares their output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.pages import Page
from support.project import CRONJOBS

NAMED = re.compile(r"# ([\w./]+)\n")
CRONTAB = """#!/bin/sh
# A crontab of this folder's own.
case "$1" in
-l) cat "$0.lines" 2>&- || { echo "no crontab for shop" >&2; exit 1; } ;;
-) cat > "$0.lines" ;;
*) cat "$1" > "$0.lines" ;;
esac
"""


@dataclass
class Tutorial:
    """Plays *page* in *folder*.

    ``request`` is Python code that answers the page's curl calls, with METHOD and URL in argv.
    """

    page: Page
    folder: Path
    request: str

    def play(self) -> None:
        programs = self.folder.with_name(f"{self.folder.name}-bin")
        for name, text in {
            "cronjobs": f'#!/bin/sh\nexec {shlex.join(CRONJOBS)} "$@"\n',
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            "crontab": CRONTAB,
            # This replaces "curl -X METHOD URL", so that no server is needed.
            "curl": f'#!/bin/sh\nset -a; . ./.env; exec {sys.executable} -W ignore -c "$REQUEST" "$2" "$3"\n',
        }.items():
            programs.mkdir(exist_ok=True)
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        for block in self.page.blocks():
            if block.language == "console":
                self._run(block.text, programs)
            elif named := NAMED.match(block.text):
                file = self.folder / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
            else:
                raise AssertionError(f"nothing is done with this block: {block.text}")

    def _run(self, text: str, programs: Path) -> None:
        """Run each command.

        The lines after it are its expected output. "…" matches anything, and so does no line at all.
        """
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env={
                    **{name: os.environ[name] for name in ("PYTHONPATH", "XDG_STATE_HOME") if name in os.environ},
                    "PATH": f"{programs}:/usr/bin:/bin",
                    "HOME": str(self.folder),
                    "LC_ALL": "C.UTF-8",
                    "REQUEST": self.request,
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "COLUMNS": "120",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, f"$ {command}\n{done.stdout}"
            if shown:
                pattern = ".*".join(re.escape(part) for part in shown.rstrip("\n").split("…"))
                assert re.fullmatch(pattern, done.stdout.rstrip("\n"), re.DOTALL), f"$ {command}\n{done.stdout}"
