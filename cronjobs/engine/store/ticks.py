"""The rows that a tick reads first and writes last, and the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, insert

from cronjobs.engine.database.tables import audit, ticks
from cronjobs.engine.probe.idle_conditions import (
    BRANCHES,
    HANDLERS_EVERY_S,
    MANY_QUEUES,
    SEEN,
    UNFINISHED_SYNC,
    WAITING,
)
from cronjobs.engine.probe.sql_text import AUDIT, JOBS, QUEUES, SCHEDULES, TICKS, after_now, either
from cronjobs.engine.rules.recovery_policy import NOT_READ
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.sql import INSTANT_TYPE, JSON_TYPE, group, inserted_into, json_text, run

# If a lease ends more than this later than any correct lease could, a wrong clock wrote it.
CLOCK_SLACK: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Overview:
    """All facts that an idle tick needs, read in one round trip."""

    now: datetime
    project: str
    environment: str
    schema_revision: str
    oldest_code: str
    pruned_at: datetime | None
    expired: bool  # a lease has expired
    far_lease: bool  # a lease ends later than any lease that this host could write
    held_here: bool  # a process of this place, dead or alive, holds a lease. Its ``locked_by`` begins with *place*
    schedules_due: bool
    jobs_due: bool
    last_fingerprint: str | None  # the fingerprint of the file that this host's previous tick used
    fingerprint_known: bool  # some host has applied this file before
    sync_unfinished: bool  # a sync is running, or was killed
    last_tick_at: datetime | None  # when the last tick of any host began
    paused_due: bool  # jobs are due in paused queues
    misfits: bool  # a job whose payload did not fit its handler is waiting
    # The due jobs that a tick did not start, as recorded by this host's last tick that loaded handlers.
    not_started: Any
    handlers_at: datetime | None  # when this host's last tick that loaded handlers began
    look_at: datetime | None  # the earliest instant at which a finding may begin, end or be repeated
    # True if ``look_at`` has come, is unset, or is over an hour away.
    look_due: bool
    # True if so many queues have waiting jobs that it is quicker to read all waiting jobs than to step from queue to
    # queue.
    many_queues: bool

    @property
    def handlers_stale(self) -> bool:
        """Whether this host last loaded its handlers so long ago that a deploy may have changed them."""
        every = timedelta(seconds=HANDLERS_EVERY_S)
        return self.handlers_at is None or abs(self.now - self.handlers_at) >= every


def overview(
    connection: Connection, *, host: str, place: str, fingerprint: str, lease: timedelta = timedelta(days=1)
) -> Overview:
    """Read the facts about due work.

    The arguments describe this tick. *place* is the beginning of its ``locked_by``.
    """
    row = run(
        connection,
        f"WITH RECURSIVE {BRANCHES} {SEEN}",
        host=host,
        beyond_s=lease.total_seconds(),
        place=place,
        place_length=len(place),
        fingerprint=fingerprint,
        most_branches=MANY_QUEUES,
    ).one()
    facts = dict(row._mapping)
    for each in fields(Overview):
        # SQLite has no booleans.
        if each.type == "bool":
            facts[each.name] = bool(facts[each.name])
    return Overview(**facts)


def begin_tick(connection: Connection, row: dict[str, Any]) -> int:
    """Write the row of a tick that has work, and return the row's id. ``end_tick`` completes the row."""
    # The tick may import its handlers only after its first write. So if the row exists, update the columns that the
    # import changes.
    return _put_tick(connection, row, {"job_types": row.get("job_types"), "did": row.get("did")})


class DeathSigns(NamedTuple):
    """The signs that a tick died while it was reading a job's row.

    ``deaths`` is the number of recent ticks that never recorded their end, if no later tick of their host has
    ended. If ``doubtful`` is True, jobs are waiting whose rows may have killed a tick.
    """

    deaths: int
    doubtful: bool


NO_SIGNS: Final = DeathSigns(0, False)
# Read at most this many of the newest ticks.
_NEWEST: Final = 200
_FORGOTTEN_S: Final = 600.0
# A tick that has not recorded its end counts as dead if its budget was used up at least this long ago.
_DEAD_AFTER: Final = timedelta(seconds=3)


