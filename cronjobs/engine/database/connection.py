"""Open the engine, set pragmas and timeouts, and make writers take turns.

Both drivers run in autocommit mode. A handler of SQLAlchemy's ``begin`` event opens the transaction. So BEGIN and the
timeouts need only one round trip.
"""

from __future__ import annotations

import math
import os
import select
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from cronjobs import masking
from cronjobs.clock import SYSTEM, Clock, sleep
from cronjobs.engine.database.address import Address
from cronjobs.engine.database.error_mapping import file_refusal, is_locked, postgresql_refusal, sqlite_refusal
from cronjobs.engine.database.own_transaction import MARK, GuardedBlock
from cronjobs.engine.database.retrying import patiently
from cronjobs.engine.database.sqlite_connection import StayingConnection
from cronjobs.engine.database.sqlite_time_limit import WriteTimeLimit
from cronjobs.engine.database.sqlite_turns import POLL_S, Turns
from cronjobs.engine.host.forks import OutOfReach, replace_by_nothing
from cronjobs.engine.probe.server_session import CONNECT_TIMEOUT_S, KEEPALIVES, SET_SETTINGS, TIMEOUTS, begin
from cronjobs.engine.rules.payload import read_json
from cronjobs.errors import (
    CommitUnconfirmed,
    CommitUnknown,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnreachable,
    DriverMissing,
    ForkedCopy,
    NoEncoding,
    ServerTooOld,
    SqliteTooOld,
)
from cronjobs.text import decoded, joined

T = TypeVar("T")

OLDEST_SERVER: Final = 14
OLDEST_SQLITE: Final = (3, 35)  # the first version with RETURNING
# The timeout is short, because our writers take turns, which is fairer than SQLite's own polling.
BUSY_TIMEOUT_MS: Final = 20
# Wait at least this long for a turn or a lock, even if the command has no time left. A tick sends its last statements
# after its deadline, and the watchdog ends the tick a second after the deadline.
LEAST_PATIENCE_S: Final = 0.2
READ_PATIENCE_S: Final = 5.0
# If the server restarts during a COMMIT, we wait this long to ask it whether the COMMIT succeeded.
SETTLE_S: Final = 8.0
SETTLE_PAUSE_S: Final = 0.1
# ctx.transaction() may hold SQLite's only write lock for this long.
HANDLER_LIMIT_S: Final = 2.0
# A longer timeout is cut to this, because PostgreSQL stores a timeout as milliseconds in 32 bits.
LONGEST_WAIT_S: Final = 86_400.0
# ctx.transaction() waits this long for other writers.
HANDLER_PATIENCE_S: Final = 30.0


