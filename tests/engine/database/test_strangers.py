"""Random bytes and sizes in every column that an app's role may write, beside healthy jobs, tick after tick.

The judge is always the same: healthy jobs succeed exactly once, ticks end in time, memory stays bounded, and every
command that looks ends in time, exits cleanly and prints no control character. On PostgreSQL the rows come from the
role of an app, by INSERT, cronjobs_enqueue and the UPDATE that replaces a job; every other case is without the CHECK of
numbers: rows may be older than it.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import cases
from support.databases import in_psql, opened
from support.postgres import ENQUEUE, PostgresServer, as_role
from support.project import Project

from cronjobs import enqueue, job
from cronjobs.clock import SYSTEM
from cronjobs.engine.database import tables
from cronjobs.engine.database.column_types import Instant, Json
from cronjobs.engine.jobs import registry
from cronjobs.engine.schema import grants
from cronjobs.errors import DatabaseError
from cronjobs.testing import tick

BATCH = 30  # rows of a case
HEALTHY = 3
TICK_S = 60.0
READER_S = 40.0  # a command that looks at these few rows: a fraction of a second
MEMORY = 300 * 1024  # KiB that all cases together may add
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Who may write the file writes everything; on PostgreSQL an app's role may enqueue.
SQLITE_TABLES = ("jobs", "jobs", "jobs", "job_runs", "schedules", "pauses", "queues", "effects", "ticks", "audit")
NEVER = ("id", "scope", "job_id", "tick")  # columns by which a row is found
LISTS = [
    "jobs list --json",
    "jobs list --status dead",
    "status --json",
    "history --json",
    "schedules list",
    "explain 5",
]
LISTS += [
    "jobs show 7",
    "jobs show 9 --json",
    "effects list",
    "next",
    "status",
    "jobs list",
    "jobs list --group-by error",
]
LISTS += ["metrics", "books", "audit", "check --live", "report --out night.html"]

ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    before = dict(registry._registered)
    ran.clear()

    @job("t.keep")
    def keep(ctx: Any, **payload: Any) -> None:
        if "healthy" in payload:
            ran[payload["healthy"]] += 1

    yield
    registry._registered.clear()
    registry._registered.update(before)


class Strangers:
    """Makes values that nobody meant."""

    def __init__(self, random: random.Random) -> None:
        self.random = random

    def bytes_of(self, encoding: str | None) -> bytes:
        """Any bytes where *encoding* is None, else those of a text in it."""
        size = self.random.choice([0, 1, 7, 40, 999, 1001, 2001, 2700, 5000, 70_000])
        if encoding is None:
            return self.random.randbytes(size).replace(b"\0", b"?")
        top = {"latin-1": 0xFF, "utf-8": 0x1F9FF}[encoding]
        text = "".join(chr(self.random.randint(1, top)) for _ in range(size))
        return text.encode(encoding, "replace").replace(b"\0", b"?")

    def json_of(self, encoding: str | None) -> bytes:
        odd = [
            b"",
            b"null",
            b"[]",
            b"5",
            b'"x"',
            b"{",
            b'{"a": 1e999}',
            b"[" * 5000,
            b'{"a":' * 400 + b"1" + b"}" * 400,
        ]
        odd += [
            b'{"healthy": 5}',
            b'{"cronjobs.overlap": "allow"}',
            b'{"a": "' + b"x" * 300_000 + b'"}',
            b'{"a": 1e131000}',
            b'{"a": [' + b"1e131071, " * 600 + b"1]}",
            b'{"a": [' + b"-1e-16383, " * 600 + b"1]}",
            b'{"a": [[{"b": 0.' + b"0" * 16_000 + b"}]]}",
            b'{"\\u001b[31m": "\\u202e\\u0007"}',
        ]
        odd += [
            json.dumps({"t": self.bytes_of("utf-8").decode()}).encode(),
            b'{"a": "' + self.bytes_of(encoding)[:40] + b'"}',
        ]
        return self.random.choice(odd)

    def number(self) -> Any:
        return self.random.choice([0, 1, -1, 5, 9, 10, 2**31, 2**62, -(2**62), 1e300, float("inf"), "x", None])

    def instant(self) -> Any:
        now = SYSTEM.now().timestamp() * 1e6
        return self.random.choice(
            [0, 1, int(now), int(now - 1e12), int(now + 1e12), 253_402_300_799_999_999, "soon", None]
        )

    def moment(self) -> str:
        """An instant of PostgreSQL's, whose years reach further than Python's."""
        return self.random.choice(
            [
                *("infinity", "-infinity", "294276-12-31", "4713-01-01 BC", "9999-12-31 23:59:59.999999+00"),
                *("10000-01-01", "0001-01-01", "0001-01-01 00:00:00+14", "1970-01-01", "yesterday", "tomorrow", "now"),
            ]
        )


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    def make(url: str) -> Project:
        made = Project(tmp_path, url)
        made.write()
        return made

    return make


def judge(url: str, project: Project, random: random.Random) -> None:
    """Enqueue healthy jobs, tick, look with every command, and see what came of them."""
    names = [f"healthy-{n}" for n in range(HEALTHY)]
    ran.clear()
    with opened(url) as database, database.write() as connection:
        for name in names:
            enqueue(connection, "t.keep", {"healthy": name})
    began = SYSTEM.monotonic()
    for _ in range(20):  # a tick that is full of strangers' work leaves the rest to the next one
        with suppress(DatabaseError):  # errors that a tick reports
            tick(url)
        if all(ran[name] for name in names):
            break
    assert SYSTEM.monotonic() - began < TICK_S
    assert [ran[name] for name in names] == [1] * HEALTHY, [ran[name] for name in names]
    one, other = random.sample(range(1, BATCH + 1), 2)
    for words in (*LISTS, f"explain {one} --json", f"explain {other}", f"jobs show {one}", f"jobs show {other} --json"):
        began = SYSTEM.monotonic()
        answer = project.call(*words.split())
        assert SYSTEM.monotonic() - began < READER_S, words
        # On SQLite who may write the file writes columns that only commands write; the value is named.
        assert answer.code in (0, 1, 2, 3) or "correct it with SQL" in answer.err, (
            f"{words}: {answer.code} {answer.err[-500:]}"
        )
        page = (project.folder / "night.html").read_text() if "night.html" in words else ""
        raw = CONTROL.search(answer.out + answer.err + page)
        assert raw is None, f"{words}: {raw and raw.string[max(0, raw.start() - 60) : raw.end() + 20]!r}"


def peak() -> int:
    """The most memory of this process so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_strangers_on_sqlite(sqlite_migrated: str, project: Callable[[str], Project]) -> None:
    url, clean = f"sqlite:///{sqlite_migrated}", Path(sqlite_migrated).read_bytes()
    before = peak()
    taken: Counter[str] = Counter()

    def case(random: random.Random) -> None:
        for log in ("-wal", "-shm"):
            Path(sqlite_migrated + log).unlink(missing_ok=True)
        Path(sqlite_migrated).write_bytes(clean)
        strangers = Strangers(random)
        connection = sqlite3.connect(sqlite_migrated, isolation_level=None)
        for _ in range(BATCH):
            table = tables.metadata.tables[f"cronjobs_{random.choice(SQLITE_TABLES)}"]
            taken[table.name] += put_sqlite(connection, table, strangers)
        connection.close()
        judge(url, project(url), random)
        assert peak() - before < MEMORY

    cases.judge(case, 4)
    assert len(taken) > 5, taken


