"""The query with which a tick starts, and the conditions under which the tick has no work.

The fast path uses the query and the conditions. The full tick uses the same SQL (``SEEN``, ``BRANCHES``), but decides
in Python, because it also acts on the facts.
"""

from __future__ import annotations

from cronjobs.engine.probe.sql_text import AUDIT, JOBS, META, NOW, PAUSES, QUEUES, SCHEDULES, TICKS, after_now, either

PRUNE_EVERY_S = 3600
# Even an idle host loads its handlers this often, because a deploy may change only Python code and not the file.
HANDLERS_EVERY_S = 3600
CLOCK_SKEW_S = 60
WRONG_CLOCK_S = 86_400
# A query that steps through this many queues takes about 40 ms on SQLite and 300 ms on PostgreSQL.
MANY_QUEUES = 5000
NOTHING_DUE = "nothing is due"

# The statuses are literals, because with parameters the planner could not use the partial index.
WAITING = "status IN ('queued', 'failed')"
# The error type of an attempt whose payload does not fit the handler.
MISFIT = "SignatureMismatch"
MISFITS_SQL = f"{WAITING} AND misfit_since IS NOT NULL"
# True for a run of "cronjobs exec". No tick creates such rows, and no tick may run them.
IS_EXEC = "(substr(j.job_type, 1, 5) = 'exec:')"

# In this SQL, "p" is a row of pauses, "b" is a branch (see BRANCHES), which has a queue, and in STOPS_SCHEDULE "j" is a
# schedule. desk/rules/pausing.py contains the same rules in Python.
IN_FORCE = f"(p.until IS NULL OR p.until > {NOW})"
STOPS_QUEUE = f"(p.scope = 'all' OR (p.scope = 'queue' AND p.name = b.queue)) AND {IN_FORCE}"
STOPS_SCHEDULE = f"(p.scope = 'all' OR (p.scope = 'schedule' AND p.name = j.name)) AND {IN_FORCE}"
PAUSED = f"EXISTS (SELECT 1 FROM {PAUSES} p WHERE {STOPS_QUEUE})"

_NEXT_BRANCH = either(
    postgresql=f"""
               (SELECT j.queue FROM {JOBS} j WHERE j.{WAITING} AND (j.queue, j.priority) > (b.queue, b.priority)
                ORDER BY j.queue, j.priority LIMIT 1),
               (SELECT j.priority FROM {JOBS} j WHERE j.{WAITING} AND (j.queue, j.priority) > (b.queue, b.priority)
                ORDER BY j.queue, j.priority LIMIT 1)""",
    # Do not use a row comparison on SQLite: it would use only the first column of the index, and scan the whole queue.
    sqlite=f"""
               coalesce((SELECT j.queue FROM {JOBS} j WHERE j.{WAITING} AND j.queue = b.queue
                         AND j.priority > b.priority LIMIT 1),
                        (SELECT j.queue FROM {JOBS} j WHERE j.{WAITING} AND j.queue > b.queue
                         ORDER BY j.queue LIMIT 1)),
               coalesce((SELECT j.priority FROM {JOBS} j WHERE j.{WAITING} AND j.queue = b.queue
                         AND j.priority > b.priority ORDER BY j.priority LIMIT 1),
                        (SELECT j.priority FROM {JOBS} j WHERE j.{WAITING} AND j.queue > b.queue
                         ORDER BY j.queue, j.priority LIMIT 1))""",
)
# The branches are the pairs (queue, priority) with waiting jobs. One step in the index finds the next pair, however
# many jobs wait in it. The pairs are numbered, up to :most_branches.
BRANCHES = f"""
      branch(queue, priority, place) AS (
        SELECT * FROM (SELECT queue, priority, 1 FROM {JOBS} WHERE {WAITING} ORDER BY queue, priority LIMIT 1) AS best
        UNION ALL
        SELECT {_NEXT_BRANCH}, b.place + 1 FROM branch b WHERE b.queue IS NOT NULL AND b.place < :most_branches
      )"""
# If the number of branches reaches the limit, the query reads all waiting jobs instead.
_MANY_QUEUES = "EXISTS (SELECT 1 FROM branch b WHERE b.place = :most_branches AND b.queue IS NOT NULL)"
# Do not use EXISTS here, because without statistics PostgreSQL would first collect every due row.
_DUE_IN_BRANCH = f"""
      (SELECT j.run_at FROM {JOBS} j WHERE j.queue = b.queue AND j.priority = b.priority AND j.{WAITING}
       ORDER BY j.run_at LIMIT 1) <= {NOW}"""