class Database(OutOfReach):
    """The jobs database. ``read()`` and ``write()`` yield a connection inside a transaction.

    ``clock`` is used in tests, and on SQLite, where the host's clock is the database's clock. Raises errors of the
    server or the file as DatabaseError, with a one-line message that contains no password.
    """

    def __init__(self, address: Address, *, clock: Clock = SYSTEM, connections: int = 8) -> None:
        super().__init__()
        self.address = address
        self.clock = clock
        # After this instant of the monotonic clock, no write waits for its turn, and no statement waits for a lock.
        self.give_up_at = math.inf
        self._turns = Turns(str(address), str(address.url.database), clock)  # turns are used only on SQLite
        self.engine = _engine(address, clock, connections)
        self._sessions: WeakSet[Any] = WeakSet()  # the open connections to a PostgreSQL server
        if not address.is_sqlite:
            event.listen(self.engine, "connect", lambda session, _record: self._sessions.add(session))
            event.listen(self.engine, "begin", self._open_postgresql)

    def forked(self) -> None:
        """Close the database sockets of this process, which is a forked copy of another process.

        The server then gets no data from the copy, and notices when the original process exits.
        """
        for session in list(self._sessions):
            # This fails if the connection is already broken.
            with suppress(Exception):
                replace_by_nothing(session.fileno())

    @property
    def is_sqlite(self) -> bool:
        return self.address.is_sqlite

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection for reading. Anything that is written in the block is rolled back.

        On SQLite, all statements of the block read from one snapshot of the database. On PostgreSQL, each statement
        sees what was committed before it began.
        """
        with self._translating_errors(), self.engine.connect() as connection:
            if self.is_sqlite:
                self._take_snapshot(connection)
            yield connection

    def _take_snapshot(self, connection: Connection) -> None:
        """Take the snapshot for a reader. A reader has to wait only while another process opens or closes the file.

        The first process that opens the file recovers the log that a killed process left. The last process that closes
        the file removes the log. Both need exclusive access to the file for a moment.
        """
        self._while_locked(
            lambda: connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1"),
            self.clock.monotonic() + READ_PATIENCE_S,
            POLL_S * 5,
        )

    @contextmanager
    def write(self, *, patience: float = 10.0, next_in_line: bool = False) -> Iterator[Connection]:
        """Yield a connection with one short write transaction, which is committed at the end of the block.

        On SQLite, writers take turns, because SQLite's own busy handler is not fair. The threads of a process take
        turns with a condition variable, and processes with flock on files beside the database. Raises DatabaseBusy
        after *patience* seconds without a turn.

        On PostgreSQL, the reply to COMMIT can get lost. Then we ask the server whether it committed the transaction.
        Raises CommitUnknown if we cannot ask the server. Any other error means that nothing was written, and that the
        block may be repeated.

        *next_in_line* is for the tick's loop. The loop gets its turn before other threads. After a lost reply we do not
        ask the server about the loop's transaction, because the loop's own rows show whether its COMMIT succeeded.
        """
        with self._translating_errors():
            if not self.is_sqlite:
                with self._write_postgresql(settle=not next_in_line) as connection:
                    yield connection
                return
            started = self.clock.monotonic()
            patience = min(patience, max(LEAST_PATIENCE_S, self.give_up_at - started))
            with self._turns.turn(patience, next_in_line=next_in_line), self.engine.connect() as connection:
                transaction = self._begin_immediate(connection, started + patience)
                with transaction:
                    yield connection

    @contextmanager
    def handler_transaction(self, remaining_s: float) -> Iterator[tuple[Connection, Callable[[], None]]]:
        """Yield a connection with a write transaction for user code, and a check function. The user code has
        *remaining_s* left.

        The caller must call the check function before our own last statements in the transaction.

        The connection behaves like the user's own. Table names do not get our schema (``with_tables`` adds the schema),
        and the session keeps its time zone. On SQLite the transaction is rolled back after 2 s, with
        TransactionTooLong.
        """
        with self._translating_errors():
            if not self.is_sqlite:
                # The user's statements may take as much time as the job has left. After that time the server itself
                # cancels them, because a frozen runner could not.
                limits_ms = dict.fromkeys(_OF_USERS, int((min(remaining_s, LONGEST_WAIT_S) + 5) * 1000))
                opening = begin(TIMEOUTS | limits_ms, MARK)
                engine = self.engine.execution_options(cronjobs_begin=opening, schema_translate_map={})
                with (
                    self._write_postgresql(settle=True, engine=engine) as connection,
                    GuardedBlock(connection) as unbroken,
                ):
                    yield connection, unbroken.check
                return
            patience = min(HANDLER_PATIENCE_S, max(LEAST_PATIENCE_S, remaining_s))
            give_up_at = self.clock.monotonic() + patience
            with (
                self.engine.connect() as connection,
                WriteTimeLimit(connection, lambda: self._turns.turn(patience), HANDLER_LIMIT_S) as keeper,
                self._begin_immediate(connection, give_up_at),
                GuardedBlock(connection) as unbroken,
            ):

                def end() -> None:
                    keeper.end()
                    unbroken.check()

                yield connection, end

    def with_tables(self, connection: Connection) -> Connection:
        """Prepare the *connection* of ``handler_transaction`` for statements on our own tables."""
        from cronjobs.engine.database.user_connections import in_schema

        return in_schema(connection, self.address.schema)

    def _open_postgresql(self, connection: Connection) -> None:
        options = connection.get_execution_options()
        opening = f"{options.get('cronjobs_begin') or self._begin_in_time()}; {_IN_UTF8}"
        connection.exec_driver_sql(f"{opening}; {_DURABLE}" if options.get("cronjobs_write") else opening)

    def _begin_in_time(self) -> str:
        """Return the statements that open a transaction in which no statement waits for a lock after ``give_up_at``."""
        left_ms = max(LEAST_PATIENCE_S, self.give_up_at - self.clock.monotonic()) * 1000
        if left_ms >= TIMEOUTS["lock_timeout"]:
            return _POSTGRESQL_BEGIN
        return begin(TIMEOUTS | {"lock_timeout": int(left_ms)}, *SET_SETTINGS)

    @contextmanager
    def _write_postgresql(self, *, settle: bool, engine: Engine | None = None) -> Iterator[Connection]:
        number = life = None
        session: dict[str, Any] = {}
        try:
            with (
                (engine or self.engine).connect() as connection,
                connection.execution_options(cronjobs_write=True).begin(),
            ):
                session = connection.info
                session.pop(_UNCONFIRMED, None)
                yield connection
                if settle:
                    number, life = connection.exec_driver_sql(_NUMBER).one()
            if session.pop(_UNCONFIRMED, False):
                raise CommitUnconfirmed(str(self.address))
        except DBAPIError as error:
            if isinstance(error.orig, sqlite3.Error):
                # The error comes from the SQLite database that is being copied, and not from this server.
                raise
            # Without a transaction number, nothing was written or COMMIT was never sent, so nothing was committed.
            if number is None or not isinstance(as_database_error(self.address, error), DatabaseUnreachable):
                raise
            reason = _reason(self.address, error)
            match self._was_committed(number, life):
                case None:
                    raise CommitUnknown(str(self.address), reason) from error
                case False:
                    raise DatabaseUnreachable(str(self.address), f"{reason}: nothing was written") from error

    def _was_committed(self, number: str, life: str | None) -> bool | None:
        """Return whether the server committed transaction *number*.

        *life* identifies the time between two crashes of the server. Returns None if the server did not answer in time,
        or if it has crashed in the meantime, because then its answer cannot be trusted.
        """
        give_up_at = min(self.clock.monotonic() + SETTLE_S, self.give_up_at)
        while True:
            try:
                with self.engine.connect() as connection:
                    status, now = connection.exec_driver_sql(_WHAT_BECAME, (number,)).one()
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == _IN_THE_FUTURE:
                    # The server has crashed and has forgotten this transaction.
                    return False
            else:
                if status == "aborted":
                    return False
                if status == "committed":
                    # After a crash, the server reuses the numbers of transactions that were never committed.
                    return True if now == life else None
            if self.clock.monotonic() >= give_up_at:
                return None
            sleep(SETTLE_PAUSE_S)

    def _begin_immediate(self, connection: Connection, give_up_at: float) -> Any:
        connection = connection.execution_options(cronjobs_write=True)
        started = self.clock.monotonic()
        try:
            return self._while_locked(connection.begin, give_up_at, POLL_S)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            raise DatabaseBusy(str(self.address), self.clock.monotonic() - started) from None

    def _while_locked(self, do: Callable[[], T], until: float, poll_s: float) -> T:
        """Repeat *do* while another process holds SQLite's lock, but only until the instant *until*."""
        return patiently(do, clock=self.clock, until=until, errors=DBAPIError, worth=is_locked, pauses=repeat(poll_s))

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        if self.is_copy:
            raise ForkedCopy
        try:
            yield
        except DBAPIError as error:
            if isinstance(error.orig, sqlite3.Error) is not self.is_sqlite:
                # The error comes from another database, whose block surrounds this block or is inside it.
                raise
            raise as_database_error(self.address, error) from error

    def close(self) -> None:
        if not self.is_copy:
            self.engine.dispose()
            self._turns.close()


