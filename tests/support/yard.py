"""A database with a file's schedules, and ticks that only settle them, in fake time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, delete, event, select, update

from cronjobs import events
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, occurrences, pauses, schedules
from cronjobs.engine.schedules.materialise import Materialised, materialise
from cronjobs.engine.schedules.pauses import held_back_now
from cronjobs.engine.schedules.sync import Synced, sync
from cronjobs.engine.store import schedules as store
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)  # a Monday, far from any clock change
MINUTE = timedelta(minutes=1)


class Yard:
    """A database with a file's schedules, and ticks that only settle them."""

    def __init__(self, database: Database, clock: FakeClock, folder: Path) -> None:
        self.database, self.clock, self.folder = database, clock, folder
        self.events: list[events.Event] = []

    def file(self, *wanted: ScheduleSettings, disabled: tuple[str, ...] = ()) -> Settings:
        return Settings(
            file=self.folder / "cronjobs.yaml",
            folder=self.folder,
            schedules={schedule.name: schedule for schedule in wanted},
            disabled_schedules=frozenset(disabled),
        )

    def sync(self, settings: Settings, **options: Any) -> Synced:
        return sync(self.database, settings, self.events.append, host="alpha", actor="test", **options)

    def tick(self) -> Materialised:
        return materialise(self.database, self.events.append)

    def pause(
        self,
        name: str = "",
        until: datetime | None = None,
        *,
        skip: bool = False,
        why: str | None = None,
        by: str = "ada",
    ) -> None:
        """Pause a schedule, or everything."""
        if name in self.skipped_last():
            materialise(self.database, self.events.append, put_aside=name)
        with self.database.write() as connection:
            given: dict[str, Any] = {"until": until, "by": by, "why": why, "skip": skip}
            store.pause(connection, scope="schedule" if name else "all", name=name, now=self.clock.now(), **given)

    def skipped_last(self) -> set[str]:
        with self.database.read() as connection:
            return {row.name for row in store.pauses_of_schedules(connection) if row.skip}

    def resume(self, name: str = "") -> bool:
        with self.database.write() as connection:
            scope = "schedule" if name else "all"
            return store.resume(connection, scope=scope, name=name, now=self.clock.now())

    def held_back(self) -> dict[str, int]:
        with self.database.read() as connection:
            return {name: held.count for name, held in held_back_now(connection).items()}

    def ledger(self, name: str = "s") -> list[tuple[str, int, datetime, datetime]]:
        with self.database.read() as connection:
            rows = connection.execute(
                select(occurrences)
                .join(schedules, schedules.c.id == occurrences.c.schedule_id)
                .where(schedules.c.name == name)
                .order_by(occurrences.c.last_for)
            ).all()
        return [(row.outcome, row._mapping["count"], row.first_for, row.last_for) for row in rows]

    def jobs(self, name: str = "s") -> list[Any]:
        with self.database.read() as connection:
            return list(connection.execute(select(jobs).where(jobs.c.schedule == name).order_by(jobs.c.id)).all())

    def finish_jobs(self) -> None:
        with self.database.write() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.finished_at.is_(None))
                .values(status="succeeded", finished_at=self.clock.now())
            )

    def forget_pauses(self) -> None:
        with self.database.write() as connection:
            connection.execute(delete(pauses))

    def definition(self, name: str = "s") -> Any:
        with self.database.read() as connection:
            return connection.execute(select(schedules).where(schedules.c.name == name)).one()


def minutely(**fields: Any) -> ScheduleSettings:
    return ScheduleSettings(**({"name": "s", "job": "t.say", "cron": "* * * * *"} | fields))


def at(minute: int, hour: int = 8) -> datetime:
    return datetime(2026, 3, 2, hour, minute, tzinfo=UTC)


def names(count: int) -> list[str]:
    return [f"s{number:03}" for number in range(count)]


def broken(yard: Yard) -> list[str]:
    return [event.facts["schedule"] for event in yard.events if event.name == "schedule.broken"]


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)