def signs_of_death(connection: Connection, budget: timedelta) -> DeathSigns:
    """Return how many recent ticks seem to have died, and whether jobs are waiting that may have killed one of them."""
    dead_s = (budget + _DEAD_AFTER).total_seconds()
    row = run(
        connection,
        f"""
        WITH newest AS (
          SELECT t.id, t.host, t.started_at, t.finished_at FROM {TICKS} t ORDER BY t.id DESC LIMIT :newest)
        SELECT (
            SELECT count(*) FROM newest d WHERE d.finished_at IS NULL
              AND d.started_at < {after_now(":dead_s")} AND d.started_at > {after_now(":forgotten_s")}
              AND NOT EXISTS (SELECT 1 FROM newest l WHERE l.host = d.host AND l.id > d.id
                              AND l.finished_at IS NOT NULL)) AS deaths,
          EXISTS (SELECT 1 FROM {JOBS} j WHERE j.error_type = '{NOT_READ}' AND j.{WAITING}) AS doubtful""",
        newest=_NEWEST,
        dead_s=-dead_s,
        forgotten_s=-dead_s - _FORGOTTEN_S,
    ).one()
    return DeathSigns(row.deaths, bool(row.doubtful))


def overran_lately(connection: Connection) -> frozenset[str]:
    """Return the types of jobs that a tick in the last 24 hours expected to end in time but had to interrupt."""
    rows = run(
        connection, f"SELECT t.did FROM {TICKS} t WHERE t.started_at > {after_now('-86400')} AND {_SOME_OVERRAN}"
    ).scalars()
    return frozenset(str(name) for did in rows if isinstance(did, dict) for name in did.get("overran", ()))


_SOME_OVERRAN: Final = either(postgresql="t.did ? 'overran'", sqlite="instr(t.did, '\"overran\":[') > 0")
_AT_THE_END: Final = ("finished_at", "did", "ended", "fingerprint", "job_types", "not_started")


def end_tick(connection: Connection, row: dict[str, Any]) -> None:
    """Write what a tick did and why it ended. For an idle tick, this is the only write."""
    _put_tick(connection, row, {name: row[name] for name in _AT_THE_END if name in row})


def _put_tick(connection: Connection, row: dict[str, Any], changes: dict[str, Any]) -> int:
    new = inserted_into(connection, ticks).values(row)
    put = new.on_conflict_do_update(index_elements=[ticks.c.tick], set_=changes).returning(ticks.c.id)
    id_: int = connection.execute(put).scalar_one()
    return id_


def any_schedule(connection: Connection) -> bool:
    return run(connection, f"SELECT 1 FROM {SCHEDULES} LIMIT 1").first() is not None


def any_cap(connection: Connection) -> bool:
    return run(connection, f"SELECT 1 FROM {QUEUES} WHERE max_waiting IS NOT NULL LIMIT 1").first() is not None


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
) -> int:
    """Append an entry to the audit trail, and return its id.

    If *actor* is None, the actor is the database user of the connection.
    """
    values: dict[str, Any] = {"action": action, "subject": subject, "host": host, "why": why, "detail": detail}
    if actor is not None:
        values["actor"] = actor
    if at is not None:
        values["at"] = at
    # Any action of a person may begin or end a finding.
    look_soon(connection)
    id_: int = connection.execute(insert(audit).values(values).returning(audit.c.id)).scalar_one()
    return id_


@dataclass(frozen=True)
class AuditAct:
    action: str
    subject: str
    actor: str
    detail: dict[str, Any] | None = None


_AUDIT_ROWS: Final = group("rows", {"n": "int", "action": "text", "subject": "text", "actor": "text", "detail": "text"})


def record_all(connection: Connection, acts: Sequence[AuditAct], *, host: str | None, at: datetime) -> None:
    """Append entries to the audit trail, in this order."""
    rows = [
        {"n": n, "action": act.action, "subject": act.subject, "actor": act.actor}
        | ({} if act.detail is None else {"detail": json_text(act.detail)})
        for n, act in enumerate(acts)
    ]
    if rows:
        run(
            connection,
            f"""INSERT INTO {AUDIT} (at, actor, host, action, subject, detail)
               SELECT CAST(:at AS {INSTANT_TYPE}), r.actor, :host, r.action, r.subject, CAST(r.detail AS {JSON_TYPE})
               FROM {_AUDIT_ROWS} r ORDER BY r.n""",
            rows=rows,
            host=host,
            at=at,
        )


# --- which file is in force -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BegunSync:
    """A sync that has begun but not ended: it is running, or was killed."""

    id: int
    subject: str  # the fingerprint of the file
    host: str | None
    at: datetime
    detail: dict[str, Any] | None