def put_sqlite(connection: sqlite3.Connection, table: Any, strangers: Strangers) -> int:
    given: dict[str, Any] = {"job_type": b"t.keep"} if table.name == "cronjobs_jobs" else {}
    for column in strangers.random.sample(list(table.c), strangers.random.randint(1, 4)):
        if column.name not in NEVER and column.name not in ("attempts", "locked_by", "locked_until"):
            given[column.name] = sqlite_value(column, strangers)
    for column in table.c:
        if not column.nullable and column.server_default is None and column.name not in given:
            given[column.name] = sqlite_value(column, strangers)
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, bytes) else "?" for value in given.values())
    with suppress(sqlite3.Error):  # what the tables refuse harms nobody
        connection.execute(f"INSERT INTO {table.name} ({', '.join(given)}) VALUES ({marks})", tuple(given.values()))
        return 1
    return 0


def sqlite_value(column: Any, strangers: Strangers) -> Any:
    if isinstance(column.type, Json):
        return strangers.json_of(None)
    if isinstance(column.type, Instant):
        return strangers.instant()
    if column.type.python_type is str:
        return strangers.bytes_of(strangers.random.choice([None, "utf-8"]))
    return strangers.number()


@pytest.mark.slow
@pytest.mark.usefixtures("_postgres_template")  # making this template makes the roles
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_strangers_on_postgresql(
    postgres_server: PostgresServer, encoding: str, project: Callable[[str], Project]
) -> None:
    name = f"strangers_{encoding.lower()}"
    create = f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    postgres_server.execute(create)
    url = postgres_server.url(name)
    tick(url)
    in_psql(url, grants.statements("public", {grants.Role.ENQUEUE: ENQUEUE}, replace=True))
    before = peak()
    tried, taken = Counter[str](), Counter[str]()

    def case(random: random.Random) -> None:
        strangers = Strangers(random)
        in_psql(url, "TRUNCATE cronjobs_jobs, cronjobs_job_runs RESTART IDENTITY")
        if random.random() < 0.5:
            in_psql(url, "ALTER TABLE cronjobs_jobs DROP CONSTRAINT IF EXISTS cronjobs_jobs_numbers_ck")
        with psycopg.connect(as_role(url, ENQUEUE), autocommit=True) as plain:
            plain.execute(f"SET client_encoding = '{encoding}'".encode())
            for _ in range(BATCH):
                way = random.choice([*WAYS])
                tried[way] += 1
                taken[way] += put_postgresql(plain, way, given(encoding, strangers))
        judge(url, project(url), random)
        assert peak() - before < MEMORY

    try:
        cases.judge(case, 4)
    finally:
        postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert all(taken[way] > tried[way] / 20 for way in WAYS), (tried, taken)


