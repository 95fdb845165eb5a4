"""A host with a fake crontab(1) that keeps its text in a file, for tests of the commands that edit crontabs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cronjobs.desk.cli import crontab as commands
from cronjobs.desk.crontab import block as crontab
from cronjobs.desk.crontab import program

FAKE_CRONTAB = r"""#!/bin/sh
# crontab(1), storing to $FAKE_STORE, failing as $FAKE_MODE says
case "$FAKE_MODE $1" in
"denied "*) echo "You (shop) are not allowed to use this program (crontab)" >&2; exit 1 ;;
"busybox -l") [ -e "$FAKE_STORE" ] || { echo "crontab: can't open 'shop': No such file or directory" >&2; exit 1; } ;;
"spool -l") echo "/var/spool/cron/crontabs/shop: fopen: Permission denied" >&2; exit 1 ;;
"refuses -") cat >/dev/null; echo '"-":1: bad minute' >&2; echo "errors in crontab file, can't install." >&2; exit 1 ;;
"mangles -") tr a-z A-Z >"$FAKE_STORE"; exit 0 ;;
esac
case $1 in
-l) [ -e "$FAKE_STORE" ] || { echo "no crontab for shop" >&2; exit 1; }
    cat "$FAKE_STORE" ;;
-)
    cat >"$FAKE_STORE.new"
    if [ -s "$FAKE_STORE.new" ] && [ -n "$(tail -c 1 "$FAKE_STORE.new")" ]; then
        echo "new crontab file is missing newline before EOF, can't install." >&2
        exit 1
    fi
    mv "$FAKE_STORE.new" "$FAKE_STORE" ;;
*) exit 2 ;;
esac
"""


class Host:
    """A host with its own crontab(1) and interpreter. Both are scripts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.store = folder / "spool"
        self.state = folder / "state"
        self.config = folder / "cronjobs.yaml"
        self.python = folder / "my python"
        self._monkeypatch = monkeypatch
        (folder / "bin").mkdir()
        self.script(folder / "bin" / "crontab", FAKE_CRONTAB)
        self.ticks(
            """echo '{"database": "sqlite:////srv/shop/cronjobs.db", "exit_code": 0, "ended": "nothing is due"}'"""
        )
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("FAKE_STORE", str(self.store))
        monkeypatch.setenv("XDG_STATE_HOME", str(self.state))
        monkeypatch.setenv("CRONJOBS_CONFIG", str(self.config))
        monkeypatch.setattr(program, "interpreter", lambda: self.python)
        self.config.write_text("database: ${DATABASE_URL}\n")  # ticks have this variable; it is not needed here

    def script(self, file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)

    def ticks(self, commands: str) -> None:
        """Set what a tick does, as shell commands."""
        self.script(self.python, f"#!/bin/sh\n{commands}\n")

    def fails(self, mode: str) -> None:
        self._monkeypatch.setenv("FAKE_MODE", mode)

    def has(self, text: str) -> None:
        self.store.write_bytes(text.encode("utf-8", "surrogateescape"))

    @property
    def crontab(self) -> str | None:
        return self.store.read_bytes().decode("utf-8", "surrogateescape") if self.store.exists() else None

    @property
    def block(self) -> str:
        return crontab.block(self.config, self.python)

    def cli(self, *arguments: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(commands.app, arguments, input=stdin)
