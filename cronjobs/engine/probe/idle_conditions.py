"""What a tick asks the database first, as SQL: the fast path and the full tick ask by the same text.

A statement is a template: ``{jobs}`` and the like become table names, other names the fragments below, and those may
contain names again. A fragment is a text, or a function of "is this PostgreSQL?" where the two databases differ.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Fragment = str | Callable[[bool], str]

PRUNE_EVERY_S = 3600
HANDLERS_EVERY_S = 3600  # even an idle host loads its handlers this often: a deploy may have changed only Python
CLOCK_SKEW_S = 60
WRONG_CLOCK_S = 86_400
MANY_QUEUES = 1000
NOTHING_DUE = "nothing is due"

WAITING_SQL = "status IN ('queued', 'failed')"
MISFIT = "SignatureMismatch"  # the error type if a payload does not fit its handler
MISFITS_SQL = f"{WAITING_SQL} AND misfit_since IS NOT NULL"
TABLES = ("jobs", "schedules", "pauses", "ticks", "audit", "queues", "meta")


def shifted(instant: str, seconds: str) -> Fragment:
    """*instant* (an SQL expression) and *seconds* (one, too; may be negative) later."""
    return lambda postgresql: (
        f"({instant} + make_interval(secs => {seconds}))"
        if postgresql
        else f"({instant} + CAST(({seconds}) * 1000000 AS INTEGER))"
    )


def after_now(seconds: str) -> Fragment:
    return shifted("{now}", seconds)


def _around_now(column: str, seconds: int) -> str:
    return f"({column} > {{ago_{seconds}}} AND {column} < {{ahead_{seconds}}})"


def _any_due(queues: str) -> str:
    """Whether a job is due in one of those *queues*."""
    # CASE: of AND and OR in a column SQLite evaluates both sides, and would read all jobs that wait.
    return (
        "CASE WHEN {many_queues} THEN EXISTS (SELECT 1 FROM {jobs} b WHERE b.{waiting} "
        f"AND b.run_at <= {{now}} AND {queues}) ELSE EXISTS (SELECT 1 FROM branch b WHERE b.queue IS NOT NULL "
        f"AND {queues} AND {{due_in_branch}}) END"
    )


# PostgreSQL's. statement_timestamp(), never clock_timestamp(), which is volatile and no condition of an index. :now_ is
# zero but for the probe of tests that travel in time on a real database. SQLite's clock is the host's.
NOW = "(statement_timestamp() + make_interval(secs => :now_))"

FRAGMENTS: dict[str, Fragment] = {
    # A run of "cronjobs exec": no tick made it, and none may run it.
    "is_exec": "(substr(j.job_type, 1, 5) = 'exec:')",
    # A literal: a bound value would hide the partial index from the planner.
    "waiting": WAITING_SQL,
    "misfit": MISFITS_SQL,
    "now": lambda postgresql: NOW if postgresql else ":now_",
    "now_s": lambda postgresql: "extract(epoch FROM {now})" if postgresql else "({now} / 1000000.0)",
    # The pairs (queue, priority) that have waiting rows, each found by one index step: how many rows a pair has does
    # not matter. They are numbered, up to :most_branches.
    "branches": """
      branch(queue, priority, place) AS (
        SELECT * FROM (SELECT queue, priority, 1 FROM {jobs} WHERE {waiting} ORDER BY queue, priority LIMIT 1) AS best
        UNION ALL
        SELECT {next_branch}, b.place + 1 FROM branch b WHERE b.queue IS NOT NULL AND b.place < :most_branches
      )""",
    "next_branch": lambda postgresql: (
        """
               (SELECT j.queue FROM {jobs} j WHERE j.{waiting} AND (j.queue, j.priority) > (b.queue, b.priority)
                ORDER BY j.queue, j.priority LIMIT 1),
               (SELECT j.priority FROM {jobs} j WHERE j.{waiting} AND (j.queue, j.priority) > (b.queue, b.priority)
                ORDER BY j.queue, j.priority LIMIT 1)"""
        if postgresql
        # SQLite uses only the first column of a row comparison for the index, so it would scan the whole queue.
        else """
               coalesce((SELECT j.queue FROM {jobs} j WHERE j.{waiting} AND j.queue = b.queue
                         AND j.priority > b.priority LIMIT 1),
                        (SELECT j.queue FROM {jobs} j WHERE j.{waiting} AND j.queue > b.queue
                         ORDER BY j.queue LIMIT 1)),
               coalesce((SELECT j.priority FROM {jobs} j WHERE j.{waiting} AND j.queue = b.queue
                         AND j.priority > b.priority ORDER BY j.priority LIMIT 1),
                        (SELECT j.priority FROM {jobs} j WHERE j.{waiting} AND j.queue > b.queue
                         ORDER BY j.queue, j.priority LIMIT 1))"""
    ),
    # "p" is a pause; for "b", of a queue, and for "j", a schedule. In Python: engine/rules/pausing.py.
    "in_force": "(p.until IS NULL OR p.until > {now})",
    "stops_queue": "(p.scope = 'all' OR (p.scope = 'queue' AND p.name = b.queue)) AND {in_force}",
    "stops_schedule": "(p.scope = 'all' OR (p.scope = 'schedule' AND p.name = j.name)) AND {in_force}",
    "paused": "EXISTS (SELECT 1 FROM {pauses} p WHERE {stops_queue})",
    # A schedule is not due while it is paused, so that an idle tick stays idle; but a pause that skips has rows to
    # write. A watermark in the future was written by a wrong clock, and is corrected in any case.
    "schedule_due": """
      (j.status = 'active' AND j.next_at IS NOT NULL AND (j.seen_until > {now} OR j.next_at <= {now}
         AND NOT EXISTS (SELECT 1 FROM {pauses} p WHERE p.skip = 0 AND {stops_schedule}))
       OR j.owed IS NOT NULL AND (j.seen_until > {now}
         OR NOT EXISTS (SELECT 1 FROM {pauses} p WHERE {stops_schedule})))""",
    # "b" is a queue or a job; with very many queues all their jobs are read instead.
    # Not EXISTS: without statistics PostgreSQL would first gather all that is due there.
    "due_in_branch": """
      (SELECT j.run_at FROM {jobs} j WHERE j.queue = b.queue AND j.priority = b.priority AND j.{waiting}
       ORDER BY j.run_at LIMIT 1) <= {now}""",
    "many_queues": "EXISTS (SELECT 1 FROM branch b WHERE b.place = :most_branches AND b.queue IS NOT NULL)",
    "jobs_due": _any_due("NOT {paused}"),
    "paused_jobs_due": _any_due("{paused}"),
    # "sync" is recorded when all of a file is in force; a sync of several transactions begins with "sync_begun".
    "unfinished_sync": """
      a.action = 'sync_begun' AND NOT EXISTS (SELECT 1 FROM {audit} s WHERE s.action = 'sync' AND s.id > a.id)""",
    "beyond": after_now(":beyond_s"),
    "soon": after_now("1"),  # what is due by then may as well be done now
    # Runners of this host, boot and pid namespace, dead or alive: how their locked_by begins.
    "held_here": "locked_until IS NOT NULL AND substr(locked_by, 1, :place_length) = :place",
    "no_definitions": """
      (NOT EXISTS (SELECT 1 FROM {schedules}) AND NOT EXISTS (SELECT 1 FROM {queues} WHERE max_waiting IS NOT NULL))""",
    "lines": lambda postgresql: (
        "string_agg(h.locked_by, chr(10))" if postgresql else "group_concat(h.locked_by, char(10))"
    ),
    **{
        f"{name}_{seconds}": after_now(str(sign * seconds))
        for seconds in {PRUNE_EVERY_S, HANDLERS_EVERY_S, WRONG_CLOCK_S}
        for name, sign in (("ago", -1), ("ahead", 1))
    },
}

# All that an idle tick needs to know, in one row; to be preceded by WITH RECURSIVE {branches}.
SEEN = """
  SELECT {now} AS now, m.project, m.environment, m.schema_revision, m.oldest_code, m.pruned_at, m.look_at,
    CASE WHEN m.look_at > {soon} AND m.look_at < {ahead_3600} THEN 1 = 0 ELSE 1 = 1 END AS look_due,
    EXISTS (SELECT 1 FROM {jobs} WHERE locked_until IS NOT NULL AND locked_until < {now}) AS expired,
    EXISTS (SELECT 1 FROM {jobs} j WHERE locked_until IS NOT NULL AND locked_until > {beyond} AND NOT {is_exec})
      AS far_lease,
    EXISTS (SELECT 1 FROM {jobs} WHERE {held_here}) AS held_here,
    EXISTS (SELECT 1 FROM {schedules} j WHERE {schedule_due}) AS schedules_due,
    {jobs_due} AS jobs_due, {many_queues} AS many_queues,
    CASE WHEN EXISTS (SELECT 1 FROM {pauses} p WHERE p.scope IN ('all', 'queue') AND {in_force})
      THEN {paused_jobs_due} ELSE 1 = 0 END AS paused_due,
    EXISTS (SELECT 1 FROM {jobs} WHERE {misfit}) AS misfits,
    (SELECT t.not_started FROM {ticks} t WHERE t.host = :host AND t.job_types IS NOT NULL
     ORDER BY t.id DESC LIMIT 1) AS not_started,
    (SELECT t.started_at FROM {ticks} t WHERE t.host = :host AND t.job_types IS NOT NULL
     ORDER BY t.id DESC LIMIT 1) AS handlers_at,
    -- by id: a clock that stepped back must not make an older tick the last one
    (SELECT t.fingerprint FROM {ticks} t WHERE t.host = :host ORDER BY t.id DESC LIMIT 1) AS last_fingerprint,
    EXISTS (SELECT 1 FROM {audit} a WHERE a.action = 'sync' AND a.subject = :fingerprint) AS fingerprint_known,
    EXISTS (SELECT 1 FROM {audit} a WHERE {unfinished_sync}) AS sync_unfinished,
    -- by id here too: a tick whose clock was years ahead would be the last one for years
    (SELECT t.started_at FROM {ticks} t ORDER BY t.id DESC LIMIT 1) AS last_tick_at
  FROM {meta} m WHERE m.id = 1"""

# Why a tick is idle: each of these is true. Whatever is not (NULL too) needs the full tick.
IDLE = {
    "it is our database": "project = :project AND environment = :environment",
    "the tables are those that the last full tick saw": (
        "schema_revision = :schema_revision AND oldest_code = :oldest_code"
    ),
    "no lease has expired": "NOT expired",
    "no lease was written by a wrong clock": "NOT far_lease",
    "no schedule is due": "NOT schedules_due",
    "no job is due": "NOT jobs_due",
    "no job waits in a paused queue, which is recorded": "NOT paused_due",
    "the last tick with handlers left nothing that may be fixed now": "not_started IS NULL",
    "no payload waits for code that takes it, so that each tick shows its version": "NOT misfits",
    "handlers were loaded lately": _around_now("handlers_at", HANDLERS_EVERY_S),
    "this host's last tick had this file": "last_fingerprint = :fingerprint",
    "the file was applied, or says nothing": "(fingerprint_known OR :defines_nothing = 1 AND {no_definitions})",
    "no sync was interrupted": "NOT sync_unfinished",
    "old rows were pruned lately": _around_now("pruned_at", PRUNE_EVERY_S),
    "the clock did not jump": _around_now("last_tick_at", WRONG_CLOCK_S),
    "no finding may have begun or ended, or this host sends no alerts": "(:alerts = 0 OR NOT look_due)",
    "this host's clock is right": f"abs({{now_s}} - :host_s) <= {CLOCK_SKEW_S}",
}

# What a tick that did nothing leaves. ":age_s" is how long ago it started.
ROW = """
  INSERT INTO {ticks} (tick, host, boot_id, pid, version, fingerprint, schedules_on, started_at, finished_at, ended)
  SELECT :tick, :host, :boot_id, :pid, :version, :fingerprint, 1, {started_at}, {now}, {ended}"""


# One row: whether the tick is idle; the answers behind that, a digit each in the order of IDLE; who holds leases here,
# a line each, NULL if nobody does.
VERDICT = """
WITH RECURSIVE {branches}, seen AS ({seen}),
answered AS (SELECT {answers} AS answers, held_here FROM seen),
verdict AS (
  SELECT answers = '{all_true}' AS idle, answers,
    CASE WHEN held_here THEN (
      SELECT {lines} FROM (SELECT DISTINCT locked_by FROM {jobs} WHERE {held_here}) h
    ) END AS holders
  FROM answered
)"""
# For polling (linger): also the newest of what is due and not held back, to tell new work from old. A retry, or a job
# enqueued for later, is newest by its instant; one enqueued for an instant that is over, by its id.
LOOK = """{verdict}
SELECT idle, answers || ' ' || CASE WHEN idle THEN '' ELSE
  coalesce(CAST({newest_instant} AS text), '') || ' ' || coalesce({newest_id}, 0) END, holders
