"""All errors of cronjobs. A class takes facts and writes the message: what is wrong, where, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.text import one_line

MESSAGE_LIMIT: Final = 4000  # a message is cut to this many characters
EX_SOFTWARE: Final = 70  # the exit code for a bug in cronjobs, see sysexits(3)


class CronjobsError(Exception):
    """The base class of all errors that cronjobs raises on purpose. ``exit_code`` is the command's exit code."""

    exit_code = 1

    @property
    def lines(self) -> list[str]:
        """The lines to print. A line break in a name that the message quotes never starts a new line."""
        return [one_line(str(self), MESSAGE_LIMIT)]


class UsageError(CronjobsError):
    """A call or a command line is invalid. *below* has further lines, which show where the mistake is."""

    exit_code = 2

    def __init__(self, said: str, below: Sequence[str] = ()) -> None:
        self.below = tuple(below)
        super().__init__(said)

    @property
    def lines(self) -> list[str]:
        return [*super().lines, *self.below]


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration file.

    ``line`` and ``column`` count from 1. If both are 0, the mistake concerns the whole file. ``path`` is the dotted
    path of the key ("schedules.nightly.cron"), or "".
    """

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {shown_path(self.path)}: {self.message}" if self.path else f"{place}: {self.message}"


def shown_path(path: str) -> str:
    """Return the path of a ``Problem`` for people, with a limit's key in quotes, because it often ends with a colon."""
    key, colon, field = path.removeprefix("limits.").rpartition(":")
    is_key = path.startswith("limits.") and colon and (not field or field.startswith("."))
    return f'limits."{key}:"{field}' if is_key else path


class ConfigError(CronjobsError):
    """The configuration cannot be used at all. Nothing runs, and no schedule is retired.

    ``problems`` lists all problems that were found in the configuration.
    """

    exit_code = 3

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

    @property
    def lines(self) -> list[str]:
        return [one_line(str(problem), MESSAGE_LIMIT) for problem in self.problems]


class ForeignDatabase(CronjobsError):
    """The database belongs to another project or environment, so no job in it is claimed."""

    exit_code = 3

    def __init__(self, *, what: str, theirs: str, ours: str) -> None:
        super().__init__(
            f'this database belongs to {what} "{theirs}", but the configuration says "{ours}": nothing was written. '
            f"If this is the wrong database, correct its URL or the {what} in the file. To take the database over (for "
            'example because it is a restored copy, or because the name has changed), run "cronjobs db adopt"'
        )


class MovedDatabase(ForeignDatabase):
    """ "db copy" has moved the database elsewhere, or is moving it. No job in the old database is claimed any more."""

    def __init__(self, where: str) -> None:
        CronjobsError.__init__(
            self,
            f'"cronjobs db copy" has moved this database to {where}: nothing was written here. Name that database in '
            "the configuration. If the copy was interrupted, start the copy again. To continue with this database "
            'instead, run "cronjobs db adopt"',
        )


class OtherProject(ForeignDatabase):
    """ "check --against" was given the database of another project, whose payloads are not meant for this code."""

    def __init__(self, *, theirs: str, ours: str) -> None:
        CronjobsError.__init__(
            self,
            f'that database belongs to project "{theirs}", but the configuration says "{ours}": the payloads in '
            "that database are not for this code. Give the URL of this project's database, or the configuration of "
            "the other project",
        )


class DatabaseError(CronjobsError):
    """The database cannot be used at the moment. The message never contains a password.

    Errors with the same ``kind`` are about the same outage, although their messages may differ: a message may contain
    the server's own words, a file name, a PID or a waiting time. If ``kind`` is None, all messages of an outage are the
    same, so the message itself identifies the outage.
    """

    exit_code = 4
    kind: str | None = None

    @property
    def cause(self) -> str:
        """The text by which we recognise an outage that cron has mailed, the same for all errors of the outage."""
        return str(self) if self.kind is None else f"database: {self.kind}"


class ForkedCopy(CronjobsError):
    """A forked process used an object that belongs to its parent."""

    def __init__(self) -> None:
        super().__init__(
            "a forked process cannot use the database connection, context or transaction of its parent process: "
            "open a new connection in the child, or do the work in the parent"
        )


