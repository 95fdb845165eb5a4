"""``cronjobs crontab import|compare``: convert a crontab to a cronjobs.yaml, and compare the two."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import typer

from cronjobs.clock import SYSTEM
from cronjobs.contrib.take_over.as_yaml import as_env_file, as_yaml, secrets_of
from cronjobs.contrib.take_over.comparing import LineDifference, Pair, differences, paired
from cronjobs.contrib.take_over.convert_lines import ImportedCrontab, Importer, names_users
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import ConfigOption, JsonOption, Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.crontab import host, program
from cronjobs.desk.crontab.block import CrontabError, text_of
from cronjobs.desk.crontab.lines import as_shown
from cronjobs.desk.insight.formatting import counted
from cronjobs.desk.insight.instants import iso_instant
from cronjobs.engine.command.printing import complain, echo, is_terminal, json_text
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.config.load import load
from cronjobs.errors import ConfigError, UsageError
from cronjobs.model import in_zone
from cronjobs.text import one_line, visible

MODE: Final = 0o600  # like a crontab, the files may contain passwords
DAYS: Final = 400  # look this far ahead by default: a year, with every clock change
SMTP_PORT: Final = 25  # the port that alerts use if the file sets no port: for the mail server
SHOWN: Final = 5  # print at most this many instants for each difference
LISTED: Final = 100  # with --json, print at most this many instants for each difference


class WhichCron(StrEnum):
    DEBIAN = "debian"
    CRONIE = "cronie"


CronOption = Annotated[
    WhichCron,
    typer.Option("--cron", help="The cron daemon that runs the crontab. They differ: only cronie applies CRON_TZ."),
]
FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="F",
        show_default=False,
        help='The crontab to read, or "-" for standard input. Default: yours, as crontab -l lists it.',
    ),
]


def import_crontab(
    file: FileOption = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help='The file to write, or "-" for standard output.')
    ] = "cronjobs.yaml",
    cron: CronOption = WhichCron.DEBIAN,
) -> None:
    """Convert your crontab to a cronjobs.yaml in which each line keeps the meaning that it has under cron.

    import changes nothing else, and never overwrites a file. Lines that cannot be taken over (such as @reboot) are
    listed and stay in the crontab. Comments in the new file say what cronjobs can do that cron cannot. Next, run
    cronjobs crontab compare, then swap.

    The exit code is 0 if import wrote the file and cron itself can read all lines of the crontab. Otherwise it is 1:
    cron cannot read some lines, or no line can be taken over.
    """
    timezone = host_timezone()
    text = _read(file)
    if file is None and (numbers := program.printed_carriage_returns(text)):
        raise CrontabError(
            f"line {numbers[0]} of the crontab ends in a carriage return, which cron passes to the command, but which "
            "crontab -l prints differently. Nothing was written. First convert the crontab to Unix line endings: "
            f"{program.TO_UNIX_LINES}"
        )
    found = taken_over(text, timezone, cron)
    owner = host.user().pw_name
    named = "standard input" if file == "-" else f"the crontab of {owner}" if file is None else file
    for left in found.left:
        complain(f"line {left.number} stays in the crontab ({left.why}): {as_shown(left.text, 200)}")
    if not found.taken:
        raise CrontabError(f"{named} has no line that can be taken over: nothing was written")
    sender = f"{owner}@{os.uname().nodename}"
    secrets = secrets_of(found)
    if out == "-":
        write(as_yaml(found, of=named, timezone=timezone, sender=sender, secrets=secrets).splitlines())
        if secrets:
            complain(
                f"not printed: the values of {', '.join(secrets.values())}. Put them into the file that env_file "
                'names. If --out names a file instead of "-", import also writes the env file'
            )
    else:
        env_file = Path(out).with_suffix(".env")
        text = as_yaml(found, of=named, timezone=timezone, sender=sender, env_file=env_file.name, secrets=secrets)
        _write_new(Path(out), text, env_file, as_env_file(secrets) if secrets else None)
    for note in found.notes:
        complain(note)
    if found.mail_to and not _mail_server_answers():
        complain(
            f"no mail server answers on port {SMTP_PORT} of this host, and the alert channel made from MAILTO "
            'needs one: correct the channel\'s "host" in the new file, then try the channel with cronjobs alerts test'
        )
    if timezone != (own := host_timezone(environ={})):
        complain(
            f"the time zone {timezone} comes from $TZ in this shell; the host's time zone, which cron "
            f"most likely uses, is {own}"
        )
    if out != "-":
        echo(
            f"wrote {visible(out)}: {counted(len(found.taken), 'line')} taken over, {len(found.left)} left in the "
            "crontab"
        )
        if secrets:
            echo(f"wrote {visible(str(env_file))}: {counted(len(secrets), 'secret')}, readable by you alone")
        config = "" if out == "cronjobs.yaml" else f" --config {visible(out)}"
        crontab = "" if file is None else f" --file {visible(file)}"
        own = "" if file is None else ", which takes lines over from your own crontab only"
        echo(f"next: cronjobs crontab compare{crontab}{config}, then cronjobs crontab swap{config}{own}")
    if any(left.broken for left in found.left):
        raise typer.Exit(1)


def compare(
    context: typer.Context,
    config: ConfigOption = None,
    file: FileOption = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3660, metavar="N", help="How far to look ahead.")] = DAYS,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", show_default=False, help="Start from this instant instead of now."),
    ] = None,
    cron: CronOption = WhichCron.DEBIAN,
    as_json: JsonOption = False,
) -> None:
    """Compare the times at which cron starts each line with the due times of its schedule, also across clock changes.

    It also compares the command and the variables set in the crontab. Cron's start times are computed minute by minute,
    the way cron does it, in the time zone of $TZ, or else of this host. --json prints {"lines", "same", "differences",
    "without_schedule"}; "lines" and "same" are numbers of lines. Lines without a schedule are listed, but not
    counted: they stay with cron.

    The exit code is 0 if every line that has a schedule does what the schedule does, at the same instants. It is 1 if
    there are differences, which are listed, or if no line can be compared.
    """
    settings = load_settings(Source(context, config), need_database=False)
    timezone = host_timezone()
    found = taken_over(_read(file), timezone, cron)
    start = _start(from_, timezone)
    every = paired(found.taken, settings)
    pairs = [pair for pair in every if pair.schedule is not None]
    staying = [pair.taken.line for pair in every if pair.schedule is None]
    if is_terminal("stderr"):
        complain(f"computing when cron starts {counted(len(pairs), 'line')} in {days} days …")
    differing = differences(pairs, timezone, start, start + timedelta(days=days), cron.value)
    wrong = {each.taken.line.number for each in differing}
    if as_json:
        whole = {
            "lines": len(pairs),
            "same": len(pairs) - len(wrong),
            "differences": [_as_json(each) for each in differing],
            "without_schedule": [{"line": line.number, "text": line.text} for line in staying],
        }
        write([json_text(whole)])
    else:
        for each in differing:
            write(_as_text(each, timezone))
        for line in staying:
            write([f"line {line.number} stays with cron (no schedule runs it): {as_shown(line.text, 100)}"])
        for left in found.left:
            write([f"line {left.number} is not compared ({left.why}): {as_shown(left.text, 200)}"])
        _sum_up(pairs, len(wrong), days)
    if wrong or not pairs:
        raise typer.Exit(1)


def taken_over(crontab: str, timezone: str, cron: WhichCron) -> ImportedCrontab:
    return Importer(host.user(), timezone, cron.value, host.pam_settings()).convert(crontab)


def _mail_server_answers() -> bool:
    try:
        socket.create_connection(("localhost", SMTP_PORT), timeout=2).close()
    except OSError:
        return False
    return True


# --- files ------------------------------------------------------------------------------------------------------------


def _read(file: str | None) -> str:
    if file is None:
        text = program.read()
        if not text:
            raise CrontabError(f"{host.user().pw_name} has no crontab: name a file with --file")
        return text
    try:
        text = text_of(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "this is not a file name"
        raise UsageError(f"--file {one_line(file, 200)}: {why}") from None
    if _is_system_crontab(file) or names_users(text, _is_user):
        raise UsageError(
            f"--file {one_line(file, 200)}: its lines name a user before the command, as in a system crontab: "
            "import and swap take over only a user's own crontab. Take the lines out of the file, remove the user's "
            "name, add them with their settings to that user's crontab (crontab -u NAME -e), then import as that user"
        )
    return text


def _is_system_crontab(file: str) -> bool:
    path = os.path.realpath(file)
    return path == "/etc/crontab" or path.startswith("/etc/cron.d/")


def _is_user(word: str) -> bool:
    """Whether *word* is the name of a user, and not of a program that cron would find."""
    try:
        pwd.getpwnam(word)
    except (KeyError, ValueError):
        return False
    return shutil.which(word, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin") is None


def _write_new(file: Path, text: str, env_file: Path, secrets: str | None) -> None:
    """Write the YAML file and the env file, never over a file, and load the YAML. After an error, remove both."""
    made: list[Path] = []
    try:
        for path, content in ((env_file, secrets), (file, text)):
            if content is not None:
                with open(_new_file(path), "w", encoding="utf-8") as opened:
                    made.append(path)
                    opened.write(content)
        load(file, environ={})
    except BaseException as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if isinstance(error, ConfigError):  # for example, a cronjobs.py beside the file makes the file invalid
            raise CrontabError(f"{error}: nothing was written") from None
        raise


def _new_file(file: Path) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise UsageError(
            f"{visible(str(file))} already exists, and import overwrites no file: choose another --out. If this "
            "folder already has a project, add its entries to the new file, replace the old file with it, and then swap"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "this is not a file name"
        raise UsageError(f"--out {one_line(str(file), 200)}: {why}") from None


# --- messages ---------------------------------------------------------------------------------------------------------


def _start(given: str | None, timezone: str) -> datetime:
    if given is None:
        return SYSTEM.now()
    try:
        return iso_instant(given, timezone) - timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise UsageError(f"--from {one_line(given, 60)!r} is not an ISO time: write 2027-03-28T02:00") from None


def _as_json(each: LineDifference) -> dict[str, object]:
    return {
        "line": each.taken.line.number,
        "text": each.taken.line.text,
        "schedule": each.schedule.name,
        "reason": each.why,
        "count": len(each.instants),
        "instants": [{"at": at, "cron": old, "cronjobs": new} for at, old, new in each.instants[:LISTED]],
    }


def _as_text(each: LineDifference, timezone: str) -> list[str]:
    line = each.taken.line
    lines = [f"line {line.number} ({each.schedule.name}): {each.why}: {as_shown(line.text, 100)}"]
    for at, old, new in each.instants[:SHOWN]:
        local = in_zone(at, ZoneInfo(timezone))
        lines.append(f"    {local:%a %Y-%m-%d %H:%M %z}  cron {_times(old)}, cronjobs {_times(new)}")
    if len(each.instants) > SHOWN:
        lines.append(f"    … and {len(each.instants) - SHOWN} more")
    return lines


def _times(count: int) -> str:
    return {0: "does not start it", 1: "starts it once"}.get(count, f"starts it {count} times")


def _sum_up(pairs: Sequence[Pair], wrong: int, days: int) -> None:
    if not pairs:
        echo("the crontab has no line to compare")
    elif wrong:
        echo(f"{wrong} of {counted(len(pairs), 'line')} differ in the next {days} days")
    else:
        echo(f"no differences: {counted(len(pairs), 'line')}, each due at the same instants for {days} days")
