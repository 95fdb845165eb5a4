"""Since when a job's payload does not fit its handler: it waits, uncharged, for a version of the code that takes it.

It only adds, so code of the revisions before goes on ticking on these tables.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

FIRST_INSTANT = 100_000_000_000_000  # microseconds, as in 0001
LAST_INSTANT = 253_402_300_799_999_999


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE cronjobs_jobs ADD COLUMN misfit_since TIMESTAMP WITH TIME ZONE")
    else:
        op.execute(
            "ALTER TABLE cronjobs_jobs ADD COLUMN misfit_since BIGINT "
            "CONSTRAINT cronjobs_jobs_misfit_since_microseconds_ck CHECK (misfit_since IS NULL OR "
            f"(typeof(misfit_since) = 'integer' AND misfit_since BETWEEN {FIRST_INSTANT} AND {LAST_INSTANT}))"
        )
        replace_readable_view()
    op.execute(
        "CREATE INDEX cronjobs_jobs_misfit_idx ON cronjobs_jobs (job_type, misfit_since, id) "
        "WHERE status IN ('queued', 'failed') AND misfit_since IS NOT NULL"
    )
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


# --- the view ---------------------------------------------------------------------------------------------------------

# As in 0007.
READABLE = (
    "id job_type payload meta queue priority status *run_at attempts failures losses interruptions max_attempts "
    "timeout_s locked_by *locked_until idempotency_key concurrency_key schedule *scheduled_for last_error error_type "
    "*last_failed_at result enqueued_by *cancel_requested_at *created_at *started_at *finished_at policy *dismissed_at "
    "progress live_output released_key *misfit_since"
)


def replace_readable_view() -> None:
    columns = ", ".join(_iso(name[1:]) if name.startswith("*") else f'"{name}"' for name in READABLE.split())
    op.execute("DROP VIEW IF EXISTS cronjobs_jobs_readable")
    op.execute(f"CREATE VIEW cronjobs_jobs_readable AS SELECT {columns} FROM cronjobs_jobs")  # noqa: S608


def _iso(column: str) -> str:
    """SQL for an instant as people read it: 2026-01-31T09:30:00.000000Z."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000) "
        f"AS {column}"
    )