class BadValue(DatabaseError):
    """The database refused a value, perhaps in only one row of a batch. The statement and the connection work."""

    kind = "refuses a value"


class TransientTrouble(DatabaseError):
    """An error that ends by itself, such as a restart, a lock or a deadlock. The same call may succeed soon."""


class DatabaseUnreachable(TransientTrouble):
    kind = "cannot be reached"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"database {url} cannot be reached: {reason}")


class DatabaseNotReady(DatabaseUnreachable):
    """The server exists, but accepts no connections now: it is starting or stopping, or has no connection left."""


class CommitUnknown(DatabaseUnreachable):
    """COMMIT was sent, but its reply was lost, and we could not find out whether the COMMIT took effect."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, f"{reason}: connection lost during COMMIT; check whether the change was saved")


class CommitUnconfirmed(CommitUnknown):
    """COMMIT took effect on the primary, but no synchronous standby confirmed it. A failover may undo it."""

    kind = "no standby confirms"

    def __init__(self, url: str) -> None:
        TransientTrouble.__init__(
            self,
            f"database {url}: no synchronous standby confirmed a COMMIT in time, so a failover may undo the COMMIT: "
            "check the standby",
        )


class DatabaseBusy(TransientTrouble):
    kind = "is locked"

    def __init__(self, url: str, waited_s: float) -> None:
        super().__init__(
            f"database {url} was locked by another connection (this try waited {waited_s:.1f}s): "
            "find the process that keeps a transaction open in this database. If a handler gets this error, the "
            "handler itself may keep a transaction open"
        )


class TurnTaken(DatabaseBusy):
    """Another runner started a job of this schedule while we were claiming one. Nothing was written; try again."""

    def __init__(self, schedule: str) -> None:
        TransientTrouble.__init__(self, f'another runner has just begun a job of schedule "{schedule}"')


class JobHeld(TransientTrouble):
    """Another transaction has locked the job that was to be replaced, cancelled or rescheduled. Nothing was written."""

    def __init__(self, key: str | None, job_id: int | None) -> None:
        if key is None:
            super().__init__(f"job {job_id}: nothing was written, because another transaction has locked it: try again")
            return
        who = f"because another transaction has locked job {job_id}"
        if job_id is None:
            who = "because another transaction has locked its job, or the job was just deleted"
        super().__init__(f'idempotency key "{one_line(key, 200)}": nothing was written, {who}: try again')


class NoSuchJob(CronjobsError, LookupError):
    """The job does not exist. It may have been pruned."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not exist, or no longer exists")


class JobNotWaiting(CronjobsError):
    """The job is running or has ended, so it cannot be rescheduled. ``status`` is the job's status."""

    def __init__(self, name: str, status: str) -> None:
        super().__init__(f"{name} is {status}: only a waiting job can be rescheduled. Nothing was written")
        self.status = status


