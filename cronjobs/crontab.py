"""The user's crontab: one marked block in it, and not a byte of the rest touched. The only caller of crontab(1).

First the text (pure), then the program, then what can be known about the host. A crontab is handled as UTF-8 with
surrogateescape, split at "\\n" only, so that whatever stands in it comes out as it went in.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from cronjobs.errors import CronjobsError, UsageError
from cronjobs.files import make_folder
from cronjobs.text import visible

# Bytes of a command. Debian's cron takes 998 and says "command too long" to 999 (MAX_COMMAND is 1000; measured with
# "crontab -n", cron 3.0pl1-162); cronie takes 131,072.
LONGEST_COMMAND: Final = 998

_MARK: Final = re.compile(r"# cronjobs (begin|end) (/.*)")

# How the crontab(1)s say "there is none", all with exit code 1: Vixie, Debian, cronie, BSD; busybox.
_NO_CRONTAB: Final = re.compile(r"no crontab for |can't open '[^'/]+': No such file or directory", re.IGNORECASE)

# A line of the form "name = value": crontab(5). Name and value may be quoted, the quotes are not part of them.
_SETTING: Final = re.compile(r"""[ \t]*("[^"=]*"|'[^'=]*'|[^\s='"#][^\s=]*)[ \t]*=[ \t]*(.*)""")


class CrontabError(CronjobsError):
    """The crontab, or the program that keeps it, cannot be used as asked."""


class BlockBroken(CrontabError):
    def __init__(self, *, line: int, what: str) -> None:
        super().__init__(
            f"line {line} of the crontab: {what}, so it is not clear which lines belong to cronjobs. "
            'Nothing was changed: put it right with "crontab -e"'
        )


class CrontabMissing(CrontabError):
    def __init__(self) -> None:
        super().__init__(
            "there is no crontab command on this host: install cron (Debian: apt-get install cron), or have another "
            'scheduler run the command that "cronjobs crontab show" prints, once a minute'
        )


class CrontabFailed(CrontabError):
    def __init__(self, *, command: str, code: int, said: str) -> None:
        super().__init__(f'"{command}" failed with exit code {code}: {visible(said.strip()) or "it said nothing"}')


class CrontabChanged(CrontabError):
    def __init__(self) -> None:
        super().__init__(
            "someone else changed this crontab in the meantime: nothing was written, run the command again"
        )


class TickFails(CronjobsError):
    """A tick in cron's environment does not work; ends with that tick's own exit code where that is 3 or 4."""

    def __init__(self, tick: BareTick) -> None:
        self.exit_code = tick.code if tick.code in (3, 4) else 1
        never = "" if tick.reported else " and without a tick's report"
        super().__init__(
            f"a tick in cron's environment ended with exit code {tick.code}{never}, so the crontab was left as it is "
            f"(--force installs the line all the same). It said:\n{indented(tick.said or 'nothing')}"
        )


# ---------------------------------------------------------------------------------------------------------- the text


def command(config: Path, interpreter: Path) -> str:
    """The command that cron is to run, as it stands in a crontab: quoted for the shell, "%" escaped for cron.

    ``-P``: "-m" alone puts the working directory on the import path, and under cron that is HOME, where a stray
    ``cronjobs.py`` or ``yaml.py`` would be imported instead. Not ``-I``, which also hides packages installed with
    "pip install --user" and a PYTHONPATH that the user set in the crontab. Not the ``cronjobs`` script: it need not
    exist, and its "#!" line has a length limit.

    No "cd" (the tick finds everything from the configuration's folder), no PATH (``env:`` in the YAML), no lock
    (ticks may overlap). Raises UsageError for a path that cron cannot carry, or a command too long for it.
    """
    words = [str(interpreter), "-P", "-m", "cronjobs", "run-due", "--config", str(config)]
    for word in words:
        _check_portable(word)
    text = " ".join(_quote(word) for word in words)
    size = len(os.fsencode(text))
    if size > LONGEST_COMMAND:
        raise UsageError(
            f"the cron line would be {size} bytes long and cron takes {LONGEST_COMMAND}: "
            "use shorter paths, or a symlink to the folder"
        )
    return text


def _check_portable(word: str) -> None:
    r"""Refuse what no spelling carries through every cron.

    A newline ends the entry. Debian's cron turns "\\" into "\" and cronie does not (measured; do_command.c), and
    Debian's ``crontab -l`` writes a carriage return as "\r", so what has these could not be found again.
    """
    if "\\" in word or not word.isprintable():
        raise UsageError(
            f"cron cannot carry the path {word!r}: it has a backslash or a character that is not printable"
        )


