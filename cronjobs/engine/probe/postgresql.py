"""Query PostgreSQL through libpq's C API, and write the tick's row in the same statement.

libpq's functions are documented in PostgreSQL's manual under "libpq — C Library". Importing psycopg would take ten
times as long as the query.
"""

from __future__ import annotations

import ctypes
import select
import time

from cronjobs.engine.probe.idle_conditions import LOOK, ROW, VERDICT
from cronjobs.engine.probe.server_session import CONNECT_TIMEOUT_S, KEEPALIVES, SET_SETTINGS, TIMEOUTS, begin
from cronjobs.engine.probe.sql_text import statement_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# If the server has not answered after this time, the full tick takes over and reports the error.
ANSWER_TIMEOUT_S = 3.0
READING, WRITING, CONNECTED = 1, 2, 3  # PostgresPollingStatusType
COMMAND_OK, TUPLES_OK = 1, 2  # ExecStatusType
BAD = 1  # ConnStatusType


ASK = (
    f"{VERDICT}, written AS ({ROW} FROM verdict WHERE idle AND holders IS NULL RETURNING 1) "
    "SELECT idle, holders, EXISTS (SELECT 1 FROM written) FROM verdict"
)


def bound(sql: str, facts: Mapping[str, object], literal: Callable[[str], str]) -> str:
    """Return *sql* with its ``:name`` parameters replaced by literals.

    Literals are needed because only libpq's simple query protocol can send several statements in one round trip, and
    that protocol has no parameters.
    """
    first, *pieces = sql.split(":")
    found = [first]
    for piece in pieces:
        end = 0
        while end < len(piece) and (piece[end].isalnum() or piece[end] == "_"):
            end += 1
        # This colon begins no parameter, because it is in a comment of the SQL.
        if end == 0:
            found.append(f":{piece}")
            continue
        value = facts[piece[:end]]
        found += [literal(value) if isinstance(value, str) else str(value), piece[end:]]
    return "".join(found)


class ServerSession:
    """One connection to a PostgreSQL server. Its methods raise OSError if the server, the network or libpq fails."""

    def __init__(self, url: str, schema: str | None, libpq: str) -> None:
        self._schema = schema
        self._pq = pq = ctypes.CDLL(libpq)
        for name in ("PQconnectStartParams", "PQgetResult", "PQescapeLiteral", "PQgetvalue"):
            getattr(pq, name).restype = ctypes.c_void_p
        # libpq reads the URL after these options, so the URL overrides them.
        options = {"client_encoding": "UTF8"} | KEEPALIVES
        names = [*map(str.encode, options), b"dbname", None]
        values = [*(str(value).encode() for value in options.values()), url.encode(), None]
        array = ctypes.c_char_p * len(names)
        expand_url = 1
        self._connection = ctypes.c_void_p(pq.PQconnectStartParams(array(*names), array(*values), expand_url))
        # Without this, libpq would print the server's warnings to stderr, and cron would mail them.
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda _argument, _result: None)
        pq.PQsetNoticeReceiver(self._connection, self._quiet, None)
        self._connect()

    def _connect(self) -> None:
        give_up_at = time.monotonic() + CONNECT_TIMEOUT_S
        state = WRITING if self._pq.PQstatus(self._connection) != BAD else 0
        while state in (READING, WRITING):
            ready = self._is_ready(select.POLLIN if state == READING else select.POLLOUT, give_up_at)
            state = self._pq.PQconnectPoll(self._connection) if ready else 0
        if state != CONNECTED:
            self.close()
            raise OSError("the server does not answer")

    def _is_ready(self, event: int, give_up_at: float) -> bool:
        """Wait for *event* on the socket. Return False if it has not come by *give_up_at*."""
        waiting = select.poll()
        waiting.register(self._pq.PQsocket(self._connection), event)
        left_s = give_up_at - time.monotonic()
        return left_s > 0 and bool(waiting.poll(left_s * 1000))

    def settle(self, facts: Mapping[str, object], alive: Callable[[str], bool]) -> bool:
        """If the tick is idle, write its row. Return whether it is idle.

        This takes one round trip, or two if this host has lease holders: *alive* must check them before the row is
        written.
        """
        idle, holders, written = self._run(ASK, facts)
        if idle != "t" or (holders is not None and not alive(holders)):
            return False
        if written != "t":
            self._run(f"{ROW} RETURNING 1", facts)
        return True

    def look(self, facts: Mapping[str, object]) -> tuple[bool, str | None, str | None]:
        """Return the row of ``LOOK``: whether the tick is idle, a text that identifies the work to do, and the lease
        holders on this host.
        """
        idle, answers, holders = self._run(LOOK, facts)
        return idle == "t", answers, holders

    def _run(self, statement: str, facts: Mapping[str, object]) -> list[str | None]:
        """Run a statement in its own transaction, and return its single row."""
        sql = bound(statement_text(statement, postgresql=True, schema=self._schema), facts, self._literal)
        text = f"{begin(TIMEOUTS, *SET_SETTINGS)}; {sql}; COMMIT"
        if not self._pq.PQsendQuery(self._connection, text.encode()):
            raise OSError("the query cannot be sent")
        rows: list[list[str | None]] = []
        good = True
        give_up_at = time.monotonic() + ANSWER_TIMEOUT_S
        while result := self._result(give_up_at):
            pointer = ctypes.c_void_p(result)
            status = self._pq.PQresultStatus(pointer)
            good = good and status in (COMMAND_OK, TUPLES_OK)
            rows += [self._row(pointer, row) for row in range(self._pq.PQntuples(pointer))]
            self._pq.PQclear(pointer)
        if not good or len(rows) != 1:
            raise OSError("the server refused")
        return rows[0]

    def _result(self, give_up_at: float) -> int | None:
        """Return the next result of the query, or None after the last one.

        Poll the socket first, because PQgetResult would block if the server is frozen.
        """
        while self._pq.PQisBusy(self._connection):
            if not (self._is_ready(select.POLLIN, give_up_at) and self._pq.PQconsumeInput(self._connection)):
                raise OSError("the server does not answer")
        found: int | None = self._pq.PQgetResult(self._connection)
        return found

    def _row(self, result: ctypes.c_void_p, row: int) -> list[str | None]:
        return [
            None
            if self._pq.PQgetisnull(result, row, column)
            else ctypes.string_at(self._pq.PQgetvalue(result, row, column)).decode(errors="replace")
            for column in range(self._pq.PQnfields(result))
        ]

    def _literal(self, text: str) -> str:
        plain = text.encode()
        pointer = self._pq.PQescapeLiteral(self._connection, plain, ctypes.c_size_t(len(plain)))
        if not pointer:
            raise OSError("this text cannot be sent")
        try:
            return ctypes.string_at(pointer).decode()
        finally:
            self._pq.PQfreemem(ctypes.c_void_p(pointer))

    def close(self) -> None:
        self._pq.PQfinish(self._connection)
