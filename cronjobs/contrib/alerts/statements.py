"""The SQL of alerts: when to look for findings, the past and present findings, and which channels got a message.

``look_at`` in the meta row says when the next look is due. It is also the token of a running look: a process that
begins a look sets ``look_at``, and writes its findings only if ``look_at`` has not changed since. A process that writes
facts sets ``look_at`` to now (``look_soon`` of ``engine.store.alerts``). So a look that may have missed those facts
discards its findings, and looks again. If facts change during each look, the last look stores only the findings that
have begun.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, select, update

from cronjobs.desk.store.status_facts import UNDEALT
from cronjobs.engine.database.tables import alerts, findings
from cronjobs.engine.probe.idle_conditions import IN_AN_HOUR, SOON
from cronjobs.engine.probe.sql_text import (
    ALERTS,
    FINDINGS,
    JOB_RUNS,
    JOBS,
    META,
    NOW,
    OCCURRENCES,
    SCHEDULES,
    after_now,
)
from cronjobs.engine.store.alerts import SKIP_LOCKED
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, INSTANT_TYPE, JSON_TYPE, inserted_into, run

LEASE: Final = timedelta(minutes=2)  # how long one process may take to send a message
LOOKING_S: Final = 30.0  # after this long, another process may repeat a look


def begin_look(connection: Connection, *, anyway: bool) -> datetime | None:
    """Begin a look if one is due or *anyway* is true. Return the token for ``end_look``, or None if there is no look.

    No look is due while another process is looking. Commit before you read the facts.
    """
    due = "" if anyway else f"AND (look_at IS NULL OR look_at <= {SOON} OR look_at >= {IN_AN_HOUR})"
    row = run(
        connection,
        f"UPDATE {META} SET look_at = {after_now(':looking_s')} WHERE id = 1 {due} RETURNING look_at",
        looking_s=LOOKING_S,
    ).first()
    return None if row is None else row.look_at


def end_look(connection: Connection, token: datetime, next_at: datetime) -> bool:
    """Set when to look next. Return False if facts have changed, or if another process has begun a look.

    If this returns False, the caller must not write its findings.
    """
    statement = f"UPDATE {META} SET look_at = :next_at WHERE id = 1 AND look_at = :token RETURNING id"
    return run(connection, statement, token=token, next_at=next_at).first() is not None


def may_add(connection: Connection) -> bool:
    """Return whether facts have changed since a look began and no process is looking now. The next look stays due."""
    statement = f"UPDATE {META} SET look_at = look_at WHERE id = 1 AND look_at <= {NOW} RETURNING id"
    return run(connection, statement).first() is not None


@dataclass(frozen=True)
class Episode:
    """One finding from its beginning to its end. ``host`` is the only host that can see its end, or "" if any can."""

    id: int
    finding: str
    kind: str
    severity: str
    text: str
    command: str | None
    rows: Sequence[str]
    host: str
    began_at: datetime
    found_at: datetime
    ended_at: datetime | None


def open_episodes(connection: Connection) -> list[Episode]:
    """Return the episodes that have not ended, oldest first."""
    rows = connection.execute(select(findings).where(findings.c.ended_at.is_(None)).order_by(findings.c.id))
    return [_episode(row) for row in rows]


def open_of(connection: Connection, host: str) -> bool:
    """Whether there is an open episode that only *host* can end."""
    statement = f"SELECT 1 FROM {FINDINGS} f WHERE f.ended_at IS NULL AND f.host = :host LIMIT 1"
    return run(connection, statement, host=host).first() is not None


def _episode(row: Any) -> Episode:
    found = {name: getattr(row, name) for name in Episode.__dataclass_fields__}
    rows = found["rows"]
    return Episode(**found | {"rows": tuple(map(str, rows)) if isinstance(rows, list) else ()})


def open_episode(connection: Connection, **values: Any) -> Episode | None:
    """Insert an episode. Return None if another process has just inserted an episode of the same finding."""
    new = inserted_into(connection, findings).values(values).on_conflict_do_nothing()
    row = connection.execute(new.returning(*findings.c)).first()
    return None if row is None else _episode(row)


def change_episode(connection: Connection, id_: int, **values: Any) -> None:
    connection.execute(update(findings).where(findings.c.id == id_).values(values))


def episodes_since(connection: Connection, since: datetime) -> dict[str, int]:
    """Return how many episodes of each finding ended at or after *since*."""
    rows = run(
        connection,
        f"SELECT f.finding, count(*) AS episodes FROM {FINDINGS} f WHERE f.ended_at >= :since GROUP BY f.finding",
        since=since,
    )
    return {row.finding: row.episodes for row in rows}


def rows_reported(connection: Connection, kind: str, since: datetime) -> dict[str, set[str]]:
    """Return, by channel, the rows that the last message about each finding of *kind* reported.

    Read only findings that ended at or after *since*.
    """
    reported = select(alerts.c.channel, alerts.c.rows).join(findings, findings.c.id == alerts.c.finding_id)
    found: dict[str, set[str]] = {}
    for row in connection.execute(reported.where(findings.c.kind == kind, findings.c.ended_at >= since)):
        found.setdefault(row.channel, set()).update(row.rows or ())
    return found


@dataclass(frozen=True)
class AlertState:
    """The state of one episode on one channel. ``rows`` and ``severity`` are those that the last message reported."""

    finding_id: int
    channel: str
    due_at: datetime | None = None
    over: bool = False
    severity: str | None = None
    rows: Sequence[str] = ()
    first_at: datetime | None = None
    sent_at: datetime | None = None
    sent: int = 0
    failures: int = 0
    locked_until: datetime | None = None


def states_of(connection: Connection, finding_ids: Collection[int]) -> dict[tuple[int, str], AlertState]:
    rows = connection.execute(select(alerts).where(alerts.c.finding_id.in_(sorted(finding_ids))))
    return {(row.finding_id, row.channel): _state(row) for row in rows}


def _state(row: Any) -> AlertState:
    found = {name: getattr(row, name) for name in AlertState.__dataclass_fields__}
    return AlertState(**found | {"over": bool(row.over), "rows": tuple(row.rows or ())})


def put_state(connection: Connection, finding_id: int, channel: str, due_at: datetime | None, *, over: bool) -> None:
    """Set when the episode's next message on *channel* is due. Leave the other columns of the row unchanged."""
    values = {"due_at": due_at, "over": int(over)}
    new = inserted_into(connection, alerts).values(values | {"finding_id": finding_id, "channel": channel})
    connection.execute(new.on_conflict_do_update(index_elements=[alerts.c.finding_id, alerts.c.channel], set_=values))


