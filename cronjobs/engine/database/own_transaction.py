"""Makes sure that a handler's transaction ends only with our COMMIT, together with the job's success.

A COMMIT that we can intercept is refused, and changes nothing: SQLAlchemy's ``commit()``, the statement in any
spelling, and on SQLite anything passed to the driver. Two kinds of COMMIT cannot be intercepted: psycopg's own
``commit()``, and "…; COMMIT" in one string. They are detected at the end of the transaction. Part of the work may then
be committed without the job's success, so the job must not be retried automatically.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from cronjobs.engine.database.sqlite_time_limit import KEEPER
from cronjobs.errors import TransactionBroken, UsageError
from cronjobs.text import one_line

MARK: Final = "SET LOCAL cronjobs.handler = 'on'"  # the setting ends with the transaction
_IS_MARKED: Final = "SELECT current_setting('cronjobs.handler', true)"
_IDLE, _IN_TRANSACTION = 0, 2  # libpq's PQTRANS_IDLE and PQTRANS_INTRANS
_ENDS: Final = re.compile(
    r"(?>\s|--[^\n]*\n|/\*.*?\*/|;)*+"  # atomic, so that two comments are never read as one
    r"(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
REFUSED: Final = (
    "{what} inside ctx.transaction(): leaving the block commits its work together with the job's success. Nothing was "
    "committed. Do work that must be kept in any case before the block"
)


class GuardedBlock:
    """A block on *connection*, whose transaction has begun.

    It detects whether the transaction is ended inside the block.

    Call ``check`` before our last statements. If the transaction was ended, both ``check`` and leaving the block raise
    TransactionBroken.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._raw: Any = connection.connection.dbapi_connection
        self._is_sqlite = connection.dialect.name == "sqlite"
        self._turned_away = False  # a call to SQLAlchemy's commit() or rollback() was refused
        self._refusals: Final = (
            ("commit", partial(self._refuse_call, "commit()")),
            ("rollback", partial(self._refuse_call, "rollback()")),
            ("before_cursor_execute", self._refuse_statement),
        )

    def __enter__(self) -> GuardedBlock:
        for what, refuse in self._refusals:
            event.listen(self._connection, what, refuse)
        if self._is_sqlite:
            self._raw.refuse = self._refuse_end
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for what, refuse in self._refusals:
            event.remove(self._connection, what, refuse)
        if self._is_sqlite:
            self._raw.refuse = None
        if self._turned_away:
            # SQLAlchemy thinks that its transaction has ended. So it would return the connection to the pool with the
            # transaction still open.
            self._connection.invalidate()
        if error is None or isinstance(error, TransactionBroken):
            return
        if self._was_ended(error):
            raise TransactionBroken from error

    def check(self) -> None:
        if self._was_ended(None):
            raise TransactionBroken

    def _was_ended(self, error: BaseException | None) -> bool:
        if self._is_sqlite:
            # On a full disk, SQLite itself rolls back, and the block has already raised the error about the disk.
            with suppress(sqlite3.Error):
                return not self._raw.in_transaction and not _is_the_databases(error)
            return False
        with suppress(Exception):  # a broken connection has committed nothing
            match int(self._raw.info.transaction_status):
                case status if status == _IDLE:
                    return True
                case status if status == _IN_TRANSACTION:  # perhaps a new one, begun by the handler after its COMMIT
                    with self._raw.cursor() as cursor:
                        return bool(cursor.execute(_IS_MARKED).fetchone()[0] != "on")
        return False

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse_call(self, what: str, *_: object) -> NoReturn:
        self._turned_away = True
        raise UsageError(REFUSED.format(what=what))

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
