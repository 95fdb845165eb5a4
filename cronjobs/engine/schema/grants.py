"""Print the minimum rights on PostgreSQL that each role needs to migrate, run, enqueue or read.

``statements`` returns SQL for the database's owner to run. This module opens no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from cronjobs.engine.database.tables import VERSION_TABLE, metadata
from cronjobs.engine.schema.drift import APP_FUNCTIONS, FUNCTIONS, VIEWS, WORKER_FUNCTIONS


class Role(StrEnum):
    """The roles that use the tables. ``migrate`` owns them. ``run`` is for ticks and operators, ``enqueue`` for apps,
    ``read`` for people, and ``token`` for a cluster's workers.
    """

    MIGRATE = "migrate"
    RUN = "run"
    ENQUEUE = "enqueue"
    READ = "read"
    TOKEN = "token"


DEFAULT_NAMES: Final[Mapping[Role, str]] = {role: f"cronjobs_{role}" for role in Role}

RELATIONS: Final = (*sorted(metadata.tables), VERSION_TABLE, *VIEWS)

# This sequence belongs to the owner of the table cronjobs_queues.
HELD: Final = "cronjobs_queues_held"

_EVERYTHING: Final = "SELECT, INSERT, UPDATE, DELETE"

RUN: Final[Mapping[str, str]] = {
    "cronjobs_jobs": _EVERYTHING,
    "cronjobs_job_runs": _EVERYTHING,
    "cronjobs_schedules": "SELECT, INSERT, UPDATE",
    # The UPDATE right on one column is enough to lock a row, so one column is enough here.
    "cronjobs_occurrences": "SELECT, INSERT, UPDATE (reason), DELETE",
    "cronjobs_ticks": _EVERYTHING,
    "cronjobs_job_type_lists": _EVERYTHING,
    "cronjobs_crashing_types": _EVERYTHING,
    "cronjobs_effects": _EVERYTHING,
    "cronjobs_queues": _EVERYTHING,
    HELD: "SELECT",
    "cronjobs_pauses": _EVERYTHING,
    # Without the rights UPDATE and DELETE, a role cannot change the audit trail.
    "cronjobs_audit": "SELECT, INSERT",
    "cronjobs_counts": _EVERYTHING,
    "cronjobs_new_counts": _EVERYTHING,
    "cronjobs_acks": _EVERYTHING,
    "cronjobs_findings": _EVERYTHING,
    "cronjobs_alerts": _EVERYTHING,
    "cronjobs_quarters": _EVERYTHING,
    "cronjobs_tokens": _EVERYTHING,
    "cronjobs_meta": "SELECT, UPDATE (project, environment, pruned_at, prune_from, look_at)",
    VERSION_TABLE: "SELECT",
}

# The columns of a job that an enqueuer may set. Only runners may set a job's status, tries and lease. An enqueuer must
# not set ``schedule``: while a row with a schedule is unfinished, ``overlap`` skips or merges the next occurrences of
# that schedule.
_GIVEN: Final = (
    "job_type, payload, meta, queue, priority, run_at, max_attempts, timeout_s, idempotency_key, concurrency_key, "
    "enqueued_by, created_at"
)
# The columns that an enqueue with on_conflict="replace" writes.
_REPLACED: Final = (
    "job_type, payload, meta, queue, priority, run_at, max_attempts, timeout_s, concurrency_key, enqueued_by"
)
ENQUEUE: Final[Mapping[str, str]] = {
    # The columns that an enqueuer needs to look up a key, to return a job's status, and to count a full queue.
    "cronjobs_jobs": f"SELECT (id, status, attempts, job_type, idempotency_key, queue), INSERT ({_GIVEN})",
    # An enqueuer gets no UPDATE right, because that right would also allow the enqueuer to lock the rows. Our functions
    # lock the rows and count instead.
    "cronjobs_queues": "SELECT",
    # "cronjobs enqueue" reads these columns to report that a job will have to wait.
    "cronjobs_pauses": "SELECT (scope, name, until)",
    "cronjobs_meta": "SELECT",
}
REPLACE: Final = f"UPDATE ({_REPLACED})"

CALLS: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.RUN: FUNCTIONS,
    Role.ENQUEUE: APP_FUNCTIONS,
    Role.TOKEN: WORKER_FUNCTIONS,
}

READ: Final[Mapping[str, str]] = dict.fromkeys((*RELATIONS, HELD), "SELECT")


def statements(schema: str, names: Mapping[Role, str], *, replace: bool = False, find: bool = False) -> str:
    """Return the SQL that grants the rights, as one transaction. The SQL can safely be run again.

    The SQL also revokes the rights on our tables that a role does not need. *names* maps each role that gets rights to
    its name in the database. With *replace*, the enqueue role may also replace a job that has not started. With *find*,
    the enqueue role may also read jobs, including payloads and results.
    """
    schema = quoted(schema)
    lines = [
        (
            "-- The least rights that cronjobs' roles need. Run this again after an upgrade: new tables "
            "have no rights yet."
        ),
        "BEGIN;",
    ]
    for role, name in names.items():
        lines += ["", f"-- {role}: {_FOR[role]}", *_make_role(name)]
        if role is Role.MIGRATE:
            lines += _own(schema, name)
        else:
            lines += _grant(schema, name, _rights(role, replace=replace, find=find))
            lines += [f"GRANT EXECUTE ON FUNCTION {schema}.{each} TO {quoted(name)};" for each in CALLS.get(role, ())]
    return "\n".join([*lines, "", "COMMIT;"])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_FOR: Final[Mapping[Role, str]] = {
    Role.MIGRATE: 'owns the tables, for "cronjobs db upgrade" and "cronjobs db copy"',
    Role.RUN: 'for "cronjobs run-due" and the commands of operators',
    Role.ENQUEUE: "for apps: enqueue(), cancel() and reschedule(); it can see keys and statuses, but no payloads",
    Role.READ: "for people and dashboards; it can also see payloads",
    Role.TOKEN: "for a cluster's workers: it can call two functions, but see no tables",
}


def _rights(role: Role, *, replace: bool, find: bool) -> Mapping[str, str]:
    if role is Role.ENQUEUE:
        more = f", {REPLACE}" * replace + ", SELECT" * find
        return {**ENQUEUE, "cronjobs_jobs": ENQUEUE["cronjobs_jobs"] + more}
    rights: Mapping[Role, Mapping[str, str]] = {Role.RUN: {**RUN, **dict.fromkeys(VIEWS, "SELECT")}, Role.READ: READ}
    return rights.get(role, {})


def _make_role(name: str) -> Iterator[str]:
    # Roles belong to the whole server, so a role of this name may already exist. CREATE ROLE has no IF NOT EXISTS.
    there = f"SELECT FROM pg_roles WHERE rolname = {literal(name)}"
    yield f"DO $cronjobs$ BEGIN IF NOT EXISTS ({there}) THEN CREATE ROLE {quoted(name)}; END IF; END $cronjobs$;"


def _own(schema: str, name: str) -> Iterator[str]:
    yield f"CREATE SCHEMA IF NOT EXISTS {schema};"
    yield f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {quoted(name)};"
    for relation in RELATIONS:
        # ALTER TABLE works for views, too.
        yield f"ALTER TABLE IF EXISTS {schema}.{relation} OWNER TO {quoted(name)};"
    for function in FUNCTIONS:
        yield (
            f"DO $cronjobs$ BEGIN IF to_regproc({literal(f'{schema}.{function}')}) IS NOT NULL THEN "
            f"ALTER FUNCTION {schema}.{function} OWNER TO {quoted(name)}; END IF; END $cronjobs$;"
        )


def _grant(schema: str, name: str, rights: Mapping[str, str]) -> Iterator[str]:
    role = quoted(name)
    ours = ", ".join(f"{schema}.{relation}" for relation in (*RELATIONS, HELD))
    yield f"REVOKE ALL ON {ours} FROM {role};"
    yield f"GRANT USAGE ON SCHEMA {schema} TO {role};"
    for relation, privileges in rights.items():
        yield f"GRANT {privileges} ON {schema}.{relation} TO {role};"
