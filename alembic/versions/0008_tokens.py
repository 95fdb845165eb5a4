"""Attempts that run on a cluster: each has a token, which one worker takes, and a permit, which that worker confirms.

It only adds, so code of the revisions before goes on ticking on these tables.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import conv

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

FIRST_INSTANT = 100_000_000_000_000  # microseconds, as in 0001
LAST_INSTANT = 253_402_300_799_999_999


def upgrade() -> None:
    create_tokens()
    if is_postgresql():
        op.execute(TAKE_TOKEN)
        op.execute(CONFIRM_PERMIT)
        for function in ("cronjobs_take_token", "cronjobs_confirm_permit"):
            op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def instant(name: str) -> sa.Column[Any]:
    kind: Any = postgresql.TIMESTAMP(timezone=True) if is_postgresql() else sa.BigInteger()
    return sa.Column(name, kind)


def instant_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    if is_postgresql():
        return []
    return [
        sa.CheckConstraint(
            f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {FIRST_INSTANT} "
            f"AND {LAST_INSTANT})",
            name=conv(f"{table}_{column}_microseconds_ck"),
        )
        for column in columns
    ]


def create_tokens() -> None:
    table = "cronjobs_tokens"
    op.create_table(
        table,
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text()),
        instant("taken_at"),
        instant("permitted_until"),
        sa.Column("ended", sa.Text()),
        sa.PrimaryKeyConstraint("job_id", name=conv(f"{table}_pk")),
        sa.CheckConstraint(
            "(holder IS NULL) = (taken_at IS NULL) AND (holder IS NULL) = (permitted_until IS NULL)",
            name=conv(f"{table}_taken_ck"),
        ),
        *instant_checks(table, "taken_at", "permitted_until"),
    )


# SET search_path and the schemas of functions: see 0007.
#
# Both run with their owner's rights: the role of a worker has a right to them alone, and sees no table. A caller that
# does not know an attempt's token learns and changes nothing.
#
# One row decides: whoever ends an attempt on the other side deletes it, unless its permit still holds. So a token that
# is taken here cannot be released there, and the other way round.
TAKE_TOKEN = """
CREATE FUNCTION cronjobs_take_token(job bigint, attempt int, token text, holder text)
RETURNS TABLE (answer text, left_s float8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    leased_until timestamptz;
    asked timestamptz;
    at_once timestamptz := pg_catalog.statement_timestamp();
    there text;
BEGIN
    SELECT j.locked_until, j.cancel_requested_at INTO leased_until, asked FROM cronjobs_jobs j
    WHERE j.id = $1 AND j.attempts = $2 AND j.status = 'running' AND j.locked_until > at_once;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'over', 0::float8;
        RETURN;
    END IF;
    IF asked IS NULL THEN
        -- The same holder asks again if the answer was lost on its way.
        UPDATE cronjobs_tokens t
        SET holder = $4, taken_at = coalesce(t.taken_at, at_once), permitted_until = leased_until
        WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND (t.holder IS NULL OR t.holder = $4)
          AND t.ended IS NULL;
        IF FOUND THEN
            RETURN QUERY SELECT 'yours', extract(epoch FROM leased_until - at_once)::float8;
            RETURN;
        END IF;
    END IF;
    SELECT t.holder INTO there FROM cronjobs_tokens t WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3;
    RETURN QUERY SELECT CASE WHEN there IS NOT NULL THEN 'taken' WHEN asked IS NOT NULL AND FOUND THEN 'cancelled'
        ELSE 'over' END, 0::float8;
END
$cronjobs$
"""
CONFIRM_PERMIT = """
CREATE FUNCTION cronjobs_confirm_permit(job bigint, attempt int, token text, ended text DEFAULT NULL)
RETURNS TABLE (answer text, left_s float8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    leased_until timestamptz;
    asked timestamptz;
    at_once timestamptz := pg_catalog.statement_timestamp();
BEGIN
    IF $4 IS NOT NULL THEN
        -- Nothing of it runs any more.
        UPDATE cronjobs_tokens t SET ended = pg_catalog.left($4, 1000000), permitted_until = at_once
        WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND t.holder IS NOT NULL AND t.ended IS NULL;
        RETURN QUERY SELECT CASE WHEN FOUND THEN 'yours' ELSE 'over' END, 0::float8;
        RETURN;
    END IF;
    SELECT j.locked_until, j.cancel_requested_at INTO leased_until, asked FROM cronjobs_jobs j
    WHERE j.id = $1 AND j.attempts = $2 AND j.status = 'running' AND j.locked_until > at_once;
    IF FOUND THEN
        UPDATE cronjobs_tokens t SET permitted_until = leased_until
        WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND t.holder IS NOT NULL AND t.ended IS NULL;
    ELSIF EXISTS (SELECT FROM cronjobs_tokens t JOIN cronjobs_job_runs r ON r.job_id = t.job_id
                  AND r.attempt = t.attempt AND r.outcome = 'succeeded'
                  WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND t.holder IS NOT NULL) THEN
        -- The handler has ended its job in a transaction of its own; what it does now changes nothing of that.
        RETURN QUERY SELECT 'done', 0::float8;
        RETURN;
    END IF;
    RETURN QUERY SELECT CASE WHEN NOT FOUND THEN 'over' WHEN asked IS NOT NULL THEN 'cancelled' ELSE 'yours' END,
        CASE WHEN FOUND THEN extract(epoch FROM leased_until - at_once)::float8 ELSE 0 END;
END
$cronjobs$
"""