def _quote(word: str) -> str:
    # Outside of quotes "\%" is "%" to a cron that knows the escape, crontab(5), and to the shell of one that does not
    # (busybox). Within quotes the latter would keep the backslash.
    return r"\%".join(shlex.quote(part) if part else "" for part in word.split("%")) or "''"


def unescaped(text: str) -> str:
    r"""What cron hands to the shell of a command that :func:`command` wrote: "\%" is "%". crontab(5)"""
    return text.replace(r"\%", "%")


def when(every: timedelta) -> str:
    """The five fields for a wake-up each *every*. Raises UsageError where that does not divide an hour or a day."""
    minutes, rest = divmod(every, timedelta(minutes=1))
    if not rest and minutes == 1:
        return "* * * * *"
    if not rest and 1 < minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes} * * * *"
    hours, rest = divmod(every, timedelta(hours=1))
    if not rest and hours == 1:
        return "0 * * * *"
    if not rest and 1 < hours <= 12 and 24 % hours == 0:
        return f"0 */{hours} * * *"
    raise UsageError(
        f"run.every: {every}: cron cannot wake up at even distances of that; "
        "use 1m, 2m, 3m, 4m, 5m, 6m, 10m, 12m, 15m, 20m, 30m, 1h, 2h, 3h, 4h, 6h, 8h or 12h"
    )


def block(config: Path, interpreter: Path, *, every: timedelta = timedelta(minutes=1)) -> str:
    """The lines for *config*, marked by its path. Both paths are absolute, and used as they are: symlinks are kept.

    No ``MAILTO=``, ``PATH=`` or ``SHELL=`` line: a setting holds for every entry below it (crontab(5)), so it would
    change the user's own.
    """
    return f"# cronjobs begin {config}\n{when(every)} {command(config, interpreter)}\n# cronjobs end {config}\n"


@dataclass(frozen=True)
class Mark:
    """A line that begins or ends the block of a configuration."""

    kind: Literal["begin", "end"]
    config: str


def parse_mark(line: str) -> Mark | None:
    """The mark that *line* is (an editor may have put a carriage return behind it), or None."""
    found = _MARK.fullmatch(line.removesuffix("\r"))
    if found is None:
        return None
    return Mark("begin" if found[1] == "begin" else "end", found[2])


@dataclass(frozen=True)
class Found:
    """Where a block stands: ``crontab[start:stop]``."""

    text: str
    start: int
    stop: int


def find(crontab: str, config: Path) -> Found | None:
    """The block of *config*, None if there is none. Raises BlockBroken unless it is one begin, one end, nothing between
    them that another configuration marked."""
    marks: list[tuple[int, int, int, Mark]] = []  # line number, start, stop, mark
    start = 0
    for number, line in enumerate(crontab.split("\n"), 1):
        stop = start + len(line) + 1
        if mark := parse_mark(line):
            marks.append((number, start, min(stop, len(crontab)), mark))
        start = stop
    own = [index for index, entry in enumerate(marks) if entry[3].config == str(config)]
    if not own:
        return None
    first, last = marks[own[0]], marks[own[-1]]
    if first[3].kind == "end":
        raise BlockBroken(line=first[0], what=f'"# cronjobs end {config}" has no begin before it')
    if len(own) == 1:
        raise BlockBroken(line=first[0], what=f'"# cronjobs begin {config}" has no end after it')
    if len(own) > 2 or last[3].kind == "begin":
        raise BlockBroken(line=marks[own[1]][0], what=f"the block of {config} is there more than once")
    if own[1] != own[0] + 1:
        raise BlockBroken(line=marks[own[0] + 1][0], what=f"a mark stands inside the block of {config}")
    text = crontab[first[1] : last[2]]
    return Found(text, first[1], last[2])


def install(old: str, block: str, config: Path) -> str:
    """*old* with *block*: where one is already, else at the end, so that the user's settings hold for it too.

    All other lines stay byte for byte. Raises BlockBroken rather than guess.
    """
    found = find(old, config)
    if found is not None:
        new = old[: found.start] + block + old[found.stop :]
        return new if new == old else _ended(new)
    return _ended(old) + block


def remove(old: str, config: Path) -> str:
    """*old* without the block of *config*: what it was before :func:`install`, byte for byte, but for a missing newline
    at its end. Raises BlockBroken."""
    found = find(old, config)
    return old if found is None else _ended(old[: found.start] + old[found.stop :])


def _ended(text: str) -> str:
    """With the newline behind its last line that crontab(1) insists on: "missing newline before EOF"."""
    return text + "\n" if text and not text.endswith("\n") else text


