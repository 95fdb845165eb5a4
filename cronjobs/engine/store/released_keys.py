"""SQL by which a cancelled job releases its key if none of its attempts ever began.

All statements that cancel jobs contain these parts. The SQL functions in the migration do the same, and a test compares
the resulting rows.
"""

from __future__ import annotations

from typing import Final

from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS

# A row in job_runs is an attempt that began. A job that died, and was retried while it was being pruned, may have lost
# these rows. In that case ``last_failed_at`` still shows that the job ran.
NEVER_BEGUN: Final = f"(j.last_failed_at IS NULL AND NOT EXISTS (SELECT 1 FROM {JOB_RUNS} r WHERE r.job_id = j.id))"
# Clear the unique column, so that a new job can take the key, even if somebody's own SQL inserts it with ON CONFLICT.
RELEASE_KEY: Final = f"""
      released_key = CASE WHEN {NEVER_BEGUN} THEN coalesce(j.idempotency_key, j.released_key) ELSE j.released_key END,
      idempotency_key = CASE WHEN {NEVER_BEGUN} THEN NULL ELSE j.idempotency_key END"""
# A job that is retried takes its key back.
TAKE_KEY_BACK: Final = "idempotency_key = coalesce(j.idempotency_key, j.released_key), released_key = NULL"
# The id of the job that now has the released key, or NULL.
KEY_OWNER: Final = f"(SELECT k.id FROM {JOBS} k WHERE k.idempotency_key = j.released_key)"
