"""The loop's transactions on PostgreSQL: what opens one travels with its first statement, in libpq's pipeline.

SQLAlchemy and psycopg's cursors take five times as long as libpq to execute a statement, and the loop does little else.
Connecting, COMMIT, ROLLBACK, and how values are written and read, stay theirs.
"""

from __future__ import annotations

import select
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from cronjobs.probe.server_session import SETTINGS, TIMEOUTS

PLANS_KEPT_AFTER: Final = 2  # executions of one statement in a session
MOST_PLANS: Final = 100  # of a session

_KEY: Final = "cronjobs_one_trip"  # in a connection's ``info``
_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_SETTINGS: Final = "SELECT " + ", ".join(
    [f"set_config('{name}', '{value}', true)" for name, value in (TIMEOUTS | SETTINGS).items()]
)
_PLACE_OF_GUARD: Final = 1  # among the results of what opens a transaction
_DIVISION_BY_ZERO: Final = "22012"
_NO_SUCH_PLAN: Final = "26000"  # invalid_sql_statement_name
_LISTENERS: Final = 2  # of our own: ``begin_first``, and one that finds the answer of who serves


# --- connections ------------------------------------------------------------------------------------------------------


def serves_directly(connection: Connection) -> None:
    """The server has just told that the session of *connection* is its own: there is no pooler in between."""
    from psycopg import Pipeline

    if _KEY not in connection.info:  # a system's libpq may be older than 14, which was the first to have pipelines
        connection.info[_KEY] = OneTrip(connection.connection.driver_connection) if Pipeline.is_supported() else None


def opens_later(connection: Connection, opening: str, *, asks: bool) -> bool:
    """Whether the transaction that begins will open with its first statement, and *opening* need not be executed.

    *asks*: whether that text asks who serves the connection.
    """
    trip: OneTrip | None = connection.info.get(_KEY)
    if trip is None:
        return False
    if asks and not _is_overheard(connection):
        return trip.open(opening)
    trip.leave()
    return False


def _is_overheard(connection: Connection) -> bool:
    """Whether anybody else listens to what cursors execute: they are to hear everything."""
    heard: Any = connection.dispatch
    return len([*heard.before_cursor_execute, *heard.after_cursor_execute]) > _LISTENERS


def begin_first(connection: Connection, *_: object) -> None:
    """Before a cursor executes something: open the transaction that was to open with its first statement."""
    trip: OneTrip | None = connection.info.get(_KEY)
    if trip is not None and trip.is_pending:
        _with_its_errors(connection, trip, trip.begin)


def while_waiting(connection: Connection, do: Callable[[], bool]) -> None:
    """Call *do* while the server works in the transaction that begins, as long as it has more to do.

    Where we cannot tell when the server does, it is called now, once.
    """
    trip: OneTrip | None = connection.info.get(_KEY)
    if trip is None or not trip.is_pending:
        do()
    else:
        trip.meanwhile = do


def takes_numbered(connection: Connection) -> bool:
    """Whether ``fetch`` takes the statements of this transaction."""
    trip: OneTrip | None = connection.info.get(_KEY)
    return trip is not None and trip.is_open


def fetch(connection: Connection, sql: str, values: Sequence[Any]) -> list[Any] | None:
    """The rows of a statement whose parameters are $1, $2 …; None: it has to be executed in another way."""
    trip: OneTrip = connection.info[_KEY]
    rows: list[Any] | None = _with_its_errors(connection, trip, lambda: trip.fetch(sql, values))
    return rows


def _with_its_errors(connection: Connection, trip: OneTrip, do: Callable[[], Any]) -> Any:
    """*do*, with errors as SQLAlchemy raises them, and a lost connection invalidated: as if it had executed it."""
    import psycopg

    try:
        return do()
    except ServedByAnother:
        connection.info[_KEY] = None
        trip.give_up()
        connection.exec_driver_sql(trip.opening)
        return None
    except psycopg.Error as error:
        if lost := trip.is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            "", None, error, psycopg.Error, connection_invalidated=lost, dialect=connection.dialect
        ) from error
    except BaseException:  # the answer may still come
        connection.invalidate()
        raise


# --- the session ------------------------------------------------------------------------------------------------------


class ServedByAnother(Exception):
    """There is a pooler after all, and it has given us another of its sessions."""


class _Statement(NamedTuple):
    sql: str
    parameters: Sequence[Any] = ()
    types: tuple[int, ...] | None = None
    formats: Sequence[Any] | None = None


