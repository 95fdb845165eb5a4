"""Cron's mail as an alarm: a cause that repeats every minute is told once, then rarely, and its end is told once."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import tempfile
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cronjobs.files import make_folder
from cronjobs.model import duration_text
from cronjobs.text import one_line

FIRST_SILENCE: Final = timedelta(hours=1)  # then twice as long each time
LONGEST_SILENCE: Final = timedelta(hours=24)


class Alarm:
    """Remembers, beside the user's other state, what was told about one configuration file.

    Never fails: where nothing can be remembered, everything is told every time.
    """

    def __init__(self, config: Path, folder: Path | None = None) -> None:
        self._file = (folder or _state_folder()) / f"alarm-{_name(config)}.json"

    def worth_telling(self, cause: str, now: datetime) -> bool:
        """Whether *cause* (its text) should be told now; remembers that it was there."""
        known = self._load()
        entry = known.setdefault(cause, {"since": now.isoformat(), "next": now.isoformat(), "told": 0, "seen": 0})
        entry["seen"] += 1
        worth = now >= datetime.fromisoformat(entry["next"])
        if worth:
            silence = min(FIRST_SILENCE * 2 ** min(entry["told"], 10), LONGEST_SILENCE)
            entry |= {"next": (now + silence).isoformat(), "told": entry["told"] + 1}
        self._store(known)
        return worth

    def over(self, still: set[str], now: datetime) -> list[str]:
        """Forget the causes that are not among *still*; one sentence for each that is over and had come again."""
        known = self._load()
        gone = [cause for cause in known if cause not in still]
        if not gone:
            return []
        told = []
        for cause in gone:
            entry = known.pop(cause)
            lasted = max(timedelta(0), now - datetime.fromisoformat(entry["since"]))
            if entry["seen"] > 1:  # otherwise whoever read of it knows: it was mended at once
                told.append(f"over after {duration_text(lasted)}: {cause}")
        self._store(known)
        return told

    def _load(self) -> dict[str, Any]:
        try:
            known = json.loads(self._file.read_text())
            return {cause: entry for cause, entry in known.items() if {"since", "next", "told", "seen"} <= entry.keys()}
        except (OSError, ValueError, AttributeError):
            return {}

    def _store(self, known: dict[str, Any]) -> None:
        with suppress(OSError):
            make_folder(self._file.parent, 0o700)
            fresh = self._file.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(known))
            fresh.replace(self._file)


def leave_word(config: Path, line: str) -> None:
    """Keep *line* for the next tick of this configuration file to print: from a process that nobody listens to."""
    file = _word_file(config)
    with suppress(OSError):
        make_folder(file.parent, 0o700)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, (one_line(line, 1000) + "\n").encode())
        finally:
            os.close(descriptor)


def take_word(config: Path) -> list[str]:
    """The lines that were left, once: whoever takes them prints them."""
    file = _word_file(config)
    taken = file.with_suffix(f".{os.getpid()}")
    try:
        file.rename(taken)  # two ticks may come at once
        lines = taken.read_text(errors="replace").splitlines()
        taken.unlink()
    except OSError:
        return []
    return lines


def _word_file(config: Path) -> Path:
    return _state_folder() / f"word-{_name(config)}"


def _name(config: Path) -> str:
    return hashlib.sha256(os.fsencode(config)).hexdigest()[:16]


def _state_folder() -> Path:
    """$XDG_STATE_HOME/cronjobs, or ~/.local/state/cronjobs by the password file: cron may set no HOME."""
    named = os.environ.get("XDG_STATE_HOME")
    if named and Path(named).is_absolute():
        return Path(named) / "cronjobs"
    home = os.environ.get("HOME") or ""
    if not home:
        with suppress(KeyError):
            home = pwd.getpwuid(os.getuid()).pw_dir
    if home and os.access(home, os.W_OK):
        return Path(home) / ".local/state/cronjobs"
    return Path(tempfile.gettempdir()) / f"cronjobs-{os.getuid()}"
