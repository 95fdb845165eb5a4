"""Assertions about which jobs were enqueued and when schedules fire.

If an assertion fails, it lists the jobs or the instants that it found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.checking import key_text
from cronjobs.engine.jobs.enqueue import Target
from cronjobs.engine.jobs.registry import registered
from cronjobs.engine.store.shown_columns import newest_jobs
from cronjobs.errors import UsageError
from cronjobs.model import Status, duration, rough
from cronjobs.testing.configured import settings_of
from cronjobs.testing.lent_connection import LentDatabase, require_tables

LOOKED_AT: Final = 10_000  # search at most this many jobs, the newest ones
LISTED: Final = 10
UNMET: Final = object()


@dataclass(frozen=True)
class Found:
    """A job that an assertion found. Its fields are columns of the job's row."""

    id: int
    job_type: str
    payload: Any
    meta: Mapping[str, str]
    queue: str
    priority: int
    status: Status
    run_at: datetime
    created_at: datetime
    idempotency_key: str | None
    concurrency_key: str | None
    schedule: str | None

    @property
    def delay(self) -> timedelta:
        return self.run_at - self.created_at

    def __str__(self) -> str:
        said = [f"{self.job_type} {json.dumps(self.payload, ensure_ascii=False, default=str)}", str(self.status)]
        said += [f"queue={self.queue}"] if self.queue != "default" else []
        said += [f"priority={self.priority}"] if self.priority != 5 else []
        said += [f"run_at={self.run_at.isoformat()}"] if self.delay else []
        said += [f"delay={rough(self.delay)}"] if self.delay > timedelta(0) else []
        said += [f"idempotency_key={self.idempotency_key}"] if self.idempotency_key else []
        return " ".join(said)


@dataclass(frozen=True)
class ExpectedJob:
    """The job that a test expects.

    The ``payload`` and ``meta`` of a matching job may have more keys than those given here.
    """

    job_type: str
    payload: Mapping[str, Any]
    options: Mapping[str, Any]  # maps fields of Found to the expected values

    def is_met_by(self, job: Found) -> bool:
        return (
            job.job_type == self.job_type
            and all(getattr(job, name) == value for name, value in self.options.items() if name != "meta")
            and _holds(job.payload, self.payload)
            and _holds(job.meta, self.options.get("meta", {}))
        )

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.job_type, json.dumps(dict(self.payload), ensure_ascii=False, default=str), *said])


def assert_enqueued(
    connection: Target,
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    /,
    *,
    count: int | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    delay: timedelta | str | float | None = None,
    idempotency_key: str | tuple[object, ...] | None = None,
    meta: Mapping[str, str] | None = None,
    status: str | None = None,
    schema: str | None = None,
    **payload_keys: Any,
) -> list[Found]:
    """Assert that *connection* sees a job of *job_type* whose payload has these keys and values. Return the matches.

    For example ``assert_enqueued(session, "billing.send_invoice", invoice_id=42)``. If a payload key has the same name
    as an option, pass it in *payload*. ``count`` is the exact number of jobs to expect. Without it, at least one job
    must match. ``delay`` is the time between the enqueue and the job's run_at. ``status`` is "queued", "succeeded" and
    so on. Without ``status``, every status matches, so jobs that have run match too.
    """
    __tracebackhide__ = True
    given = {
        "queue": queue,
        "priority": priority,
        "run_at": run_at,
        "delay": None if delay is None else duration(delay),
        "idempotency_key": None if idempotency_key is None else key_text(idempotency_key),
        "meta": meta,
        "status": status,
    }
    options = {name: value for name, value in given.items() if value is not None}
    wanted = ExpectedJob(job_type, _as_stored(job_type, {**(payload or {}), **payload_keys}), options)
    jobs = _jobs(connection, schema)
    met = [job for job in jobs if wanted.is_met_by(job)]
    if (count is None and not met) or (count is not None and len(met) != count):
        raise AssertionError(_failure_text(wanted, count, met, jobs))
    return met


def assert_not_enqueued(
    connection: Target,
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    /,
    *,
    schema: str | None = None,
    **options_and_payload_keys: Any,
) -> None:
    """Assert that *connection* sees no job that matches. Takes the same arguments as ``assert_enqueued``."""
    __tracebackhide__ = True
    assert_enqueued(connection, job_type, payload, **{**options_and_payload_keys, "schema": schema, "count": 0})


