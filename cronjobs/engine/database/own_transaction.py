"""Make sure that the transaction of a handler ends only with our COMMIT, which also commits the job's success.

We refuse a COMMIT that we can intercept, and it changes nothing. We can intercept SQLAlchemy's ``commit()``, the
statement COMMIT in any spelling and, on SQLite, anything that is passed to the driver. We cannot intercept psycopg's
own ``commit()``, nor "…; COMMIT" in one string. We detect such a COMMIT only at the end of the transaction. By then,
part of the work may have been committed without the job's success, so the job must not be retried automatically.

We do not refuse SQLAlchemy's ``rollback()``. An ORM session calls it when an exception leaves ``session.begin()``, and
an error raised there would replace the handler's exception. So ``rollback()`` rolls the block back, and the block
accepts nothing more.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from cronjobs.engine.database.sqlite_time_limit import KEEPER
from cronjobs.errors import TransactionBroken, UsageError
from cronjobs.text import one_line

MARK: Final = "SET LOCAL cronjobs.handler = 'on'"  # this setting ends with the transaction
_IS_MARKED: Final = "SELECT current_setting('cronjobs.handler', true)"
_IDLE, _IN_TRANSACTION = 0, 2  # libpq's PQTRANS_IDLE and PQTRANS_INTRANS
_ENDS: Final = re.compile(
    # The group is atomic, so that two comments are never read as one.
    r"(?>\s|--[^\n]*\n|/\*.*?\*/|;)*+"
    r"(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
REFUSED: Final = (
    "{what} inside ctx.transaction(): leaving the block commits the block's work together with the job's success. "
    "Nothing was committed. Before the block, do the work that must be kept in any case"
)


class GuardedBlock:
    """A block around user code on *connection*, whose transaction has begun. Detects whether the user code ends the
    transaction.

    Call ``check`` before our last statements. If the user code has ended the transaction, ``check`` raises
    TransactionBroken, and so does leaving the block. If it has called SQLAlchemy's ``commit()`` or ``rollback()``,
    ``check`` raises UsageError.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._raw: Any = connection.connection.dbapi_connection
        self._is_sqlite = connection.dialect.name == "sqlite"
        # SQLAlchemy's method that the user code called, if it called one. SQLAlchemy then believes that the transaction
        # has ended, and raises InvalidRequestError for each further statement.
        self._ended_by: str | None = None
        self._listeners: Final = (
            ("commit", self._refuse_commit),
            ("rollback", self._roll_back),
            ("before_cursor_execute", self._refuse_statement),
        )

    def __enter__(self) -> GuardedBlock:
        for what, listener in self._listeners:
            event.listen(self._connection, what, listener)
        if self._is_sqlite:
            self._raw.refuse = self._refuse_end
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for what, listener in self._listeners:
            event.remove(self._connection, what, listener)
        if self._is_sqlite:
            self._raw.refuse = None
        if self._ended_by:
            # Without invalidate(), SQLAlchemy would return the connection to the pool while the transaction is still
            # open.
            self._connection.invalidate()
        if self._ended_by and isinstance(error, InvalidRequestError):
            raise UsageError(REFUSED.format(what=self._ended_by)) from error
        if error is None or isinstance(error, TransactionBroken):
            return
        if self._was_ended(error):
            raise TransactionBroken from error

    def check(self) -> None:
        if self._ended_by:
            raise UsageError(REFUSED.format(what=self._ended_by))
        if self._was_ended(None):
            raise TransactionBroken

    def _was_ended(self, error: BaseException | None) -> bool:
        if self._is_sqlite:
            # If the disk is full, SQLite itself rolls the transaction back. The block has then already raised the error
            # about the disk.
            with suppress(sqlite3.Error):
                return not self._raw.in_transaction and not _is_the_databases(error)
            return False
        # If the connection is broken, these calls fail, and nothing was committed.
        with suppress(Exception):
            match int(self._raw.info.transaction_status):
                case status if status == _IDLE:
                    return True
                # This transaction may be a new one, which the handler began after its COMMIT. The mark shows whether it
                # is ours.
                case status if status == _IN_TRANSACTION:
                    with self._raw.cursor() as cursor:
                        return bool(cursor.execute(_IS_MARKED).fetchone()[0] != "on")
        return False

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse_commit(self, *_: object) -> NoReturn:
        self._ended_by = "commit()"
        raise UsageError(REFUSED.format(what=self._ended_by))

    def _roll_back(self, *_: object) -> None:
        # Closing the connection rolls the transaction back, and keeps the user code from writing with the driver.
        self._ended_by = "rollback()"
        self._connection.invalidate()

    def _refuse_statement(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self._refuse_end(statement)

    def _refuse_end(self, statement: str) -> None:
        if _ENDS.match(statement) and threading.current_thread().name != KEEPER:
            raise UsageError(REFUSED.format(what=one_line(" ".join(statement.split()), 40)))


def _is_the_databases(error: BaseException | None) -> bool:
    for _ in range(20):
        if error is None or isinstance(error, DBAPIError | sqlite3.Error):
            return error is not None
        error = error.__cause__ or error.__context__
    return False
