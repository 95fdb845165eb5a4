"""Names of exec's runs are theirs alone, and functions lock and count the capped queues, not their enqueuers.

Code of the revisions before goes on ticking on these tables. Its enqueuers go on, too, until "cronjobs db grants" takes
the right from them that they no longer need.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration


def upgrade() -> None:
    end_jobs_with_names_of_exec()
    op.execute("DROP INDEX cronjobs_jobs_exec_idx")
    op.execute(
        "CREATE INDEX cronjobs_jobs_exec_idx ON cronjobs_jobs (job_type, run_at, id) "
        "WHERE substr(job_type, 1, 5) = 'exec:' AND started_at IS NOT NULL"
    )
    if is_postgresql():
        op.execute(f"ALTER TABLE cronjobs_jobs ADD CONSTRAINT cronjobs_jobs_exec_began_ck CHECK ({EXEC_BEGAN})")
        op.execute("CREATE SEQUENCE cronjobs_queues_held OWNED BY cronjobs_queues.name")
        for function, parameters in ((LOCK_QUEUES, LOCK_QUEUES_TYPES), (COUNT_FULL, COUNT_FULL_TYPES)):
            op.execute(function)
            name = function.partition("CREATE FUNCTION ")[2].partition("(")[0]
            # They run with the rights of the tables' owner: "cronjobs db grants" says who may call them.
            op.execute(f"REVOKE EXECUTE ON FUNCTION {name}({parameters}) FROM PUBLIC")
        op.execute(ENQUEUE)
        op.execute(RIGHTS)
    else:
        for when in ("INSERT", "UPDATE OF job_type"):
            op.execute(trigger(when))
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


# --- names of exec ----------------------------------------------------------------------------------------------------

# Final rows are exempt: what was enqueued under such a name before is dead, and stays to be seen.
EXEC_BEGAN = "substr(job_type, 1, 5) <> 'exec:' OR started_at IS NOT NULL OR finished_at IS NOT NULL"


def trigger(when: str) -> str:
    """SQLite takes a new CHECK only with a new column or a new table, so a trigger does its work."""
    name = f"cronjobs_jobs_exec_began_{when.partition(' ')[0].lower()}"
    return (
        f"CREATE TRIGGER {name} BEFORE {when} ON cronjobs_jobs "
        "WHEN substr(NEW.job_type, 1, 5) = 'exec:' AND NEW.started_at IS NULL AND NEW.finished_at IS NULL "
        "BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: cronjobs_jobs_exec_began_ck'); END"
    )


def end_jobs_with_names_of_exec() -> None:
    """Nothing ever ran them: no handler can have such a name."""
    now = (
        "statement_timestamp()"
        if is_postgresql()
        else "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) "
        "* 1000)"
    )
    reason = 'only runs of "cronjobs exec" have a name that begins with exec: enqueue it again under another one'
    op.execute(
        f"UPDATE cronjobs_jobs SET status = 'dead', finished_at = {now}, last_failed_at = {now}, "  # noqa: S608
        f"locked_by = NULL, locked_until = NULL, error_type = 'ExecName', last_error = '{reason}' "
        "WHERE substr(job_type, 1, 5) = 'exec:' AND started_at IS NULL AND finished_at IS NULL"
    )


# --- the functions ----------------------------------------------------------------------------------------------------

# SET search_path and the schemas of functions: see 0007.
#
# An enqueuer has no right to change a queue's row, so it can neither lock that row nor write its counters but by these.
LOCK_QUEUES_TYPES = "text[], boolean"
LOCK_QUEUES = r"""
CREATE FUNCTION cronjobs_lock_queues(names text[], wait boolean)
RETURNS TABLE (name text, max_waiting int, on_full text, mine boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    patience text := pg_catalog.current_setting('lock_timeout');
BEGIN
    IF $2 THEN
        IF patience = '0' THEN
            PERFORM pg_catalog.set_config('lock_timeout', '10s', true);
        END IF;
        PERFORM FROM cronjobs_queues q WHERE q.name = ANY ($1) AND q.max_waiting IS NOT NULL
        ORDER BY q.name FOR NO KEY UPDATE;
        PERFORM pg_catalog.set_config('lock_timeout', patience, true);
    END IF;
    -- Skips rows that another session has locked: whoever does not wait tries again.
    RETURN QUERY
        WITH locked AS MATERIALIZED (
            SELECT q.name, q.max_waiting, q.on_full FROM cronjobs_queues q
            WHERE q.name = ANY ($1) AND q.max_waiting IS NOT NULL ORDER BY q.name FOR NO KEY UPDATE OF q SKIP LOCKED
        )
        SELECT q.name, coalesce(l.max_waiting, q.max_waiting), coalesce(l.on_full, q.on_full), l.name IS NOT NULL
        FROM cronjobs_queues q LEFT JOIN locked l ON l.name = q.name
        WHERE q.name = ANY ($1) AND q.max_waiting IS NOT NULL ORDER BY q.name;
END
$cronjobs$
"""

# A sequence counts what gave up, as it can: no lock is in its way, and no rollback takes its count back.
COUNT_FULL_TYPES = "text, text, int"
COUNT_FULL = r"""
CREATE FUNCTION cronjobs_count_full(queue text, what text, jobs int)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    more bigint := CASE WHEN $3 > 0 THEN $3 ELSE 0 END;
    most bigint := 4611686018427387904;
    patience text := pg_catalog.current_setting('lock_timeout');
BEGIN
    IF $2 = 'held' THEN
        PERFORM pg_catalog.nextval('cronjobs_queues_held');
        RETURN;
    END IF;
    IF patience = '0' THEN
        PERFORM pg_catalog.set_config('lock_timeout', '1s', true);
    END IF;
    UPDATE cronjobs_queues q SET
        dropped = CASE WHEN $2 = 'dropped' AND q.dropped < most THEN q.dropped + more ELSE q.dropped END,
        refused = CASE WHEN $2 = 'refused' AND q.refused < most THEN q.refused + more ELSE q.refused END
    WHERE q.name = $1;
    PERFORM pg_catalog.set_config('lock_timeout', patience, true);
END
$cronjobs$
"""

# As in 0001, but for the name, the lock and the count.
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

# Who could lock and count before still can, and who could read these counts can read the new one, until the next
# "cronjobs db grants".
RIGHTS = r"""
DO $cronjobs$
DECLARE
    who record;
BEGIN
    FOR who IN
        SELECT DISTINCT a.grantee, a.privilege_type,
            CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS name
        FROM (SELECT c.relacl AS acl FROM pg_class c WHERE c.oid = 'cronjobs_queues'::regclass
              UNION ALL
              SELECT t.attacl FROM pg_attribute t WHERE t.attrelid = 'cronjobs_queues'::regclass) given,
             aclexplode(given.acl) a
        WHERE a.privilege_type IN ('SELECT', 'UPDATE')
    LOOP
        IF who.privilege_type = 'SELECT' THEN
            EXECUTE 'GRANT SELECT ON SEQUENCE cronjobs_queues_held TO ' || who.name;
        ELSE
            EXECUTE 'GRANT EXECUTE ON FUNCTION cronjobs_lock_queues(text[], boolean), '
                || 'cronjobs_count_full(text, text, int) TO ' || who.name;
        END IF;
    END LOOP;
END $cronjobs$
"""
