"""``cronjobs.health``: judge the system's state for an app's health check, which works even when cron does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from cronjobs.desk.insight.finding import Finding
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import Address, parse_url
from cronjobs.engine.database.connection import Database, as_database_error
from cronjobs.engine.database.user_connections import savepoint
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.meta import require_schema

# ``health`` leaves out these kinds of findings. They need the handlers, and an app need not register any.
OF_THE_FILE: Final = frozenset({"config"})


@dataclass(frozen=True)
class HealthCheck:
    """The result of ``health``.

    ``findings`` lists all problems, worst first, including notices and acknowledged findings. ``ok`` is True if none of
    them is an alarm.
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.alarm for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for a health endpoint to send as JSON: "ok", and an object for each finding."""
        return {
            "ok": self.ok,
            "findings": [
                {
                    "finding": finding.key,
                    "severity": str(finding.severity),
                    "text": finding.text,
                    "since": finding.since.isoformat() if finding.since else None,
                    "command": finding.command,
                    "acknowledged": finding.ack is not None,
                }
                for finding in self.findings
            ],
        }


def health(connection: Any = None, *, config: str | Path | None = None, database_url: str | None = None) -> HealthCheck:
    """Check in a few indexed reads whether ticks are running, and whether anything is late, dead, failing or held back.

    *connection* is an SQLAlchemy Connection, Session or Engine. The call only reads, in a savepoint, so your
    transaction stays usable if the call fails. If *connection* is None, the database is found as in ``connect``, from
    *config* or *database_url*. The file *config* also supplies ``run.every``, the lease and the limits. Without a file,
    the interval between the last ticks replaces ``run.every``, and the other defaults apply. Raises SchemaMissing,
    SchemaTooOld, DatabaseError, or ConfigError if the file cannot be used.
    """
    settings = Settings(file=Path("cronjobs.yaml"), folder=Path(), database=database_url or "", broken=True)
    if config is not None or (connection is None and database_url is None):
        path = None if config is None else Path(config)
        settings = load(path, environ=os.environ, database_url=database_url, need_database=connection is None)
    with _reading(connection, settings) as reading:
        require_schema(reading)
        settings = at_their_pace(reading, settings)
        facts = look(reading, settings, JobTypes())
    return HealthCheck(tuple(judge(facts, settings, but=OF_THE_FILE)))


@contextmanager
def _reading(connection: Any, settings: Settings) -> Iterator[Connection]:
    if connection is None:
        address = parse_url(settings.database, settings.schema)
        with closing(Database(address, connections=1)) as database, database.read() as own:
            yield own
        return
    # An error names the database's address. For a Session, get_bind() returns the engine or connection that has the
    # address.
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    try:
        if isinstance(connection, Engine):
            with connection.connect() as own:
                yield own
        else:
            lent = connection if isinstance(connection, Connection) else _of_session(connection)
            with savepoint(lent):
                yield lent
    except DBAPIError as error:
        raise as_database_error(Address(bind.engine.url, settings.schema), error) from None


def _of_session(session: Any) -> Connection:
    found = session.connection() if hasattr(session, "get_bind") else None
    if not isinstance(found, Connection):
        given = f"{type(session).__module__}.{type(session).__qualname__}"
        raise TypeError(f"health() takes an SQLAlchemy Connection, Session or Engine, not {given}")
    return found
