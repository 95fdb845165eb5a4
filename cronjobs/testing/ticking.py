"""``tick``: runs a whole tick in the test's process, at any time, on a database that belongs to the test."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.config import django_project
from cronjobs.engine.config.reader import FieldError
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import meta
from cronjobs.engine.execution.strays import keep_orphans
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.store.meta import has_table
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.watchdog import Unarmed
from cronjobs.errors import DatabaseError, UsageError
from cronjobs.events import Event
from cronjobs.testing.attempt_collector import EventCollector, Ran, ran_by
from cronjobs.testing.clocks import FakeClock
from cronjobs.testing.configured import handlers_of, settings_of
from cronjobs.testing.creating import create_tables


@dataclass(frozen=True)
class Ticked(EventCollector):
    """The result of a tick.

    ``ran`` lists the attempts, in the order in which they ended. ``occurrences`` counts the schedules' occurrences by
    outcome (enqueued, skipped, missed, coalesced). ``unresolved`` maps each unregistered job type to the number of its
    due jobs. ``ended`` says why the tick ended.
    """

    ran: tuple[Ran, ...] = ()
    occurrences: Mapping[str, int] = field(default_factory=dict)
    unresolved: Mapping[str, int] = field(default_factory=dict)
    ended: str = ""


def tick(
    database_url: str | Engine,
    *,
    config: str | Path | None = None,
    imports: Iterable[str] = (),
    at: datetime | None = None,
    clock: Clock | None = None,
) -> Ticked:
    """Run one tick as cron would, at the time *at* (timezone-aware; default: now).

    The tick sees only committed rows, and commits its own changes. *database_url* is required even if *config* names a
    database, because a tick at a future time runs everything that is waiting. Missing tables are created. Schedules
    fire and jobs run as under cron. The jobs run in threads or in their own processes, with their timeouts. A schedule
    never fires for times before the first tick that saw the schedule. So call ``tick`` once, and then again at a later
    time. If *clock* is given, the tick uses it instead of *at*. *config* and *imports* are the same as for ``drain``.
    Raises ConfigError or DatabaseError where a real tick would end with such an error, and UsageError if handlers
    cannot be imported.
    """
    clock = clock or (SYSTEM if at is None else FakeClock(at))
    if isinstance(database_url, Engine):
        database_url = database_url.url.render_as_string(hide_password=False)
    settings = settings_of(config, imports, database_url)
    handlers_of(settings)
    _refuse_djangos_own_database(settings)
    database = ready_database(settings, clock)
    began, events = clock.monotonic(), list[Event]()
    here = _TickInProcess(
        settings=settings,
        database=database,
        identity=Identity.here(),
        clock=clock,
        watchdog=Unarmed(),
        began=began,
        deadline=began + settings.run.budget.total_seconds(),
        emit=events.append,
    )
    try:
        result = here.run()
    finally:
        if here.loop is not None:
            here.loop.workers.dismiss()
        keep_orphans(False)
        database.close()
    if result.fault is not None:
        raise result.fault
    if result.trouble is not None:
        raise DatabaseError(result.trouble)
    waiting = {event.facts["job_type"]: event.facts["waiting"] for event in events if event.name == "jobs.unresolved"}
    return Ticked(ran_by(events), result.occurrences, waiting, result.ended)


def _refuse_djangos_own_database(settings: Settings) -> None:
    """Raise UsageError if the handlers' Django ORM would write in another database than the test's.

    Django's test runner replaces the databases of the project. Without it, the ORM uses those in the settings.
    """
    if django_project.settings_of_django() is None or django_project.in_tests():
        return
    try:
        used = parse_url(django_project.database_url())
    # The settings name no database, or one that cronjobs does not know.
    except FieldError:
        return
    if used.url != parse_url(settings.database).url:
        raise UsageError(
            f"tick() runs the handlers, and their Django ORM would write in {used}, the project's own database: run "
            "this test with Django's test runner (manage.py test or pytest-django)"
        )


def ready_database(settings: Settings, clock: Clock) -> Database:
    """Open the database of *settings*, and create its tables if they are missing. The caller closes it."""
    database = Database(parse_url(settings.database, settings.schema), clock=clock)
    try:
        with database.read() as connection:
            is_ready = has_table(connection, meta.name)
        if not is_ready:
            with database.write() as connection:
                create_tables(connection, schema=database.address.schema)
    except BaseException:
        database.close()
        raise
    return database


class _TickInProcess(Tick):
    """A tick without signal handlers, so that Ctrl-C ends the tests."""

    def _listen(self) -> dict[signal.Signals, Any]:
        return {}
