"""What a tick reads first and writes last, and the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from cronjobs.store.sql import after_now, define, is_postgresql, run
from cronjobs.tables import audit, ticks


@dataclass(frozen=True)
class Overview:
    """All that an idle tick needs to know, in one round trip."""

    now: datetime
    project: str
    environment: str
    schema_revision: str
    oldest_code: str
    pruned_at: datetime | None
    expired: bool  # a lease ran out
    far_lease: bool  # a lease ends later than this host's could
    held_here: bool  # a lease is held by a process that began with this ``locked_by``, dead or alive
    schedules_due: bool
    jobs_due: bool
    last_fingerprint: str | None  # of the file this host carried at its previous tick
    fingerprint_known: bool  # some host has applied this file before
    last_tick_at: datetime | None  # of any host


define(beyond=after_now(":beyond_s"))


def overview(
    connection: Connection, *, host: str, place: str, fingerprint: str, lease: timedelta = timedelta(days=1)
) -> Overview:
    """Read what is owed; *host*, *fingerprint*, *lease* and *place*, how ``locked_by`` begins, are this tick's."""
    row = run(
        connection,
        """
        WITH RECURSIVE {branches}
        SELECT {now} AS now, m.project, m.environment, m.schema_revision, m.oldest_code, m.pruned_at,
          EXISTS (SELECT 1 FROM {jobs} WHERE locked_until IS NOT NULL AND locked_until < {now}) AS expired,
          EXISTS (SELECT 1 FROM {jobs} WHERE locked_until IS NOT NULL AND locked_until > {beyond}) AS far_lease,
          EXISTS (SELECT 1 FROM {jobs} WHERE locked_until IS NOT NULL
                  AND substr(locked_by, 1, :place_length) = :place) AS held_here,
          EXISTS (SELECT 1 FROM {schedules} WHERE status = 'active' AND next_at IS NOT NULL
                  AND (next_at <= {now} OR seen_until > {now})) AS schedules_due,
          EXISTS (SELECT 1 FROM branch b WHERE b.queue IS NOT NULL AND NOT {paused} AND EXISTS (
                    SELECT 1 FROM {jobs} j WHERE j.queue = b.queue AND j.priority = b.priority AND j.{waiting}
                    AND j.run_at <= {now})) AS jobs_due,
          -- by id: a clock that stepped back must not make an older tick the last one
          (SELECT t.fingerprint FROM {ticks} t WHERE t.host = :host ORDER BY t.id DESC LIMIT 1) AS last_fingerprint,
          EXISTS (SELECT 1 FROM {audit} a WHERE a.action = 'sync' AND a.subject = :fingerprint) AS fingerprint_known,
          -- by id here too: a tick whose clock was years ahead would be the last one for years
          (SELECT t.started_at FROM {ticks} t ORDER BY t.id DESC LIMIT 1) AS last_tick_at
        FROM {meta} m WHERE m.id = 1""",
        host=host,
        beyond_s=lease.total_seconds(),
        place=place,
        place_length=len(place),
        fingerprint=fingerprint,
    ).one()
    facts = dict(row._mapping)
    for name in ("expired", "far_lease", "held_here", "schedules_due", "jobs_due", "fingerprint_known"):
        facts[name] = bool(facts[name])
    return Overview(**facts)


def begin_tick(connection: Connection, row: dict[str, Any]) -> None:
    """Write the row of a tick that has work; at its end ``end_tick`` completes it."""
    connection.execute(_insert(connection).values(row).on_conflict_do_nothing(index_elements=[ticks.c.tick]))


def end_tick(connection: Connection, row: dict[str, Any]) -> None:
    """Write what a tick did and why it ended: its only write, if it was idle."""
    changes = {name: row[name] for name in ("finished_at", "did", "ended", "fingerprint")}
    insert_ = _insert(connection).values(row)
    connection.execute(insert_.on_conflict_do_update(index_elements=[ticks.c.tick], set_=changes))


def _insert(connection: Connection) -> Any:
    return (postgresql if is_postgresql(connection) else sqlite).insert(ticks)


def any_schedule(connection: Connection) -> bool:
    return run(connection, "SELECT 1 FROM {schedules} LIMIT 1").first() is not None


def record(
    connection: Connection,
    *,
    action: str,
    subject: str = "",
    actor: str | None = None,
    host: str | None = None,
    why: str | None = None,
    detail: dict[str, Any] | None = None,
    at: datetime | None = None,
) -> None:
    """Append to the audit trail. ``actor`` None: whom the database knows."""
    values = {"action": action, "subject": subject, "host": host, "why": why, "detail": detail}
    if actor is not None:
        values["actor"] = actor
    if at is not None:
        values["at"] = at  # type: ignore[assignment]
    connection.execute(insert(audit).values(values))


def last_audit(connection: Connection, action: str, subject: str) -> Any:
    return connection.execute(
        select(audit).where(audit.c.action == action, audit.c.subject == subject).order_by(audit.c.at.desc()).limit(1)
    ).first()