def _as_stored(job_type: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the dates, Decimals and similar values in *payload* to the JSON form in which jobs store such values."""
    registration = registered().get(job_type)
    if registration is None or registration.fault is not None:
        return payload
    stored, misfits = registration.accepts.encode(payload)
    return payload if misfits.count else stored


def _jobs(connection: Target, schema: str | None) -> list[Found]:
    """Return the jobs that exist, oldest first."""
    with LentDatabase(connection, "assert_enqueued()", schema=schema).read() as lent:
        require_tables(lent, "assert_enqueued()")
        rows = newest_jobs(lent, LOOKED_AT)
    return [
        Found(**{name: getattr(row, name) for name in Found.__dataclass_fields__} | {"status": Status(row.status)})
        for row in reversed(rows)
    ]


def _holds(there: Any, wanted: Mapping[str, Any]) -> bool:
    # Compare as JSON, because a tuple in a payload is a list in the row.
    return isinstance(there, Mapping) and all(
        there.get(key, UNMET) == json.loads(json.dumps(value)) for key, value in wanted.items()
    )


def _failure_text(wanted: ExpectedJob, count: int | None, met: list[Found], jobs: list[Found]) -> str:
    if count is None:
        lines = [f"no job was enqueued as {wanted}"]
    else:
        were = "job was" if len(met) == 1 else "jobs were"
        lines = [f"expected {count}, but {len(met)} {were} enqueued as {wanted}"]
    same = [job for job in jobs if job.job_type == wanted.job_type]
    others = [job for job in jobs if job.job_type != wanted.job_type]
    shown = (same + others)[:LISTED]
    lines.append(f"there {'is' if len(jobs) == 1 else 'are'} {len(jobs) or 'none'}{':' if jobs else ''}")
    lines += [f"  {'*' if job in met else '-'} {job}" for job in shown]
    if len(jobs) > len(shown):
        lines.append(f"  … and {len(jobs) - len(shown)} more")
    return "\n".join(lines)


# --- schedules --------------------------------------------------------------------------------------------------------

Moment = datetime | str


def assert_fires(
    schedule: str,
    *,
    between: tuple[Moment, Moment],
    at: Iterable[Moment] | None = None,
    count: int | None = None,
    config: str | Path | None = None,
    timezone: str | None = None,
) -> list[datetime]:
    """Assert when a schedule fires, from the first moment of *between* until just before the second.

    Returns the instants.

    *schedule* is a name in *config* (default: cronjobs.yaml), or an expression: "15 2 * * *", "every 10m". *between*
    and *at* are timezone-aware datetimes, or ISO text. Text without an offset is in the schedule's time zone. The time
    zone of an expression is *timezone* (default: UTC). ``at`` lists exactly the instants to expect (``[]`` means none).
    ``count`` is the exact number of instants to expect. If neither is given, the schedule must fire at least once. The
    returned instants are in the schedule's time zone. The function reads only the file, and ignores pauses and
    catch-up.
    """
    __tracebackhide__ = True
    from cronjobs.engine.crontime.timing import timing, zone_named

    cron, every, name = _timing_of(schedule, config, timezone)
    zone = zone_named(name)
    start, end = (_moment(moment, zone) for moment in between)
    after = timing(cron, every, name).after(start - timedelta(microseconds=1))
    fires = [instant.astimezone(zone) for instant in takewhile(lambda instant: instant < end, after)]
    if at is not None:
        expected = [_moment(moment, zone) for moment in at]
        fine = [instant.astimezone(UTC) for instant in fires] == expected
        wanted = f"fire at {_listed([each.astimezone(zone) for each in expected])}" if expected else "not fire"
    else:
        fine = len(fires) == count if count is not None else bool(fires)
        wanted = f"fire {count} times" if count is not None else "fire"
    if not fine:
        raise AssertionError(
            f"{schedule} should {wanted} between {start.astimezone(zone)} and "
            f"{end.astimezone(zone)}, but " + (f"fires at {_listed(fires)}" if fires else "does not fire")
        )
    return fires


def _timing_of(
    schedule: str, config: str | Path | None, timezone: str | None
) -> tuple[str | None, timedelta | None, str]:
    """Return the schedule's cron expression or its interval, and its time zone."""
    of_expression = "UTC" if timezone is None else timezone
    if schedule.startswith("every "):
        return None, duration(schedule.removeprefix("every ")), of_expression
    if " " in schedule.strip() or schedule.startswith("@"):
        return schedule, None, of_expression
    settings: Settings = settings_of(config or "cronjobs.yaml")
    if schedule not in settings.schedules:
        there = ", ".join(settings.schedules) or "none"
        raise UsageError(f'there is no schedule "{schedule}" in {settings.file}. Schedules there: {there}')
    found = settings.schedules[schedule]
    return found.cron, found.every, found.timezone if timezone is None else timezone


def _moment(moment: Moment, zone: ZoneInfo) -> datetime:
    try:
        read = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
    except (ValueError, TypeError):
        raise UsageError(f"{moment!r} is not an ISO time: write 2026-03-29, 2026-03-29T02:15 or …+01:00") from None
    return (read if read.tzinfo is not None else read.replace(tzinfo=zone)).astimezone(UTC)


def _listed(instants: list[datetime]) -> str:
    more = f" … and {len(instants) - LISTED} more" if len(instants) > LISTED else ""
    return ", ".join(instant.isoformat(" ") for instant in instants[:LISTED]) + more
