"""Runs flows in processes that are killed, always from the same start, and reads what they leave behind."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.database.column_types import from_microseconds
from engine.crash.crash_flows import FLOWS
from engine.crash.crash_judge import Did, Snapshot
from engine.crash.crash_world import wait_for_strays

HERE = Path(__file__).parent
JSON_COLUMNS = ("payload", "meta", "result", "definition", "detail", "did")
LEFT_S = 20  # how long the server may take to notice that a client is gone


class Zygote:
    """The process that forks those of the flows."""

    def __init__(self, folder: Path) -> None:
        self._errors = (folder / "zygote").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.crash.crash_zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parents[2]}", "PYTHONHASHSEED": "0"},
        )
        self._folder = folder

    def run(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self._folder / "zygote").read_text()
        told: dict[str, Any] = json.loads(answer)
        return told

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()


# --- databases that go back to how they were --------------------------------------------------------------------------


class Store(Protocol):
    """A database that can be kept as a start, and put back to it."""

    url: str

    def empty(self) -> None:
        """Take everything out of it, tables too."""

    def keep(self) -> None:
        """Take the present content as the start, to which ``restore`` returns."""

    def restore(self) -> None: ...

    def look(self) -> Snapshot:
        """Read all rows, after all other connections are gone."""

    def schema(self) -> list[Any]:
        """Every object in it, in words."""

    def close(self) -> None: ...


class SqliteStore:
    """A file. What a killed process left beside it stays there for the next one: it is looked at in a copy."""

    def __init__(self, folder: Path, migrated: Path) -> None:
        self._file = folder / "cronjobs.db"
        self._start, self._copy = folder / "start", folder / "copy"
        self._copy.mkdir()
        self.url = f"sqlite:///{self._file}"
        shutil.copy(migrated, self._file)

    def _files(self, file: Path) -> list[Path]:
        return [file.with_name(file.name + end) for end in ("", "-wal", "-shm")]

    def empty(self) -> None:
        for file in self._files(self._file):
            file.unlink(missing_ok=True)

    def keep(self) -> None:
        if self._file.exists():
            with closing(sqlite3.connect(self._file)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copy(self._file, self._start)

    def restore(self) -> None:
        self.empty()
        if self._start.exists():
            shutil.copy(self._start, self._file)

    def _looking(self) -> sqlite3.Connection:
        copies = self._files(self._copy / self._file.name)
        for file, copy in zip(self._files(self._file), copies, strict=True):
            copy.unlink(missing_ok=True)
            if file.exists():
                shutil.copy(file, copy)
        connection = sqlite3.connect(copies[0])
        connection.row_factory = sqlite3.Row
        return connection

    def look(self) -> Snapshot:
        with closing(self._looking()) as connection:
            names = [
                row["name"]
                for row in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
                )
            ]
            return _snapshot({name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names})

    def schema(self) -> list[Any]:
        with closing(self._looking()) as connection:
            found = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
            return [tuple(row) for row in found]

    def close(self) -> None:
        pass


class PostgresStore:
    """One database whose rows are put back from copies in a schema beside them: 1 ms, where a new database takes 35."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        self._restore = ""

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def _tables(self) -> list[str]:
        found = self._execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        return [row["tablename"] for row in found]

    def empty(self) -> None:
        self._execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def keep(self) -> None:
        self._alone()
        tables = self._tables()
        if not tables:
            self._restore = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
            return
        self._execute("DROP SCHEMA IF EXISTS start CASCADE; CREATE SCHEMA start")
        # As a replica, PostgreSQL checks no foreign keys, so the tables can be restored in any order.
        parts = ["BEGIN", "SET LOCAL session_replication_role = replica"]
        for table in tables:
            self._execute(f"CREATE TABLE start.{table} AS SELECT * FROM public.{table}")
            parts.append(f"DELETE FROM public.{table}")
            parts.append(f"INSERT INTO public.{table} OVERRIDING SYSTEM VALUE SELECT * FROM start.{table}")
        for row in self._execute("SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public'"):
            value = row["last_value"]
            parts.append(f"SELECT setval('public.{row['sequencename']}', {value or 1}, {value is not None})")
        self._restore = "; ".join([*parts, "COMMIT"])

    def restore(self) -> None:
        self._execute(self._restore)

    def look(self) -> Snapshot:
        self._alone()
        return _snapshot({name: self._execute(f"SELECT * FROM public.{name}") for name in self._tables()})

    def _alone(self) -> None:
        """Wait until the server has noticed that the killed client is gone, and has rolled it back."""
        give_up_at = SYSTEM.monotonic() + LEFT_S
        while self._execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        ):
            assert SYSTEM.monotonic() < give_up_at, "a killed client's transaction goes on"
            sleep(0.001)

    def schema(self) -> list[Any]:
        self._alone()
        found = self._execute(
            """
            SELECT 'column' AS kind, table_name || '.' || column_name AS name,
              concat_ws(' ', ordinal_position, data_type, is_nullable, column_default) AS text
            FROM information_schema.columns WHERE table_schema = 'public'
            UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
              WHERE connamespace = 'public'::regnamespace
            UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
            UNION ALL SELECT 'view', viewname, definition FROM pg_views WHERE schemaname = 'public'
            UNION ALL SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc
              WHERE pronamespace = 'public'::regnamespace
            ORDER BY 1, 2, 3"""
        )
        return [tuple(row.values()) for row in found]


