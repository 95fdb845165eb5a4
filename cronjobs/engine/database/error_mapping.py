"""Map database errors to exception classes. Each class stands for one way in which a caller can react."""

from __future__ import annotations

import errno
import math
import os
import sqlite3
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from cronjobs.engine.host.temporary import sqlite_temporary_folder
from cronjobs.errors import (
    BadValue,
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseError,
    DatabaseFull,
    DatabaseNotReady,
    DatabaseReadOnly,
    DatabaseUnreachable,
    TemporaryFolderFull,
    TransientTrouble,
)

# If the disk has fewer free bytes than this, we take SQLite's "I/O error" to mean that the disk is full.
ROOM: Final = 1 << 16

_FILE_REMEDY: Final = "let this user write to the file and its folder, and check how the disk is mounted"
_SERVER_REMEDY: Final = "check whether the server is a standby, and whether default_transaction_read_only is set"
_RIGHTS_REMEDY: Final = '"cronjobs db grants" prints the rights that each role needs; an upgrade may need more'
_TABLE_REMEDY: Final = '"cronjobs db check" lists what is missing; perhaps somebody ran "cronjobs db drop"'
_DISK_REMEDY: Final = "check the disk, its quota and the file size limit (ulimit -f)"

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_NOT_READY: Final = {
    "53300",  # too_many_connections
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
}
_LOCK_NOT_AVAILABLE: Final = "55P03"
_READ_ONLY: Final = "25006"
_DISK_FULL: Final = "53100"
_DAMAGED: Final = {"XX001", "XX002"}  # data_corrupted, index_corrupted
_IO_ERROR: Final = "58030"
_NO_RIGHT: Final = "42501"  # insufficient_privilege
_NO_TABLE: Final = "42P01"  # undefined_table
_PASSING: Final = {
    "25P03",  # idle_in_transaction_session_timeout
    "40001",  # serialization_failure
    "40003",  # statement_completion_unknown
    "40P01",  # deadlock_detected
    "53200",  # out_of_memory
    "57014",  # query_canceled: by statement_timeout or an operator
}
# If the server refuses a connection, libpq gives us only the server's message, and no error code. So match the message.
_NOT_READY_WORDS: Final = (
    # This message continues with: starting up, shutting down, in recovery mode, not yet accepting connections.
    "the database system is ",
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections allowed",  # a message of PgBouncer
)


def is_locked(error: DBAPIError) -> bool:
    """Return whether another process holds SQLite's lock, or is recovering the file's log."""
    return _sqlite_code(error.orig) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _sqlite_code(error: BaseException | None) -> int:
    """Return the primary result code (https://www.sqlite.org/rescode.html), or 0 if *error* has no code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def sqlite_refusal(url: str, error: DBAPIError, reason: str, *, file: Path, waited_s: float) -> DatabaseError:
    """Return the exception for an error of the SQLite *file*.

    *waited_s* is how long we have waited for the file's lock. If the lock is the cause, the message contains this time.
    """
    if is_locked(error):
        return DatabaseBusy(url, waited_s)
    if isinstance(error.orig, sqlite3.DataError | sqlite3.IntegrityError):
        return BadValue(f"database {url}: {reason}")
    match _sqlite_code(error.orig):
        case sqlite3.SQLITE_FULL:
            return _full(url, reason, file.parent)
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN if _room(file.parent) < ROOM:
            return DatabaseFull(url, reason)
        case sqlite3.SQLITE_IOERR:
            return DatabaseError(f"database {url}: {reason}: {_DISK_REMEDY}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return DatabaseReadOnly(url, reason, _FILE_REMEDY)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DatabaseDamaged(url, reason)
    if reason.startswith(("no such table: cronjobs_", "no such table: main.cronjobs_")):
        return DatabaseError(f"database {url}: {reason}: {_TABLE_REMEDY}")
    return DatabaseError(f"database {url}: {reason}")


def _full(url: str, reason: str, folder: Path) -> DatabaseFull:
    """Return the exception for a full disk.

    SQLite does not say which disk is full: the disk of the database, or the disk of the temporary files.
    """
    temporary = sqlite_temporary_folder()
    if ROOM <= _room(folder) > _room(temporary) and folder.stat().st_dev != temporary.stat().st_dev:
        return TemporaryFolderFull(url, reason, str(temporary))
    return DatabaseFull(url, reason)


def _room(folder: Path) -> float:
    """Return the free bytes on the folder's disk, or infinity if that is unknown."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return math.inf
    return disk.f_bavail * disk.f_frsize