class QueueHeld(TransientTrouble):
    """An enqueue waited too long for a capped queue that another transaction has locked. The queue is unchanged."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f'queue "{one_line(queue, 200)}": nothing was written, because another transaction has enqueued into '
            "this queue and is still open: try again"
        )


class QueueFull(CronjobsError):
    """The queue has reached its ``max_waiting``. Nothing was written, and the caller's transaction stays usable.

    ``on_full`` is the queue's setting. ``wanted`` is the number of jobs in the call, and ``room`` is how many of them
    the queue had room for.
    """

    def __init__(
        self, queue: str, max_waiting: int, on_full: str, *, wanted: int = 1, room: int = 0, waited: str | None = None
    ) -> None:
        self.queue, self.max_waiting, self.on_full, self.wanted, self.room = queue, max_waiting, on_full, wanted, room
        if wanted > max_waiting:
            remedy = "enqueue them in smaller groups, or raise max_waiting in the file"
        elif on_full == "wait" and waited is None:
            remedy = "enqueue can wait for room only in its own transaction, so pass an Engine, or enqueue again later"
        else:
            remedy = (
                'enqueue again later ("cronjobs status" shows how many are waiting), or raise max_waiting in the file'
            )
        jobs = f"has room for {room:,} of these {wanted:,} jobs" if wanted > 1 else "is full"
        after = f" after {waited}" if waited else ""
        super().__init__(
            f'queue "{one_line(queue, 200)}" {jobs} (max_waiting {max_waiting:,}){after}: nothing was written; {remedy}'
        )

    def after(self, waited: str) -> QueueFull:
        """Return the same error, with *waited*, the time that the caller has waited for room, in the message."""
        return QueueFull(self.queue, self.max_waiting, self.on_full, wanted=self.wanted, room=self.room, waited=waited)


class DatabaseFull(DatabaseError):
    kind = "has no room left"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"database {url} has no room left ({reason}): make room on its disk; jobs wait until then")


class TemporaryFolderFull(DatabaseFull):
    """The SQLite file's disk has room, but the folder for SQLite's temporary files has no room."""

    kind = "SQLite's temporary folder has no room left"

    def __init__(self, url: str, reason: str, folder: str) -> None:
        DatabaseError.__init__(
            self,
            f"database {url} cannot be used ({reason}): SQLite writes temporary files to {folder}, which is full: make "
            "room there, or set SQLITE_TMPDIR to another folder; jobs wait until then",
        )


class DatabaseReadOnly(DatabaseError):
    """The database cannot be written to. *remedy* says what to change."""

    kind = "cannot be written to"

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"database {url} cannot be written to ({reason}): {remedy}; jobs wait until then")


class DatabaseDamaged(DatabaseError):
    kind = "is damaged"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"database {url} is damaged or is not a database ({reason}): check the URL; if the URL is right, restore "
            "the database from a backup"
        )


class DatabaseVanished(DatabaseError):
    """A SQLite file that existed before is missing, or has lost our tables. Perhaps its disk is not mounted."""

    def __init__(self, url: str, *, has_file: bool) -> None:
        found = (
            "had the tables of cronjobs before, but the file there now has none: perhaps an app created the file again"
            if has_file
            else "existed before, but is missing now"
        )
        super().__init__(
            f"database {url} {found}: mount its disk or restore it. To start with an empty database, without "
            'the old jobs and keys, run "cronjobs db upgrade --new"'
        )


class ServerTooOld(DatabaseError):
    """This PostgreSQL version is too old. It lacks a feature that every tick needs."""

    def __init__(self, url: str, version: int) -> None:
        super().__init__(f"database {url} is PostgreSQL {version}: cronjobs needs 14 or later")


class NoEncoding(DatabaseError):
    """The PostgreSQL database's encoding is SQL_ASCII.

    Such a database stores bytes, and does not define which characters the bytes stand for.
    """

    def __init__(self, url: str) -> None:
        super().__init__(
            f"database {url} has the encoding SQL_ASCII, which does not define how its text is encoded: use a "
            "database created with ENCODING 'UTF8'"
        )


class SqliteTooOld(DatabaseError):
    """The SQLite library of this Python is too old. It lacks a feature that all our statements need."""

    def __init__(self, url: str, version: str) -> None:
        super().__init__(
            f"database {url}: this Python has SQLite {version}, but cronjobs needs 3.35 or later: use a Python built "
            "with a newer SQLite"
        )


class DriverMissing(DatabaseError):
    def __init__(self, url: str) -> None:
        super().__init__(f"database {url} needs the PostgreSQL driver: pip install 'cronjobs[postgres]'")


class SchemaMissing(DatabaseError):
    """The database has none of our tables. *command* is the command that creates them."""

    def __init__(self, url: str, command: str = '"cronjobs db upgrade"') -> None:
        super().__init__(f"database {url} has no cronjobs tables: run {command}")


class SchemaNotUpgraded(DatabaseError):
    """The tables are from a version before 0.2.0. No later version can read or migrate them."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"database is at revision {found}, from a version before 0.2.0: this version cannot upgrade it, and "
            "changed nothing. Export its waiting jobs and keys with the version that made it, and enqueue them into "
            "new tables: docs/how-to/operating.md#tables-from-before-020"
        )


class SchemaTooOld(DatabaseError):
    def __init__(self, *, found: str, needed: str) -> None:
        super().__init__(f'database is at revision {found}, but this version needs {needed}: run "cronjobs db upgrade"')


class SchemaTooNew(DatabaseError):
    def __init__(self, *, found: str, known: str, oldest_code: str) -> None:
        super().__init__(
            f"database is at revision {found}, which requires code of revision {oldest_code} or later; "
            f"this version knows {known}: install a newer cronjobs"
        )


