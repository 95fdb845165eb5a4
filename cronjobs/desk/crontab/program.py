"""Run crontab(1) and parse its output. No other module runs crontab(1)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from cronjobs.clock import sleep
from cronjobs.desk.crontab.block import CrontabError, bytes_of, text_of
from cronjobs.desk.crontab.lines import CrontabEntry, job_lines
from cronjobs.engine.host.files import make_folder
from cronjobs.text import visible

# Matches what crontab(1) prints if the user has no crontab. The first alternative is for Vixie cron, Debian, cronie and
# BSD, the second for busybox. All of them exit with code 1.
_NO_CRONTAB: Final = re.compile(r"no crontab for |can't open '[^'/]+': No such file or directory", re.IGNORECASE)

TO_UNIX_LINES: Final = r"crontab -l | sed 's/\\r$//' | crontab -"
_COPY: Final = "crontab-"
LOCK_TRIES: Final = 200
LOCK_PAUSE_S: Final = 0.05


class CrontabMissing(CrontabError):
    def __init__(self) -> None:
        super().__init__(
            "there is no crontab command on this host. Install cron (Debian: apt-get install cron), or use systemd "
            '(see "cronjobs systemd"). "cronjobs crontab show" prints the command that any other scheduler '
            "must run once a minute"
        )


class CrontabFailed(CrontabError):
    def __init__(self, *, command: str, code: int, said: str) -> None:
        super().__init__(f'"{command}" failed with exit code {code}: {visible(said.strip()) or "it printed nothing"}')


class CrontabChanged(CrontabError):
    def __init__(self) -> None:
        super().__init__(
            "someone else changed this crontab in the meantime: nothing was written. Run the command again"
        )


def absolute(path: Path) -> Path:
    """Make *path* absolute but keep its symlinks, so that cron follows ``/srv/shop/current`` when a deploy moves it.

    A relative path is joined to the shell's $PWD if that is the current folder, since getcwd(2) resolves symlinks. ".."
    is removed only if the result names the same file.
    """
    # An absolute path does not need the current folder, which may have been deleted.
    kept = path if path.is_absolute() else _here() / path
    tidy = os.path.normpath(kept)
    return Path(tidy) if os.path.realpath(tidy) == os.path.realpath(kept) else kept


def _here() -> Path:
    shown = Path(os.environ.get("PWD", ""))
    return shown if shown.is_absolute() and _same(shown, Path.cwd()) else Path.cwd()


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def interpreter() -> Path:
    """Return the absolute path of this Python, with its symlinks.

    A virtual environment's Python is a symlink. Only through the symlink does Python find the environment's packages
    (``pyvenv.cfg`` is beside it).
    """
    if not sys.executable:
        raise CrontabError("this Python cannot determine its own path: run the command as /path/to/python -m cronjobs")
    return absolute(Path(sys.executable))


def mixed_release(python: Path, config: Path) -> str | None:
    """Return a warning if only one of two absolute paths uses a symlink that a deploy moves, or None.

    For example, *python* is in ``/srv/current/.venv``, ``/srv/current`` is a symlink to ``/srv/releases/1``, and
    *config* is in ``/srv/releases/1``.
    """
    for linked, fixed in ((python, config), (config, python)):
        for folder in linked.parents:
            release = folder.resolve()
            if folder.is_symlink() and fixed.is_relative_to(release) and not release.is_relative_to(folder):
                better = folder / fixed.relative_to(release)
                return (
                    f"{folder} is a symlink (now to {release}). The line names {linked} through it, but names {fixed} "
                    f"without it, so after the next deploy the line would mix two releases. Write {better} in the line"
                )
    return None


def read() -> str:
    """Return the invoking user's crontab, or "" if there is none. Raises CrontabMissing or CrontabFailed."""
    done = _crontab("-l")
    said = text_of(done.stderr)
    if done.returncode == 0:
        return text_of(done.stdout)
    if done.returncode == 1 and not done.stdout and _NO_CRONTAB.search(said):
        return ""
    raise CrontabFailed(command="crontab -l", code=done.returncode, said=said)


def lines_of_user() -> list[CrontabEntry] | None:
    """Return the lines of this user's crontab that run a command, or None if the crontab cannot be read."""
    try:
        return job_lines(read())
    except (CrontabError, OSError):
        return None


