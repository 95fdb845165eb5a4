"""Numbers of a few bytes that are a hundred thousand digits as text are refused where jobs come in.

It only adds, so code of the revisions before goes on ticking on these tables. What such a number has been written into,
and has not begun, is dead, and says why.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

# A number beyond 1e400 or -1e400, or with more than 400 decimals. "strict": lax would visit the items of an array
# twice. The quotient has as many decimals as the number, if those are more than sixteen: 0.33 * 3 is 1 less 1e-2.
ODD_NUMBERS = "strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)"
ODD = f"jsonb_path_exists(payload, '{ODD_NUMBERS}') OR jsonb_path_exists(meta, '{ODD_NUMBERS}')"


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        end_jobs_with_odd_numbers()
        op.execute(
            "ALTER TABLE cronjobs_jobs ADD CONSTRAINT cronjobs_jobs_numbers_ck "
            f"CHECK (attempts > 0 OR finished_at IS NOT NULL OR NOT ({ODD}))"
        )
        op.execute(ENQUEUE.replace("{ODD_NUMBERS}", ODD_NUMBERS))
    # Jobs of which a claim ended before the row was read: hardly ever any.
    op.execute(
        "CREATE INDEX cronjobs_jobs_unread_idx ON cronjobs_jobs (id) "
        "WHERE error_type = 'NotRead' AND status IN ('queued', 'failed')"
    )
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


def end_jobs_with_odd_numbers() -> None:
    """They can neither stay as they are nor be claimed."""
    reason = "a number in its payload or meta is beyond 1e400 or -1e400, or has more than 400 decimals"
    now = "statement_timestamp()"
    op.execute(
        f"UPDATE cronjobs_jobs SET status = 'dead', finished_at = {now}, last_failed_at = {now}, "  # noqa: S608
        f"error_type = 'OddNumber', last_error = '{reason}' "
        f"WHERE attempts = 0 AND finished_at IS NULL AND ({ODD})"
    )


# As in 0009, but for the check of the numbers.
ENQUEUE = r"""
CREATE OR REPLACE FUNCTION cronjobs_enqueue(
    job_type text,
    payload jsonb DEFAULT '{}',
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    queue text DEFAULT 'default',
    priority int DEFAULT 5,
    idempotency_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    timeout_s float8 DEFAULT NULL,
    meta jsonb DEFAULT '{}',
    enqueued_by text DEFAULT NULL
) RETURNS TABLE (id bigint, new boolean, status text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    given ALIAS FOR $7;
    wanted_queue text := coalesce($5, 'default');
    most int;
    then_do text;
BEGIN
    IF coalesce(btrim($1), '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'cronjobs_enqueue: job_type is empty';
    END IF;
    IF substr($1, 1, 5) = 'exec:' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'cronjobs_enqueue: job_type "' || $1
            || '" begins with "exec:", as only runs of "cronjobs exec" do: choose another name';
    END IF;
    IF jsonb_typeof($2) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload is a JSON object, not of type ' || jsonb_typeof($2);
    END IF;
    -- Before anything writes it as text.
    IF jsonb_path_exists($2, '{ODD_NUMBERS}') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload has a number beyond 1e400 or -1e400, or with more than 400 decimals: '
                || 'pass it as a text';
    END IF;
    IF jsonb_path_exists($11, '{ODD_NUMBERS}') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: meta has a number beyond 1e400 or -1e400, or with more than 400 decimals: '
                || 'pass it as a text';
    END IF;
    IF $3 IS NOT NULL AND $4 IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: give run_at or delay, not both';
    END IF;
    IF given = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: idempotency_key is empty (was it made before the row had its id?)';
    END IF;
    -- Looked for first: an INSERT would wait for an open transaction that has changed the row of this key. Again only
    -- when a row was in the way of the INSERT, or was deleted between the two statements.
    FOR try IN 1..10 LOOP
        RETURN QUERY
            SELECT j.id, false, j.status FROM cronjobs_jobs j WHERE j.idempotency_key = given;
        IF FOUND THEN
            RETURN;
        END IF;
        -- Others who enqueue into a capped queue wait for its row, and none of them for ever.
        IF most IS NULL AND EXISTS (SELECT FROM cronjobs_queues q
                                   WHERE q.name = wanted_queue AND q.max_waiting IS NOT NULL) THEN
            BEGIN
                SELECT q.max_waiting, q.on_full INTO most, then_do
                FROM cronjobs_lock_queues(ARRAY[wanted_queue], true) q;
            EXCEPTION WHEN lock_not_available THEN
                PERFORM cronjobs_count_full(wanted_queue, 'held', 1);
                RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
                    MESSAGE = 'cronjobs_enqueue: another open transaction has enqueued into queue "' || wanted_queue
                        || '", whose jobs are counted: nothing was written',
                    HINT = 'Enqueue again: after ROLLBACK TO SAVEPOINT this transaction can be used.';
            END;
            CONTINUE;  -- whoever had the row may have spent the key
        END IF;
        IF most <= (SELECT count(*) FROM (
               SELECT FROM cronjobs_jobs j WHERE j.queue = wanted_queue AND j.status IN ('queued', 'failed')
               LIMIT most) waiting) THEN
            IF then_do = 'drop' THEN
                PERFORM cronjobs_count_full(wanted_queue, 'dropped', 1);
                RETURN QUERY SELECT NULL::bigint, false, NULL::text;
                RETURN;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'CJ001',
                MESSAGE = 'cronjobs_enqueue: queue "' || wanted_queue || '" is full (max_waiting '
                    || most || '): nothing was written',
                HINT = 'Enqueue again later, or raise max_waiting in the file.';
        END IF;
        RETURN QUERY
            INSERT INTO cronjobs_jobs (job_type, payload, meta, queue, priority, run_at, idempotency_key,
                                       concurrency_key, max_attempts, timeout_s, enqueued_by)
            VALUES ($1, coalesce($2, '{}'), coalesce($11, '{}'), wanted_queue, coalesce($6, 5),
                    coalesce($3, statement_timestamp() + coalesce($4, interval '0')), given, $8, $9, $10,
                    coalesce($12, concat_ws('/', CURRENT_USER, nullif(current_setting('application_name', true), ''))))
            ON CONFLICT (idempotency_key) DO NOTHING
            RETURNING cronjobs_jobs.id, true, cronjobs_jobs.status;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = 'cronjobs_enqueue: the job with this idempotency_key comes and goes: try again';
END
$cronjobs$
"""
