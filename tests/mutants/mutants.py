"""Which guards keep data safe, how each is taken out, and which tests must then turn red."""

from __future__ import annotations

from dataclasses import dataclass

from cronjobs.probe.question import IDLE


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
WEB = "cronjobs/web/security.py"
PAGES = "tests/database/test_web.py"
DJANGO_ADMIN, DJANGO_MIGRATIONS, DJANGO_SETTINGS, DJANGO_TASKS = (
    f"tests/database/test_django_{name}.py" for name in ("admin", "migrations", "settings", "tasks")
)
LEASES = "cronjobs/store/leases.py"
ENQUEUE = "cronjobs/store/enqueue.py"
DROP = "tests/process/test_db_drop.py"
EXEC = "tests/database/test_exec_runs.py"
FENCE = "tests/database/test_fence.py"
ALERTS = "tests/database/test_alerts_races.py"
TAKE_OVER = "tests/unit/crontab/test_take_over.py"
SHAPES = "tests/database/test_enqueue_shapes.py"
CRASHES = "tests/process/test_crashes.py"
HANGING = "tests/process/test_time_limit.py::test_nobody_begins_a_hung_job_while_its_tick_goes_on_with_others"
KEYS = "cronjobs/store/released_keys.py"
KEY_LIVES = "tests/database/test_key_lives.py"
APP_CHANGES = "tests/database/test_app_changes.py"
FUNCTIONS = "alembic/versions/0007_released_keys.py"
TOKENS = "cronjobs/store/tokens.py"
TOKENS_TESTS = "tests/database/test_tokens.py"
TOKEN_FUNCTIONS = "alembic/versions/0008_tokens.py"
MAPPING = "tests/unit/execution/test_mapping.py"
TRANSACTIONS = "tests/database/test_transaction_rules.py"
LOST_ANSWERS = f"{CRASHES}::test_a_lost_answer_to_any_commit_is_settled_by_reading"

