"""Find out facts about cron on this host, such as its commands' environment. Run a trial tick in that environment."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cronjobs.desk.crontab.block import CrontabError, command, indented, text_of, unescaped, unquoted
from cronjobs.desk.crontab.lines import Cron, settings_above
from cronjobs.engine.run_due.options import RUN_BY_CRON
from cronjobs.errors import CronjobsError
from cronjobs.model import rough
from cronjobs.text import visible


class TrialTickFailed(CronjobsError):
    """A trial tick failed in cron's environment. The command exits with the tick's code if that is 3 or 4, else 1."""

    def __init__(self, tick: BareTick) -> None:
        self.exit_code = tick.code if tick.code in (3, 4) else 1
        never = "" if tick.reported else " and did not report what it did"
        self._first = (
            f"a tick in cron's environment ended with exit code {tick.code}{never}, so the crontab was left as it is "
            "(use --force to install the line anyway). The tick printed:"
        )
        self._said = indented(tick.said or "nothing")
        super().__init__(f"{self._first}\n{self._said}")

    @property
    def lines(self) -> list[str]:
        return [self._first, *self._said.splitlines()]


def user() -> pwd.struct_passwd:
    """Return the crontab's owner. Raises CrontabError for a user without a passwd entry, since cron needs one."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        raise CrontabError(f"user id {os.getuid()} has no entry in the passwd file, which cron requires") from None


def environment(crontab: str, config: Path, *, root: Path = Path("/")) -> dict[str, str]:
    """Return cron's environment for the block of *config*: cron's defaults, and the settings above the block.

    Through pam_env, Debian's cron also adds the variables of /etc/environment, except PATH.
    """
    return {**pam_settings(root), **environment_of(settings_above(crontab, config), user())}


def environment_of(settings: Mapping[str, str], owner: pwd.struct_passwd, cron: Cron = "debian") -> dict[str, str]:
    """Return the environment that cron gives a command below *settings* in *owner*'s crontab.

    According to crontab(5), SHELL is /bin/sh, HOME and LOGNAME come from the passwd entry, and a crontab cannot change
    LOGNAME. PATH is /usr/bin:/bin (measured on Debian 12). Cronie's PATH is _PATH_STDPATH, and cronie also sets USER
    (load_entry in entry.c).
    """
    defaults = {"SHELL": "/bin/sh", "HOME": owner.pw_dir, "PATH": "/usr/bin:/bin"}
    forced = {"LOGNAME": owner.pw_name}
    if cron == "cronie":
        defaults["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin"
        forced["USER"] = owner.pw_name
    return {**defaults, **settings, **forced}


def pam_settings(root: Path = Path("/")) -> dict[str, str]:
    """Return the variables that pam_env(8) sets for cron's commands.

    pam_env reads the file given by ``envfile=`` in cron's PAM file, or else /etc/environment.
    """
    settings = {}
    for service in ("cron", "crond"):
        for line in _lines(root / "etc/pam.d" / service):
            if "pam_env.so" not in line or line.lstrip().startswith("#"):
                continue
            named = re.search(r"\benvfile=/(\S+)", line)
            for assignment in _lines(root / (named[1] if named else "etc/environment")):
                name, equals, value = assignment.strip().removeprefix("export ").partition("=")
                if equals and name.isidentifier():
                    settings[name] = unquoted(value)
    return settings


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class BareTick:
    """The result of a tick in cron's environment.

    ``database``: the URL of the database that the tick reached, without the password, or None if the tick reached no
    database.
    """

    code: int  # the exit code, or 128 + n if signal n ended the tick
    database: str | None
    said: str  # the tick's stderr, safe to print
    # Whether the tick printed its report. Without a report, exit code 1 may come from Python itself.
    reported: bool = False

    @property
    def works(self) -> bool:
        return self.reported and self.code in (0, 1)  # exit code 1 means that a job died, but the tick itself worked


def bare_tick(
    config: Path,
    interpreter: Path,
    environment: Mapping[str, str],
    *,
    limit: timedelta,
    run_by_cron: Collection[str] = (),
) -> BareTick:
    """Run the block's exact command as cron would: cron's shell, environment and folder, no terminal, a new session.

    This is a real tick, so due jobs run. Only ``--json`` is added to the command. After *limit* the process is killed.
    For each schedule in *run_by_cron*, the tick skips the occurrences that are already due, because cron has run the
    schedule's crontab line.
    """
    line = unescaped(command(config, interpreter)) + " --json"
    try:
        process = subprocess.Popen(
            [environment["SHELL"], "-c", line],
            env=dict(environment) | ({RUN_BY_CRON: " ".join(run_by_cron)} if run_by_cron else {}),
            cwd=environment["HOME"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=0o022,  # Debian's cron sets this umask (measured)
            start_new_session=True,
        )
    except OSError as error:
        return BareTick(126, None, visible(f"{error.filename or environment['SHELL']}: {error.strerror}"))
    try:
        out, err = process.communicate(timeout=limit.total_seconds())
    except BaseException as stopped:
        # Kill the tick on Ctrl-C as well, since Ctrl-C does not reach the tick's own session.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:  # do not read to EOF, since a stray child may keep the pipe open
                pipe.close()
        if not isinstance(stopped, subprocess.TimeoutExpired):
            raise
        return BareTick(137, None, f"the command was still running after {rough(limit)}")
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    report = _report(out)
    database = report.get("database")
    return BareTick(
        code,
        visible(database) if isinstance(database, str) else None,
        visible(text_of(err).strip()),
        reported=report.get("exit_code") == code and "ended" in report,
    )


def _report(out: bytes) -> dict[str, Any]:
    """Return the tick's report, or {} if there is none.

    The shell's start-up files may have printed other text first.
    """
    for start in (0, out.rfind(b"\n{") + 1):
        try:
            found = json.loads(out[start:])
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def mail_program(root: Path = Path("/")) -> Path | None:
    """Return the mail program that cron uses. None means that there is none, so cron drops the commands' output.

    Debian's cron and cronie call /usr/sbin/sendmail by its full path. Neither of them uses a sendmail elsewhere on
    PATH.
    """
    for path in ("usr/sbin/sendmail", "usr/lib/sendmail"):
        if os.access(root / path, os.X_OK):
            return root / path
    return None


def daemon_runs(root: Path = Path("/")) -> bool | None:
    """Return whether a cron daemon is running on this host.

    None means unknown: there is no /proc, or it hides other users' processes.
    """
    if not (root / "proc/1").is_dir():
        return None
    for file in (root / "proc").glob("[0-9]*/comm"):
        if _lines(file)[:1] in (["cron"], ["crond"], ["cronie"], ["fcron"]):
            return True
    return False
