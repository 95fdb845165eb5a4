"""Which guards keep data safe, how each is taken out, and which tests must then turn red."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One guard taken out: *old* becomes *new* in *file*; then one of *tests* has to fail.

    *old* must stand in the file exactly once, so that a mutant cannot go stale without being noticed.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


SQL = "cronjobs/store/sql.py"
LEASES = "cronjobs/store/leases.py"
LOOP = "cronjobs/loop.py"
FENCE = "tests/test_fence.py"
CRASHES = "tests/test_crashes.py"
HANGING = "tests/test_time_limit.py::test_nobody_begins_a_hung_job_while_its_tick_goes_on_with_others"
TRANSACTIONS = "tests/test_transaction_rules.py"
LOST_ANSWERS = f"{CRASHES}::test_a_lost_answer_to_any_commit_is_settled_by_reading"

# The status in the fence has no mutant: a CHECK of the table keeps locked_by NULL unless the job is running, so a row
# that is not running equals nobody's holder. tests/test_tables.py holds that CHECK. Nor has the word MATERIALIZED:
# PostgreSQL never inlines a CTE that locks rows. The mutant is the subquery that it stands against.
MUTANTS = (
    Mutant("fence without the attempt", SQL, " AND j.attempts = o.attempt", "", (FENCE,)),
    Mutant("fence without the holder", SQL, "o.attempt AND j.locked_by = o.locked_by AND", "o.attempt AND", (FENCE,)),
    Mutant("fence without the id", SQL, '"j.id = o.id AND j.attempts', '"j.attempts', (FENCE,)),
    Mutant(
        "no fence in renew",
        LEASES,
        'renewed = _update_mine(connection, "{lease_rows}", rows,',
        'renewed = _update_mine(connection, "(SELECT j.id, j.attempts AS attempt, j.locked_by FROM {lease_rows} q '
        'JOIN {jobs} j ON j.id = q.id)", rows,',
        (FENCE,),
    ),
    Mutant(
        "adoption without the attempt and the holder",
        LEASES,
        "WHERE id = :id AND attempts = :attempt AND locked_by = :locked_by AND status = 'running'",
        "WHERE id = :id AND :attempt = :attempt AND :locked_by = :locked_by AND status = 'running'",
        (FENCE,),
    ),
    Mutant(
        "rows of a claim locked by a subquery under IN",
        "cronjobs/store/claims.py",
        "WHERE j.id = ANY(ARRAY(SELECT id FROM taken)) AND j.{waiting}",
        """WHERE j.id IN (SELECT c.id FROM head b CROSS JOIN LATERAL (
      SELECT j.id FROM {jobs} j WHERE {eligible} ORDER BY j.run_at, j.id LIMIT :limit {lock}) c LIMIT :limit)
    AND :free = :free AND j.{waiting}""",
        ("tests/test_many_ticks.py::test_the_rows_of_a_claim_are_locked_by_a_part_that_runs_once",),
    ),
    Mutant(
        "limits judged by several runners at once",
        "cronjobs/store/limits.py",
        "    if not is_postgresql(connection):\n",
        "    if True:\n",
        ("tests/test_limits_claim.py",),
    ),
    Mutant(
        "no SKIP LOCKED",
        SQL,
        '"FOR NO KEY UPDATE OF j SKIP LOCKED"',
        '"FOR NO KEY UPDATE OF j"',
        (f"{CRASHES}::test_a_row_locked_by_psql_for_the_whole_tick_stops_nobody_else",),
    ),
    Mutant(
        "deferred BEGIN for writers",
        "cronjobs/database.py",
        '"BEGIN IMMEDIATE" if write else "BEGIN"',
        '"BEGIN"',
        ("tests/test_database.py",),
    ),
    Mutant(
        "no unique key of occurrences",
        "alembic/versions/0001_first.py",
        '        primary_key(table, "schedule_id", "last_for"),\n',
        "",
        ("tests/test_schedules.py::test_an_occurrence_that_is_in_the_ledger_is_refused_by_the_database",),
    ),
    Mutant(
        "an effect recorded before it is done",
        "cronjobs/store/effects.py",
        "VALUES (:key, :job_id, :attempt, 'begun', {now}) ON CONFLICT DO NOTHING",
        "VALUES (:key, :job_id, :attempt, 'recorded', {now}) ON CONFLICT DO NOTHING",
        ("tests/test_effect_rules.py::test_the_beginning_is_committed_before_the_body_and_the_result_after_it",),
    ),
    Mutant(
        "a claim's lost COMMIT not settled by reading",
        "cronjobs/turn.py",
        "if self.claim_unsettled:\n",
        "if False:\n",
        (LOST_ANSWERS,),
    ),
    Mutant(
        "a finish's lost COMMIT tried again blindly",
        "cronjobs/turn.py",
        "written=written.written | ours | ended, lost=written.lost - ours - ended, ",
        "",
        (LOST_ANSWERS,),
    ),
    Mutant(
        "a lease judged by the host's clock",
        LEASES,
        "(j.locked_until < {now} OR j.locked_by {among_dead})",
        '(j.locked_until < """ + ("to_timestamp(" + str(__import__("time").time()) + ")" if is_postgresql(connection) '
        'else str(int(__import__("time").time() * 1e6))) + """ OR j.locked_by {among_dead})',
        ("tests/test_turns.py::test_a_lease_is_over_when_the_databases_clock_says_so",),
    ),
    Mutant(
        "a timed-out thread's row freed at once",
        LOOP,
        """                attempt.stop.set("timeout")
                self.hands.unrecorded.append(attempt)
""",
        """                attempt.stop.set("timeout")
                self.hands.unwritten.append(Ended(attempt, Finished(attempt.job, self._timed_out(attempt)), now))
""",
        (HANGING,),
    ),
    Mutant(
        "a stale attempt's transaction committed all the same",
        "cronjobs/transaction.py",
        "if not finish_here(connection, self._success(result)):",
        "if not finish_here(connection, self._success(result)) and result is connection:",
        (f"{TRANSACTIONS}::test_an_attempt_that_lost_its_lease_rolls_its_work_back",),
    ),
    Mutant(
        "writes taken behind the limit of a transaction",
        "cronjobs/keeper.py",
        '            self._raw.execute("PRAGMA query_only = ON")\n',
        "",
        (f"{TRANSACTIONS}::test_what_comes_after_the_limit_is_refused_and_not_written",),
    ),
    Mutant(
        "a job that ended itself taken for a lost one",
        LEASES,
        "ended = succeeded(connection, gone)",
        "ended = frozenset()",
        ("tests/test_transaction.py::test_code_behind_the_commit_runs_on_without_a_lease",),
    ),
    Mutant(
        "a loop that waits behind its own workers",
        "cronjobs/turns.py",
        "not self._in_use and (is_loop or not (self._loops or self._spent))",
        "not self._in_use",
        ("tests/test_write_turns.py",),
    ),
)
