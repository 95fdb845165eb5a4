"""End a command after an error. After an unexpected error, the command prints one line and exits with 70.

The line has the version, and says where the traceback is. The traceback goes to the configured log and, without a log
or with -v, to stderr.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import complain
from cronjobs.engine.tick.log import Log
from cronjobs.engine.tick.mail_throttle import Alarm
from cronjobs.engine.tick.trouble import place
from cronjobs.errors import EX_SOFTWARE, CronjobsError, DatabaseError
from cronjobs.text import one_line

if TYPE_CHECKING:
    from cronjobs.engine.database.address import Address

VERBOSE: Final = ("-v", "--verbose")
LONGEST: Final = 1000
# Keep at most this many lines of a traceback, half of them from its end. Endless recursion makes thousands.
TRACEBACK_LINES: Final = 200


@dataclass
class Circumstances:
    """Facts about the running command. ``alarm`` throttles the reports of a tick whose output cron mails.

    ``database`` is the last database that the command opened.
    """

    log: Path | None = None
    alarm: Alarm | None = None
    database: Address | None = None


circumstances: Final = Circumstances()


def guarded(command: Callable[[], object]) -> None:
    """Run *command*.

    Print a CronjobsError to stderr, and exit with its code. Any other error is a bug in cronjobs: exit with 70.
    """
    try:
        command()
    except CronjobsError as error:
        for line in error.lines:
            complain(line)
        leaving.leave(error.exit_code, stuck=False)
    except BrokenPipeError:
        leaving.leave(0, stuck=False)
    except Exception as error:
        if (odd := _odd_value()) is not None:
            complain(str(odd))
            leaving.leave(odd.exit_code, stuck=False)
        end(error)


def _odd_value() -> DatabaseError | None:
    """Return an error if another program has written an invalid value to our SQLite tables, else None."""
    address = circumstances.database
    if address is None or not address.is_sqlite:
        return None
    from cronjobs.engine.database.connection import Database
    from cronjobs.engine.store.odd_values import odd_value

    with closing(Database(address)) as database:
        return odd_value(database)


def end(error: Exception) -> NoReturn:
    """Report *error*, and exit with 70. Under cron, the same error is reported only as often as ``Alarm`` allows."""
    event = events.fault_of_ours(error, place(error))
    log = Log(circumstances.log)
    log.write(event, text_of(error))
    kept = circumstances.log is not None and log.fault is None
    line = f"{one_line(event.facts['error'], LONGEST)}, at {event.facts['where']}"
    alarm = circumstances.alarm

    def say(_untold: int) -> None:
        complain(line + (f"; its traceback is in {circumstances.log}" if kept else ""))
        if not kept or {*VERBOSE} & {*sys.argv}:
            complain(text_of(error))

    if alarm is None:
        say(0)
    else:
        alarm.worth_mailing(line, SYSTEM.now(), say=say)
    leaving.leave(EX_SOFTWARE, stuck=False)


def text_of(error: Exception) -> str:
    """Return the error's traceback, for the person who will fix it."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    if len(lines) > TRACEBACK_LINES:
        half = TRACEBACK_LINES // 2
        lines[half:-half] = [f"… {len(lines) - TRACEBACK_LINES} lines …"]
    return "\n".join(lines)