def begin_sync(connection: Connection, fingerprint: str, *, actor: str, host: str, at: datetime, removals: bool) -> int:
    """Record that a sync has begun to apply a file, and return the id of the entry.

    *removals* says whether the sync may remove schedules.
    """
    detail = {"removals": removals}
    return record(connection, action="sync_begun", subject=fingerprint, actor=actor, host=host, at=at, detail=detail)


def unfinished_sync(connection: Connection) -> BegunSync | None:
    """Return the newest sync if it has not ended, or else None."""
    row = run(
        connection,
        f"SELECT a.id, a.subject, a.host, a.at, a.detail FROM {AUDIT} a WHERE {UNFINISHED_SYNC} "
        "ORDER BY a.id DESC LIMIT 1",
    ).first()
    return None if row is None else BegunSync(**row._mapping)


def last_sync(connection: Connection) -> int:
    """Return the id of the newest "sync" or "sync_begun" entry, or 0 if no such entry exists."""
    statement = f"SELECT max(a.id) FROM {AUDIT} a WHERE a.action IN ('sync', 'sync_begun')"
    found: int = run(connection, statement).scalar() or 0
    return found


def file_in_force(connection: Connection) -> str | None:
    """Return the fingerprint of the file that was applied last, or None if no file has been applied yet."""
    # "+ 0" makes the planner use the index on action, instead of reading back through every later row.
    statement = f"SELECT a.subject FROM {AUDIT} a WHERE a.action = 'sync' ORDER BY a.id + 0 DESC LIMIT 1"
    found: str | None = run(connection, statement).scalar()
    return found


def carried_since(connection: Connection, fingerprint: str, since: datetime) -> bool:
    """Return whether any tick that began after *since* used the file with this *fingerprint*."""
    statement = f"SELECT 1 FROM {TICKS} t WHERE t.started_at > :since AND t.fingerprint = :fingerprint LIMIT 1"
    return run(connection, statement, since=since, fingerprint=fingerprint).first() is not None


def last_of_host(connection: Connection, host: str) -> Row[Any] | None:
    """Return ``host`` and ``started_at`` of this host's last tick, or None if it has never ticked."""
    statement = f"SELECT t.host, t.started_at FROM {TICKS} t WHERE t.host = :host ORDER BY t.id DESC LIMIT 1"
    return run(connection, statement, host=host).first()


def last_with_config(connection: Connection, host: str, config: str, since: datetime) -> Row[Any] | None:
    """Return ``fingerprint`` of the last tick of this host that began after *since* with the file at *config*."""
    # "+ 0" makes the planner use the index on started_at. With the index on host, the query would read back through all
    # ticks of the host.
    statement = f"""SELECT t.fingerprint FROM {TICKS} t WHERE t.started_at > :since AND t.host = :host
                     AND t.config = :config ORDER BY t.id + 0 DESC LIMIT 1"""
    return run(connection, statement, since=since, host=host, config=config).first()


# Read at most this many hosts, because with containers every tick may have its own host name.
HOSTS_AT_MOST: Final = 200

# Do not write "l.host = h.name". With that condition, PostgreSQL would read back through all later ticks for a host
# that has stopped ticking.
_LAST_OF_HOST: Final = f"(SELECT l.id FROM {TICKS} l WHERE l.host <= h.name ORDER BY l.host DESC, l.id DESC LIMIT 1)"


def last_ticks(connection: Connection) -> list[Row[Any]]:
    """Return the last tick of each host, newest first.

    The query takes one index step per host, however many ticks a host has. If more than HOSTS_AT_MOST hosts exist, only
    the first hosts by name are read. The newest tick is always included.
    """
    found = run(
        connection,
        f"""
        WITH RECURSIVE host(name, number) AS (
          SELECT min(t.host), 1 FROM {TICKS} t
          UNION ALL
          SELECT (SELECT min(t.host) FROM {TICKS} t WHERE t.host > h.name), h.number + 1 FROM host h
          WHERE h.name IS NOT NULL AND h.number < :hosts)
        SELECT t.* FROM host h JOIN {TICKS} t ON t.id = {_LAST_OF_HOST}""",
        hosts=HOSTS_AT_MOST,
    ).all()
    newest = run(connection, f"SELECT t.* FROM {TICKS} t WHERE t.id = (SELECT max(id) FROM {TICKS})").all()
    ticks = {row.id: row for row in (*newest, *found)}
    return sorted(ticks.values(), key=lambda row: (row.started_at, row.id), reverse=True)