def diff(old: str, new: str) -> list[str]:
    """A unified diff of two crontabs, line by line and safe to show; empty if they are the same."""
    lines = []
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (old, new))
    for line in difflib.unified_diff(before, after, "crontab", "crontab, changed", lineterm="\n"):
        lines.append(visible(line.removesuffix("\n")))
        if not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    return lines


def same_file(crontab: str, config: Path) -> list[str]:
    """Other paths of the same file that have a block too: its ticks would run twice (harmless, and not meant)."""
    marks = (parse_mark(line) for line in crontab.split("\n"))
    begun = {mark.config for mark in marks if mark is not None and mark.kind == "begin"} - {str(config)}
    return sorted(path for path in begun if os.path.realpath(path) == os.path.realpath(config))


def settings_above(crontab: str, config: Path) -> dict[str, str]:
    """The environment settings that hold for the block of *config*: those above it, later ones win. crontab(5)"""
    found = find(crontab, config)
    settings = {}
    for line in crontab[: found.start if found else None].split("\n"):
        if setting := _SETTING.fullmatch(line.rstrip()):
            name, value = (_unquoted(part) for part in setting.groups())
            settings[name] = value
    return settings


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


# ------------------------------------------------------------------------------------------------------- crontab(1)


def absolute(path: Path) -> Path:
    """*path* from the root, with its symlinks: a deploy moves ``/srv/shop/current``, and cron is to follow it.

    So a relative path counts from the shell's $PWD where that is the current folder (getcwd(2) knows only the
    resolved one), and ".." is taken out only where that names the same file.
    """
    shown = Path(os.environ.get("PWD", ""))
    here = shown if shown.is_absolute() and _same(shown, Path.cwd()) else Path.cwd()
    kept = here / path
    tidy = os.path.normpath(kept)
    return Path(tidy) if os.path.realpath(tidy) == os.path.realpath(kept) else kept


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def interpreter() -> Path:
    """The Python that runs this, absolute, not resolved: a virtual environment's is a symlink, and it is the link that
    finds the environment's packages (``pyvenv.cfg`` beside it)."""
    if not sys.executable:
        raise CrontabError("this Python does not know its own path: run the command as /path/to/python -m cronjobs")
    return absolute(Path(sys.executable))


def read() -> str:
    """The invoking user's crontab, "" if there is none. Raises CrontabMissing, CrontabFailed if it cannot be known."""
    done = _crontab("-l")
    said = _text(done.stderr)
    if done.returncode == 0:
        return _text(done.stdout)
    if done.returncode == 1 and not done.stdout and _NO_CRONTAB.search(said):
        return ""
    raise CrontabFailed(command="crontab -l", code=done.returncode, said=said)


def replace(old: str, new: str) -> None:
    """Write *new* if the crontab still is *old*, and read it back. Raises CrontabError; then *old* is still in force,
    unless the message says otherwise."""
    for number, line in enumerate(old.split("\n"), 1):
        # Debian's crontab -l shows a carriage return as these two characters, so that what it lists cannot be written
        # back as it was (measured, cron 3.0pl1-162).
        if line.endswith(r"\r"):
            raise CrontabError(
                f"line {number} of the crontab ends in a carriage return that crontab -l does not give back as it is. "
                r"Nothing was changed: give it Unix line ends first: crontab -l | sed 's/\\r$//' | crontab -"
            )
    if read() != old:
        raise CrontabChanged
    done = _crontab("-", new)
    if done.returncode != 0:
        raise CrontabFailed(command="crontab -", code=done.returncode, said=_text(done.stderr))
    if read() != new:
        raise CrontabError(
            "crontab took the new text but lists another one: someone else may have written at the same moment. "
            'Look at it with "crontab -l", then run the command again'
        )


def keep_copy(crontab: str) -> Path | None:
    """Keep *crontab* where only its owner reads it (there may be passwords); None if it is empty. Raises OSError.

    Named after its content: the same crontab is kept once, however often it is replaced.
    """
    if not crontab:
        return None
    content = crontab.encode("utf-8", "surrogateescape")
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "cronjobs"
    make_folder(folder, 0o700)
    file = folder / f"crontab-{hashlib.sha256(content).hexdigest()[:12]}"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as copy:
        copy.write(content)
    return file