@dataclass(frozen=True)
class DueAlert:
    """A message about one episode for one channel, leased to the caller."""

    state: AlertState
    episode: Episode


def lease_due(connection: Connection, channel: str, locked_by: str) -> list[DueAlert]:
    """Lease every message that is due on *channel* and that no other process is sending, oldest finding first."""
    leased = run(
        connection,
        f"""
        WITH mine AS MATERIALIZED (SELECT a.finding_id FROM {ALERTS} a WHERE a.due_at IS NOT NULL AND a.due_at <= {SOON}
          AND a.channel = :channel AND (a.locked_until IS NULL OR a.locked_until < {NOW}) {SKIP_LOCKED})
        UPDATE {ALERTS} SET locked_by = :locked_by, locked_until = {after_now(":lease_s")}
        WHERE channel = :channel AND finding_id IN (SELECT finding_id FROM mine) RETURNING finding_id""",
        channel=channel,
        locked_by=locked_by,
        lease_s=LEASE.total_seconds(),
    )
    ids = sorted(leased.scalars())
    if not ids:
        return []
    rows = connection.execute(select(findings).where(findings.c.id.in_(ids)).order_by(findings.c.id))
    states = states_of(connection, ids)
    return [DueAlert(states[row.id, channel], _episode(row)) for row in rows]


def mark_sent(connection: Connection, alert: DueAlert, locked_by: str, now: datetime, next_at: datetime | None) -> bool:
    """Record that the message was sent. Return False if another process took over the lease and will send it again.

    If the finding ended while the message was being sent, its "over" message becomes due now.
    """
    marked = run(
        connection,
        f"""
        UPDATE {ALERTS} SET sent = sent + 1, sent_at = :now, first_at = coalesce(first_at, :now), severity = :severity,
          rows = CAST(:reported_rows AS {JSON_TYPE}), failed_at = NULL, failures = 0, error = NULL, locked_by = NULL,
          locked_until = NULL, due_at = CASE WHEN over = :over THEN CAST(:next_at AS {INSTANT_TYPE}) ELSE :now END
        WHERE finding_id = :finding_id AND channel = :channel AND locked_by = :locked_by RETURNING finding_id""",
        now=now,
        next_at=next_at,
        severity=alert.episode.severity,
        # An "over" message lists no job, so it does not report the rows that came after the last message.
        reported_rows=list(alert.state.rows if alert.state.over else alert.episode.rows),
        over=int(alert.state.over),
        **_whose(alert, locked_by),
    )
    return marked.first() is not None


def mark_failed(connection: Connection, alert: DueAlert, locked_by: str, now: datetime, **again: Any) -> None:
    """Record a failed delivery. *again* holds the ``error`` and the time of the next try, ``next_at``."""
    run(
        connection,
        f"""
        UPDATE {ALERTS} SET failures = failures + 1, failed_at = coalesce(failed_at, :now), error = :error,
          locked_by = NULL, locked_until = NULL, due_at = :next_at
        WHERE finding_id = :finding_id AND channel = :channel AND locked_by = :locked_by""",
        now=now,
        **again,
        **_whose(alert, locked_by),
    )


def try_again_now(connection: Connection, channel: str, now: datetime) -> None:
    """Make every message due now that is waiting for another try on *channel*."""
    run(
        connection,
        f"""UPDATE {ALERTS} SET due_at = :now
           WHERE channel = :channel AND failures > 0 AND due_at > :now AND locked_until IS NULL""",
        channel=channel,
        now=now,
    )


