"""Build the stage of a drill, its folder and its schema. Afterwards, end its processes and remove it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from cronjobs.clock import SYSTEM
from cronjobs.contrib.drill import statements as store
from cronjobs.contrib.drill.stage import BUDGET_S, LEASE_S, MARK_VARIABLE, SHUTDOWN_GRACE_S, WORKERS, Stage, StuckError
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import patiently
from cronjobs.engine.schema import migrations
from cronjobs.errors import DatabaseError

CONFIG: Final = """\
# The configuration of the ticks that "cronjobs drill" ran.
project: cronjobs-drill
{database}
imports: [receipts]
env: {{DRILL_SMTP_PORT: "{port}"}}
log: drill.log
run: {{workers: {workers}, budget: {budget}s, lease: {lease}s, shutdown_grace: {grace}s}}
"""

HANDLERS: Final = Path(__file__).with_name("handlers.py")
URL_VARIABLE: Final = "DATABASE_URL"
DROP_PATIENCE_S: Final = 15.0


class SchemaRefusedError(DatabaseError):
    def __init__(self, database: str) -> None:
        super().__init__(
            f"the drill needs its own schema, which this role may not create in database {database}: grant the right "
            "until the drill is over (GRANT CREATE ON DATABASE … TO …), or run the drill on a copy"
        )


@contextmanager
def stage(url: str | None, port: int, note: Callable[[str], None]) -> Iterator[Stage]:
    """Yield a stage in its own schema of the PostgreSQL database at *url*, or on a SQLite file if *url* is None.

    The mail server listens on *port*. Unless the stage's ``keep`` is set, remove everything afterwards, even after
    Ctrl-C, and call *note* with each thing that cannot be removed. Raises SchemaRefusedError or another DatabaseError.
    """
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-drill-"))
    made: Stage | None = None
    try:
        made = _stage(folder, url, port)
        _make_tables(made)
        yield made
    finally:
        # The cleanup takes only seconds, and frees the user's disk and server, so no signal interrupts it.
        with signals_handled_by(signal.SIG_IGN):
            if made is not None:
                _clear(made, note)
            if made is None or not made.keep:
                shutil.rmtree(folder, ignore_errors=True)


def _stage(folder: Path, url: str | None, port: int) -> Stage:
    schema = None if url is None else f"cronjobs_drill_{secrets.token_hex(4)}"
    said = "database: sqlite:///drill.db" if url is None else f"database: ${{{URL_VARIABLE}}}\nschema: {schema}"
    shutil.copy(HANDLERS, folder / "receipts.py")
    (folder / "cronjobs.yaml").write_text(
        CONFIG.format(database=said, port=port, workers=WORKERS, budget=BUDGET_S, lease=LEASE_S, grace=SHUTDOWN_GRACE_S)
    )
    env = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(folder), MARK_VARIABLE: secrets.token_hex(8)}
    if url is not None:
        # Pass the URL in the environment, because "ps" shows arguments to everyone. The driver may need PG… variables
        # to complete the URL.
        env |= {URL_VARIABLE: url, **{name: value for name, value in os.environ.items() if name.startswith("PG")}}
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]  # so that ticks run the same code as this process
    database = Database(parse_url(url or f"sqlite:///{folder / 'drill.db'}", schema), connections=2)
    return Stage(folder, database, schema, env)


def _make_tables(made: Stage) -> None:
    # On an unreachable server, fail before may_have_schema is set: there is no schema to drop.
    with made.database.read():
        made.may_have_schema = made.schema is not None
    try:
        migrations.upgrade(made.database)
    except DatabaseError as error:
        cause = error.__cause__
        # SQLSTATE 42501: insufficient_privilege
        if isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", None) == "42501":
            raise SchemaRefusedError(str(made.database.address)) from error
        raise


def _clear(made: Stage, note: Callable[[str], None]) -> None:
    database, schema = made.database, made.schema
    try:
        made.end_everything()
    except StuckError as error:
        note(str(error))

    def drop() -> None:
        with database.write() as connection:
            store.drop_schema(connection, str(schema))

    try:
        if made.may_have_schema and not made.keep:
            patiently(drop, clock=SYSTEM, until=SYSTEM.monotonic() + DROP_PATIENCE_S)
    except DatabaseError as error:
        note(f'the schema of the drill still exists: drop it by hand (DROP SCHEMA "{schema}" CASCADE): {error}')
    finally:
        database.close()


@contextmanager
def signals_handled_by(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    """Inside the block, let *handler* handle Ctrl-C, SIGTERM and SIGHUP. Outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