def _snapshot(tables: dict[str, list[Any]]) -> Snapshot:
    return Snapshot(
        {
            name.removeprefix("cronjobs_"): [{key: _value(key, row[key]) for key in row.keys()} for row in rows]  # noqa: SIM118 sqlite3.Row
            for name, rows in tables.items()
        }
    )


def _value(column: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, int) and (column.endswith(("_at", "_until", "_for")) or column in ("at", "until")):
        return from_microseconds(value)
    return json.loads(value) if column in JSON_COLUMNS and isinstance(value, str) else value


# --- one flow ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """One step in a process of its own. ``before`` says what it was about to send when it was killed.

    ``kinds``: of each statement that it sent, the first point before it.
    """

    pid: int
    status: int
    points: int
    before: str | None = None
    error: str | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Lab:
    """A folder, a database and a zygote, for one flow."""

    folder: Path
    store: Store
    zygote: Zygote
    base: datetime

    def step(self, flow: str, step: str, kill_at: int | None = None) -> Ran:
        told = self.zygote.run(
            flow=flow,
            step=step,
            kill_at=kill_at,
            folder=str(self.folder),
            url=self.store.url,
            base=self.base.isoformat(),
        )
        kinds = told.get("kinds", {})
        return Ran(told["pid"], told["status"], told.get("points", 0), told.get("before"), told.get("error"), kinds)

    def seed(self, flow: str) -> Snapshot:
        """Bring the database to where the flow starts, and keep that; its files are kept beside it."""
        self._well(self.step(flow, "seed"))
        self.store.keep()
        shutil.copytree(self.folder, self.folder.with_name("files"), ignore=shutil.ignore_patterns("cronjobs.db*"))
        return self.store.look()

    def restore(self) -> None:
        self.store.restore()
        for name in ("effects", "said", "output"):
            (self.folder / name).unlink(missing_ok=True)
        for file in self.folder.with_name("files").iterdir():
            if file.name not in ("start", "copy"):
                shutil.copy(file, self.folder)

    def _well(self, ran: Ran) -> Ran:
        assert ran.status == 0, f"{ran.error}\n{self.said()}"
        return ran

    def run(self, flow: str, kill_at: int | None) -> Ran:
        """The flow from its start, killed at a point, or come to its end; and what it started has ended, too."""
        ran = self.step(flow, "run", kill_at)
        if FLOWS[flow].apart:
            wait_for_strays(self.folder)
        return ran if ran.status == -9 and ran.before is not None else self._well(ran)

    def go_on(self, flow: str, step: str) -> None:
        self._well(self.step(flow, step))

    def did(self) -> list[Did]:
        file = self.folder / "effects"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Did(what, int(job), int(attempt), int(pid)) for what, job, attempt, pid in map(str.split, lines)]

    def said(self) -> str:
        found = [self.folder / name for name in ("said", "output")]
        return "\n".join(file.read_text(errors="replace") for file in found if file.exists())


def an_hour_ago() -> datetime:
    """Half a minute past a full hour, at least one and at most two hours ago: commands use the real clock."""
    hour = SYSTEM.now().replace(minute=0, second=0, microsecond=0)
    return hour - timedelta(hours=1) + timedelta(seconds=30)


class Shared:
    """What no other test of this session has killed before yet, whichever worker runs it: one file for each kind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def take(self, kinds: Mapping[str, int]) -> list[int]:
        """The points of those kinds that are new; from now on they are this test's."""
        with self.file.open("a+") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            opened.seek(0)
            taken = set(opened.read().splitlines())
            new = {kind: point for kind, point in kinds.items() if kind not in taken}
            opened.writelines(f"{kind}\n" for kind in new)
        return [*new.values()]


def kill_at_each_point(
    labs: Sequence[Lab], flow: str, shared: Shared, look: Callable[[Lab, str, Ran], None], points: slice
) -> int:
    """Kill the flow at *points* (from 1), and where it first sends what no flow before it sent; return how many it has.

    *look* is called after each, and after a run to the end. The labs share the points: on several processors they work
    at once.
    """
    labs[0].restore()
    whole = labs[0].run(flow, None)
    look(labs[0], f"at its end, after {whole.points} points", whole)
    numbers = sorted({*shared.take(whole.kinds), *range(whole.points + 1)[points]} - {0})

    def kill(lab: Lab, share: Sequence[int]) -> None:
        for number in share:
            lab.restore()
            ran = lab.run(flow, kill_at=number)
            where = f"at its end, after {ran.points} points"
            look(lab, f"killed at point {number}, before: {ran.before}" if ran.before is not None else where, ran)

    with ThreadPoolExecutor(len(labs)) as threads:
        list(threads.map(kill, labs, [numbers[n :: len(labs)] for n in range(len(labs))]))
    return whole.points
