"""Group dead jobs by cause, commonest first. A job counts only if nobody has retried or dismissed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.insight.formatting import LocalTimes, safe
from cronjobs.desk.insight.health import Health
from cronjobs.desk.store import causes as store
from cronjobs.engine.rules.causes import Cause, cause_of, causes

# How many of the newest dead jobs to read. Each job costs 50 µs, even if all errors differ.
READ: Final = 2000
# Read at most this many of the jobs that died before the file changed.
READ_BEFORE: Final = 1000
MESSAGE: Final = 200  # an error is cut to this many characters


@dataclass(frozen=True)
class Causes:
    """The causes of death, most frequent first.

    ``unread``: whether more than READ jobs are dead, so that some were not read.
    """

    found: Sequence[Cause] = ()
    unread: bool = False


NONE: Final = Causes()


def causes_of(connection: Connection, health: Health) -> Causes:
    """Return the causes of the deaths that *health* reports."""
    return find_causes(connection) if health.watch.deaths.count else NONE


def find_causes(connection: Connection) -> Causes:
    """Group by cause the READ jobs that died last. This is slow, so a tick should call it only after new deaths."""
    return _causes(connection, store.newest_deaths(connection, READ + 1))


def find_cause(connection: Connection, key: str) -> tuple[Cause | None, list[int]]:
    """Return the cause with this key, or None, and the ids of the jobs that died of it, newest death first."""
    deaths = store.newest_deaths(connection, READ + 1)
    cause = next((each for each in _causes(connection, deaths).found if each.key == key), None)
    return cause, [row.id for row in deaths[:READ] if is_of(row, key)]


def is_of(death: Any, key: str) -> bool:
    """Return whether *death*, a row from ``desk.store``, has the cause *key*."""
    return cause_of(death.job_type, death.error_type, death.error).key == key


def _causes(connection: Connection, deaths: Sequence[Any]) -> Causes:
    if not deaths:
        return NONE
    changed_at = store.file_changed_at(connection)
    before = [] if changed_at is None else store.deaths_until(connection, changed_at, READ_BEFORE)
    return Causes(causes(deaths[:READ], changed_at, before), len(deaths) > READ)


def cause_text(cause: Cause, times: LocalTimes) -> str:
    """Return text such as "24 × GiveUp: there is no invoice <n> - billing.send_invoice, 02:17:03 to 02:18:44 (new)"."""
    when = times.span(cause.first_died_at, cause.last_died_at)
    new = " (new)" if cause.new else ""
    return f"{cause.jobs:,} × {safe(cause.error, MESSAGE)} - {safe(cause.name.job_type, 60)}, {when}{new}"


def cause_object(cause: Cause) -> dict[str, Any]:
    facts = {name: value for name, value in vars(cause).items() if name not in ("name", "key", "error")}
    return {"key": cause.key, **cause.name._asdict(), **facts}
