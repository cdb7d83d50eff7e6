-- The group commit as one function, so that a batch is one round trip and never an open transaction that a stopped
-- process could hold.  The _1 is the generation: silos of two versions of farro work side by side in a rolling upgrade,
-- so a later migration adds commit_2 and leaves commit_1.
--
-- Theory of the fence.  A VOLATILE function takes a new snapshot for each of its statements, under READ COMMITTED.
-- Statement one takes the shared lock of each partition, in ascending order; whoever takes a partition over holds it
-- exclusively while it raises the epoch.  Statement two reads the epoch: its snapshot is younger than the lock, so it
-- sees every epoch raised before the lock was granted, and none can be raised before this transaction ends.  In one
-- statement (a CTE), or under REPEATABLE READ, the snapshot would be older than the lock and a stale commit would pass.
--
-- Theory of the plans.  The plan of a statement in a function is kept while tables grow from nothing to millions.
-- Nothing here may let the planner choose an order that is good for a small table only: rows are found by scalar
-- subqueries on a whole key (an EXISTS or IN would be made into a join, and be read from either side), changed by their
-- ctid or by INSERT … ON CONFLICT, and the settings at the end of the function leave it no scan and no other join.  A row
-- found by ctid is checked again for what it was found by, since a concurrent change (a straggler, a person) may have
-- moved it.

-- kind: 0 rows only, 1 keep the state, 2 write the state, 3 destroy.  bound: how many reminders the grain may have
-- before this member's own changes need a closer look; NULL: any number.
CREATE TYPE {schema}.member_1 AS (
    partition integer, epoch bigint, grain_type text, grain_key text,
    kind smallint, expected bigint, layout bigint, state bytea, bound bigint
);

-- member, here and below: position in the batch, from 1.
CREATE TYPE {schema}.settle_1 AS (
    member integer, grain_type text, grain_key text, name text, registration bigint, occurrence bigint,
    by_operator boolean, deletes boolean,
    next_due_at bigint, wake_at bigint, last_fire_at bigint, next_occurrence bigint, times_left bigint,
    attempts bigint, missed_count bigint, first_missed_at bigint, catch_up_left bigint, status text, note text
);

-- kind: 0 replace, 1 put if missing, 2 put and keep the progress, 3 edit, 4 delete by name, 5 delete by
-- operation.  Changes of one step touch different rows.
CREATE TYPE {schema}.change_1 AS (
    member integer, step integer, kind smallint,
    grain_type text, grain_key text, partition integer, name text, operation text, key text, args bytea,
    start_at bigint, period_us bigint, cron text, timezone text, day_match text, until_at bigint, times_left bigint,
    jitter_us bigint, next_due_at bigint, wake_at bigint, last_fire_at bigint, priority bigint, action bigint,
    registration bigint, occurrence bigint, attempts bigint, missed_count bigint, first_missed_at bigint,
    catch_up_left bigint, status text, note text
);

-- first, last: the lowest and highest position that the member consumes of the source; first NULL: out of order.
CREATE TYPE {schema}.mark_1 AS (
    member integer, grain_type text, grain_key text, source text, first bigint, last bigint
);

-- number: counts the events and messages of the batch within their partition, from 1.
CREATE TYPE {schema}.event_1 AS (
    member integer, partition integer, number bigint, stream text, payload bytea, at bigint
);
CREATE TYPE {schema}.message_1 AS (
    member integer, partition integer, number bigint, sender_type text, sender_key text,
    target_type text, target_key text, method text, args bytea, at bigint
);

CREATE FUNCTION {schema}.check_isolation_1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the fence holds under READ COMMITTED only, not under %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'FA001';
    END IF;
END $$;

