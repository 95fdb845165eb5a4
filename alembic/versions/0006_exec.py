"""Runs of ``cronjobs exec`` are found by their names: the newest of each shows whether one did not come.

It only adds an index, so code of the revisions before goes on ticking on these tables.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration


def upgrade() -> None:
    op.execute(
        "CREATE INDEX cronjobs_jobs_exec_idx ON cronjobs_jobs (job_type, run_at, id) "
        "WHERE substr(job_type, 1, 5) = 'exec:'"
    )
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")