# The status in the fence has no mutant: a CHECK of the table keeps locked_by NULL unless the job is running, so a row
# that is not running equals nobody's holder. tests/database/test_tables.py holds that CHECK. Nor has MATERIALIZED:
# PostgreSQL never inlines a CTE that locks rows. The mutant is the subquery that it stands against.
MUTANTS = (
    Mutant("fence without the attempt", SQL, " AND j.attempts = o.attempt", "", (FENCE,)),
    Mutant("fence without the holder", SQL, "o.attempt AND j.locked_by = o.locked_by AND", "o.attempt AND", (FENCE,)),
    Mutant("fence without the id", SQL, '"j.id = o.id AND j.attempts', '"j.attempts', (FENCE,)),
    Mutant(
        "no fence in renew",
        LEASES,
        "in _update_mine(connection, leases, assignments, lease_s=left.total_seconds())]",
        'in run(connection, "UPDATE {jobs} AS j SET locked_until = {after_lease} WHERE j.id {among_ids} RETURNING id", '
        "ids=[held.job_id for held in leases], lease_s=left.total_seconds())]",
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
        "django: root imports settings that others may write",
        "cronjobs/config/django_project.py",
        "        trust.require(replace(settings, imports=(*settings.imports, *modules)), environ)\n",
        "",
        (f"{DJANGO_SETTINGS}::test_root_does_not_import_settings_that_others_may_write",),
    ),
    Mutant(
        "django: the fast path where it cannot see a change",
        "cronjobs/tick/idle_inputs.py",
        " or settings.by_django:",
        ":",
        (f"{DJANGO_SETTINGS}::test_the_fast_path_is_not_taken_where_it_cannot_see_a_change",),
    ),
    Mutant(
        "django: migrate repeats what was done otherwise",
        "cronjobs/django/revisions.py",
        "if found is not None and found >= self.revision:",
        "if found is not None and found > self.revision:",
        (f"{DJANGO_MIGRATIONS}::test_migrate_goes_on_from_where_another_way_has_come_to",),
    ),
    Mutant(
        "django: migrate leaves its search_path behind",
        "cronjobs/django/revisions.py",
        "            if path is not None:",
        "            if False:",
        (f"{DJANGO_MIGRATIONS}::test_the_search_path_is_as_before_for_what_django_writes_next",),
    ),
    Mutant(
        "django: tables in a database that has no jobs",
        "cronjobs/django/connections.py",
        "return alias == jobs_alias() and connections",
        "return connections",
        (f"{DJANGO_MIGRATIONS}::test_another_database_gets_no_tables",),
    ),
    Mutant(
        "django: a row names the function that is looked up",
        "cronjobs/django/tasks.py",
        "    return task_jobs.KNOWN.get(job_type)\n",
        "    return next(iter([*filter(None, [task_jobs.KNOWN.get(job_type)]), *task_jobs.KNOWN.values()]), None)\n",
        (f"{DJANGO_TASKS}::test_a_row_that_names_a_function_is_no_task",),
    ),
    Mutant(
        "django: a task outside the caller's transaction",
        "cronjobs/django/connections.py",
        "    if connection.in_atomic_block or not connection.get_autocommit():",
        "    connection = connection.copy()\n    if False:",
        (f"{DJANGO_TASKS}::test_a_task_is_part_of_the_transaction",),
    ),
    Mutant(
        "django: a task's end closes the connection of a transaction",
        "cronjobs/django/task_jobs.py",
        "        if not connection.in_atomic_block:",
        "        if True:",
        (f"{DJANGO_TASKS}::test_a_task_that_succeeded_has_its_value",),
    ),
    Mutant(
        "django: who may only look retries",
        "cronjobs/django/admin.py",
        'with all tries again", permissions=["change"])',
        'with all tries again")',
        (f"{DJANGO_ADMIN}::test_who_may_only_look_cannot_act_and_nobody_adds_deletes_or_edits",),
    ),
    Mutant(
        "django: the admin shows what hide: names",
        "cronjobs/django/admin.py",
        "_configuration().shown_payload(job.job_type, job.payload)",
        "job.payload",
        (f"{DJANGO_ADMIN}::test_a_page_explains_the_job_and_shows_no_secret",),
    ),
    Mutant(
        "rows of a claim locked by a subquery under IN",
        "cronjobs/store/claims.py",
        "WHERE j.id = ANY(ARRAY(SELECT id FROM taken)) AND {still_waiting}",
        """WHERE j.id IN (SELECT c.id FROM head b CROSS JOIN LATERAL (
      SELECT j.id FROM {jobs} j WHERE {eligible} ORDER BY j.run_at, j.id LIMIT :limit {lock}) c LIMIT :limit)
    AND :free = :free AND {still_waiting}""",
        ("tests/process/test_many_ticks.py::test_the_rows_of_a_claim_are_locked_by_a_part_that_runs_once",),
    ),
    Mutant(
        "limits judged by several runners at once",
        "cronjobs/store/concurrency.py",
        "    if not is_postgresql(connection):\n",
        "    if True:\n",
        ("tests/database/test_limits_claim.py",),
    ),
    Mutant(
        "no SKIP LOCKED",
        SQL,
        '"FOR NO KEY UPDATE OF j SKIP LOCKED"',
        '"FOR NO KEY UPDATE OF j"',
        (f"{CRASHES}::test_a_row_locked_by_psql_for_the_whole_tick_stops_nobody_else",),
    ),
    Mutant(
        "an enqueue that asks for no cap",
        ENQUEUE,
        'statement += " AND NOT {is_capped}"',
        'statement += ""',
        (f"{SHAPES}::test_a_cap_holds_for_the_short_form_too",),
    ),
    Mutant(
        "one job for equal rows",
        ENQUEUE,
        "from_json = _JSON_TEXTS if len(rows) > 1 else ()",
        "from_json = ()",
        (f"{SHAPES}::test_equal_rows_are_as_many_jobs",),
    ),
    Mutant(
        "texts as parameters in a client encoding that lacks a character",
        SQL,
        "return not postgresql or (value.isascii() and",
        "return not postgresql or (True and",
        (f"{SHAPES}::test_a_client_encoding_without_the_character_keeps_no_job_from_being_written",),
    ),
    Mutant(
        "enums as parameters",
        SQL,
        "return type(value) in (int, float, datetime)",
        "return True",
        (f"{SHAPES}::test_enums_and_texts_beyond_ascii_arrive_over_every_connection",),
    ),
    Mutant(
        "deferred BEGIN for writers",
        "cronjobs/database/connection.py",
        '"BEGIN IMMEDIATE" if write else "BEGIN"',
        '"BEGIN"',
        ("tests/database/test_database.py",),
    ),
    Mutant(
        "no unique key of occurrences",
        "alembic/versions/0001_first.py",
        '        primary_key(table, "schedule_id", "last_for"),\n',
        "",
        ("tests/database/test_schedules.py::test_an_occurrence_that_is_in_the_ledger_is_refused_by_the_database",),
    ),
    Mutant(
        "an effect recorded before it is done",
        "cronjobs/store/effects.py",
        "VALUES (:key, :job_id, :attempt, 'begun', {now}) ON CONFLICT DO NOTHING",
        "VALUES (:key, :job_id, :attempt, 'recorded', {now}) ON CONFLICT DO NOTHING",
        (
            "tests/database/test_effect_rules.py::test_the_beginning_is_committed_before_the_body_and_the_result_after_it",
        ),
    ),
    Mutant(
        "a claim's lost COMMIT not settled by reading",
        "cronjobs/tick/turn.py",
        "if order.unsettled:\n",
        "if False:\n",
        (LOST_ANSWERS,),
    ),
    Mutant(
        "more is claimed before it is known what a claim without an answer took",
        "cronjobs/tick/loop.py",
        "no_claim = last is not None or self.writer.claim_unsettled",
        "no_claim = last is not None",
        ("tests/unit/tick/test_loop.py::test_claims_without_an_answer_do_not_pile_up",),
    ),
    Mutant(
        "what no standby confirmed is begun",
        "cronjobs/tick/loop.py",
        "elif attempt.job in turn.unsure:",
        "elif False:",
        ("tests/unit/tick/test_loop.py::test_what_no_standby_confirmed_goes_back_and_nothing_of_it_begins",),
    ),
    Mutant(
        "a lease of what has ended has the process killed",
        "cronjobs/tick/loop.py",
        "first_leased(working=True)",
        "first_leased()",
        (
            "tests/unit/tick/test_loop.py::test_a_job_that_has_ended_and_cannot_be_written_does_not_have_the_process_killed",
        ),
    ),
    Mutant(
        "a job is begun beside its own earlier attempt",
        "cronjobs/tick/loop.py",
        "if attempt.job.id in still_here:",
        "if False:",
        ("tests/unit/tick/test_loop.py::test_a_job_that_was_reset_by_hand_is_not_begun_beside_its_earlier_attempt",),
    ),
    Mutant(
        "what began and lost its lease is taken for a claim without an answer",
        "cronjobs/tick/turn.py",
        "{*order.held, *order.given_up}",
        "{*order.held}",
        ("tests/database/test_claim_without_answer.py::test_only_what_was_never_known_of_is_taken_up",),
    ),
    Mutant(
        "a finish's lost COMMIT tried again blindly",
        LEASES,
        "written=written.written | ours | ended, lost=written.lost - ours - ended, ",
        "",
        (LOST_ANSWERS,),
    ),
    Mutant(
        "a lease judged by the host's clock",
        "cronjobs/store/expiry.py",
        'given_up="(j.locked_until < {now} OR',
        'given_up=lambda postgresql: "(j.locked_until < " + (f"to_timestamp({__import__(\'time\').time()})" '
        'if postgresql else str(int(__import__("time").time() * 1e6))) + " OR',
        ("tests/database/test_turns.py::test_a_lease_is_over_when_the_databases_clock_says_so",),
    ),
    Mutant(
        "a timed-out thread's row freed at once",
        "cronjobs/tick/ends.py",
        """            attempt.stop.set("timeout")
            self.in_flight.unrecorded.append(attempt)
""",
        """            attempt.stop.set("timeout")
            self.in_flight.end(Ended(attempt, Finished(attempt.job, _timed_out(attempt)), now))
""",
        (HANGING,),
    ),
    Mutant(
        "a stale attempt's transaction committed all the same",
        "cronjobs/jobs/transaction.py",
        "if not finish_here(connection, self._success(result)):",
        "if not finish_here(connection, self._success(result)) and result is connection:",
        (f"{TRANSACTIONS}::test_an_attempt_that_lost_its_lease_rolls_its_work_back",),
    ),
    Mutant(
        "writes taken behind the limit of a transaction",
        "cronjobs/database/sqlite_time_limit.py",
        '            self._raw.execute("PRAGMA query_only = ON")\n',
        "",
        (f"{TRANSACTIONS}::test_what_comes_after_the_limit_is_refused_and_not_written",),
    ),
    Mutant(
        "a job that ended itself taken for a lost one",
        LEASES,
        "ended = succeeded(connection, gone)",
        "ended = frozenset()",
        ("tests/process/test_transaction.py::test_code_behind_the_commit_runs_on_without_a_lease",),
    ),
    Mutant(
        "a loop that waits behind its own workers",
        "cronjobs/database/sqlite_turns.py",
        "not self._in_use and (is_loop or not (self._loops or self._spent))",
        "not self._in_use",
        ("tests/unit/database/test_write_turns.py",),
    ),
    Mutant(
        "a claim that writes no policy",
        "cronjobs/store/claims.py",
        ", policy = {policy_at_claim}",
        ", policy = NULL",
        ("tests/database/test_recovery_policy.py",),
    ),
    Mutant(
        "recovery by the type's policy of today",
        "cronjobs/tick/recovery.py",
        "        if expired.policy is not None:\n            return expired.policy\n",
        "",
        ("tests/database/test_recovery_policy.py",),
    ),
    Mutant(
        "a waiting job of an unknown type in the way",
        "cronjobs/store/overlap.py",
        "(CAST(:runnable AS text) IS NULL OR o.job_type {among_runnable})",
        "(CAST(:runnable AS text) IS NULL OR o.job_type {among_runnable} OR true)",
        ("tests/database/test_overlap.py", "tests/database/test_unknown_types.py"),
    ),
    Mutant(
        "overlap judged by what waits alone",
        "cronjobs/store/overlap.py",
        "          AND ({is_running} OR (o.{waiting} AND {somebody_can_run}",
        "          AND ((o.{waiting} AND {somebody_can_run}",
        ("tests/database/test_overlap.py",),
    ),
    Mutant(
        "a lease taken from a runner at work",
        "cronjobs/store/expiry.py",
        ' AND NOT (j.locked_by {among_working})"',
        '"',
        ("tests/process/test_runners.py",),
    ),
    Mutant(
        "a crashing type for one runner's death",
        "cronjobs/rules/crashing_types.py",
        "    if known is None or not known.holds(now):\n        return suspected",
        "    if known is None or not known.holds(now):\n        return replace(suspected, suspected=False)",
        ("tests/database/test_crashing_types.py",),
    ),
    Mutant(
        "a machine switched off takes its types along",
        "cronjobs/rules/crashing_types.py",
        "    if _boot(known.runner) != _boot(runner):\n        return suspected\n",
        "",
        ("tests/database/test_crashing_types.py",),
    ),
    Mutant(
        "a container that applies an old file at once",
        "cronjobs/schedules/applying.py",
        " and not ticks.carried_since(connection, str(in_force), seen.now - silence)",
        "",
        ("tests/database/test_sync.py",),
    ),
    Mutant(
        "bytes in SQLite read as text",
        "cronjobs/database/connection.py",
        "    connection.text_factory = decoded  #",
        "    #",
        ("tests/database/test_encodings.py",),
    ),
    Mutant(
        "whatever encoding the client was given",
        "cronjobs/database/connection.py",
        "    return f\"SET LOCAL client_encoding = '{encoding}'\"",
        "    return f\"SET LOCAL application_name = '{encoding}'\"",
        ("tests/database/test_encodings.py",),
    ),
    Mutant(
        "whatever DateStyle the server has",
        "cronjobs/probe/server_session.py",
        '    "datestyle": "ISO, MDY",\n',
        "",
        ("tests/database/test_encodings.py",),
    ),
    Mutant(
        "payloads fetched whatever their size",
        "cronjobs/store/sizes.py",
        "           WHEN octet_length(CAST({column} AS text)) > {MOST_FETCHED} THEN '\"{TOO_LARGE}\"'\n",
        "",
        ("tests/database/test_sizes.py",),
    ),
    Mutant(
        "no claim row by row after one that failed",
        "cronjobs/tick/turn.py",
        "        self.warily = True",
        "        self.warily = False",
        ("tests/database/test_encodings.py", "tests/database/test_sizes.py"),
    ),
    Mutant(
        "a SQLite file that vanished is made anew",
        "cronjobs/host/known_databases.py",
        "    if State().read(_note(settings, address)):\n        raise",
        "    if False:\n        raise",
        ("tests/process/test_vanished.py",),
    ),
    Mutant(
        "state kept where others may write",
        "cronjobs/probe/state_files.py",
        "    if found.st_uid != os.geteuid() or found.st_mode & OTHERS_MAY_WRITE:",
        "    if False:",
        ("tests/process/test_alarm.py",),
    ),
    Mutant(
        "a Cancelled that nobody asked for taken for a stop",
        "cronjobs/execution/raised.py",
        "    return reason if reason is not None and _holds(error, (Cancelled, *_cancelled_by_asyncio())) else None",
        '    return (reason or "lost") if _holds(error, (Cancelled, *_cancelled_by_asyncio())) else None',
        ("tests/unit/execution/test_raised.py",),
    ),
    Mutant(
        "occurrences without a share of the tick",
        "cronjobs/tick/firing.py",
        "        return self.tick.go_on() and self.tick.clock.monotonic() < self.tick.patient_until",
        "        return self.tick.go_on()",
        ("tests/database/test_share_of_occurrences.py",),
    ),
    Mutant(
        "a file applied with its first chunk",
        "cronjobs/schedules/sync.py",
        "            if not left:\n                acts.append",
        "            if True:\n                acts.append",
        ("tests/database/test_sync.py", "tests/database/test_chunks_generated.py"),
    ),
    Mutant(
        "a copy that unlocks the original's lock",
        "cronjobs/database/sqlite_turns.py",
        "        if not self.is_copy:  #",
        "        if True:  #",
        ("tests/unit/database/test_write_turns.py",),
    ),
    Mutant(
        "a ledger row names a tick's row that was rolled back",
        "cronjobs/tick/tick_row.py",
        "        return ticks.begin_tick(connection, self._facts(connection))",
        '        self.id = getattr(self, "id", None) or ticks.begin_tick(connection, self._facts(connection))\n'
        "        return self.id",
        ("tests/database/test_tick_of_occurrence.py",),
    ),
    Mutant(
        "what is left of a ledger row names who split it",
        "cronjobs/store/schedules.py",
        "(here if row.decided_at is None else {})",
        "here",
        ("tests/database/test_tick_of_occurrence.py",),
    ),
    Mutant(
        "pruning waits for locked rows",
        "cronjobs/store/pruning.py",
        '    unlocked=lambda postgresql: "FOR UPDATE SKIP LOCKED"',
        '    unlocked=lambda postgresql: "FOR UPDATE"',
        ("tests/database/test_pruning.py",),
    ),
    Mutant(
        "the last tick by its clock",
        "cronjobs/probe/question.py",
        "    (SELECT t.started_at FROM {ticks} t ORDER BY t.id DESC LIMIT 1) AS last_tick_at",
        "    (SELECT max(t.started_at) FROM {ticks} t) AS last_tick_at",
        ("tests/database/test_pruning.py", "tests/database/test_tick.py"),
    ),
    Mutant(
        "what a pause holds back is due",
        "cronjobs/probe/question.py",
        "\n         AND NOT EXISTS (SELECT 1 FROM {pauses} p WHERE p.skip = 0 AND {stops_schedule}))",
        ")",
        ("tests/database/test_pauses.py",),
    ),
    Mutant(
        "files that everybody may write",
        "cronjobs/config/trust.py",
        "    if facts.mode & stat.S_IWOTH and not sticky:",
        "    if False:",
        ("tests/process/test_trust.py",),
    ),
    Mutant(
        "passwords in URLs shown",
        "cronjobs/masking.py",
        '    return mask_urls(text) if "://" in text or "password=" in text else text',
        "    return text",
        ("tests/process/test_masking.py",),
    ),
    Mutant(
        "a password in a path alone shown",
        "cronjobs/masking.py",
        ' or "password=" in text',
        "",
        ("tests/process/test_masking.py",),
    ),
    Mutant(
        "names from outside that begin a line",
        "cronjobs/errors.py",
        "        return [one_line(str(self), MESSAGE_LIMIT)]",
        "        return str(self).splitlines()",
        ("tests/database/test_escaping.py",),
    ),
    Mutant(
        "a claim in one pass, in any order",
        "cronjobs/store/claims.py",
        "AND {in_some_turn}{also} ORDER BY b.priority, b.run_at, b.id LIMIT :limit",
        "AND {in_some_turn}{also} ORDER BY b.id LIMIT :limit",
        ("tests/database/test_many_queues.py",),
    ),
    Mutant(
        "what is not on its way to a worker charged with a loss",
        "cronjobs/tick/loop.py",
        "self.ends.release([*self.workers.take_back(), *on_no_way])",
        "self.ends.release(self.workers.take_back())",
        ("tests/database/test_not_begun.py", "tests/database/test_safety_net.py"),
    ),
    Mutant(
        "a run by hand goes on past a lease that nobody could renew",
        "cronjobs/tick/loop.py",
        "            if attempt.started is not None and attempt.leased_at <= leased_since:",
        "            if False:",
        ("tests/process/test_cli_run.py",),
    ),
    Mutant(
        "experience admits jobs with an effect begun",
        "cronjobs/store/claims.py",
        "e.job_id = j.id AND e.state = 'begun'",
        "e.job_id = j.id AND e.state = ''",
        ("tests/database/test_expected_jobs.py",),
    ),
    Mutant(
        "plans are kept in a session that a pooler passes on",
        "cronjobs/database/connection.py",
        "connection.info[_SERVED_BY] == session.info.backend_pid",
        "connection.info[_SERVED_BY] != session.info",
        ("tests/database/test_database.py",),
    ),
    Mutant(
        "a plan is used in whatever session a pooler gives",
        "cronjobs/database/one_trip.py",
        "                    raise ServedByAnother",
        "                    continue",
        ("tests/database/test_one_trip.py",),
    ),
    Mutant(
        "a launcher's last report is not read",
        "cronjobs/execution/process.py",
        " and not self._poller.poll(0)",
        "",
        ("tests/process/test_process.py::test_an_end_that_is_reported_between_two_looks_is_the_commands_own",),
    ),
    Mutant(
        "a COMMIT that no standby confirmed is taken for written",
        "cronjobs/database/connection.py",
        "if session.pop(_UNCONFIRMED, False):",
        "if session.pop(_UNCONFIRMED, False) is None:",
        ("tests/process/test_failover.py",),
    ),
    Mutant(
        "a worker goes on before the end of a durable job is committed",
        "cronjobs/execution/worker_threads.py",
        "attempt.let_go.wait()",
        "attempt.let_go.is_set()",
        ("tests/process/test_group_commit.py",),
    ),
    *(
        Mutant(
            f"the fast path forgets to ask: {name}",
            "cronjobs/probe/question.py",
            f'    "{name}": ',
            f'    "{name}": "true" or ',
            ("tests/database/test_probe.py",),
        )
        for name in IDLE
    ),
    Mutant(
        "the fast path does not look whether the runners here live",
        "cronjobs/probe/idle.py",
        "all(map(is_alive, holders.split(",
        "bool(str(holders.split(",
        ("tests/database/test_probe.py",),
    ),
    Mutant(
        "the fast path trusts the inputs of another configuration",
        "cronjobs/probe/inputs.py",
        "if sources.hash() != was:",
        "if not was:",
        ("tests/process/test_idle_tick.py",),
    ),
    Mutant(
        "the fast path makes an empty SQLite file",
        "cronjobs/probe/sqlite.py",
        "?mode=rw",
        "?mode=rwc",
        ("tests/process/test_idle_tick.py",),
    ),
    Mutant(
        "totals forget the attempts that ran when they were counted",
        "cronjobs/store/totals.py",
        "pending = frozenset((row.id, row.attempts) for row in leased)",
        "pending = frozenset({(row.id, row.attempts) for row in leased} & {(0, 0)})",
        ("tests/database/test_totals.py",),
    ),
    Mutant(
        "totals count what is gone and was counted twice",
        "cronjobs/store/totals.py",
        "        if counted:\n            add(self._counted",
        "        if not key:\n            add(self._counted",
        ("tests/database/test_totals.py",),
    ),
    Mutant(
        "a retry takes an end out of the totals",
        "cronjobs/store/operating.py",
        "leaving.jobs(row for row in found if row.id in done and row.finished_at is not None)",
        "leaving.jobs(row for row in found if row.id in done and row.finished_at is not None and not row)",
        ("tests/database/test_totals.py",),
    ),
    Mutant(
        "two count at once",
        "cronjobs/store/totals.py",
        'if_free=lambda postgresql: "FOR UPDATE SKIP LOCKED" if postgresql else "",',
        'if_free="",',
        ("tests/database/test_totals.py",),
    ),
    Mutant(
        "who takes rows away does not wait for who counts",
        "cronjobs/store/totals.py",
        'to_leave=lambda postgresql: "FOR NO KEY UPDATE" if postgresql else "",',
        'to_leave="",',
        ("tests/database/test_totals.py",),
    ),
    Mutant(
        "the textfile is written through a link",
        "cronjobs/metrics/textfile.py",
        "beside.replace(path)",
        "beside.replace(path.resolve())",
        ("tests/process/test_metrics.py",),
    ),
    Mutant(
        "an alert that is being sent by one host is sent by another",
        "cronjobs/store/alerts.py",
        "AND (a.locked_until IS NULL OR a.locked_until < {now}) {skip_locked}",
        "{skip_locked}",
        (f"{ALERTS}::test_what_one_host_is_sending_nobody_else_sends",),
    ),
    Mutant(
        "who lost the lease of an alert marks it",
        "cronjobs/store/alerts.py",
        "AND channel = :channel AND locked_by = :locked_by RETURNING finding_id",
        "AND channel = :channel AND :locked_by = :locked_by RETURNING finding_id",
        (f"{ALERTS}::test_who_lost_the_lease_marks_nothing",),
    ),
    Mutant(
        "an end that comes while the message is on its way is never told",
        "cronjobs/store/alerts.py",
        "due_at = CASE WHEN over = :over THEN CAST(:next_at AS {instant_type}) ELSE :now END",
        "due_at = CASE WHEN over = :over THEN CAST(:next_at AS {instant_type}) ELSE CAST(NULL AS {instant_type}) END",
        (f"{ALERTS}::test_an_end_that_comes_while_the_message_is_on_its_way_is_told",),
    ),
    Mutant(
        "a look writes what it saw before facts changed",
        "cronjobs/store/alerts.py",
        "WHERE id = 1 AND look_at = :token RETURNING id",
        "WHERE id = 1 AND :token = :token RETURNING id",
        (f"{ALERTS}::test_a_look_that_facts_overtook_is_done_again",),
    ),
    Mutant(
        "progress of whichever attempt",
        "cronjobs/rules/progress.py",
        ' or value.get("attempt") != attempt',
        "",
        ("tests/database/test_progress.py",),
    ),
    Mutant(
        "an attempt's end leaves its progress",
        LEASES,
        " progress = NULL, live_output = NULL,",
        "",
        ("tests/database/test_progress.py",),
    ),
    Mutant(
        "the beginning of a secret is shown before its end is there",
        "cronjobs/execution/reporting.py",
        "ready = safe_until(text, secrets)",
        "ready = len(text)",
        ("tests/unit/execution/test_reporting.py",),
    ),
    Mutant("a form without the session's token", WEB, "if not _same(given, visitor.csrf):", "if False:", (PAGES,)),
    Mutant("any host name", WEB, "if request.host not in self.hosts:", "if False:", (PAGES,)),
    Mutant("a form of another site", WEB, 'ours = site in ("", "same-origin")', "ours = True", (PAGES,)),
    Mutant("the link works twice", WEB, "self._session is not None or not _same(", "not _same(", (PAGES,)),
    Mutant(
        "a page releases a job whose runner lives",
        "cronjobs/web/actions.py",
        "if not Holders().may_release(held, database_now(self.connection)):",
        "if False:",
        (PAGES,),
    ),
    Mutant(
        "a page may write",
        "cronjobs/store/reading.py",
        'run(connection, "PRAGMA query_only = ON")',
        "pass",
        (PAGES,),
    ),
    Mutant(
        "a backfill leaves the hours that were kept",
        "cronjobs/store/schedules.py",
        "        forget_hours(connection, ",
        "        (lambda *_: 0)(connection, ",
        ("tests/database/test_quarters.py",),
    ),
    Mutant(
        "the end of a run of exec is written again",
        "cronjobs/exec/delivery.py",
        "if state.status != Status.RUNNING and not state.guessed:",
        "if False:",
        (f"{EXEC}::test_a_run_whose_exec_is_gone_is_dead_and_its_end_counts_when_it_comes_after_all",),
    ),
    Mutant(
        "a lost run of exec is tried again",
        "cronjobs/exec/run.py",
        'on_lost="dead",\n    max_losses=1,',
        'on_lost="retry",\n    max_losses=10,',
        (f"{EXEC}::test_a_run_whose_exec_is_gone_is_dead_and_its_end_counts_when_it_comes_after_all",),
    ),
    Mutant(
        "a run of exec that is alive loses its lease",
        "cronjobs/exec/run.py",
        "    runner_s=LONGEST.total_seconds(),",
        "    runner_s=0.0,",
        ("tests/process/test_exec.py::test_a_projects_runs_are_in_its_database_while_they_run_and_after",),
    ),
    Mutant(
        "a run of exec is retried",
        "cronjobs/store/operating.py",
        "{too_long} IS NULL AND NOT {is_exec}\n",
        "{too_long} IS NULL\n",
        (f"{EXEC}::test_released_by_hand_it_is_dead",),
    ),
    Mutant(
        "a run of exec is released to nobody",
        "cronjobs/store/operating.py",
        "status=Status.DEAD if job.job_type.startswith(PREFIX) else Status.QUEUED",
        "status=Status.QUEUED",
        (f"{EXEC}::test_released_by_hand_it_is_dead",),
    ),
    Mutant(
        "the spool has no mark of its project",
        "cronjobs/exec/spool.py",
        'prefix = "" if where is None else f"{where}-"',
        'prefix = ""',
        ("tests/process/test_exec.py::test_an_idle_tick_delivers_what_waits_in_the_spool",),
    ),
    Mutant(
        "a refused run keeps its place in the spool",
        "cronjobs/exec/delivery.py",
        "            spool.put_aside(name)\n            continue",
        "            break",
        (f"{EXEC}::test_a_run_that_the_database_refuses_keeps_no_other_in_the_spool",),
    ),
    Mutant(
        "unwrap leaves the quoting",
        "cronjobs/crontab/wrapping.py",
        """found[2].replace(r"'\\''", "'")""",
        "found[2]",
        ("tests/unit/crontab/test_wrapping.py",),
    ),
    Mutant(
        "an ack covers rows that came later",
        "cronjobs/insight/findings.py",
        "if stored is None or not set(finding.rows) <= set(stored.rows):",
        "if stored is None:",
        ("tests/database/test_ack.py",),
    ),
    Mutant(
        "an ack covers what became worse",
        "cronjobs/insight/findings.py",
        "finding.severity.rank < Severity(stored.severity).rank:",
        "False:",
        ("tests/database/test_ack.py",),
    ),
    Mutant(
        "leftovers of a stopped command go on",
        "cronjobs/execution/launcher.py",
        "if self.ended and leave_running and not self.stopped:",
        "if self.ended and leave_running:",
        ("tests/process/test_process_stops.py",),
    ),
    Mutant(
        "a crontab is swapped at any moment of a minute",
        "cronjobs/cli/crontab.py",
        "minute = _early_in_a_minute()",
        "minute = _minute(SYSTEM.now())",
        (TAKE_OVER,),
    ),
    Mutant(
        "a job that began gives its key back",
        KEYS,
        "(j.last_failed_at IS NULL AND NOT EXISTS (SELECT 1 FROM {job_runs} r WHERE r.job_id = j.id))",
        "true",
        (APP_CHANGES,),
    ),
    Mutant(
        "a job that died, was pruned of its attempts and retried gives its key back",
        KEYS,
        "(j.last_failed_at IS NULL AND NOT",
        "(NOT",
        (APP_CHANGES,),
    ),
    Mutant(
        "a job that began gives its key back, by the function",
        FUNCTIONS,
        "AND NOT EXISTS (SELECT FROM cronjobs_job_runs r WHERE r.job_id = b.id)",
        "",
        (APP_CHANGES,),
    ),
    Mutant(
        "the function waits for a locked job",
        FUNCTIONS,
        "SELECT j.status INTO state FROM cronjobs_jobs j WHERE j.id = wanted FOR NO KEY UPDATE SKIP LOCKED;",
        "SELECT j.status INTO state FROM cronjobs_jobs j WHERE j.id = wanted;",
        (f"{APP_CHANGES}::test_a_job_that_another_transaction_holds_is_not_waited_for",),
    ),
    Mutant(
        "a cancel that is committed late is not counted",
        FUNCTIONS,
        "PERFORM FROM cronjobs_totals t WHERE t.part = 'mark' FOR KEY SHARE;",
        "",
        (f"{APP_CHANGES}::test_a_cancel_that_is_committed_late_is_counted",),
    ),
    Mutant(
        "somebody else's function runs with the owner's rights",
        FUNCTIONS,
        """    never_begun boolean;
    app text := nullif(pg_catalog.current_setting('application_name', true), '');
    actor text := pg_catalog.concat_ws(""",
        """    never_begun boolean;
    app text := nullif(pg_catalog.current_setting('application_name', true), '');
    actor text := concat_ws(""",
        (f"{APP_CHANGES}::test_the_functions_find_their_own_tables",),
    ),
    Mutant(
        "everybody may call the functions",
        FUNCTIONS,
        "REVOKE EXECUTE ON FUNCTION {name}({parameters}) FROM PUBLIC",
        "REVOKE EXECUTE ON FUNCTION {name}({parameters}) FROM CURRENT_USER",
        (f"{APP_CHANGES}::test_nobody_else_may_call_the_functions",),
    ),
    Mutant(
        "a released attempt that was cancelled meanwhile keeps the key",
        LEASES,
        "CASE WHEN {to_cancel} AND o.outcome IS NULL THEN {never_begun} ELSE false END",
        "false",
        (KEY_LIVES,),
    ),
    Mutant(
        "an attempt that began and is cancelled gives the key back",
        LEASES,
        "CASE WHEN {to_cancel} AND o.outcome IS NULL THEN {never_begun} ELSE false END",
        "CASE WHEN {to_cancel} THEN true ELSE false END",
        (KEY_LIVES,),
    ),
    Mutant(
        "a retried job takes a key that another has",
        "cronjobs/store/operating.py",
        "AND {key_owner} IS NULL AND NOT EXISTS",
        "AND NOT EXISTS",
        (APP_CHANGES,),
    ),
    Mutant(
        "two retried jobs take one key",
        "cronjobs/store/operating.py",
        "WHERE n.released_key = j.released_key AND n.id > j.id AND n.id {among_ids})",
        "WHERE n.released_key = j.released_key AND false AND n.id {among_ids})",
        (APP_CHANGES,),
    ),
    Mutant(
        "a retried job comes back without its key",
        KEYS,
        "idempotency_key = coalesce(j.idempotency_key, j.released_key), released_key = NULL",
        "idempotency_key = j.idempotency_key",
        (APP_CHANGES,),
    ),
    Mutant(
        "a job that runs is moved",
        FUNCTIONS,
        "IF state IN ('queued', 'failed') THEN\n            UPDATE cronjobs_jobs j SET run_at = due",
        "IF state IN ('queued', 'failed', 'running') THEN\n            UPDATE cronjobs_jobs j SET run_at = due",
        (APP_CHANGES,),
    ),
    Mutant(
        "a line whose command was changed since is swapped",
        "cronjobs/cli/crontab.py",
        "for pair in pairs if pair.same_command]",
        "for pair in pairs]",
        (TAKE_OVER,),
    ),
    Mutant(
        "another project's tables are dropped",
        "cronjobs/schema/dropping.py",
        "    is_ours(settings, found.project, found.environment)\n",
        "",
        (f"{DROP}::test_another_projects_tables_are_never_dropped",),
    ),
    Mutant(
        "tables are dropped under a running job",
        "cronjobs/schema/dropping.py",
        "if leased := store.live_leases(connection, SHOWN + 1):",
        "if leased := store.live_leases(connection, 0):",
        (f"{DROP}::test_it_refuses_while_a_job_runs_unless_forced",),
    ),
    Mutant(
        "tables are dropped though a job was claimed since the question",
        "cronjobs/schema/dropping.py",
        "_look(connection, made, settings, force=force, quiet=quiet)  # again",
        "_look(connection, made, settings, force=True, quiet=quiet)  # again",
        (f"{DROP}::test_a_job_claimed_between_question_and_answer_is_seen",),
    ),
    Mutant(
        "what begins with our prefix is dropped, whoever made it",
        "cronjobs/store/dropping.py",
        "for kind, name in there if (kind, name) in names]",
        'for kind, name in there if name.startswith("cronjobs_")]',
        (f"{DROP}::test_all_of_ours_goes_and_the_users_own_stays",),
    ),
    Mutant(
        "systemd ends long jobs with their tick",
        "cronjobs/crontab/systemd_units.py",
        "KillMode=process",
        "KillMode=mixed",
        ("tests/unit/crontab/test_systemd_units.py",),
    ),
    Mutant(
        "two workers take one token, on SQLite",
        TOKENS,
        "WHERE {this_token} AND (t.holder IS NULL OR t.holder = :holder) AND t.ended IS NULL RETURNING job_id",
        "WHERE {this_token} AND t.ended IS NULL RETURNING job_id",
        (f"{TOKENS_TESTS}::test_one_worker_takes_a_token_and_may_ask_again",),
    ),
    Mutant(
        "two workers take one token, on PostgreSQL",
        TOKEN_FUNCTIONS,
        " AND (t.holder IS NULL OR t.holder = $4)",
        "",
        (f"{TOKENS_TESTS}::test_one_worker_takes_a_token_and_may_ask_again",),
    ),
    Mutant(
        "an attempt begins while an earlier one may run",
        TOKENS,
        "WHERE {permit_is_over}\n        RETURNING job_id",
        "WHERE true\n        RETURNING job_id",
        (f"{TOKENS_TESTS}::test_no_attempt_begins_while_an_earlier_one_may_run",),
    ),
    Mutant(
        "a token is taken back while its permit holds",
        TOKENS,
        "DELETE FROM {tokens} AS t WHERE {permit_is_over}\n          AND EXISTS",
        "DELETE FROM {tokens} AS t WHERE EXISTS",
        (f"{TOKENS_TESTS}::test_a_permit_lasts_as_long_as_the_lease_that_it_saw",),
    ),
    Mutant(
        "a permit outlives its lease",
        TOKEN_FUNCTIONS,
        "    IF FOUND THEN\n        UPDATE cronjobs_tokens t SET permitted_until = leased_until",
        "    IF true THEN\n        UPDATE cronjobs_tokens t SET permitted_until = now() + interval '9s'",
        (f"{TOKENS_TESTS}::test_a_permit_lasts_as_long_as_the_lease_that_it_saw",),
    ),
    Mutant(
        "a supervisor ends what may still run",
        "cronjobs/engines/cluster_workers.py",
        "if far.key.job_id in closed:",
        "if closed is not None:",
        ("tests/database/test_cluster_workers.py",),
    ),
    Mutant(
        "a guard that broke off holds its attempt",
        "cronjobs/engines/guard.py",
        "        permit.confirm_no_more()\n",
        "",
        ("tests/unit/engines/test_guard.py",),
    ),
    Mutant(
        "a worker runs what was claimed with other code",
        "cronjobs/engines/guard.py",
        "if (why := difference(spec.versions, versions())) is not None:",
        "if (why := difference(spec.versions, spec.versions)) is not None:",
        ("tests/unit/engines/test_guard.py",),
    ),
    Mutant(
        "results of ctx.map in the order of the ends",
        "cronjobs/execution/mapping.py",
        "[ends[call.number] for call in these]",
        "list(ends.values())",
        (f"{MAPPING}::test_whatever_order_the_ends_come_in_and_however_often_each_payload_has_one_result",),
    ),
    Mutant(
        "a call of ctx.map returns whatever it likes",
        "cronjobs/rules/calls.py",
        "result_json(result, MOST_RESULT)",
        "result_json(result, 10**9)",
        (f"{MAPPING}::test_a_result_of_more_than_a_mebibyte_is_refused",),
    ),
    Mutant(
        "calls go on after a stop",
        "cronjobs/execution/call_pool.py",
        "            self.kill()\n            raise\n\n    def _make(",
        "            raise\n\n    def _make(",
        (f"{MAPPING}::test_a_stop_kills_what_hangs_and_asks_what_looks",),
    ),
    Mutant(
        "a call may map, and write for its job",
        "cronjobs/execution/one_call.py",
        "    def _effects(self, what: str) -> NoReturn:\n        raise UsageError(_ALONE.format(what=what))",
        "    def _effects(self, what: str) -> NoReturn:\n        return super()._effects(what)  # type: ignore",
        (f"{MAPPING}::test_a_call_is_no_job",),
    ),
    Mutant(
        "calls on a cluster outlive a job whose guard has died",
        "cronjobs/engines/calls_on_worker.py",
        "            if not goes_on:",
        "            if goes_on is None:",
        ("tests/process/test_map_on_clusters.py::test_calls_of_a_job_whose_guard_dies_end_within_a_lease",),
    ),
    Mutant(
        "a parent holds its slot while its calls wait",
        "cronjobs/engines/attempt_calls.py",
        "if self._maps.is_set() and not self._seceded:",
        "if self._maps.is_set() and self._seceded:",
        ("tests/process/test_map_on_clusters.py::test_more_parents_than_slots_come_to_their_end",),
    ),
)