-- When another commit of the silo is storing its sign of life just now, that one will do: waiting for it would make the
-- commits of all lanes wait for each other's fsync.
CREATE FUNCTION {schema}.sign_of_life_1(service text, silo bigint, now_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.silos SET renewed_at = now_at
    WHERE service_id = service AND number = (
        SELECT s.number FROM {schema}.silos AS s
        WHERE s.service_id = service AND s.number = silo AND s.left_at IS NULL FOR NO KEY UPDATE SKIP LOCKED);
END $$;

-- verdicts: 0 committed, 1 fenced, 2 conflict, 4 duplicate, by member.  settled: the positions of settles that matched.
-- kept: the positions of puts that left a row or its progress standing.  crowded: members whose bound needs a closer
-- look; then nothing at all was changed.
CREATE FUNCTION {schema}.commit_1(
    service text, lock_class integer, silo bigint, now_at bigint, partitions integer[],
    members {schema}.member_1[], settles {schema}.settle_1[], changes {schema}.change_1[], marks {schema}.mark_1[],
    events {schema}.event_1[], messages {schema}.message_1[],
    OUT verdicts smallint[], OUT settled integer[], OUT kept integer[], OUT crowded integer[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_rows tid[];
    refused integer[];
    written bigint;
    wanted bigint;
    writers bigint;
    keepers bigint;
    destroyers bigint;
    this_step integer;
    kinds smallint[];
    standing integer[];
BEGIN
    PERFORM {schema}.check_isolation_1();
    PERFORM pg_advisory_xact_lock_shared(lock_class, p) FROM unnest(partitions) AS p;

    SELECT coalesce(array_agg((CASE
        WHEN coalesce((SELECT p.epoch FROM {schema}.partitions AS p
                       WHERE p.service_id = service AND p.partition = m.partition), 0) <> m.epoch OR m.epoch = 0 THEN 1
        WHEN m.kind <> 0 AND coalesce((SELECT g.version FROM {schema}.grains AS g WHERE g.service_id = service
                                       AND g.grain_type = m.grain_type AND g.grain_key = m.grain_key), 0) <> m.expected
            THEN 2
        ELSE 0 END)::smallint ORDER BY m.ordinality), '{}')
    INTO verdicts FROM unnest(members) WITH ORDINALITY AS m;

    IF cardinality(marks) > 0 THEN
        SELECT array_agg(DISTINCT k.member) INTO refused FROM unnest(marks) AS k
        WHERE verdicts[k.member] = 0 AND (k.first IS NULL OR k.first <= (
            SELECT w.position FROM {schema}.watermarks AS w WHERE w.service_id = service
            AND w.grain_type = k.grain_type AND w.grain_key = k.grain_key AND w.source = k.source));
        SELECT array_agg((CASE WHEN v.ordinality = ANY (refused) THEN 4 ELSE v.verdict END)::smallint
                         ORDER BY v.ordinality)
        INTO verdicts FROM unnest(verdicts) WITH ORDINALITY AS v (verdict, ordinality);
    END IF;

    IF cardinality(settles) > 0 THEN
        SELECT array_agg((SELECT r.ctid FROM {schema}.reminders AS r WHERE r.service_id = service
            AND r.grain_type = s.grain_type AND r.grain_key = s.grain_key AND r.name = s.name
            AND r.registration = s.registration AND r.occurrence = s.occurrence) ORDER BY s.ordinality)
        INTO found_rows FROM unnest(settles) WITH ORDINALITY AS s;
        SELECT array_agg(s.ordinality) INTO settled FROM unnest(settles) WITH ORDINALITY AS s
        WHERE verdicts[s.member] = 0 AND found_rows[s.ordinality] IS NOT NULL;
    END IF;

    SELECT array_agg(m.ordinality) INTO crowded FROM unnest(members) WITH ORDINALITY AS m
    WHERE m.bound IS NOT NULL AND verdicts[m.ordinality] = 0 AND m.bound < (
        SELECT count(*) FROM {schema}.reminders AS r
        WHERE r.service_id = service AND r.grain_type = m.grain_type AND r.grain_key = m.grain_key);
    IF crowded IS NOT NULL THEN
        RETURN;
    END IF;

    IF cardinality(marks) > 0 THEN
        INSERT INTO {schema}.watermarks (service_id, grain_type, grain_key, source, position)
        SELECT service, k.grain_type, k.grain_key, k.source, k.last FROM unnest(marks) AS k
        WHERE verdicts[k.member] = 0
        ON CONFLICT (service_id, grain_type, grain_key, source) DO UPDATE SET position = excluded.position;
    END IF;

    IF settled IS NOT NULL THEN
        -- A paused row moves on its grid but sleeps on, unless an operator wakes it.
        UPDATE {schema}.reminders AS r SET
            next_due_at = s.next_due_at,
            wake_at = CASE WHEN r.status <> 'paused' OR s.by_operator THEN s.wake_at END,
            last_fire_at = s.last_fire_at, occurrence = s.next_occurrence, times_left = s.times_left,
            attempts = s.attempts, missed_count = s.missed_count, first_missed_at = s.first_missed_at,
            catch_up_left = s.catch_up_left,
            status = CASE WHEN r.status = 'paused' AND NOT s.by_operator THEN r.status ELSE s.status END,
            note = CASE WHEN r.status = 'paused' AND NOT s.by_operator THEN r.note ELSE s.note END
        FROM unnest(settles) WITH ORDINALITY AS s
        WHERE r.ctid = found_rows[s.ordinality] AND verdicts[s.member] = 0 AND NOT s.deletes
            AND r.registration = s.registration AND r.occurrence = s.occurrence;
        GET DIAGNOSTICS wanted = ROW_COUNT;
        DELETE FROM {schema}.reminders AS r USING unnest(settles) WITH ORDINALITY AS s
        WHERE r.ctid = found_rows[s.ordinality] AND verdicts[s.member] = 0 AND s.deletes
            AND r.registration = s.registration AND r.occurrence = s.occurrence;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written + wanted <> cardinality(settled) THEN
            RAISE EXCEPTION 'a reminder changed while it was settled' USING ERRCODE = '40001';
        END IF;
    END IF;

    -- The version is checked where it is written as well: two transactions that both hold a shared lock, one of them a
    -- straggler whose answer was lost, may both have passed the check above.
    SELECT count(*) FILTER (WHERE m.kind IN (2, 3)), count(*) FILTER (WHERE m.kind = 1),
        count(*) FILTER (WHERE m.kind = 3)
    INTO writers, keepers, destroyers FROM unnest(members) WITH ORDINALITY AS m WHERE verdicts[m.ordinality] = 0;
    IF writers > 0 THEN
        INSERT INTO {schema}.grains AS g (service_id, grain_type, grain_key, partition, version, incarnation, layout, state)
        SELECT service, m.grain_type, m.grain_key, m.partition, m.expected + 1, CASE WHEN m.kind = 3 THEN 2 ELSE 1 END,
            m.layout, CASE WHEN m.kind = 2 THEN m.state END
        FROM unnest(members) WITH ORDINALITY AS m
        WHERE m.kind IN (2, 3) AND verdicts[m.ordinality] = 0
        ON CONFLICT (service_id, grain_type, grain_key) DO UPDATE SET
            version = excluded.version, incarnation = g.incarnation + excluded.incarnation - 1,
            layout = excluded.layout, state = excluded.state
        WHERE g.version = excluded.version - 1;
        GET DIAGNOSTICS written = ROW_COUNT;
        writers := writers - written;
    END IF;
    IF keepers > 0 THEN
        INSERT INTO {schema}.grains AS g (service_id, grain_type, grain_key, partition, version, incarnation, layout)
        SELECT service, m.grain_type, m.grain_key, m.partition, m.expected + 1, 1, m.layout
        FROM unnest(members) WITH ORDINALITY AS m
        WHERE m.kind = 1 AND verdicts[m.ordinality] = 0
        ON CONFLICT (service_id, grain_type, grain_key) DO UPDATE SET version = excluded.version
        WHERE g.version = excluded.version - 1;
        GET DIAGNOSTICS written = ROW_COUNT;
        keepers := keepers - written;
    END IF;
    IF writers <> 0 OR keepers <> 0 THEN
        RAISE EXCEPTION 'a grain changed while it was committed' USING ERRCODE = '40001';
    END IF;
    IF destroyers > 0 THEN
        DELETE FROM {schema}.reminders WHERE ctid = ANY (ARRAY (
            SELECT r.ctid FROM unnest(members) WITH ORDINALITY AS m CROSS JOIN LATERAL (
                SELECT r.ctid FROM {schema}.reminders AS r WHERE r.service_id = service
                AND r.grain_type = m.grain_type AND r.grain_key = m.grain_key OFFSET 0) AS r
            WHERE m.kind = 3 AND verdicts[m.ordinality] = 0));
    END IF;

    FOR this_step, kinds IN
        SELECT c.step, array_agg(DISTINCT c.kind) FROM unnest(changes) AS c GROUP BY c.step ORDER BY c.step
    LOOP
        standing := NULL;
        IF kinds && '{1,2}' THEN
            SELECT array_agg(c.ordinality) INTO standing FROM unnest(changes) WITH ORDINALITY AS c
            WHERE c.step = this_step AND c.kind IN (1, 2) AND verdicts[c.member] = 0 AND (
                SELECT true FROM {schema}.reminders AS r WHERE r.service_id = service
                AND r.grain_type = c.grain_type AND r.grain_key = c.grain_key AND r.name = c.name
                AND (c.kind = 1 OR (r.cron = c.cron AND r.timezone = c.timezone AND r.day_match = c.day_match
                                    AND r.status <> 'failed')));  -- no EXISTS: that becomes a join
        END IF;

        IF kinds && '{0,1,2}' THEN
            INSERT INTO {schema}.reminders (service_id, grain_type, grain_key, partition, name, operation, key, args,
                start_at, period_us, cron, timezone, day_match, until_at, times_left, jitter_us, next_due_at, wake_at,
                last_fire_at, priority, action, registration, occurrence, attempts, missed_count, first_missed_at,
                catch_up_left, status, note)
            SELECT service, c.grain_type, c.grain_key, c.partition, c.name, c.operation, c.key, c.args,
                c.start_at, c.period_us, c.cron, c.timezone, c.day_match, c.until_at, c.times_left, c.jitter_us,
                c.next_due_at, c.wake_at, c.last_fire_at, c.priority, c.action, c.registration, c.occurrence, c.attempts,
                c.missed_count, c.first_missed_at, c.catch_up_left, c.status, c.note
            FROM unnest(changes) WITH ORDINALITY AS c
            WHERE c.step = this_step AND c.kind IN (0, 1, 2) AND verdicts[c.member] = 0
                AND (standing IS NULL OR c.ordinality <> ALL (standing))
            ON CONFLICT (service_id, grain_type, grain_key, name) DO UPDATE SET
                partition = excluded.partition, operation = excluded.operation, key = excluded.key, args = excluded.args,
                start_at = excluded.start_at, period_us = excluded.period_us, cron = excluded.cron,
                timezone = excluded.timezone, day_match = excluded.day_match, until_at = excluded.until_at,
                times_left = excluded.times_left, jitter_us = excluded.jitter_us, next_due_at = excluded.next_due_at,
                wake_at = excluded.wake_at, last_fire_at = excluded.last_fire_at, priority = excluded.priority,
                action = excluded.action, registration = excluded.registration, occurrence = excluded.occurrence,
                attempts = excluded.attempts, missed_count = excluded.missed_count,
                first_missed_at = excluded.first_missed_at, catch_up_left = excluded.catch_up_left,
                status = excluded.status, note = excluded.note;
        END IF;

        IF standing IS NOT NULL THEN
            kept := kept || standing;
            UPDATE {schema}.reminders AS r SET
                partition = c.partition, operation = c.operation, key = c.key, args = c.args, period_us = c.period_us,
                until_at = c.until_at, times_left = c.times_left, jitter_us = c.jitter_us, priority = c.priority,
                action = c.action
            FROM (SELECT c.*, (SELECT r.ctid FROM {schema}.reminders AS r WHERE r.service_id = service
                               AND r.grain_type = c.grain_type AND r.grain_key = c.grain_key AND r.name = c.name) AS place
                  FROM unnest(changes) WITH ORDINALITY AS c
                  WHERE c.kind = 2 AND c.ordinality = ANY (standing) OFFSET 0) AS c
            WHERE r.ctid = c.place;
        END IF;

        IF 3 = ANY (kinds) THEN
            UPDATE {schema}.reminders AS r SET
                priority = coalesce(c.priority, r.priority), action = coalesce(c.action, r.action)
            FROM (SELECT c.*, (SELECT r.ctid FROM {schema}.reminders AS r WHERE r.service_id = service
                               AND r.grain_type = c.grain_type AND r.grain_key = c.grain_key AND r.name = c.name) AS place
                  FROM unnest(changes) AS c
                  WHERE c.step = this_step AND c.kind = 3 AND verdicts[c.member] = 0 OFFSET 0) AS c
            WHERE r.ctid = c.place;
        END IF;

        IF 4 = ANY (kinds) THEN
            DELETE FROM {schema}.reminders WHERE ctid = ANY (ARRAY (
                SELECT (SELECT r.ctid FROM {schema}.reminders AS r WHERE r.service_id = service
                        AND r.grain_type = c.grain_type AND r.grain_key = c.grain_key AND r.name = c.name)
                FROM unnest(changes) AS c WHERE c.step = this_step AND c.kind = 4 AND verdicts[c.member] = 0));
        END IF;
        IF 5 = ANY (kinds) THEN
            DELETE FROM {schema}.reminders WHERE ctid = ANY (ARRAY (
                SELECT r.ctid FROM unnest(changes) AS c CROSS JOIN LATERAL (
                    SELECT r.ctid FROM {schema}.reminders AS r WHERE r.service_id = service
                    AND r.grain_type = c.grain_type AND r.grain_key = c.grain_key AND r.operation = c.operation
                    OFFSET 0) AS r
                WHERE c.step = this_step AND c.kind = 5 AND verdicts[c.member] = 0));
        END IF;
    END LOOP;

    IF cardinality(events) > 0 OR cardinality(messages) > 0 THEN
        -- A refused member's numbers stay unused: a gap is no harm, a number given twice would be.
        WITH numbered AS MATERIALIZED (
            UPDATE {schema}.partitions AS p SET sequence = p.sequence + n.used
            FROM (SELECT x.partition, max(x.number) AS used FROM (
                      SELECT e.partition, e.number, e.member FROM unnest(events) AS e
                      UNION ALL SELECT o.partition, o.number, o.member FROM unnest(messages) AS o) AS x
                  WHERE verdicts[x.member] = 0 GROUP BY x.partition) AS n
            WHERE p.service_id = service AND p.partition = n.partition
            RETURNING p.partition, p.sequence - n.used AS before
        ), added AS (
            INSERT INTO {schema}.events (service_id, partition, stream, sequence, payload, at)
            SELECT service, e.partition, e.stream, n.before + e.number, e.payload, e.at
            FROM unnest(events) AS e JOIN numbered AS n ON n.partition = e.partition WHERE verdicts[e.member] = 0
        ), heads AS (
            INSERT INTO {schema}.stream_heads (service_id, stream, partition, sequence)
            SELECT service, e.stream, e.partition, max(n.before + e.number)
            FROM unnest(events) AS e JOIN numbered AS n ON n.partition = e.partition WHERE verdicts[e.member] = 0
            GROUP BY e.stream, e.partition
            ON CONFLICT (service_id, stream, partition) DO UPDATE SET sequence = excluded.sequence
        )
        INSERT INTO {schema}.outbox (service_id, partition, sequence, sender_type, sender_key, target_type, target_key,
            method, args, at)
        SELECT service, o.partition, n.before + o.number, o.sender_type, o.sender_key, o.target_type, o.target_key,
            o.method, o.args, o.at
        FROM unnest(messages) AS o JOIN numbered AS n ON n.partition = o.partition WHERE verdicts[o.member] = 0;
    END IF;

    PERFORM {schema}.sign_of_life_1(service, silo, now_at);
END $$
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_material = off SET enable_memoize = off SET plan_cache_mode = force_generic_plan;

-- Own the partitions, given in ascending order: exclusively locked, so that no commit under the old epoch is under way,
-- then the epoch.  Everything in one transaction.
CREATE FUNCTION {schema}.take_1(service text, lock_class integer, silo bigint, now_at bigint, wanted integer[])
RETURNS TABLE (taken integer, new_epoch bigint, previous_alive_at bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.check_isolation_1();
    PERFORM 1 FROM {schema}.silos AS s WHERE s.service_id = service AND s.number = silo AND s.left_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'silo % is not a member: join first', silo USING ERRCODE = 'FA002';
    END IF;
    PERFORM pg_advisory_xact_lock(lock_class, w) FROM unnest(wanted) AS w;
    RETURN QUERY
        WITH before AS MATERIALIZED (
            SELECT p.partition, coalesce(s.renewed_at, p.alive_at) AS alive_at
            FROM {schema}.partitions AS p
            LEFT JOIN {schema}.silos AS s ON s.service_id = p.service_id AND s.number = p.owner
            WHERE p.service_id = service AND p.partition = ANY (wanted)
        ), raised AS (
            UPDATE {schema}.partitions AS p SET owner = silo, epoch = p.epoch + 1
            WHERE p.service_id = service AND p.partition = ANY (wanted)
            RETURNING p.partition, p.epoch
        )
        SELECT r.partition, r.epoch, b.alive_at FROM raised AS r JOIN before AS b ON b.partition = r.partition
        ORDER BY r.partition;
    PERFORM {schema}.sign_of_life_1(service, silo, now_at);
END $$;

-- A sign of life needs no fsync: a crash of the server loses seconds of it.
CREATE FUNCTION {schema}.renew_1(service text, silo bigint, now_at bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.silos SET renewed_at = now_at WHERE service_id = service AND number = silo AND left_at IS NULL;
    RETURN FOUND;
END $$;