def _any_due(queues: str) -> str:
    """Return SQL that is true if a job is due in one of the *queues*, a condition on "b" (a branch or a job)."""
    # Use CASE and not OR. In a result column SQLite evaluates both sides of AND and OR, so with OR it would read every
    # waiting job.
    return (
        f"CASE WHEN {_MANY_QUEUES} THEN EXISTS (SELECT 1 FROM {JOBS} b WHERE b.{WAITING} "
        f"AND b.run_at <= {NOW} AND {queues}) ELSE EXISTS (SELECT 1 FROM branch b WHERE b.queue IS NOT NULL "
        f"AND {queues} AND {_DUE_IN_BRANCH}) END"
    )


# A paused schedule is not due, so that an idle tick stays idle. But a schedule whose pause skips occurrences is due,
# because the skipped occurrences must be recorded. A schedule whose watermark is in the future is also due: a clock was
# wrong, and a tick must correct the watermark.
SCHEDULE_DUE = f"""
      (j.status = 'active' AND j.next_at IS NOT NULL AND (j.seen_until > {NOW} OR j.next_at <= {NOW}
         AND NOT EXISTS (SELECT 1 FROM {PAUSES} p WHERE p.skip = 0 AND {STOPS_SCHEDULE}))
       OR j.owed IS NOT NULL AND (j.seen_until > {NOW}
         OR NOT EXISTS (SELECT 1 FROM {PAUSES} p WHERE {STOPS_SCHEDULE})))"""
# A sync writes the audit entry "sync" when it has applied the whole file. If it takes several transactions, it first
# writes "sync_begun".
UNFINISHED_SYNC = f"""
      a.action = 'sync_begun' AND NOT EXISTS (SELECT 1 FROM {AUDIT} s WHERE s.action = 'sync' AND s.id > a.id)"""
BEYOND = after_now(":beyond_s")
SOON = after_now("1")  # work that is due by this time can be done now
IN_AN_HOUR = after_now("3600")
# True for a lease of this host, boot and pid namespace. The prefix of locked_by finds such a lease, whether its runner
# is dead or alive.
_HELD_HERE = "locked_until IS NOT NULL AND substr(locked_by, 1, :place_length) = :place"

# All facts that an idle tick needs, in one row. WITH RECURSIVE and BRANCHES must come before this query.
SEEN = f"""
  SELECT {NOW} AS now, m.project, m.environment, m.schema_revision, m.oldest_code, m.pruned_at, m.look_at,
    CASE WHEN m.look_at > {SOON} AND m.look_at < {IN_AN_HOUR} THEN 1 = 0 ELSE 1 = 1 END AS look_due,
    EXISTS (SELECT 1 FROM {JOBS} WHERE locked_until IS NOT NULL AND locked_until < {NOW}) AS expired,
    EXISTS (SELECT 1 FROM {JOBS} j WHERE locked_until IS NOT NULL AND locked_until > {BEYOND} AND NOT {IS_EXEC})
      AS far_lease,
    EXISTS (SELECT 1 FROM {JOBS} WHERE {_HELD_HERE}) AS held_here,
    EXISTS (SELECT 1 FROM {SCHEDULES} j WHERE {SCHEDULE_DUE}) AS schedules_due,
    {_any_due(f"NOT {PAUSED}")} AS jobs_due, {_MANY_QUEUES} AS many_queues,
    CASE WHEN EXISTS (SELECT 1 FROM {PAUSES} p WHERE p.scope IN ('all', 'queue') AND {IN_FORCE})
      THEN {_any_due(PAUSED)} ELSE 1 = 0 END AS paused_due,
    EXISTS (SELECT 1 FROM {JOBS} WHERE {MISFITS_SQL}) AS misfits,
    (SELECT t.not_started FROM {TICKS} t WHERE t.host = :host AND t.job_types IS NOT NULL
     ORDER BY t.id DESC LIMIT 1) AS not_started,
    (SELECT t.started_at FROM {TICKS} t WHERE t.host = :host AND t.job_types IS NOT NULL
     ORDER BY t.id DESC LIMIT 1) AS handlers_at,
    -- ordered by id, because a clock that was set back must not make an older tick the last one
    (SELECT t.fingerprint FROM {TICKS} t WHERE t.host = :host ORDER BY t.id DESC LIMIT 1) AS last_fingerprint,
    EXISTS (SELECT 1 FROM {AUDIT} a WHERE a.action = 'sync' AND a.subject = :fingerprint) AS fingerprint_known,
    EXISTS (SELECT 1 FROM {AUDIT} a WHERE {UNFINISHED_SYNC}) AS sync_unfinished,
    -- ordered by id here, too, because a tick whose clock was years ahead would be the last one for years
    (SELECT t.started_at FROM {TICKS} t ORDER BY t.id DESC LIMIT 1) AS last_tick_at
  FROM {META} m WHERE m.id = 1"""

_NOW_S = either(postgresql=f"extract(epoch FROM {NOW})", sqlite=f"({NOW} / 1000000.0)")
_NO_DEFINITIONS = f"""
      (NOT EXISTS (SELECT 1 FROM {SCHEDULES}) AND NOT EXISTS (SELECT 1 FROM {QUEUES} WHERE max_waiting IS NOT NULL))"""