def _whose(alert: DueAlert, locked_by: str) -> dict[str, Any]:
    return {"finding_id": alert.episode.id, "channel": alert.state.channel, "locked_by": locked_by}


def due_channels(connection: Connection) -> frozenset[str]:
    """Return the channels on which a message is due."""
    statement = f"SELECT DISTINCT a.channel FROM {ALERTS} a WHERE a.due_at IS NOT NULL AND a.due_at <= {SOON}"
    return frozenset(run(connection, statement).scalars())


def something_waits(connection: Connection, channels: Collection[str]) -> bool:
    """Whether one of *channels* has a message that is due, is being sent, or waits for another try."""
    rows = run(connection, f"SELECT DISTINCT a.channel FROM {ALERTS} a WHERE a.due_at IS NOT NULL")
    return any(name in channels for name in rows.scalars())


@dataclass(frozen=True)
class UndeliveredChannel:
    """A channel that cannot deliver: since when, the error of one waiting message, and how many messages wait."""

    channel: str
    since: datetime
    error: str
    messages: int


def undelivered(connection: Connection, channels: Collection[str]) -> list[UndeliveredChannel]:
    """Return the channels that cannot deliver, out of *channels* (those in the configuration file)."""
    rows = run(
        connection,
        f"""
        SELECT a.channel, min(a.failed_at) AS failed_at, count(*) AS messages, max(a.error) AS error FROM {ALERTS} a
        WHERE a.due_at IS NOT NULL AND a.failed_at IS NOT NULL GROUP BY a.channel ORDER BY a.channel""",
    )
    return [
        UndeliveredChannel(row.channel, row.failed_at, row.error or "", row.messages)
        for row in rows
        if row.channel in channels
    ]


def died_or_failed(connection: Connection, of: str, within: timedelta, job_type: str | None, most: int) -> int:
    """Count the jobs that died (if *of* is "dead") or the attempts that failed in the last *within*, at most *most*."""
    statement = (
        f"""SELECT 1 AS one FROM {JOBS} j WHERE j.finished_at IS NOT NULL AND j.status = 'dead'
             AND j.finished_at >= {_SOME_AGO} AND {_OF_TYPE} LIMIT :most"""
        if of == "dead"
        else f"""SELECT 1 AS one FROM {JOB_RUNS} r WHERE r.finished_at >= {_SOME_AGO}
             AND r.outcome IN ('failed', 'timed_out', 'lost')
             AND (CAST(:job_type AS text) IS NULL
               OR EXISTS (SELECT 1 FROM {JOBS} j WHERE j.id = r.job_id AND {_OF_TYPE}))
             LIMIT :most"""
    )
    found: int = run(
        connection,
        f"SELECT count(*) FROM ({statement}) AS counted",
        ago_s=-within.total_seconds(),
        job_type=job_type,
        most=most,
    ).scalar_one()
    return found


_OF_TYPE: Final = "(CAST(:job_type AS text) IS NULL OR j.job_type = CAST(:job_type AS text))"

_SOME_AGO: Final = after_now(":ago_s")


@dataclass(frozen=True)
class FailedJob:
    """A job as a message shows it. ``traceback`` and ``output`` come from its last recorded attempt, if any."""

    id: int
    job_type: str
    schedule: str | None
    failures: int
    losses: int
    error_type: str | None
    error: str | None
    traceback: str | None
    output: str | None


def failed_jobs(connection: Connection, ids: Collection[int]) -> list[FailedJob]:
    rows = run(
        connection,
        f"""
        SELECT j.id, j.job_type, j.schedule, j.failures, j.losses, j.error_type, j.last_error AS error,
          r.traceback, r.output
        FROM {JOBS} j LEFT JOIN {JOB_RUNS} r ON r.job_id = j.id AND r.attempt = (
          SELECT max(l.attempt) FROM {JOB_RUNS} l WHERE l.job_id = j.id)
        WHERE j.id {AMONG_IDS} ORDER BY j.id""",
        ids=sorted(ids),
    )
    return [FailedJob(**row._mapping) for row in rows]


def newest_dead(connection: Connection, most: int) -> list[int]:
    """Return the ids of up to *most* open dead jobs (not retried or dismissed), most recent death first."""
    rows = run(
        connection,
        f"SELECT j.id FROM {JOBS} j WHERE {UNDEALT} ORDER BY j.finished_at DESC LIMIT :most",
        most=most,
    )
    return list(rows.scalars())


def newest_failed(connection: Connection, schedules: Collection[str], most: int) -> list[int]:
    """For each of at most *most* schedules, return the id of the newest job that the ledger names."""
    rows = run(
        connection,
        f"""
        SELECT (SELECT c.job_id FROM {OCCURRENCES} c WHERE c.schedule_id = s.id AND c.job_id IS NOT NULL
          ORDER BY c.last_for DESC LIMIT 1) AS job_id
        FROM {SCHEDULES} s WHERE s.name {AMONG_NAMES} ORDER BY s.name LIMIT :most""",
        names=sorted(schedules),
        most=most,
    )
    return [id_ for id_ in rows.scalars() if id_ is not None]