def _crontab(argument: str, text: str = "") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("crontab")
    if program is None:
        raise CrontabMissing
    # CRONTAB_NOHEADER=N would make Debian's -l list a header that is not part of the crontab: crontab(1)
    environment = {**os.environ, "LC_ALL": "C", "CRONTAB_NOHEADER": "Y"}
    try:
        return subprocess.run(
            [program, argument],
            input=text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env=environment,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CrontabError(f'"crontab {argument}" did not answer within 30 s') from None
    except OSError as error:
        raise CrontabError(f"{program} cannot be run: {error.strerror}") from None


def _text(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape")


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


# --------------------------------------------------------------------------------------------------------- the host


def user() -> pwd.struct_passwd:
    """Whose crontab it is. Raises CrontabError for a uid without a passwd entry: cron(8) has no home for it either."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        raise CrontabError(
            f"user id {os.getuid()} has no entry in the passwd file, and cron serves only those"
        ) from None


def environment(crontab: str, config: Path, *, root: Path = Path("/")) -> dict[str, str]:
    """What cron will give to the block of *config*: its defaults under the settings that stand above it in *crontab*.

    crontab(5): SHELL is /bin/sh, HOME and LOGNAME come from the passwd entry, LOGNAME cannot be set. PATH is
    /usr/bin:/bin (measured on Debian 12). Debian's cron adds /etc/environment through pam_env, except PATH.
    """
    owner = user()
    defaults = {"HOME": owner.pw_dir, "LOGNAME": owner.pw_name, "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    return {**_pam_settings(root), **defaults, **settings_above(crontab, config), "LOGNAME": owner.pw_name}


def _pam_settings(root: Path) -> dict[str, str]:
    """/etc/environment as pam_env(8) reads it, if cron's PAM configuration asks for it."""
    asked = any(
        "pam_env.so" in line and not line.lstrip().startswith("#")
        for service in ("cron", "crond")
        for line in _lines(root / "etc/pam.d" / service)
    )
    settings = {}
    for line in _lines(root / "etc/environment") if asked else ():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.isidentifier():
            settings[name] = _unquoted(value)
    return settings


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class BareTick:
    """What a tick in cron's environment came to. ``database``: the URL it reached, without a password; None: none."""

    code: int  # 128 + n if a signal ended it, as a shell says it
    database: str | None
    said: str  # what it wrote to stderr; safe to show
    reported: bool = False  # it was a tick, and says itself how it ended: Python's own exit code 1 says nothing

    @property
    def works(self) -> bool:
        return self.reported and self.code in (0, 1)  # 1: a job ended dead in it; the tick itself did its work


def bare_tick(config: Path, interpreter: Path, environment: Mapping[str, str], *, limit: timedelta) -> BareTick:
    """Run the very command of the block as cron would: its shell, environment, folder, no terminal, its own session.

    A whole tick, as cron's next one would be: due jobs run. ``--json`` is all that is added; *limit* ends it.
    """
    line = unescaped(command(config, interpreter)) + " --json"
    try:
        process = subprocess.Popen(
            [environment["SHELL"], "-c", line],
            env=dict(environment),
            cwd=environment["HOME"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=0o022,  # a daemon's; measured under Debian's cron
            start_new_session=True,
        )
    except OSError as error:
        return BareTick(126, None, visible(f"{error.filename or environment['SHELL']}: {error.strerror}"))
    try:
        out, err = process.communicate(timeout=limit.total_seconds())
    except BaseException as stopped:  # also ctrl-C: the tick has a session of its own, the terminal does not reach it
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:  # not read to its end: a stray child may hold it open for long
                pipe.close()
        if not isinstance(stopped, subprocess.TimeoutExpired):
            raise
        return BareTick(137, None, f"it had not ended after {limit.total_seconds():.0f} s")
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    report = _report(out)
    database = report.get("database")
    return BareTick(
        code,
        visible(database) if isinstance(database, str) else None,
        visible(_text(err).strip()),
        reported=report.get("exit_code") == code and "ended" in report,
    )


def _report(out: bytes) -> dict[str, Any]:
    """The tick's own, behind whatever a shell's start-up file prints; empty if there is none."""
    for start in (0, out.rfind(b"\n{") + 1):
        try:
            found = json.loads(out[start:])
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def mail_program(root: Path = Path("/")) -> Path | None:
    """What cron hands a failing tick's output to, None if this host has none, so that cron drops it.

    Debian's cron and cronie call /usr/sbin/sendmail by that path; one elsewhere on PATH is of no use to them.
    """
    for path in ("usr/sbin/sendmail", "usr/lib/sendmail"):
        if os.access(root / path, os.X_OK):
            return root / path
    return None


def daemon_runs(root: Path = Path("/")) -> bool | None:
    """Whether a cron daemon runs here; None where that cannot be seen (no /proc, or one that hides other users')."""
    if not (root / "proc/1").is_dir():
        return None
    for file in (root / "proc").glob("[0-9]*/comm"):
        if _lines(file)[:1] in (["cron"], ["crond"], ["cronie"], ["fcron"]):
            return True
    return False