class OneTrip:
    """A session of psycopg with a server itself, which may therefore keep the plans of repeated statements.

    A plan belongs to a session, and a pooler may give the next transaction another one, in which the same name stands
    for another statement. So each transaction asks who serves it, and a wrong answer is an error, behind which the
    server does nothing of what follows.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._server = session.pgconn
        self._guard = b"SELECT 1 / CAST(pg_backend_pid() = %d AS int)" % session.info.backend_pid
        self._times: dict[Any, int] = {}
        self._plans: dict[Any, bytes] = {}
        self._named = 0
        self.opening = ""
        self.is_pending = False  # the transaction is to open with its first statement
        self.is_open = False  # it did, or will
        self.meanwhile: Callable[[], bool] | None = None

    @property
    def is_lost(self) -> bool:
        return bool(self._session.closed or self._session.broken)

    def open(self, opening: str) -> bool:
        # Parameters are encoded before the server hears of the encoding that our transactions set.
        self.is_open = self.is_pending = self._server.parameter_status(b"client_encoding") == b"UTF8"
        self.opening, self.meanwhile = opening, None
        return self.is_open

    def leave(self) -> None:
        """A transaction begins that opens in another way."""
        self.is_open = self.is_pending = False

    def give_up(self) -> None:
        """What is left of this transaction goes another way."""
        self.leave()
        self._session.rollback()

    def begin(self) -> None:
        self._exchange(None)

    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        from psycopg.adapt import PyFormat, Transformer

        adapting: Any = Transformer(self._session)
        parameters = adapting.dump_sequence(values, [PyFormat.AUTO] * len(values))
        result = self._exchange(_Statement(sql, parameters, adapting.types, adapting.formats))
        adapting.set_pgresult(result)
        names = tuple([result.fname(place).decode() for place in range(result.nfields)])
        rows: list[Any] = adapting.load_rows(0, result.ntuples, _row_of(names))
        return rows

    def _exchange(self, statement: _Statement | None) -> Any:
        """Send *statement*, behind what opens the transaction if that was not sent yet; return its result."""
        from psycopg.errors import error_from_result
        from psycopg.pq import ExecStatus

        opens, self.is_pending = self.is_pending, False
        planned: dict[Any, bytes] = {}
        self._server.enter_pipeline_mode()
        if opens:
            self._server.send_query_params(_BEGIN, None)
            self._server.send_query_params(self._guard, None)
            self._send(_Statement(_SETTINGS), planned)
        if statement is not None:
            self._send(statement, planned)
        self._server.pipeline_sync()
        results = self._results()
        for place, result in enumerate(results):
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                self._plans.clear()  # one of them may be gone, or its table has changed
                error = error_from_result(result)
                if opens and place == _PLACE_OF_GUARD and error.sqlstate == _DIVISION_BY_ZERO:
                    raise ServedByAnother
                if opens and error.sqlstate == _NO_SUCH_PLAN:  # a handler's DISCARD ALL; nothing has happened yet
                    self._session.rollback()
                    self.is_pending = True
                    return self._exchange(statement)
                raise error
        self._plans |= planned
        return results[-1]

    def _send(self, statement: _Statement, planned: dict[Any, bytes]) -> None:
        sql, parameters, types, formats = statement
        plan = self._plans.get((sql, types))
        if plan is None and self._is_repeated((sql, types)):
            self._named += 1
            plan = planned[sql, types] = b"cronjobs_%d" % self._named
            self._server.send_prepare(plan, sql.encode(), types)
        if plan is None:
            self._server.send_query_params(sql.encode(), parameters, types, formats)
        else:
            self._server.send_query_prepared(plan, parameters, formats)

    def _is_repeated(self, key: Any) -> bool:
        times = self._times.get(key, 0)
        if times or len(self._times) < MOST_PLANS:
            self._times[key] = times + 1
        return times >= PLANS_KEPT_AFTER

    def _results(self) -> list[Any]:
        """The results of all that is in the pipeline; the last may be an error."""
        from psycopg import OperationalError
        from psycopg.pq import ConnStatus, ExecStatus

        server = self._server
        found: list[Any] = []
        try:
            while server.flush():
                self._wait(select.POLLIN | select.POLLOUT)
                server.consume_input()
            while True:
                while server.is_busy():
                    self._wait(select.POLLIN)
                    server.consume_input()
                result = server.get_result()
                if result is None:
                    if server.status == ConnStatus.BAD:
                        raise OperationalError(server.error_message.decode(errors="replace"))
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    server.exit_pipeline_mode()
                    return found
                else:
                    found.append(result)
        except OperationalError:  # the server's own word says more, if there is one
            if found and found[-1].status == ExecStatus.FATAL_ERROR:
                return found
            raise

    def _wait(self, what: int) -> None:
        waiting = select.poll()
        waiting.register(self._server.socket, what)
        while self.meanwhile is not None and not waiting.poll(0):
            if not self.meanwhile():
                break
        waiting.poll()


@lru_cache(maxsize=256)
def _row_of(names: tuple[str, ...]) -> Any:
    kind: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    return kind._make
