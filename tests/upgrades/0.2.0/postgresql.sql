SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE FUNCTION public.cronjobs_cancel(id bigint DEFAULT NULL::bigint, idempotency_key text DEFAULT NULL::text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
            SELECT b.last_failed_at IS NULL AND NOT EXISTS (SELECT FROM cronjobs_job_runs r WHERE r.job_id = b.id)
            INTO never_begun FROM cronjobs_jobs b WHERE b.id = wanted;
            UPDATE cronjobs_jobs j SET
                status = 'cancelled', finished_at = at_once,
                last_error = 'cancelled by ' || actor || coalesce(': ' || why, ''),
                released_key = CASE WHEN never_begun THEN coalesce(j.idempotency_key, j.released_key)
                                    ELSE j.released_key END,
                idempotency_key = CASE WHEN never_begun THEN NULL ELSE j.idempotency_key END
            WHERE j.id = wanted;
            INSERT INTO cronjobs_new_counts (at_hour, kind, name, outcome, bucket, count, newest)
            SELECT pg_catalog.floor(extract(epoch FROM at_once) / 3600), k.kind, pg_catalog.substr(k.name, 1, 300),
                'cancelled', -1, 1, k.newest
            FROM cronjobs_jobs j, LATERAL (VALUES
                ('jobs', j.job_type, NULL),
                ('scheduled', j.schedule, (extract(epoch FROM at_once) * 1000000)::bigint)) k(kind, name, newest)
            WHERE j.id = wanted AND k.name IS NOT NULL;
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
$_$;
CREATE FUNCTION public.cronjobs_confirm_permit(job bigint, attempt integer, token text, ended text DEFAULT NULL::text) RETURNS TABLE(answer text, left_s double precision)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
$_$;
CREATE FUNCTION public.cronjobs_count_full(queue text, what text, jobs integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
$_$;
CREATE FUNCTION public.cronjobs_enqueue(job_type text, payload jsonb DEFAULT '{}'::jsonb, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay interval DEFAULT NULL::interval, queue text DEFAULT 'default'::text, priority integer DEFAULT 5, idempotency_key text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, max_attempts integer DEFAULT NULL::integer, timeout_s double precision DEFAULT NULL::double precision, meta jsonb DEFAULT '{}'::jsonb, enqueued_by text DEFAULT NULL::text) RETURNS TABLE(id bigint, new boolean, status text)
    LANGUAGE plpgsql
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
            || '" begins with "exec:", which is reserved for "cronjobs exec": choose another name';
    END IF;
    IF jsonb_typeof($2) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload is a JSON object, not of type ' || jsonb_typeof($2);
    END IF;
    -- Before anything writes it as text.
    IF jsonb_path_exists($2, 'strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload has a number beyond 1e400 or -1e400, or with more than 400 decimals: '
                || 'pass it as a text';
    END IF;
    IF jsonb_path_exists($11, 'strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)') THEN
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
$_$;
CREATE FUNCTION public.cronjobs_lock_queues(names text[], wait boolean) RETURNS TABLE(name text, max_waiting integer, on_full text, mine boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
$_$;
CREATE FUNCTION public.cronjobs_reschedule(id bigint DEFAULT NULL::bigint, idempotency_key text DEFAULT NULL::text, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay interval DEFAULT NULL::interval, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
$_$;
CREATE FUNCTION public.cronjobs_take_token(job bigint, attempt integer, token text, holder text) RETURNS TABLE(answer text, left_s double precision)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $_$
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
$_$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.cronjobs_acks (
    finding text NOT NULL,
    severity text NOT NULL,
    rows jsonb NOT NULL,
    until timestamp with time zone NOT NULL,
    by text,
    why text,
    acked_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT cronjobs_acks_severity_ck CHECK ((severity = ANY (ARRAY['critical'::text, 'warning'::text, 'notice'::text])))
);
CREATE TABLE public.cronjobs_alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.cronjobs_alerts (
    finding_id bigint NOT NULL,
    channel text NOT NULL,
    due_at timestamp with time zone,
    over smallint DEFAULT 0 NOT NULL,
    severity text,
    rows jsonb,
    first_at timestamp with time zone,
    sent_at timestamp with time zone,
    sent integer DEFAULT 0 NOT NULL,
    failed_at timestamp with time zone,
    failures integer DEFAULT 0 NOT NULL,
    error text,
    locked_by text,
    locked_until timestamp with time zone
);
CREATE TABLE public.cronjobs_audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    actor text DEFAULT concat_ws('/'::text, CURRENT_USER, NULLIF(current_setting('application_name'::text, true), ''::text)),
    host text,
    action text NOT NULL,
    subject text DEFAULT ''::text NOT NULL,
    why text,
    detail jsonb
);
ALTER TABLE public.cronjobs_audit ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.cronjobs_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.cronjobs_counts (
    at_hour bigint NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    outcome text NOT NULL,
    bucket smallint NOT NULL,
    count bigint DEFAULT 0 NOT NULL,
    micros double precision DEFAULT 0 NOT NULL,
    longest bigint,
    newest bigint
)
WITH (fillfactor='70');
CREATE TABLE public.cronjobs_crashing_types (
    job_type text NOT NULL,
    found_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    clean_ends integer DEFAULT 0 NOT NULL,
    runner text,
    suspected smallint DEFAULT 0 NOT NULL
);
CREATE TABLE public.cronjobs_jobs (
    id bigint NOT NULL,
    job_type text NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    meta jsonb DEFAULT '{}'::jsonb NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL,
    priority smallint DEFAULT 5 NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    run_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    losses integer DEFAULT 0 NOT NULL,
    interruptions integer DEFAULT 0 NOT NULL,
    max_attempts integer,
    timeout_s double precision,
    locked_by text,
    locked_until timestamp with time zone,
    idempotency_key text,
    concurrency_key text,
    schedule text,
    scheduled_for timestamp with time zone,
    last_error text,
    error_type text,
    last_failed_at timestamp with time zone,
    result jsonb,
    enqueued_by text DEFAULT concat_ws('/'::text, CURRENT_USER, NULLIF(current_setting('application_name'::text, true), ''::text)),
    cancel_requested_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    policy jsonb,
    dismissed_at timestamp with time zone,
    progress jsonb,
    live_output text,
    released_key text,
    misfit_since timestamp with time zone,
    CONSTRAINT cronjobs_jobs_counters_ck CHECK (((attempts >= 0) AND (failures >= 0) AND (losses >= 0) AND (interruptions >= 0))),
    CONSTRAINT cronjobs_jobs_exec_began_ck CHECK (((substr(job_type, 1, 5) <> 'exec:'::text) OR (started_at IS NOT NULL) OR (finished_at IS NOT NULL))),
    CONSTRAINT cronjobs_jobs_finished_when_final_ck CHECK (((status = ANY (ARRAY['succeeded'::text, 'dead'::text, 'cancelled'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT cronjobs_jobs_instants_ck CHECK ((((run_at >= '1969-12-31 19:00:00-05'::timestamp with time zone) AND (run_at <= '9999-12-31 18:59:59.999999-05'::timestamp with time zone)) AND ((created_at >= '1969-12-31 19:00:00-05'::timestamp with time zone) AND (created_at <= '9999-12-31 18:59:59.999999-05'::timestamp with time zone)) AND ((scheduled_for >= '1969-12-31 19:00:00-05'::timestamp with time zone) AND (scheduled_for <= '9999-12-31 18:59:59.999999-05'::timestamp with time zone)) AND ((started_at >= '1969-12-31 19:00:00-05'::timestamp with time zone) AND (started_at <= '9999-12-31 18:59:59.999999-05'::timestamp with time zone)))),
    CONSTRAINT cronjobs_jobs_leased_when_running_ck CHECK ((((status = 'running'::text) = (locked_by IS NOT NULL)) AND ((status = 'running'::text) = (locked_until IS NOT NULL)))),
    CONSTRAINT cronjobs_jobs_lengths_ck CHECK (((finished_at IS NOT NULL) OR (((job_type IS NULL) OR (octet_length(job_type) <= 1000)) AND ((queue IS NULL) OR (octet_length(queue) <= 1000)) AND ((schedule IS NULL) OR (octet_length(schedule) <= 1000)) AND ((enqueued_by IS NULL) OR (octet_length(enqueued_by) <= 1000)) AND ((idempotency_key IS NULL) OR (octet_length(idempotency_key) <= 2000)) AND ((concurrency_key IS NULL) OR (octet_length(concurrency_key) <= 2000))))),
    CONSTRAINT cronjobs_jobs_max_attempts_ck CHECK (((max_attempts IS NULL) OR (max_attempts >= 1))),
    CONSTRAINT cronjobs_jobs_numbers_ck CHECK (((attempts > 0) OR (finished_at IS NOT NULL) OR (NOT (jsonb_path_exists(payload, 'strict $.**?((@ > 10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 || @ < -10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000) || (((@ - @) + 1) / 3) * 3 > 1 - 0.0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001)'::jsonpath) OR jsonb_path_exists(meta, 'strict $.**?((@ > 10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 || @ < -10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000) || (((@ - @) + 1) / 3) * 3 > 1 - 0.0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001)'::jsonpath))))),
    CONSTRAINT cronjobs_jobs_priority_ck CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT cronjobs_jobs_status_ck CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'dead'::text, 'cancelled'::text]))),
    CONSTRAINT cronjobs_jobs_timeout_s_ck CHECK (((timeout_s IS NULL) OR (timeout_s > (0)::double precision)))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
CREATE VIEW public.cronjobs_dead_jobs AS
 SELECT id,
    job_type,
    queue,
    priority,
    schedule,
    failures,
    losses,
    attempts,
    error_type,
    last_error,
    last_failed_at,
    finished_at,
    created_at,
    idempotency_key,
    enqueued_by,
    payload
   FROM public.cronjobs_jobs
  WHERE (status = 'dead'::text);
CREATE TABLE public.cronjobs_effects (
    key text NOT NULL,
    job_id bigint,
    attempt integer,
    state text DEFAULT 'begun'::text NOT NULL,
    begun_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    recorded_at timestamp with time zone,
    result jsonb,
    repeats integer DEFAULT 0 NOT NULL,
    CONSTRAINT cronjobs_effects_recorded_when_recorded_ck CHECK (((state = 'recorded'::text) = (recorded_at IS NOT NULL))),
    CONSTRAINT cronjobs_effects_state_ck CHECK ((state = ANY (ARRAY['begun'::text, 'recorded'::text, 'skipped'::text, 'stopped'::text])))
);
CREATE TABLE public.cronjobs_findings (
    id bigint NOT NULL,
    finding text NOT NULL,
    kind text NOT NULL,
    severity text NOT NULL,
    text text NOT NULL,
    command text,
    rows jsonb NOT NULL,
    host text DEFAULT ''::text NOT NULL,
    began_at timestamp with time zone NOT NULL,
    found_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT cronjobs_findings_severity_ck CHECK ((severity = ANY (ARRAY['critical'::text, 'warning'::text, 'notice'::text])))
);
ALTER TABLE public.cronjobs_findings ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.cronjobs_findings_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.cronjobs_job_runs (
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    runner text NOT NULL,
    worker text,
    error_type text,
    error text,
    traceback text,
    output text,
    CONSTRAINT cronjobs_job_runs_outcome_ck CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'failed'::text, 'timed_out'::text, 'lost'::text, 'interrupted'::text, 'cancelled'::text, 'snoozed'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE public.cronjobs_job_type_lists (
    hash text NOT NULL,
    names jsonb NOT NULL,
    recorded_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);
ALTER TABLE public.cronjobs_jobs ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.cronjobs_jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW public.cronjobs_long_running_jobs AS
 SELECT id,
    job_type,
    queue,
    schedule,
    attempts,
    timeout_s,
    started_at,
    locked_by,
    locked_until,
    (EXTRACT(epoch FROM (statement_timestamp() - started_at)))::double precision AS running_s,
        CASE
            WHEN (locked_until < statement_timestamp()) THEN 'its lease ran out'::text
            WHEN ((started_at + make_interval(secs => timeout_s)) < statement_timestamp()) THEN 'beyond its timeout'::text
            ELSE 'more than an hour'::text
        END AS why
   FROM public.cronjobs_jobs
  WHERE ((locked_until IS NOT NULL) AND ((locked_until < statement_timestamp()) OR ((started_at + make_interval(secs => timeout_s)) < statement_timestamp()) OR (started_at < (statement_timestamp() - '01:00:00'::interval))));
CREATE TABLE public.cronjobs_meta (
    id integer DEFAULT 1 NOT NULL,
    project text DEFAULT ''::text NOT NULL,
    environment text DEFAULT ''::text NOT NULL,
    schema_revision text NOT NULL,
    oldest_code text NOT NULL,
    pruned_at timestamp with time zone,
    prune_from jsonb,
    look_at timestamp with time zone,
    CONSTRAINT cronjobs_meta_one_row_ck CHECK ((id = 1))
);
CREATE TABLE public.cronjobs_new_counts (
    id bigint NOT NULL,
    at_hour bigint NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    outcome text NOT NULL,
    bucket smallint NOT NULL,
    count bigint DEFAULT 0 NOT NULL,
    micros double precision DEFAULT 0 NOT NULL,
    longest bigint,
    newest bigint
);
ALTER TABLE public.cronjobs_new_counts ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.cronjobs_new_counts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.cronjobs_occurrences (
    schedule_id bigint NOT NULL,
    first_for timestamp with time zone NOT NULL,
    last_for timestamp with time zone NOT NULL,
    count integer DEFAULT 1 NOT NULL,
    outcome text NOT NULL,
    reason text,
    job_id bigint,
    decided_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    tick bigint,
    CONSTRAINT cronjobs_occurrences_outcome_ck CHECK ((outcome = ANY (ARRAY['enqueued'::text, 'skipped'::text, 'missed'::text, 'coalesced'::text]))),
    CONSTRAINT cronjobs_occurrences_range_ck CHECK (((count >= 1) AND (first_for <= last_for)))
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE public.cronjobs_pauses (
    scope text NOT NULL,
    name text DEFAULT ''::text NOT NULL,
    until timestamp with time zone,
    by text,
    why text,
    paused_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    skip smallint DEFAULT 0 NOT NULL,
    CONSTRAINT cronjobs_pauses_name_length_ck CHECK ((octet_length(name) <= 1000)),
    CONSTRAINT cronjobs_pauses_scope_ck CHECK ((scope = ANY (ARRAY['all'::text, 'queue'::text, 'schedule'::text])))
);
CREATE TABLE public.cronjobs_quarters (
    schedule_id bigint NOT NULL,
    hour timestamp with time zone NOT NULL,
    quarters text NOT NULL
);
CREATE TABLE public.cronjobs_queues (
    name text NOT NULL,
    max_waiting integer,
    on_full text DEFAULT 'error'::text NOT NULL,
    dropped bigint DEFAULT 0 NOT NULL,
    refused bigint DEFAULT 0 NOT NULL,
    CONSTRAINT cronjobs_queues_max_waiting_ck CHECK (((max_waiting IS NULL) OR (max_waiting >= 0))),
    CONSTRAINT cronjobs_queues_on_full_ck CHECK ((on_full = ANY (ARRAY['error'::text, 'drop'::text, 'wait'::text])))
);
CREATE SEQUENCE public.cronjobs_queues_held
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.cronjobs_queues_held OWNED BY public.cronjobs_queues.name;
CREATE TABLE public.cronjobs_schedules (
    id bigint NOT NULL,
    name text NOT NULL,
    definition jsonb NOT NULL,
    fingerprint text NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    seen_until timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    owed jsonb,
    CONSTRAINT cronjobs_schedules_name_length_ck CHECK ((octet_length(name) <= 1000)),
    CONSTRAINT cronjobs_schedules_status_ck CHECK ((status = ANY (ARRAY['active'::text, 'retired'::text])))
)
WITH (fillfactor='50');
ALTER TABLE public.cronjobs_schedules ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.cronjobs_schedules_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.cronjobs_ticks (
    id bigint NOT NULL,
    tick text NOT NULL,
    host text NOT NULL,
    boot_id text,
    pid integer NOT NULL,
    version text NOT NULL,
    config text,
    fingerprint text,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    did jsonb DEFAULT '{}'::jsonb NOT NULL,
    ended text,
    job_types text,
    schedules_on smallint,
    not_started jsonb
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
ALTER TABLE public.cronjobs_ticks ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.cronjobs_ticks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.cronjobs_tokens (
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    token text NOT NULL,
    holder text,
    taken_at timestamp with time zone,
    permitted_until timestamp with time zone,
    ended text,
    CONSTRAINT cronjobs_tokens_taken_ck CHECK ((((holder IS NULL) = (taken_at IS NULL)) AND ((holder IS NULL) = (permitted_until IS NULL))))
);
INSERT INTO public.cronjobs_acks VALUES ('dead', 'notice', '["1"]', '2026-11-30 11:24:07.951348-05', 'ann', NULL, '2026-11-30 11:24:07.998-05');
INSERT INTO public.cronjobs_alembic_version VALUES ('0012');
INSERT INTO public.cronjobs_alerts VALUES (1, 'ops', '2026-11-30 11:24:07.951348-05', 0, NULL, '["1"]', NULL, NULL, 0, NULL, 0, NULL, NULL, NULL);
INSERT INTO public.cronjobs_audit VALUES (1, '2026-11-30 11:24:07.997-05', 'ann/shop', NULL, 'sync', 'f1', NULL, '{"schedules": ["nightly"]}');
INSERT INTO public.cronjobs_counts VALUES (0, 'attempts', 't.work', 'cancelled', 0, 1, 15334, 15334, NULL);
INSERT INTO public.cronjobs_counts VALUES (498904, 'attempts', 't.work', 'cancelled', 0, 1, 15334, 15334, NULL);
INSERT INTO public.cronjobs_counts VALUES (0, 'attempts', 't.work', 'failed', 0, 2, 27339, 14544, NULL);
INSERT INTO public.cronjobs_counts VALUES (498904, 'attempts', 't.work', 'failed', 0, 2, 27339, 14544, NULL);
INSERT INTO public.cronjobs_counts VALUES (0, 'attempts', 't.work', 'succeeded', 0, 1, 7374, 7374, NULL);
INSERT INTO public.cronjobs_counts VALUES (498904, 'attempts', 't.work', 'succeeded', 0, 1, 7374, 7374, NULL);
INSERT INTO public.cronjobs_counts VALUES (0, 'jobs', 't.work', 'cancelled', -1, 1, 0, NULL, NULL);
INSERT INTO public.cronjobs_counts VALUES (498904, 'jobs', 't.work', 'cancelled', -1, 1, 0, NULL, NULL);
INSERT INTO public.cronjobs_counts VALUES (0, 'jobs', 't.work', 'dead', 0, 1, 12353, 12353, NULL);
INSERT INTO public.cronjobs_counts VALUES (498904, 'jobs', 't.work', 'dead', 0, 1, 12353, 12353, NULL);
INSERT INTO public.cronjobs_counts VALUES (0, 'jobs', 't.work', 'succeeded', 0, 1, 14498, 14498, NULL);
INSERT INTO public.cronjobs_counts VALUES (498904, 'jobs', 't.work', 'succeeded', 0, 1, 14498, 14498, NULL);
INSERT INTO public.cronjobs_crashing_types VALUES ('t.work', '2026-11-30 11:24:07.997-05', 3, NULL, 0);
INSERT INTO public.cronjobs_effects VALUES ('mail:1', 1, 1, 'recorded', '2026-11-30 11:24:07.972579-05', '2026-11-30 11:24:07.973241-05', '{"id": "<1@shop>"}', 0);
INSERT INTO public.cronjobs_effects VALUES ('mail:2', 2, 1, 'begun', '2026-11-30 11:24:07.97915-05', NULL, NULL, 0);
INSERT INTO public.cronjobs_effects VALUES ('mail:3', 3, 1, 'begun', '2026-11-30 11:24:07.983218-05', NULL, NULL, 0);
INSERT INTO public.cronjobs_effects VALUES ('mail:4', 4, 1, 'begun', '2026-11-30 11:24:07.984092-05', NULL, NULL, 0);
INSERT INTO public.cronjobs_findings VALUES (1, 'dead', 'dead', 'notice', '1 dead job', NULL, '["1"]', '', '2026-11-30 11:24:07.951348-05', '2026-11-30 11:24:08-05', NULL);
INSERT INTO public.cronjobs_job_runs VALUES (1, 1, 'succeeded', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.976625-05', 'host:boot:1:2:3:tick', '1', NULL, 'no luck', 'line
line', 'said ☂');
INSERT INTO public.cronjobs_job_runs VALUES (2, 1, 'failed', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.982046-05', 'host:boot:1:2:3:tick', '1', NULL, 'no luck', 'line
line', 'said ☂');
INSERT INTO public.cronjobs_job_runs VALUES (3, 1, 'failed', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.983795-05', 'host:boot:1:2:3:tick', '1', NULL, 'no luck', 'line
line', 'said ☂');
INSERT INTO public.cronjobs_job_runs VALUES (4, 1, 'cancelled', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.984585-05', 'host:boot:1:2:3:tick', '1', NULL, 'no luck', 'line
line', 'said ☂');
INSERT INTO public.cronjobs_job_type_lists VALUES ('h1', '["t.work"]', '2026-11-30 11:24:07.997-05');
INSERT INTO public.cronjobs_jobs VALUES (1, 't.work', '{"n": 0, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t0"}', 'default', 5, 'succeeded', '2026-11-30 11:24:07.954753-05', 1, 1, 0, 0, NULL, NULL, NULL, NULL, 'k:0', NULL, NULL, NULL, 'no luck', NULL, '2026-11-30 11:24:07.9743-05', '{"sent": 1.5}', 'ann/shop', NULL, '2026-11-30 11:24:07.954753-05', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.9743-05', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (2, 't.work', '{"n": 1, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t1"}', 'default', 5, 'failed', '2026-11-30 11:24:07.956351-05', 1, 1, 0, 0, NULL, NULL, NULL, NULL, 'k:1', NULL, NULL, NULL, 'no luck', NULL, '2026-11-30 11:24:07.979803-05', NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.956351-05', '2026-11-30 11:24:07.969251-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (3, 't.work', '{"n": 2, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t2"}', 'default', 5, 'dead', '2026-11-30 11:24:07.956898-05', 1, 1, 0, 0, NULL, NULL, NULL, NULL, 'k:2', NULL, NULL, NULL, 'no luck', NULL, '2026-11-30 11:24:07.983513-05', NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.956898-05', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.983513-05', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (4, 't.work', '{"n": 3, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t3"}', 'default', 5, 'cancelled', '2026-11-30 11:24:07.95741-05', 1, 1, 0, 0, NULL, NULL, NULL, NULL, 'k:3', NULL, NULL, NULL, 'no luck', NULL, '2026-11-30 11:24:07.984339-05', NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.95741-05', '2026-11-30 11:24:07.969251-05', '2026-11-30 11:24:07.984339-05', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (5, 't.work', '{"n": 4, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t4"}', 'default', 5, 'running', '2026-11-30 11:24:07.957875-05', 1, 0, 0, 0, NULL, NULL, 'host:boot:1:2:3:tick', '2020-09-13 08:26:40.123456-04', 'k:4', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.957875-05', '2026-11-30 11:24:07.969251-05', NULL, '{"cap_s": 1800.0, "base_s": 60.0, "factor": 2.0, "jitter": 0.2, "on_lost": "retry", "in_thread": false, "max_losses": 10, "retry_until": null, "max_attempts": 10}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (6, 't.work', '{"n": 5, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t5"}', 'default', 5, 'queued', '2026-11-30 11:24:07.958312-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:5', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.958312-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (7, 't.work', '{"n": 6, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t6"}', 'default', 5, 'queued', '2026-11-30 11:24:07.958735-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:6', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.958735-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (8, 't.work', '{"n": 7, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t7"}', 'default', 5, 'queued', '2026-11-30 11:24:07.959211-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:7', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.959211-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (9, 't.work', '{"n": 8, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t8"}', 'default', 5, 'queued', '2026-11-30 11:24:07.959652-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:8', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.959652-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (10, 't.work', '{"n": 9, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t9"}', 'default', 5, 'queued', '2026-11-30 11:24:07.960042-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:9', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.960042-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (11, 't.work', '{"n": 10, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t10"}', 'default', 5, 'queued', '2026-11-30 11:24:07.960451-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:10', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.960451-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (12, 't.work', '{"n": 11, "big": 123456789012345678901234567890, "deep": [[{"": null}]], "text": "straße ☂ \" \\ \n"}', '{"trace": "t11"}', 'default', 5, 'queued', '2026-11-30 11:24:07.960867-05', 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'k:11', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.960867-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_jobs VALUES (13, 't.later', '{}', '{}', 'default', 0, 'queued', '2027-02-28 11:24:07.961502-05', 0, 0, 0, 0, NULL, 60, NULL, NULL, NULL, 'smtp:a', NULL, NULL, NULL, NULL, NULL, NULL, 'ann/shop', NULL, '2026-11-30 11:24:07.961502-05', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.cronjobs_meta VALUES (1, '', '', '0012', '0012', NULL, NULL, NULL);
INSERT INTO public.cronjobs_new_counts VALUES (1, 498904, 'occurrences', '1', 'enqueued', -1, 1, 0, NULL, NULL);
INSERT INTO public.cronjobs_new_counts VALUES (2, 498904, 'occurrences', '1', 'missed', -1, 2, 0, NULL, NULL);
INSERT INTO public.cronjobs_occurrences VALUES (1, '2026-11-27 11:24:07.951348-05', '2026-11-28 11:24:07.951348-05', 2, 'missed', 'no tick', NULL, '2026-11-30 11:24:07.951348-05', NULL);
INSERT INTO public.cronjobs_occurrences VALUES (1, '2026-11-29 11:24:07.951348-05', '2026-11-29 11:24:07.951348-05', 1, 'enqueued', NULL, 1, '2026-11-30 11:24:07.951348-05', NULL);
INSERT INTO public.cronjobs_pauses VALUES ('queue', 'mail', '2026-12-01 11:24:07.951348-05', 'ada', 'deploy', '2026-11-30 11:24:07.951348-05', 0);
INSERT INTO public.cronjobs_quarters VALUES (1, '2023-11-14 17:13:20-05', 's..k');
INSERT INTO public.cronjobs_queues VALUES ('mail', 5, 'error', 2, 0);
INSERT INTO public.cronjobs_schedules VALUES (1, 'nightly', '{"job": "t.work", "cron": "0 2 * * *", "timezone": "UTC"}', 'f1', 'active', '2026-11-30 11:24:07.951348-05', '2026-11-30 14:24:07.951355-05', NULL);
INSERT INTO public.cronjobs_ticks VALUES (1, 't1', 'alpha', NULL, 7, '0.1', NULL, 'f1', '2026-11-30 11:24:07.951348-05', '2026-11-30 11:24:07.951348-05', '{"succeeded": 1}', 'nothing is due', NULL, NULL, NULL);
INSERT INTO public.cronjobs_tokens VALUES (5, 1, 'abc', 'worker-1', '2023-11-14 17:13:20-05', '2023-11-14 17:14:20-05', NULL);
SELECT pg_catalog.setval('public.cronjobs_audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.cronjobs_findings_id_seq', 1, true);
SELECT pg_catalog.setval('public.cronjobs_jobs_id_seq', 13, true);
SELECT pg_catalog.setval('public.cronjobs_new_counts_id_seq', 2, true);
SELECT pg_catalog.setval('public.cronjobs_queues_held', 1, false);
SELECT pg_catalog.setval('public.cronjobs_schedules_id_seq', 1, true);
SELECT pg_catalog.setval('public.cronjobs_ticks_id_seq', 1, true);
ALTER TABLE ONLY public.cronjobs_acks
    ADD CONSTRAINT cronjobs_acks_pk PRIMARY KEY (finding);
ALTER TABLE ONLY public.cronjobs_alembic_version
    ADD CONSTRAINT cronjobs_alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.cronjobs_alerts
    ADD CONSTRAINT cronjobs_alerts_pk PRIMARY KEY (finding_id, channel);
ALTER TABLE ONLY public.cronjobs_audit
    ADD CONSTRAINT cronjobs_audit_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_counts
    ADD CONSTRAINT cronjobs_counts_pk PRIMARY KEY (at_hour, kind, name, outcome, bucket);
ALTER TABLE ONLY public.cronjobs_crashing_types
    ADD CONSTRAINT cronjobs_crashing_types_pk PRIMARY KEY (job_type);
ALTER TABLE ONLY public.cronjobs_effects
    ADD CONSTRAINT cronjobs_effects_pk PRIMARY KEY (key);
ALTER TABLE ONLY public.cronjobs_findings
    ADD CONSTRAINT cronjobs_findings_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_job_runs
    ADD CONSTRAINT cronjobs_job_runs_pk PRIMARY KEY (job_id, attempt);
ALTER TABLE ONLY public.cronjobs_job_type_lists
    ADD CONSTRAINT cronjobs_job_type_lists_pk PRIMARY KEY (hash);
ALTER TABLE ONLY public.cronjobs_jobs
    ADD CONSTRAINT cronjobs_jobs_idempotency_key_key UNIQUE (idempotency_key);
ALTER TABLE ONLY public.cronjobs_jobs
    ADD CONSTRAINT cronjobs_jobs_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_meta
    ADD CONSTRAINT cronjobs_meta_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_new_counts
    ADD CONSTRAINT cronjobs_new_counts_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_occurrences
    ADD CONSTRAINT cronjobs_occurrences_pk PRIMARY KEY (schedule_id, last_for);
ALTER TABLE ONLY public.cronjobs_pauses
    ADD CONSTRAINT cronjobs_pauses_pk PRIMARY KEY (scope, name);
ALTER TABLE ONLY public.cronjobs_quarters
    ADD CONSTRAINT cronjobs_quarters_pk PRIMARY KEY (schedule_id, hour);
ALTER TABLE ONLY public.cronjobs_queues
    ADD CONSTRAINT cronjobs_queues_pk PRIMARY KEY (name);
ALTER TABLE ONLY public.cronjobs_schedules
    ADD CONSTRAINT cronjobs_schedules_name_key UNIQUE (name);
ALTER TABLE ONLY public.cronjobs_schedules
    ADD CONSTRAINT cronjobs_schedules_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_ticks
    ADD CONSTRAINT cronjobs_ticks_pk PRIMARY KEY (id);
ALTER TABLE ONLY public.cronjobs_ticks
    ADD CONSTRAINT cronjobs_ticks_tick_key UNIQUE (tick);
ALTER TABLE ONLY public.cronjobs_tokens
    ADD CONSTRAINT cronjobs_tokens_pk PRIMARY KEY (job_id);
CREATE INDEX cronjobs_alerts_due_idx ON public.cronjobs_alerts USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX cronjobs_audit_subject_idx ON public.cronjobs_audit USING btree (action, subject, at);
CREATE INDEX cronjobs_effects_begun_idx ON public.cronjobs_effects USING btree (begun_at);
CREATE INDEX cronjobs_effects_job_idx ON public.cronjobs_effects USING btree (job_id);
CREATE INDEX cronjobs_findings_ended_idx ON public.cronjobs_findings USING btree (ended_at);
CREATE UNIQUE INDEX cronjobs_findings_open_idx ON public.cronjobs_findings USING btree (finding) WHERE (ended_at IS NULL);
CREATE INDEX cronjobs_job_runs_finished_idx ON public.cronjobs_job_runs USING btree (finished_at);
CREATE INDEX cronjobs_jobs_cancelled_idx ON public.cronjobs_jobs USING btree (status, finished_at) WHERE ((status = 'cancelled'::text) AND (finished_at IS NOT NULL) AND (cancel_requested_at IS NOT NULL));
CREATE INDEX cronjobs_jobs_concurrency_idx ON public.cronjobs_jobs USING btree (concurrency_key) WHERE ((concurrency_key IS NOT NULL) AND (locked_until IS NOT NULL));
CREATE INDEX cronjobs_jobs_dead_idx ON public.cronjobs_jobs USING btree (finished_at) WHERE ((status = 'dead'::text) AND (finished_at IS NOT NULL) AND ((dismissed_at IS NULL) OR (dismissed_at < finished_at)));
CREATE INDEX cronjobs_jobs_exec_idx ON public.cronjobs_jobs USING btree (job_type, run_at, id) WHERE ((substr(job_type, 1, 5) = 'exec:'::text) AND (started_at IS NOT NULL));
CREATE INDEX cronjobs_jobs_finished_idx ON public.cronjobs_jobs USING btree (status, finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX cronjobs_jobs_leased_idx ON public.cronjobs_jobs USING btree (locked_until) WHERE (locked_until IS NOT NULL);
CREATE INDEX cronjobs_jobs_misfit_idx ON public.cronjobs_jobs USING btree (job_type, misfit_since, id) WHERE ((status = ANY (ARRAY['queued'::text, 'failed'::text])) AND (misfit_since IS NOT NULL));
CREATE INDEX cronjobs_jobs_released_key_idx ON public.cronjobs_jobs USING btree (released_key) WHERE (released_key IS NOT NULL);
CREATE INDEX cronjobs_jobs_schedule_idx ON public.cronjobs_jobs USING btree (schedule) WHERE ((schedule IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX cronjobs_jobs_timeout_idx ON public.cronjobs_jobs USING btree (job_type, timeout_s) WHERE ((status = ANY (ARRAY['queued'::text, 'failed'::text])) AND (timeout_s IS NOT NULL));
CREATE INDEX cronjobs_jobs_type_idx ON public.cronjobs_jobs USING btree (job_type, queue, priority, run_at, id) WHERE ((status = ANY (ARRAY['queued'::text, 'failed'::text])) AND (timeout_s IS NULL));
CREATE INDEX cronjobs_jobs_type_timed_idx ON public.cronjobs_jobs USING btree (job_type, queue, priority, run_at, id) WHERE ((status = ANY (ARRAY['queued'::text, 'failed'::text])) AND (timeout_s IS NOT NULL));
CREATE INDEX cronjobs_jobs_unread_idx ON public.cronjobs_jobs USING btree (id) WHERE ((error_type = 'NotRead'::text) AND (status = ANY (ARRAY['queued'::text, 'failed'::text])));
CREATE INDEX cronjobs_jobs_waiting_idx ON public.cronjobs_jobs USING btree (queue, priority, run_at, id) WHERE (status = ANY (ARRAY['queued'::text, 'failed'::text]));
CREATE INDEX cronjobs_occurrences_job_idx ON public.cronjobs_occurrences USING btree (job_id) WHERE (job_id IS NOT NULL);
CREATE INDEX cronjobs_occurrences_last_for_idx ON public.cronjobs_occurrences USING btree (last_for);
CREATE INDEX cronjobs_ticks_host_idx ON public.cronjobs_ticks USING btree (host, id);
CREATE INDEX cronjobs_ticks_started_idx ON public.cronjobs_ticks USING btree (started_at);
CREATE INDEX cronjobs_ticks_types_host_idx ON public.cronjobs_ticks USING btree (host, id) WHERE (job_types IS NOT NULL);
CREATE INDEX cronjobs_ticks_types_started_idx ON public.cronjobs_ticks USING btree (started_at) WHERE (job_types IS NOT NULL);
ALTER TABLE ONLY public.cronjobs_job_runs
    ADD CONSTRAINT cronjobs_job_runs_job_id_fk FOREIGN KEY (job_id) REFERENCES public.cronjobs_jobs(id) ON DELETE CASCADE;
