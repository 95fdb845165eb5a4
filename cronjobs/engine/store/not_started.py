"""Due jobs that wait: a few rows from each lane of the queue, however many there are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, Row

import cronjobs.engine.store.claims  # noqa: F401 its fragments: lanes, plain, timed
from cronjobs.engine.store.overlap import runnable_value
from cronjobs.engine.store.sql import define, group_value, is_postgresql, run

TYPES_SEEN: Final = 500
LANES_SEEN: Final = 100  # of due jobs: one type in one queue at one priority
SAMPLE: Final = 50  # rows of each lane
COUNTED: Final = 5000  # at most, of each lane


def _types_of(kind: str) -> str:
    """The waiting job types, each found by one index step."""
    there = f"FROM {{jobs}} j WHERE j.{{{kind}}}"
    return f"""
      {kind}_type(job_type, place) AS (
        SELECT * FROM (SELECT j.job_type, 1 {there} ORDER BY j.job_type LIMIT 1) AS first
        UNION ALL
        SELECT (SELECT j.job_type {there} AND j.job_type > k.job_type ORDER BY j.job_type LIMIT 1), k.place + 1
        FROM {kind}_type k WHERE k.job_type IS NOT NULL AND k.place < :most)"""


define(
    waiting_types=_types_of("plain") + "," + _types_of("timed"),
    waiting_facts="""
      j.id, j.run_at, j.timeout_s, j.concurrency_key, j.schedule,
      CASE WHEN j.schedule IS NULL OR {in_turn} THEN 1 ELSE 0 END AS its_turn""",
    waits_plain="{in_lane} AND j.{plain} AND j.run_at <= {now}",
    waits_timed="{in_lane} AND j.{timed} AND j.run_at <= {now}",
)


@dataclass(frozen=True)
class WaitingLane:
    """Due jobs of one type in one queue at one priority: the first ``rows``, and their ``count`` (COUNTED: or more)."""

    job_type: str
    queue: str
    priority: int
    paused: bool
    count: int
    rows: Sequence[Row[Any]]


def types_waiting(connection: Connection) -> list[str]:
    """The job types with waiting jobs, due or not; at most TYPES_SEEN."""
    rows = run(
        connection,
        """WITH RECURSIVE {waiting_types}
           SELECT job_type FROM plain_type WHERE job_type IS NOT NULL
           UNION SELECT job_type FROM timed_type WHERE job_type IS NOT NULL ORDER BY job_type""",
        most=TYPES_SEEN,
    ).all()
    return [row.job_type for row in rows]


def lanes_due(connection: Connection, runnable: Collection[str] | None) -> list[WaitingLane]:
    """Due jobs of any type that wait; *runnable* as in a claim."""
    types = group_value(connection, types_waiting(connection))
    every = {"fitting": types, "known": types, "remaining": ANY_TIMEOUT, "longest": ANY_TIMEOUT}
    facts = {"runnable": runnable_value(connection, runnable), "most": COUNTED, "sample": SAMPLE}
    if is_postgresql(connection):
        rows = run(connection, LANES_POSTGRESQL, **every, **facts, lanes=LANES_SEEN).all()
        return [_lane(list(group)) for _, group in groupby(rows, key=lambda row: row.place)]
    found = []
    for lane in run(connection, LANES_SQLITE, **every, lanes=LANES_SEEN).all():
        here = {"lane_type": lane.job_type, "lane_queue": lane.queue, "lane_priority": lane.priority}
        kind = "{waits_timed}" if lane.own_timeout else "{waits_plain}"
        rows = run(connection, ROWS_SQLITE.replace("{waits}", kind), **here, **facts).all()
        if rows:
            found.append(_lane(rows, lane))
    return found


ANY_TIMEOUT: Final = 1e300
LANES_POSTGRESQL: Final = """
  WITH RECURSIVE {lanes}, first AS MATERIALIZED (
    SELECT b.*, row_number() OVER () AS place, {paused} AS paused FROM lane b LIMIT :lanes)
  SELECT b.place, b.job_type, b.queue, b.priority, b.paused, c.* FROM first b CROSS JOIN LATERAL (
    SELECT * FROM (SELECT {waiting_facts}, (SELECT count(*) FROM (
                     SELECT 1 FROM {jobs} j WHERE {waits_plain} LIMIT :most) w) AS due
                   FROM {jobs} j WHERE b.own_timeout = 0 AND {waits_plain} ORDER BY j.run_at, j.id LIMIT :sample) p
    UNION ALL
    SELECT * FROM (SELECT {waiting_facts}, (SELECT count(*) FROM (
                     SELECT 1 FROM {jobs} j WHERE {waits_timed} LIMIT :most) w) AS due
                   FROM {jobs} j WHERE b.own_timeout = 1 AND {waits_timed} ORDER BY j.run_at, j.id LIMIT :sample) t) c
  ORDER BY b.place, c.run_at, c.id"""
LANES_SQLITE: Final = "WITH RECURSIVE {lanes} SELECT b.*, {paused} AS paused FROM lane b LIMIT :lanes"
ROWS_SQLITE: Final = """
  SELECT {waiting_facts}, (SELECT count(*) FROM (SELECT 1 FROM {jobs} j WHERE {waits} LIMIT :most)) AS due
  FROM {jobs} j WHERE {waits} ORDER BY j.run_at, j.id LIMIT :sample"""


def _lane(rows: Sequence[Row[Any]], lane: Row[Any] | None = None) -> WaitingLane:
    of = rows[0] if lane is None else lane
    return WaitingLane(of.job_type, of.queue, of.priority, bool(of.paused), rows[0].due, rows)