TEXTS = ("job_type", "queue", "idempotency_key", "concurrency_key", "enqueued_by")
NUMBERS = ("priority", "timeout_s", "max_attempts")
INSTANTS = ("run_at", "created_at")
COLUMNS = (*TEXTS, "payload", "payload", "meta", *NUMBERS, *INSTANTS)
# What an app's role may do, each from columns and their values to a statement.
Values = dict[str, tuple[str, Any]]
WAYS: dict[str, Callable[[Values], str]] = {
    "insert": lambda given: f"INSERT INTO cronjobs_jobs ({', '.join(given)}) VALUES ({values_of(given)})",
    "function": lambda given: (
        f"SELECT cronjobs_enqueue({', '.join(f'{name} => {how}' for name, (how, _) in given.items())})"
    ),
    "replace": lambda given: (
        f"UPDATE cronjobs_jobs SET {', '.join(f'{name} = {how}' for name, (how, _) in given.items())} "
        "WHERE id = (SELECT max(id) FROM cronjobs_jobs)"
    ),
}
NOT_OF = {"insert": (), "function": ("created_at",), "replace": ("created_at", "idempotency_key")}


def values_of(given: Values) -> str:
    return ", ".join(how for how, _ in given.values())


def given(encoding: str, strangers: Strangers) -> Values:
    codec = {"UTF8": "utf-8", "LATIN1": "latin-1"}[encoding]
    values: Values = {"job_type": ("%s", "t.keep")}
    for column in strangers.random.sample(COLUMNS, 2):
        if column in TEXTS:
            values[column] = (f"convert_from(%s, '{encoding}')", strangers.bytes_of(codec))
        elif column in ("payload", "meta"):
            values[column] = (f"CAST(convert_from(%s, '{encoding}') AS jsonb)", strangers.json_of(codec))
        elif column in INSTANTS:
            values[column] = ("CAST(%s AS timestamptz)", strangers.moment())
        else:
            values[column] = ("CAST(%s AS double precision)", strangers.number())
    return values


def put_postgresql(plain: psycopg.Connection[Any], way: str, values: Values) -> int:
    values = {name: value for name, value in values.items() if name not in NOT_OF[way]}
    with suppress(psycopg.Error, UnicodeError):
        return plain.execute(WAYS[way](values).encode(), [value for _, value in values.values()]).rowcount
    return 0