def file_refusal(url: str, what: str, error: OSError) -> DatabaseError:
    """Return the exception for an operating system error on a file that the database needs.

    *what* names the file and what failed.
    """
    reason = f"{what}: {error.strerror}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DatabaseFull(url, reason)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return DatabaseReadOnly(url, reason, _FILE_REMEDY)
        case errno.ENOLCK | errno.EOPNOTSUPP:
            return DatabaseError(f"database {url} cannot be used: {reason}: put it on a disk of this host")
    return DatabaseError(f"database {url} cannot be used: {reason}")


def postgresql_refusal(url: str, error: DBAPIError, reason: str, *, lock_timeout_s: float) -> DatabaseError:
    """Return the exception for an error of the server or, if no server answered, of the driver.

    During one outage the server's messages may differ, because they contain a file name, a PID or the statement. So the
    error's ``kind``, which identifies the outage, never comes from the message.
    """
    refusal = _postgresql_refusal(url, error, reason, lock_timeout_s=lock_timeout_s)
    sqlstate = getattr(error.orig, "sqlstate", None)
    if refusal.kind is None and sqlstate:
        refusal.kind = f"SQLSTATE {sqlstate}"
    return refusal


def _postgresql_refusal(url: str, error: DBAPIError, reason: str, *, lock_timeout_s: float) -> DatabaseError:
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    if sqlstate in _NOT_READY or (not sqlstate and any(words in reason for words in _NOT_READY_WORDS)):
        return DatabaseNotReady(url, reason)
    # An error without an SQLSTATE means either that no server answered, or that the driver refused our statement.
    unanswered = isinstance(error, OperationalError | InterfaceError) and not sqlstate
    if error.connection_invalidated or unanswered or sqlstate.startswith("08"):  # class 08: connection exception
        return DatabaseUnreachable(url, reason)
    if sqlstate == _LOCK_NOT_AVAILABLE:
        return DatabaseBusy(url, lock_timeout_s)
    if sqlstate in _PASSING:
        return TransientTrouble(f"database {url}: {reason}")
    if sqlstate == _DISK_FULL:
        return DatabaseFull(url, reason)
    if sqlstate == _READ_ONLY:
        # Leave out the server's message, because it contains the statement. Otherwise one cause would be reported once
        # for each statement.
        return DatabaseReadOnly(url, "the server accepts no writes", _SERVER_REMEDY)
    if sqlstate in _DAMAGED:
        return DatabaseDamaged(url, reason)
    # If the message does not name one of our tables, the error is about a table of the user.
    if sqlstate == _NO_RIGHT and "cronjobs_" in reason:
        return DatabaseError(f"database {url}: {reason}: {_RIGHTS_REMEDY}")
    if sqlstate == _NO_TABLE and "cronjobs_" in reason:
        # Leave out the statement at the end. Otherwise one cause would be reported once for each statement.
        return DatabaseError(f"database {url}: {reason.partition('; LINE ')[0]}: {_TABLE_REMEDY}")
    if sqlstate == _IO_ERROR:
        return DatabaseError(f"database {url}: {reason}: {_DISK_REMEDY}")
    if sqlstate.startswith(("22", "23")):  # classes 22 and 23: a bad value, a violated constraint
        return BadValue(f"database {url}: {reason}")
    return DatabaseError(f"database {url}: {reason}")