def replace(old: str, new: str) -> None:
    """Install *new* if the crontab is still *old*, then read the crontab back to verify.

    After a CrontabError, *old* is still in force unless the message says otherwise.
    """
    if numbers := printed_carriage_returns(old):
        raise CrontabError(
            f"line {numbers[0]} of the crontab ends in a carriage return, which crontab -l prints differently. "
            f"Nothing was changed. First convert the crontab to Unix line endings: {TO_UNIX_LINES}"
        )
    with _alone():
        if read() != old:
            raise CrontabChanged
        done = _crontab("-", new)
        if done.returncode != 0:
            raise CrontabFailed(command="crontab -", code=done.returncode, said=text_of(done.stderr))
        if read() != new:
            raise CrontabError(
                "crontab accepted the new contents, but crontab -l now shows something else: someone may have edited "
                'it at the same time. Check it with "crontab -l", then run this command again'
            )


def printed_carriage_returns(crontab: str) -> list[int]:
    r"""Return the numbers of the lines that end in "\r", which is how Debian's crontab -l prints a carriage return.

    Such output cannot be written back unchanged (measured, cron 3.0pl1-162).
    """
    return [number for number, line in enumerate(crontab.split("\n"), 1) if line.endswith(r"\r")]


@contextmanager
def _alone() -> Iterator[None]:
    """Lock out the user's other cronjobs commands, since a second writer would undo the first writer's change.

    The lock is on the home folder itself, so it needs no file. If locking fails, only ``replace``'s checks remain.
    """
    with ExitStack() as opened:
        with suppress(OSError, KeyError):
            home = os.open(pwd.getpwuid(os.getuid()).pw_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, home)
            for _ in range(LOCK_TRIES):
                try:
                    fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    sleep(LOCK_PAUSE_S)
        yield


def keep_copy(crontab: str) -> Path | None:
    """Write a backup of *crontab* and return its path. If *crontab* is empty, write nothing and return None.

    Only the owner can read the backup, since a crontab may contain passwords. The file is named by a hash of the
    content, so equal crontabs share one backup. If the backup cannot be written, OSError is raised, and an earlier
    backup stays as it was.
    """
    if not crontab:
        return None
    content = bytes_of(crontab)
    folder = _copies()
    make_folder(folder, 0o700)
    file = folder / f"{_COPY}{hashlib.sha256(content).hexdigest()[:12]}"
    fresh = folder / f".{file.name}-{os.getpid()}"
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
            copy.write(content)
        fresh.replace(file)
    except OSError as error:  # a write to a full disk raises an error without a file name
        with suppress(OSError):
            fresh.unlink()
        raise OSError(error.errno, error.strerror, str(file)) from None
    return file


def changed_at() -> datetime | None:
    """Return when a command of cronjobs last changed the crontab, as far as the kept copies show."""
    written = []
    with suppress(OSError, RuntimeError):
        written = [file.stat().st_mtime for file in _copies().glob(f"{_COPY}*")]
    return datetime.fromtimestamp(max(written), UTC) if written else None


def _copies() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "cronjobs"


def _crontab(argument: str, text: str | None = None) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("crontab")
    if program is None:
        raise CrontabMissing
    # CRONTAB_NOHEADER=N would make Debian's -l print a header that is not part of the crontab: crontab(1)
    environment = {**os.environ, "LC_ALL": "C", "CRONTAB_NOHEADER": "Y"}
    if text is None:
        return _answer([program, argument], subprocess.DEVNULL, environment)
    with _file_of(text) as file:
        return _answer([program, argument], file, environment)


def _file_of(text: str) -> IO[bytes]:
    """Return a file for crontab(1) to read.

    If crontab(1) read a pipe and we were killed, it would install truncated text.
    """
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 the caller closes it
        file.write(bytes_of(text))
        file.seek(0)
    except OSError as error:
        raise CrontabError(f"cannot write a temporary file, {error.strerror}: nothing was changed") from None
    return file


def _answer(
    command: list[str], given: IO[bytes] | int, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, stdin=given, capture_output=True, env=environment, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        raise CrontabError(f'"crontab {command[1]}" did not answer within 30 s') from None
    except OSError as error:
        raise CrontabError(f"{command[0]} cannot be run: {error.strerror}") from None
