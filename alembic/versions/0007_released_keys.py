"""A job in the app's hands: cancelled or moved in the app's own transaction, and a key that is free again.

It only adds, so code of the revisions before goes on ticking on these tables. What such code cancels keeps its key.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration


def upgrade() -> None:
    op.execute("ALTER TABLE cronjobs_jobs ADD COLUMN released_key TEXT")
    op.execute(
        "CREATE INDEX cronjobs_jobs_released_key_idx ON cronjobs_jobs (released_key) WHERE released_key IS NOT NULL"
    )
    if op.get_context().dialect.name == "postgresql":
        for function, parameters in ((CANCEL, CANCEL_TYPES), (RESCHEDULE, RESCHEDULE_TYPES)):
            op.execute(function)
            name = function.partition("CREATE FUNCTION ")[2].partition("(")[0]
            # They run with the rights of the tables' owner: "cronjobs db grants" says who may call them.
            op.execute(f"REVOKE EXECUTE ON FUNCTION {name}({parameters}) FROM PUBLIC")
    else:
        replace_readable_view()
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


# --- the functions ----------------------------------------------------------------------------------------------------

# As in 0001: SET search_path FROM CURRENT keeps the schema that the migration was pinned to, pg_temp last. No percent
# sign in here. session_user, not CURRENT_USER: that is the owner, whose rights these functions have.
#
# Functions are named with their schema: where others may create some, too, theirs could be a better match for the
# arguments, and would have the owner's rights.
#
# A row that another transaction has locked is tried for a tenth of a second, as a claim takes milliseconds. Then the
# answer is "locked": an error would end the caller's transaction.
CANCEL_TYPES = "bigint, text, text"
CANCEL = r"""
CREATE FUNCTION cronjobs_cancel(
    id bigint DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    reason text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    wanted bigint;
    state text;
    never_begun boolean;
    app text := nullif(pg_catalog.current_setting('application_name', true), '');
    actor text := pg_catalog.concat_ws('/', session_user, app);
    client text := pg_catalog.host(pg_catalog.inet_client_addr());
    at_once timestamptz := pg_catalog.statement_timestamp();
    why text := nullif(pg_catalog.left(pg_catalog.btrim($3), 500), '');
BEGIN
    IF ($1 IS NULL) = ($2 IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_cancel: give id or idempotency_key, one of the two';
    END IF;
    FOR try IN 1..5 LOOP
        IF $1 IS NOT NULL THEN
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.id = $1;
        ELSE
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.idempotency_key = $2;
            IF NOT FOUND THEN
                -- "+ 0": in the order of ids alone it may walk back through all jobs.
                SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j
                WHERE j.released_key = $2 ORDER BY j.id + 0 DESC LIMIT 1;
            END IF;
        END IF;
        IF wanted IS NULL OR state IN ('succeeded', 'dead', 'cancelled') THEN
            RETURN state;
        END IF;
        -- A statement of its own: the next one sees all that others did to the job before we had its lock.
        SELECT j.status INTO state FROM cronjobs_jobs j WHERE j.id = wanted FOR NO KEY UPDATE SKIP LOCKED;
        IF state IN ('queued', 'failed') THEN
            -- Ticks count what has ended, up to a minute ago, and wait with that while we share this row: our
            -- transaction may stay open for longer than that minute, and nobody would ever count this end.
            PERFORM FROM cronjobs_totals t WHERE t.part = 'mark' FOR KEY SHARE;
            SELECT b.last_failed_at IS NULL AND NOT EXISTS (SELECT FROM cronjobs_job_runs r WHERE r.job_id = b.id)
            INTO never_begun FROM cronjobs_jobs b WHERE b.id = wanted;
            UPDATE cronjobs_jobs j SET
                status = 'cancelled', finished_at = at_once,
                last_error = 'cancelled by ' || actor || coalesce(': ' || why, ''),
                released_key = CASE WHEN never_begun THEN coalesce(j.idempotency_key, j.released_key)
                                    ELSE j.released_key END,
                idempotency_key = CASE WHEN never_begun THEN NULL ELSE j.idempotency_key END
            WHERE j.id = wanted;
            state := 'cancelled';
        ELSIF state = 'running' THEN
            -- Nobody reads a request to stop a run of "cronjobs exec".
            UPDATE cronjobs_jobs j SET cancel_requested_at = coalesce(j.cancel_requested_at, at_once)
            WHERE j.id = wanted AND pg_catalog.substr(j.job_type, 1, 5) <> 'exec:';
            IF NOT FOUND THEN
                RETURN state;
            END IF;
        ELSE
            PERFORM pg_catalog.pg_sleep(0.025);
            CONTINUE;
        END IF;
        INSERT INTO cronjobs_audit (at, actor, host, action, subject, why)
        VALUES (at_once, actor, client, 'cancel', 'job ' || wanted::text, why);
        RETURN state;
    END LOOP;
    RETURN 'locked';
END
$cronjobs$
"""

RESCHEDULE_TYPES = "bigint, text, timestamptz, interval, text"
RESCHEDULE = r"""
CREATE FUNCTION cronjobs_reschedule(
    id bigint DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    reason text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    wanted bigint;
    state text;
    was timestamptz;
    iso text := 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"';
    app text := nullif(pg_catalog.current_setting('application_name', true), '');
    actor text := pg_catalog.concat_ws('/', session_user, app);
    client text := pg_catalog.host(pg_catalog.inet_client_addr());
    at_once timestamptz := pg_catalog.statement_timestamp();
    due timestamptz := coalesce($3, at_once + $4);
    why text := nullif(pg_catalog.left(pg_catalog.btrim($5), 500), '');
BEGIN
    IF ($1 IS NULL) = ($2 IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_reschedule: give id or idempotency_key, one of the two';
    END IF;
    IF ($3 IS NULL) = ($4 IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_reschedule: give run_at or delay, one of the two';
    END IF;
    FOR try IN 1..5 LOOP
        IF $1 IS NOT NULL THEN
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.id = $1;
        ELSE
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.idempotency_key = $2;
            IF NOT FOUND THEN
                -- "+ 0": in the order of ids alone it may walk back through all jobs.
                SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j
                WHERE j.released_key = $2 ORDER BY j.id + 0 DESC LIMIT 1;
            END IF;
        END IF;
        IF wanted IS NULL OR state IN ('succeeded', 'dead', 'cancelled') THEN
            RETURN state;
        END IF;
        SELECT j.status, j.run_at INTO state, was FROM cronjobs_jobs j WHERE j.id = wanted
        FOR NO KEY UPDATE SKIP LOCKED;
        IF state IN ('queued', 'failed') THEN
            UPDATE cronjobs_jobs j SET run_at = due WHERE j.id = wanted;
            INSERT INTO cronjobs_audit (at, actor, host, action, subject, why, detail)
            VALUES (at_once, actor, client, 'reschedule', 'job ' || wanted::text, why,
                    pg_catalog.jsonb_build_object(
                        'from', pg_catalog.to_char(pg_catalog.timezone('UTC'::text, was), iso),
                        'to', pg_catalog.to_char(pg_catalog.timezone('UTC'::text, due), iso)));
            RETURN state;
        ELSIF state IS NOT NULL THEN
            RETURN state;
        END IF;
        PERFORM pg_catalog.pg_sleep(0.025);
    END LOOP;
    RETURN 'locked';
END
$cronjobs$
"""


# --- the view ---------------------------------------------------------------------------------------------------------

# As in 0005.
READABLE = (
    "id job_type payload meta queue priority status *run_at attempts failures losses interruptions max_attempts "
    "timeout_s locked_by *locked_until idempotency_key concurrency_key schedule *scheduled_for last_error error_type "
    "*last_failed_at result enqueued_by *cancel_requested_at *created_at *started_at *finished_at policy *dismissed_at "
    "progress live_output released_key"
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