def _around_now(column: str, seconds: int) -> str:
    return f"({column} > {after_now(f'-{seconds}')} AND {column} < {after_now(str(seconds))})"


# A tick is idle if all of these conditions, and the conditions about files in ``fast_path``, are true. If any of them
# is false or NULL, the full tick is needed.
IDLE = {
    "it is our database": "project = :project AND environment = :environment",
    "the tables are those that the last full tick saw": (
        "schema_revision = :schema_revision AND oldest_code = :oldest_code"
    ),
    "no lease has expired": "NOT expired",
    "no lease was written by a wrong clock": "NOT far_lease",
    "no schedule is due": "NOT schedules_due",
    "no job is due": "NOT jobs_due",
    "no job waits in a paused queue (a tick records such jobs)": "NOT paused_due",
    "the last tick with handlers left nothing that may be fixed now": "not_started IS NULL",
    "no payload waits for code that takes it (each tick would record its version)": "NOT misfits",
    "handlers were loaded lately": _around_now("handlers_at", HANDLERS_EVERY_S),
    "this host's last tick had this file": "last_fingerprint = :fingerprint",
    "the file was applied, or defines nothing": f"(fingerprint_known OR :defines_nothing = 1 AND {_NO_DEFINITIONS})",
    "no sync was interrupted": "NOT sync_unfinished",
    "old rows were pruned lately": _around_now("pruned_at", PRUNE_EVERY_S),
    "the clock did not jump": _around_now("last_tick_at", WRONG_CLOCK_S),
    "no finding may have begun or ended, or this host sends no alerts": "(:alerts = 0 OR NOT look_due)",
    "this host's clock is right": f"abs({_NOW_S} - :host_s) <= {CLOCK_SKEW_S}",
}

# The row of an idle tick. ":age_s" is how long ago the tick started.
ROW = f"""
  INSERT INTO {TICKS} (tick, host, boot_id, pid, version, config, fingerprint, schedules_on, started_at, finished_at,
    ended)
  SELECT :tick, :host, :boot_id, :pid, :version, :config, :fingerprint, 1, {after_now("-(:age_s)")}, {NOW},
    '{NOTHING_DUE}'"""


_ANSWERS = " || ".join(f"CASE WHEN {condition} THEN '1' ELSE '0' END" for condition in IDLE.values())
_LINES = either(postgresql="string_agg(h.locked_by, chr(10))", sqlite="group_concat(h.locked_by, char(10))")
# The beginning of a query with one row, ``verdict``. ``idle`` is whether the tick is idle. ``answers`` has one digit
# for each of the IDLE conditions, in their order. ``holders`` are the lease holders on this host, one per line, or NULL
# if this host has none.
VERDICT = f"""
WITH RECURSIVE {BRANCHES}, seen AS ({SEEN}),
answered AS (SELECT {_ANSWERS} AS answers, held_here FROM seen),
verdict AS (
  SELECT answers = '{"1" * len(IDLE)}' AS idle, answers,
    CASE WHEN held_here THEN (
      SELECT {_LINES} FROM (SELECT DISTINCT locked_by FROM {JOBS} WHERE {_HELD_HERE}) h
    ) END AS holders
  FROM answered
)"""
_NEWEST_IN_BRANCH = f"""
      (SELECT j.run_at FROM {JOBS} j WHERE j.queue = b.queue AND j.priority = b.priority AND j.{WAITING}
       AND j.run_at <= {NOW} ORDER BY j.run_at DESC LIMIT 1)"""
_NEWEST_INSTANT = f"""
      CASE WHEN {_MANY_QUEUES} THEN
        (SELECT max(b.run_at) FROM {JOBS} b WHERE b.{WAITING} AND b.run_at <= {NOW} AND NOT {PAUSED})
      ELSE (SELECT max({_NEWEST_IN_BRANCH}) FROM branch b WHERE b.queue IS NOT NULL AND NOT {PAUSED}) END"""
NEWEST_IDS = 20  # search at most this many of the newest jobs for the newest due job
_NEWEST_ID = f"""
      (SELECT b.id FROM (SELECT id, queue, status, run_at FROM {JOBS} ORDER BY id DESC LIMIT {NEWEST_IDS}) b
       WHERE b.{WAITING} AND b.run_at <= {NOW} AND NOT {PAUSED} ORDER BY b.id DESC LIMIT 1)"""
# The query for polling (linger). To distinguish new work from old work, it also returns the run_at and the id of the
# newest due job that is not held back. A new run_at shows a job that was retried or was enqueued for later. A new id
# shows a job that was enqueued for an instant in the past.
LOOK = f"""{VERDICT}
SELECT idle, answers || ' ' || CASE WHEN idle THEN '' ELSE
  coalesce(CAST({_NEWEST_INSTANT} AS text), '') || ' ' || coalesce({_NEWEST_ID}, 0) END, holders
FROM verdict"""
