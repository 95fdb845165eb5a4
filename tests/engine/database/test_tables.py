"""What the tables themselves enforce, whoever writes. Every statement here is plain SQL, as from any language."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import CheckConstraint, Row, select, text
from support.postgres import OWNER

from cronjobs.engine.database import indexes  # noqa: F401  the CHECKs come with them
from cronjobs.engine.database.column_types import (
    SQLITE_FIRST_INSTANT,
    SQLITE_LAST_INSTANT,
    Instant,
    from_microseconds,
    to_microseconds,
)
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import LONGEST_KEY, LONGEST_NAME, jobs, metadata
from cronjobs.engine.rules.payload import BadJson, read_json
from cronjobs.errors import DatabaseError

pytestmark = pytest.mark.connects_as(OWNER)

NOON = datetime(2026, 1, 15, 12, 0, 0, 123456, tzinfo=UTC)


def execute(database: Database, statement: str) -> list[Row[Any]]:
    """Run plain SQL in which @ stands for an instant."""
    instant = str(to_microseconds(NOON)) if database.is_sqlite else f"timestamptz '{NOON.isoformat()}'"
    with database.write() as connection:
        result = connection.execute(text(statement.replace("@", instant)))
        return list(result) if result.returns_rows else []


JOB = "INSERT INTO cronjobs_jobs (job_type, {}) VALUES ('t', {})"
TOKEN = "INSERT INTO cronjobs_tokens (job_id, attempt, token, {}) VALUES (1, 1, 't', {})"
RUN = "INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner) VALUES "
OCCURRENCE = "INSERT INTO cronjobs_occurrences (schedule_id, first_for, last_for, count, outcome) VALUES "
SCHEDULE = "INSERT INTO cronjobs_schedules (name, definition, fingerprint, status, seen_until) VALUES "

REFUSED = [
    ("cronjobs_tokens_taken_ck", TOKEN.format("holder", "'w'")),
    ("cronjobs_tokens_taken_ck", TOKEN.format("permitted_until, taken_at", "@, @")),
    ("cronjobs_jobs_status_ck", JOB.format("status", "'bogus'")),
    ("cronjobs_jobs_leased_when_running_ck", JOB.format("status", "'running'")),
    ("cronjobs_jobs_leased_when_running_ck", JOB.format("status, locked_by", "'running', 'me'")),
    ("cronjobs_jobs_leased_when_running_ck", JOB.format("status, locked_until", "'running', @")),
    ("cronjobs_jobs_leased_when_running_ck", JOB.format("locked_by, locked_until", "'me', @")),
    ("cronjobs_jobs_leased_when_running_ck", JOB.format("locked_by", "'me'")),
    ("cronjobs_jobs_finished_when_final_ck", JOB.format("status", "'succeeded'")),
    ("cronjobs_jobs_finished_when_final_ck", JOB.format("status", "'dead'")),
    ("cronjobs_jobs_finished_when_final_ck", JOB.format("status", "'cancelled'")),
    ("cronjobs_jobs_finished_when_final_ck", JOB.format("finished_at", "@")),
    ("cronjobs_jobs_finished_when_final_ck", JOB.format("status, finished_at", "'failed', @")),
    ("cronjobs_jobs_priority_ck", JOB.format("priority", "10")),
    ("cronjobs_jobs_priority_ck", JOB.format("priority", "-1")),
    *(
        ("cronjobs_jobs_counters_ck", JOB.format(counter, "-1"))
        for counter in ("attempts", "failures", "losses", "interruptions")
    ),
    ("cronjobs_jobs_max_attempts_ck", JOB.format("max_attempts", "0")),
    ("cronjobs_jobs_timeout_s_ck", JOB.format("timeout_s", "0")),
    *(
        ("cronjobs_jobs_lengths_ck", JOB.format(column, f"'{'é' * (longest // 2)}x'"))
        for column, longest in {
            "queue": LONGEST_NAME,
            "schedule": LONGEST_NAME,
            "enqueued_by": LONGEST_NAME,
            "idempotency_key": LONGEST_KEY,
            "concurrency_key": LONGEST_KEY,
        }.items()
    ),
    ("cronjobs_jobs_exec_began_ck", "INSERT INTO cronjobs_jobs (job_type) VALUES ('exec:backup')"),
    ("cronjobs_jobs_lengths_ck", f"INSERT INTO cronjobs_jobs (job_type) VALUES ('{'t' * (LONGEST_NAME + 1)}')"),
    ("cronjobs_schedules_name_length_ck", SCHEDULE + f"('{'n' * (LONGEST_NAME + 1)}', '{{}}', 'f', 'active', @)"),
    (
        "cronjobs_pauses_name_length_ck",
        f"INSERT INTO cronjobs_pauses (scope, name) VALUES ('queue', '{'q' * (LONGEST_NAME + 1)}')",
    ),
    ("cronjobs_job_runs_outcome_ck", RUN + "(1, 1, 'exploded', @, @, 'me')"),
    (
        "cronjobs_schedules_status_ck",
        SCHEDULE + "('n', '{}', 'f', 'paused', @)",
    ),
    ("cronjobs_occurrences_outcome_ck", OCCURRENCE + "(1, @, @, 1, 'forgotten')"),
    ("cronjobs_occurrences_range_ck", OCCURRENCE + "(1, @, @, 0, 'enqueued')"),
    ("cronjobs_effects_state_ck", "INSERT INTO cronjobs_effects (key, state) VALUES ('k', 'maybe')"),
    (
        "cronjobs_effects_recorded_when_recorded_ck",
        "INSERT INTO cronjobs_effects (key, state) VALUES ('k', 'recorded')",
    ),
    ("cronjobs_effects_recorded_when_recorded_ck", "INSERT INTO cronjobs_effects (key, recorded_at) VALUES ('k', @)"),
    (
        "cronjobs_acks_severity_ck",
        "INSERT INTO cronjobs_acks (finding, severity, rows, until) VALUES ('dead', 'mild', '[]', @)",
    ),
    (
        "cronjobs_findings_severity_ck",
        "INSERT INTO cronjobs_findings (finding, kind, severity, text, rows, began_at) "  # noqa: ISC004
        "VALUES ('x', 'x', 'x', '', '[]', @)",
    ),
    ("cronjobs_queues_on_full_ck", "INSERT INTO cronjobs_queues (name, on_full) VALUES ('q', 'explode')"),
    ("cronjobs_queues_max_waiting_ck", "INSERT INTO cronjobs_queues (name, max_waiting) VALUES ('q', -1)"),
    ("cronjobs_pauses_scope_ck", "INSERT INTO cronjobs_pauses (scope) VALUES ('job')"),
    (
        "cronjobs_meta_one_row_ck",
        "INSERT INTO cronjobs_meta (id, schema_revision, oldest_code) VALUES (2, '0001', '0001')",
    ),
]


def test_a_row_that_cannot_be_is_refused(database: Database) -> None:
    def refusal(statement: str) -> str:
        try:
            execute(database, statement)
        except DatabaseError as error:
            return str(error)
        return ""

    assert [
        (constraint, statement)
        for constraint, statement in REFUSED
        if not re.search(f'{constraint}"?\\b', refusal(statement))
    ] == []


def test_a_final_row_beyond_the_lengths_is_left_alone(database: Database) -> None:
    execute(database, JOB.format("status, finished_at, queue", f"'dead', @, '{'q' * (LONGEST_NAME + 1)}'"))
    execute(database, "UPDATE cronjobs_jobs SET last_error = 'x'")
    with pytest.raises(DatabaseError, match="cronjobs_jobs_lengths_ck"):
        execute(database, "UPDATE cronjobs_jobs SET status = 'queued', finished_at = NULL")


def test_every_check_has_a_row_here_that_it_refuses() -> None:
    tested = {constraint for constraint, _ in REFUSED}
    checks = {
        str(constraint.name)
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    own = ("_microseconds_ck", "_jobs_types_ck", "_jobs_instants_ck", "_jobs_numbers_ck")
    of_one_kind = {name for name in checks if name.endswith(own)}
    assert checks - of_one_kind == tested  # those have tests of their own


def test_an_occurrence_that_ends_before_it_begins_is_refused(database: Database) -> None:
    earlier = "@ - 1" if database.is_sqlite else "@ - interval '1 second'"
    with pytest.raises(DatabaseError, match="cronjobs_occurrences_range_ck"):
        execute(database, OCCURRENCE + f"(1, @, {earlier}, 1, 'enqueued')")


def test_an_insert_of_only_a_job_type_gets_every_default(database: Database) -> None:
    before = datetime.now(UTC)
    [(job_id,)] = execute(database, "INSERT INTO cronjobs_jobs (job_type) VALUES ('t.say') RETURNING id")
    after = datetime.now(UTC)
    with database.read() as connection:
        row = connection.execute(select(jobs)).one()
    values = dict(row._mapping)
    # SQLite's clock says milliseconds.
    for column in ("run_at", "created_at"):
        assert before - timedelta(milliseconds=1) <= values.pop(column) <= after
    assert values.pop("enqueued_by") == (None if database.is_sqlite else f"{OWNER}/cronjobs")
    assert {name: value for name, value in values.items() if value is not None} == {
        "id": job_id,
        "job_type": "t.say",
        "payload": {},
        "meta": {},
        "queue": "default",
        "priority": 5,
        "status": "queued",
        "attempts": 0,
        "failures": 0,
        "losses": 0,
        "interruptions": 0,
    }


def test_a_job_type_and_a_payload_may_say_anything(database: Database) -> None:
    execute(database, JOB.format("payload", "'[1]'").replace("'t'", "'os:system'"))
    with database.read() as connection:
        assert connection.execute(select(jobs.c.job_type, jobs.c.payload)).one() == ("os:system", [1])


@pytest.mark.parametrize("table", ["jobs", "schedules", "ticks", "audit"])
def test_the_id_of_a_deleted_row_never_comes_back(database: Database, table: str) -> None:
    insert = {
        "jobs": "(job_type) VALUES ('t')",
        "schedules": "(name, definition, fingerprint, seen_until) VALUES ('n', '{}', 'f', @)",
        "ticks": "(tick, host, pid, version, started_at) VALUES ('t', 'h', 1, '0', @)",
        "audit": "(action) VALUES ('retry')",
    }[table]
    ids = []
    for _ in range(3):
        ids += execute(database, f"INSERT INTO cronjobs_{table} {insert} RETURNING id")
        execute(database, f"DELETE FROM cronjobs_{table}")
    assert len(set(ids)) == 3


def test_deleting_a_job_deletes_its_history(database: Database) -> None:
    [(job_id,)] = execute(database, "INSERT INTO cronjobs_jobs (job_type) VALUES ('t') RETURNING id")
    execute(database, RUN + f"({job_id}, 1, 'succeeded', @, @, 'me')")
    execute(database, "DELETE FROM cronjobs_jobs")
    assert execute(database, "SELECT job_id FROM cronjobs_job_runs") == []


def test_history_of_a_job_that_is_not_there_is_refused(database: Database) -> None:
    with pytest.raises(DatabaseError, match=r"(?i)foreign key"):
        execute(database, RUN + "(12345, 1, 'succeeded', @, @, 'me')")


@pytest.mark.parametrize(
    "statement",
    [
        JOB.format("idempotency_key", "'k'"),
        OCCURRENCE + "(1, @, @, 1, 'enqueued')",
        "INSERT INTO cronjobs_schedules (name, definition, fingerprint, seen_until) VALUES ('n', '{}', 'f', @)",
        "INSERT INTO cronjobs_ticks (tick, host, pid, version, started_at) VALUES ('t', 'h', 1, '0', @)",
        "INSERT INTO cronjobs_effects (key) VALUES ('k')",
        "INSERT INTO cronjobs_queues (name) VALUES ('q')",
        "INSERT INTO cronjobs_pauses (scope) VALUES ('all')",
    ],
)
def test_a_second_row_of_the_same_key_is_refused(database: Database, statement: str) -> None:
    execute(database, statement)
    with pytest.raises(DatabaseError, match=r"(?i)unique"):
        execute(database, statement)


def test_an_attempt_has_one_history_row(database: Database) -> None:
    [(job_id,)] = execute(database, "INSERT INTO cronjobs_jobs (job_type) VALUES ('t') RETURNING id")
    execute(database, RUN + f"({job_id}, 1, 'failed', @, @, 'me')")
    execute(database, RUN + f"({job_id}, 2, 'succeeded', @, @, 'me')")
    with pytest.raises(DatabaseError, match=r"(?i)unique"):
        execute(database, RUN + f"({job_id}, 2, 'lost', @, @, 'me')")


# --- SQLite takes any type in any column, so CHECKs stand in for types ------------------------------------------------

ROWS = {
    "acks": "(finding, severity, rows, until) VALUES ('dead', 'critical', '[]', @)",
    "jobs": "(job_type) VALUES ('t')",
    "job_runs": "(job_id, attempt, outcome, started_at, finished_at, runner) VALUES (1, 1, 'failed', @, @, 'me')",
    "schedules": "(name, definition, fingerprint, seen_until) VALUES ('n', '{}', 'f', @)",
    "occurrences": "(schedule_id, first_for, last_for, outcome) VALUES (1, @, @, 'enqueued')",
    "ticks": "(tick, host, pid, version, started_at) VALUES ('t', 'h', 1, '0', @)",
    "job_type_lists": "(hash, names) VALUES ('h', '[]')",
    "crashing_types": "(job_type) VALUES ('t')",
    "effects": "(key) VALUES ('k')",
    "pauses": "(scope) VALUES ('all')",
    "audit": "(action) VALUES ('retry')",
}
INTERNAL_ROWS = {
    "findings": "(finding, kind, severity, text, rows, began_at) VALUES ('dead', 'dead', 'notice', '', '[]', @)",
    "alerts": "(finding_id, channel) VALUES (1, 'ops')",
    "tokens": "(job_id, attempt, token, holder, taken_at, permitted_until) VALUES (1, 1, 't', 'w', @, @)",
    "quarters": "(schedule_id, hour, quarters) VALUES (1, @, '')",
}
BAD_INSTANTS = {
    "text": "'2026-01-15 12:00:00'",
    "ISO text": "'2026-01-15T12:00:00Z'",
    "seconds": "1768478400",
    "milliseconds": "1768478400123",
    "nanoseconds": "1768478400123456789",
    "fractions": "1768478400123456.5",
    "a blob": "x'00'",
    "zero": "0",
}


@pytest.fixture
def sqlite_file(sqlite_migrated: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(sqlite_migrated, isolation_level=None)) as connection:
        instant = str(to_microseconds(NOON))
        for table, row in (ROWS | INTERNAL_ROWS).items():
            connection.execute(f"INSERT INTO cronjobs_{table} {row}".replace("@", instant))
        yield connection


@pytest.mark.parametrize("meant", BAD_INSTANTS)
def test_sqlite_takes_no_instant_but_microseconds(sqlite_file: sqlite3.Connection, meant: str) -> None:
    columns = [
        (table.name, column.name)
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, Instant)
    ]
    assert len(columns) > 25
    for table, column in columns:
        others = {
            "cronjobs_jobs.locked_until": ", status = 'running', locked_by = 'me'",
            "cronjobs_jobs.finished_at": ", status = 'dead'",
            "cronjobs_effects.recorded_at": ", state = 'recorded'",
        }
        change = f"UPDATE {table} SET {column} = {BAD_INSTANTS[meant]}{others.get(f'{table}.{column}', '')}"
        # For an occurrence, the database checks the order of the two instants first.
        with pytest.raises(sqlite3.IntegrityError, match=f"{table}_({column}_microseconds|range)_ck"):
            sqlite_file.execute(change)


@pytest.mark.parametrize("value", [SQLITE_FIRST_INSTANT, SQLITE_LAST_INSTANT])
def test_sqlite_takes_instants_from_1973_to_the_end_of_9999(sqlite_file: sqlite3.Connection, value: int) -> None:
    sqlite_file.execute("UPDATE cronjobs_jobs SET run_at = ?", [value])
    assert from_microseconds(value).year in (1973, 9999)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("priority", "'high'"),
        ("priority", "5.5"),
        ("attempts", "'many'"),
        ("max_attempts", "2.5"),
        ("timeout_s", "'30s'"),
        ("payload", "x'7b7d'"),
        ("job_type", "x'00'"),
        ("queue", "x'00'"),
        ("idempotency_key", "x'00'"),
    ],
)
def test_sqlite_takes_no_value_of_another_type(sqlite_file: sqlite3.Connection, column: str, value: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="cronjobs_jobs_types_ck"):
        sqlite_file.execute(f"UPDATE cronjobs_jobs SET {column} = {value}")


def test_sqlite_shows_times_that_people_can_read(sqlite_file: sqlite3.Connection) -> None:
    for table in ROWS:
        [row] = sqlite_file.execute(f"SELECT * FROM cronjobs_{table}_readable").fetchall()
        names = [name for name, *_ in sqlite_file.execute(f"SELECT * FROM cronjobs_{table}_readable").description]
        assert names == [column.name for column in metadata.tables[f"cronjobs_{table}"].columns]
        instants = [
            value
            for name, value in zip(names, row, strict=True)
            if isinstance(metadata.tables[f"cronjobs_{table}"].c[name].type, Instant) and value is not None
        ]
        assert instants
        assert all(datetime.fromisoformat(value).tzinfo is not None for value in instants)
    assert sqlite_file.execute("SELECT started_at FROM cronjobs_ticks_readable").fetchone() == (
        "2026-01-15T12:00:00.123456Z",
    )


# --- what Python makes of the columns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("instant", [NOON, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)])
def test_an_instant_comes_back_to_the_microsecond(database: Database, instant: datetime) -> None:
    with database.write() as connection:
        connection.execute(jobs.insert().values(job_type="t", run_at=instant))
        found = connection.execute(select(jobs.c.run_at)).scalar_one()
    assert found == instant
    assert found.tzinfo is UTC


def test_an_instant_without_a_zone_is_refused(database: Database) -> None:
    with database.write() as connection, pytest.raises(Exception, match="has no time zone"):
        connection.execute(jobs.insert().values(job_type="t", run_at=datetime(2026, 1, 1)))  # noqa: DTZ001


@pytest.mark.parametrize("value", [{"a": [1, None, "ü", 1.5]}, [1], "5", 5, "", True])
def test_json_comes_back_as_it_was(database: Database, value: object) -> None:
    with database.write() as connection:
        connection.execute(jobs.insert().values(job_type="t", payload=value, result=value))
        assert connection.execute(select(jobs.c.payload, jobs.c.result)).one() == (value, value)


def test_no_result_is_null(database: Database) -> None:
    with database.write() as connection:
        connection.execute(jobs.insert().values(job_type="t", result=None))
        assert connection.execute(text("SELECT result IS NULL FROM cronjobs_jobs")).scalar_one()


@pytest.mark.parametrize("written", ["{", "", "NaN", '{"a": Infinity}', "[" * 100_000, "{'a': 1}"])
def test_json_that_nobody_can_read_stops_nobody(written: str) -> None:
    assert isinstance(read_json(written), BadJson)


# --- ready views ----------------------------------------------------------------------------------------------------


def test_the_view_of_dead_jobs_shows_only_those(database: Database) -> None:
    execute(database, "INSERT INTO cronjobs_jobs (job_type) VALUES ('alive')")
    execute(database, JOB.format("status, finished_at, last_error", "'dead', @, 'no such invoice'"))
    rows = execute(database, "SELECT job_type, last_error, finished_at FROM cronjobs_dead_jobs")
    assert [(row.job_type, row.last_error) for row in rows] == [("t", "no such invoice")]
    shown = rows[0].finished_at
    assert (datetime.fromisoformat(shown) if isinstance(shown, str) else shown) == NOON


@pytest.mark.parametrize(
    ("started", "timeout_s", "leased_until", "why"),
    [
        (-10, "NULL", +60, None),
        (-10, "20", +60, None),
        (-10, "5", +60, "beyond its timeout"),
        (-10, "NULL", -1, "its lease ran out"),
        (-3700, "NULL", +60, "more than an hour"),
        (-3700, "7200", +60, "more than an hour"),
    ],
)
def test_the_view_of_long_running_jobs_says_why(
    database: Database, started: int, timeout_s: str, leased_until: int, why: str | None
) -> None:
    now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000" if database.is_sqlite else "now()"
    second = "1000000" if database.is_sqlite else "interval '1 second'"
    execute(
        database,
        JOB.format(
            "status, locked_by, started_at, timeout_s, locked_until",
            f"'running', 'me', {now} + ({started}) * {second}, {timeout_s}, {now} + ({leased_until}) * {second}",
        ),
    )
    rows = execute(database, "SELECT why, running_s FROM cronjobs_long_running_jobs")
    assert [row.why for row in rows] == ([] if why is None else [why])
    assert all(-started - 2 < row.running_s < -started + 60 for row in rows)


@pytest.mark.parametrize(
    "instant", ["infinity", "-infinity", "1969-12-31 00:00:00+00", "20000-01-01 00:00:00+00", "1000-01-01 BC"]
)
@pytest.mark.parametrize("column", ["run_at", "created_at", "scheduled_for"])
def test_postgresql_takes_no_instant_that_programs_cannot_hold(
    postgres_migrated: str, column: str, instant: str
) -> None:
    with closing(psycopg.connect(postgres_migrated)) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(f"INSERT INTO cronjobs_jobs (job_type, {column}) VALUES ('t', '{instant}')")