class CronError(CronjobsError, ValueError):
    """An invalid cron expression or interval. ``column`` counts from 1 within the expression."""

    exit_code = 2

    def __init__(self, message: str, column: int = 1) -> None:
        super().__init__(message)
        self.column = column


class PayloadError(CronjobsError, ValueError):
    """A payload, meta or result is not JSON or is too large to be stored, or a payload does not fit its handler."""

    exit_code = 2


class LeaseLost(CronjobsError):
    """The attempt's lease has expired or was taken over.

    Nothing that the attempt writes for the job counts any more.
    """


class TransactionTooLong(CronjobsError):
    """A handler's ``ctx.transaction()`` on SQLite reached its time limit.

    The transaction was rolled back, so nothing was written.
    """

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"ctx.transaction() was rolled back after {limit_s:g}s, because it holds SQLite's only write lock: "
            "do the slow part before the block, or use PostgreSQL"
        )


class TransactionBroken(CronjobsError):
    """A handler itself ended the transaction of its ``ctx.transaction()``, in a way that cronjobs could not prevent.

    The job becomes dead immediately.
    """

    def __init__(self) -> None:
        super().__init__(
            "the handler's own COMMIT or ROLLBACK ended ctx.transaction() inside its block: part of the work may be "
            "committed without the job's success, so the job is not retried. Check what was written, remove the "
            "COMMIT, then retry the job"
        )


class TransactionLeftOpen(CronjobsError):
    """A handler returned while a transaction was still open on one of Django's connections, so the attempt failed.

    *left* says for each connection how the transaction was begun.
    """

    def __init__(self, *left: str) -> None:
        super().__init__(f"the handler left a transaction open ({', '.join(left)}); its writes were rolled back")


class EffectUnknown(CronjobsError):
    """Raised by ``ctx.effect(…, on_unknown="stop")`` if an earlier attempt began the effect, but recorded no result.

    The job becomes dead. *earlier* says how the earlier attempt ended, if that is known.
    """

    def __init__(self, key: str, earlier: str | None = None) -> None:
        super().__init__(
            "this effect was begun, but its result was never recorded: find out whether it happened, then run: "
            f"cronjobs effects settle {shlex.quote(key)} done (or not-done){f'; {earlier}' if earlier else ''}"
        )
        self.key = key


class EffectNotRecorded(DatabaseError):
    """The body of an effect ran, but the result could not be recorded in the database. The effect is now unknown."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the effect {key} was done but could not be recorded, so it is now unknown: {reason}")


class Cancelled(CronjobsError):
    """Raised by ``ctx.check()`` if the job should stop. ``reason`` is cancelled, shutdown, timeout or lease lost."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the job was asked to stop: {reason}")
        self.reason = reason


class GiveUp(CronjobsError):
    """Raise this exception in a handler for a permanent failure, such as bad input or a missing record.

    The job becomes dead immediately.
    """


class RetryLater(CronjobsError):
    """Raise this exception in a handler to have the job retried later. The attempt counts as a failed try.

    Args:
        message: the error that the history shows.
        after: how long to wait: seconds, "90s" or a timedelta, up to ten years. If None, the job type's policy decides.
            If *after* is invalid, the policy also decides, and the history says that *after* was invalid.
    """

    def __init__(
        self, message: str = "the handler asked for a retry", after: timedelta | str | float | None = None
    ) -> None:
        super().__init__(message)
        self.after = after


class Snooze(CronjobsError):
    """Raise this exception in a handler to have the job run again later. The attempt does not count as a failed try.

    Args:
        until: when to run again: a timezone-aware datetime, or a delay as seconds, "10m" or a timedelta; at most ten
            years from now. An invalid value counts as an ordinary failure.
    """

    def __init__(self, until: datetime | timedelta | str | float) -> None:
        super().__init__(f"snoozed until {until}")
        self.until = until


class EffectBusy(Snooze):
    """Raised by ``ctx.effect`` while another job is performing the same effect.

    The present job is retried soon. Its attempt does not count as a failed try.
    """

    def __init__(self, key: str, job_id: int) -> None:
        super().__init__("10s")
        self.args = (f"job {job_id} was performing the effect {key}",)
