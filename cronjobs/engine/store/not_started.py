"""Read due jobs that are still waiting: a few rows from each lane, however long the lane is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.idle_conditions import PAUSED
from cronjobs.engine.probe.sql_text import JOBS, NOW
from cronjobs.engine.store.claims import IN_LANE, LANES, PLAIN, TIMED
from cronjobs.engine.store.overlap import IN_TURN, runnable_value
from cronjobs.engine.store.sql import group_value, is_postgresql, run

TYPES_SEEN: Final = 500
# Read at most this many lanes. A lane is one type in one queue at one priority.
LANES_SEEN: Final = 100
# Read at most this many rows from each lane.
SAMPLE: Final = 50
# Count at most this many jobs in each lane.
COUNTED: Final = 5000


def _types_of(kind: str, waiting: str) -> str:
    """Return SQL for the job types of waiting jobs. Each type costs one index step."""
    there = f"FROM {JOBS} j WHERE j.{waiting}"
    return f"""
      {kind}_type(job_type, place) AS (
        SELECT * FROM (SELECT j.job_type, 1 {there} ORDER BY j.job_type LIMIT 1) AS first
        UNION ALL
        SELECT (SELECT j.job_type {there} AND j.job_type > k.job_type ORDER BY j.job_type LIMIT 1), k.place + 1
        FROM {kind}_type k WHERE k.job_type IS NOT NULL AND k.place < :most)"""


_WAITING_TYPES: Final = _types_of("plain", PLAIN) + "," + _types_of("timed", TIMED)
_WAITING_FACTS: Final = f"""
      j.id, j.run_at, j.timeout_s, j.concurrency_key, j.schedule,
      CASE WHEN j.schedule IS NULL OR {IN_TURN} THEN 1 ELSE 0 END AS its_turn"""
_WAITS_PLAIN: Final = f"{IN_LANE} AND j.{PLAIN} AND j.run_at <= {NOW}"
_WAITS_TIMED: Final = f"{IN_LANE} AND j.{TIMED} AND j.run_at <= {NOW}"


@dataclass(frozen=True)
class WaitingLane:
    """The due jobs of one type in one queue at one priority. ``rows`` contains the first of these jobs.

    ``count`` is the number of jobs, counted up to COUNTED.
    """

    job_type: str
    queue: str
    priority: int
    paused: bool
    count: int
    rows: Sequence[Row[Any]]


def types_waiting(connection: Connection) -> list[str]:
    """Return the job types with waiting jobs, due or not.

    Reads at most TYPES_SEEN types of jobs that have their own timeout, and at most as many types of other jobs.
    """
    rows = run(
        connection,
        f"""WITH RECURSIVE {_WAITING_TYPES}
           SELECT job_type FROM plain_type WHERE job_type IS NOT NULL
           UNION SELECT job_type FROM timed_type WHERE job_type IS NOT NULL ORDER BY job_type""",
        most=TYPES_SEEN,
    ).all()
    return [row.job_type for row in rows]


def lanes_due(connection: Connection, runnable: Collection[str] | None) -> list[WaitingLane]:
    """Return the lanes with due jobs of any type. *runnable* has the same meaning as in ``ClaimFilter``."""
    types = group_value(connection, types_waiting(connection))
    every = {"fitting": types, "known": types, "remaining": ANY_TIMEOUT, "longest": ANY_TIMEOUT}
    facts = {"runnable": runnable_value(connection, runnable), "most": COUNTED, "sample": SAMPLE}
    if is_postgresql(connection):
        rows = run(connection, LANES_POSTGRESQL, **every, **facts, lanes=LANES_SEEN).all()
        return [_lane(list(group)) for _, group in groupby(rows, key=lambda row: row.place)]
    found = []
    for lane in run(connection, LANES_SQLITE, **every, lanes=LANES_SEEN).all():
        here = {"lane_type": lane.job_type, "lane_queue": lane.queue, "lane_priority": lane.priority}
        statement = _rows_that(_WAITS_TIMED if lane.own_timeout else _WAITS_PLAIN)
        rows = run(connection, statement, **here, **facts).all()
        if rows:
            found.append(_lane(rows, lane))
    return found


ANY_TIMEOUT: Final = 1e300


def _rows_that(wait: str) -> str:
    return f"""
      SELECT {_WAITING_FACTS}, (SELECT count(*) FROM (SELECT 1 FROM {JOBS} j WHERE {wait} LIMIT :most) w) AS due
      FROM {JOBS} j WHERE {wait} ORDER BY j.run_at, j.id LIMIT :sample"""


LANES_POSTGRESQL: Final = f"""
  WITH RECURSIVE {LANES}, first AS MATERIALIZED (
    SELECT b.*, row_number() OVER () AS place, {PAUSED} AS paused FROM lane b LIMIT :lanes)
  SELECT b.place, b.job_type, b.queue, b.priority, b.paused, c.* FROM first b CROSS JOIN LATERAL (
    SELECT * FROM ({_rows_that(f"b.own_timeout = 0 AND {_WAITS_PLAIN}")}) p
    UNION ALL
    SELECT * FROM ({_rows_that(f"b.own_timeout = 1 AND {_WAITS_TIMED}")}) t) c
  ORDER BY b.place, c.run_at, c.id"""
LANES_SQLITE: Final = f"WITH RECURSIVE {LANES} SELECT b.*, {PAUSED} AS paused FROM lane b LIMIT :lanes"


def _lane(rows: Sequence[Row[Any]], lane: Row[Any] | None = None) -> WaitingLane:
    of = rows[0] if lane is None else lane
    return WaitingLane(of.job_type, of.queue, of.priority, bool(of.paused), rows[0].due, rows)