def require_sqlite(url: str) -> None:
    """Raise SqliteTooOld if the SQLite library of this Python is too old. The message contains *url*."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise SqliteTooOld(url, sqlite3.sqlite_version)


def _engine(address: Address, clock: Clock, connections: int) -> Engine:
    options: dict[str, Any] = {
        "poolclass": QueuePool,
        "pool_size": connections,
        "max_overflow": connections,
        "json_deserializer": read_json,
        "execution_options": {"cronjobs_clock": clock},
    }
    if address.schema:
        options["execution_options"]["schema_translate_map"] = {None: address.schema}
    if address.is_sqlite:
        require_sqlite(str(address))
        _create_private(Path(str(address.url.database)), address)
        # ``isolation_level`` is None, because we send BEGIN ourselves (_open_sqlite). ``check_same_thread`` is not
        # needed, because the pool lets only one thread at a time use a connection.
        options["connect_args"] = {"isolation_level": None, "check_same_thread": False, "factory": StayingConnection}
        engine = create_engine(address.url, **options)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _open_sqlite)
        return engine
    defaults = {"connect_timeout": CONNECT_TIMEOUT_S} | KEEPALIVES
    options["connect_args"] = {key: value for key, value in defaults.items() if key not in address.url.query}
    # ``prepare_threshold`` is None: use no prepared statements. They belong to one session, and PgBouncer shares
    # sessions among its clients.
    options["connect_args"] |= {"autocommit": True, "prepare_threshold": None}
    # With native hstore, SQLAlchemy would look up the type hstore in each process before the first statement, in a
    # separate transaction.
    options["use_native_hstore"] = False
    try:
        engine = create_engine(address.url, **options)
    # psycopg, or its libpq, is missing.
    except (ImportError, NoSuchModuleError):
        raise DriverMissing(str(address)) from None
    event.listen(engine, "do_connect", partial(_connect_postgresql, address))
    event.listen(engine, "checkout", _refuse_ended)
    return engine


def _connect_postgresql(address: Address, dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
    """Connect to a server. Refuse a server that is too old, or a database that has no encoding."""
    connection = dialect.connect(*arguments, **options)
    # Version 14 introduced client_connection_check_interval, which we need (see ``server_session``).
    if (version := connection.info.server_version // 10_000) < OLDEST_SERVER:
        connection.close()
        raise ServerTooOld(str(address), version)
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.close()
        raise NoEncoding(str(address))
    connection.add_notice_handler(partial(_note_unconfirmed, record.info))
    record.info[_FRESH] = True
    return connection


def _refuse_ended(session: Any, record: Any, _proxy: object) -> None:
    """Have the pool replace a connection that the server has ended, for example because it has restarted.

    A server sends nothing to an idle session until it ends the session. So no round trip is needed to notice the end.
    """
    # If the server has already ended a fresh connection, its first statement reports why. The pool would only report
    # that the connection is closed.
    if record.info.pop(_FRESH, False):
        return
    if not session.closed:
        waiting = select.poll()
        waiting.register(session.fileno(), select.POLLIN)
        if not waiting.poll(0):
            return
    raise DisconnectionError


def _note_unconfirmed(session: dict[str, Any], notice: Any) -> None:
    """Record in *session* that the server stopped waiting for a synchronous standby during a COMMIT.

    The server reports this only as a warning, in its own language.
    """
    if notice.source_function == "SyncRepWaitForLSN":
        session[_UNCONFIRMED] = True


def _create_private(file: Path, address: Address) -> None:
    """Create the file with mode 0600. If SQLite created the file, cron's umask would decide about the file's mode.

    SQLite gives its -wal and -shm files the same mode as the database file.
    """
    if not file.parent.is_dir():
        raise DatabaseError(f"database {address} cannot be created: there is no folder {file.parent}")
    try:
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise file_refusal(str(address), f"{file} cannot be created", error) from None


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    try:
        _set_pragmas(connection)
    except sqlite3.Error:
        # The pool does not know this connection yet, so the pool would not close it.
        connection.close()
        raise


def _set_pragmas(connection: sqlite3.Connection) -> None:
    # Texts may not be UTF-8, because another program may have written them. ``decoded`` accepts such bytes.
    connection.text_factory = decoded
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    # With WAL, readers and the one writer do not block each other. With synchronous = FULL, a committed job survives a
    # power failure. Switching to WAL needs an exclusive lock. SQLite does not wait for that lock, so we retry the
    # statement.
    patiently(
        partial(_turn_wal_on, cursor),
        errors=sqlite3.OperationalError,
        worth=lambda error: "locked" in str(error),
        pauses=repeat(POLL_S * 10, 250),
    )
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    # Keep temporary data in memory. With temporary files, a full /var/tmp would stop jobs even if the database's disk
    # has room. A claim holds its payloads in memory anyway.
    cursor.execute("PRAGMA temp_store = MEMORY")
    cursor.close()


def _turn_wal_on(cursor: sqlite3.Cursor) -> None:
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        cursor.execute("PRAGMA journal_mode = WAL")


def _open_sqlite(connection: Connection) -> None:
    # Use IMMEDIATE for writes. A deferred transaction that first reads can no longer write if another process has
    # written since.
    write = connection.get_execution_options().get("cronjobs_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


_UNCONFIRMED: Final = "cronjobs_unconfirmed"  # a key in a connection's ``info``
_FRESH: Final = "cronjobs_fresh"  # likewise: nothing has used the connection yet

# This setting overrides any other setting of the encoding, in the server, the database, the role or the URL. The server
# converts all texts to and from its own encoding.
_IN_UTF8: Final = "SET LOCAL client_encoding = 'UTF8'"
# With synchronous_commit = off, a crash of the server could undo a claim, an outcome or an effect that we have already
# reported. So replace "off". Any other setting stays.
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_POSTGRESQL_BEGIN: Final = begin(TIMEOUTS, *SET_SETTINGS)
_OF_USERS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


# Identifies the server's life between two crashes. The value changes when the server starts, and when a crash resets
# the statistics. Such a reset happens even if only one backend was killed, after which the server restarts by itself.
_LIFE: Final = "concat(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_bgwriter))"
_NUMBER: Final = f"SELECT pg_current_xact_id_if_assigned()::text, {_LIFE}"
_WHAT_BECAME: Final = f"SELECT pg_xact_status(%s::xid8), {_LIFE}"
_IN_THE_FUTURE: Final = "22023"  # invalid_parameter_value


def as_database_error(address: Address, error: DBAPIError) -> DatabaseError:
    """Convert a driver's error to an exception with a one-line message. The message names the cause and contains no
    secret.
    """
    reason = _reason(address, error)
    if address.is_sqlite:
        file = Path(str(address.url.database))
        return sqlite_refusal(str(address), error, reason, file=file, waited_s=BUSY_TIMEOUT_MS / 1000)
    lock_timeout_s = TIMEOUTS["lock_timeout"] / 1000
    return postgresql_refusal(str(address), error, reason, lock_timeout_s=lock_timeout_s)


def _reason(address: Address, error: DBAPIError) -> str:
    reason = " ".join(joined(str(error.orig)).split())
    return masking.mask(reason, masking.named_secrets({"": address.url.render_as_string(hide_password=False)}))