FROM verdict"""
NEWEST_IDS = 20  # so many jobs enqueued last are looked at
FRAGMENTS |= {
    "newest_instant": """
      CASE WHEN {many_queues} THEN
        (SELECT max(b.run_at) FROM {jobs} b WHERE b.{waiting} AND b.run_at <= {now} AND NOT {paused})
      ELSE (SELECT max({newest_in_branch}) FROM branch b WHERE b.queue IS NOT NULL AND NOT {paused}) END""",
    "newest_in_branch": """
      (SELECT j.run_at FROM {jobs} j WHERE j.queue = b.queue AND j.priority = b.priority AND j.{waiting}
       AND j.run_at <= {now} ORDER BY j.run_at DESC LIMIT 1)""",
    "newest_id": f"""
      (SELECT b.id FROM (SELECT id, queue, status, run_at FROM {{jobs}} ORDER BY id DESC LIMIT {NEWEST_IDS}) b
       WHERE b.{{waiting}} AND b.run_at <= {{now}} AND NOT {{paused}} ORDER BY b.id DESC LIMIT 1)""",
}
FRAGMENTS |= {
    "seen": SEEN,
    "answers": " || ".join(f"CASE WHEN {condition} THEN '1' ELSE '0' END" for condition in IDLE.values()),
    "all_true": "1" * len(IDLE),
    "verdict": VERDICT,
    "row": ROW,
    "ended": f"'{NOTHING_DUE}'",
    "started_at": after_now("-(:age_s)"),
}


def qualified(table: str, schema: str | None) -> str:
    """*table* in the configured *schema*; None: where the search_path finds it."""
    if schema is None:
        return f"cronjobs_{table}"
    if "{" in schema or "}" in schema:
        raise ValueError("a schema's name has no braces")
    quoted = schema.replace('"', '""')
    return f'"{quoted}".cronjobs_{table}'


def fill(template: str, postgresql: bool, schema: str | None, more: Mapping[str, Fragment] | None = None) -> str:
    """The statement that *template* stands for; *more* goes before the fragments above."""
    names = {table: qualified(table, schema) for table in TABLES}
    for name, fragment in {**FRAGMENTS, **(more or {})}.items():
        names[name] = fragment if isinstance(fragment, str) else fragment(postgresql)
    while "{" in template:
        template = template.format_map(names)
    return template
