-- Several silos on one store: who lives, who owns, and requests that were answered.
--
-- Theory of the order.  Whatever changes the owner of a partition first takes the exclusive locks of its partitions, in
-- ascending order, as commits take them shared; then it locks the row of the service, and only then looks at silos and
-- partitions.  So such changes come one after the other, each sees the one before, no two of them and no commit can wait
-- for each other in a ring, and a silo that is said to be dead cannot take anything in the same moment.

-- view: grows with every change of the silos and owners that is told, but not with renewals.
ALTER TABLE {schema}.services ADD COLUMN view bigint NOT NULL DEFAULT 0;

-- renewals: counted, so that an observer needs no clock in common with the silo.  load: grains that are awake.
ALTER TABLE {schema}.silos
    ADD COLUMN status text COLLATE "C" NOT NULL DEFAULT 'joining',
    ADD COLUMN renewals bigint NOT NULL DEFAULT 0,
    ADD COLUMN load bigint NOT NULL DEFAULT 0;
UPDATE {schema}.silos SET status = CASE WHEN left_at IS NULL THEN 'active' ELSE 'left' END;

-- The signs of life that commits leave, one row for each member.  Apart from the silo's own row: a renewal must not wait
-- for a commit that waits for its fsync or for a standby.
CREATE TABLE {schema}.signs_of_life (
    service_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (service_id, number)
) WITH (fillfactor = 50);
INSERT INTO {schema}.signs_of_life (service_id, number, at)
    SELECT service_id, number, renewed_at FROM {schema}.silos WHERE left_at IS NULL;

CREATE TABLE {schema}.requests (
    service_id text COLLATE "C" NOT NULL,
    grain_type text COLLATE "C" NOT NULL,
    grain_key text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    answer bytea NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (service_id, grain_type, grain_key, request_id)
);
CREATE INDEX requests_by_age ON {schema}.requests (service_id, at);

-- For commit_1 of 0002, which stays.  As there: when another commit of the silo is storing its sign just now, that one
-- will do.
CREATE OR REPLACE FUNCTION {schema}.sign_of_life_1(service text, silo bigint, now_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.signs_of_life SET at = now_at
    WHERE service_id = service AND number = (
        SELECT s.number FROM {schema}.signs_of_life AS s
        WHERE s.service_id = service AND s.number = silo FOR NO KEY UPDATE SKIP LOCKED);
END $$;

-- A silo of the farro before this one owned everything alone.  One that runs goes on until it is said to be dead, since
-- it counts no renewals; one that is starting must not take what others own.
CREATE OR REPLACE FUNCTION {schema}.take_1(
    service text, lock_class integer, silo bigint, now_at bigint, wanted integer[]
) RETURNS TABLE (taken integer, new_epoch bigint, previous_alive_at bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'this store was upgraded by a newer farro while silo % started: upgrade farro', silo
        USING ERRCODE = 'FA002';
END $$;

-- member: position in the batch, from 1.
CREATE TYPE {schema}.request_1 AS (
    member integer, grain_type text, grain_key text, request_id text, answer bytea, at bigint
);

-- commit_1 for a batch with requests; a batch without goes to commit_1 itself.  verdicts: 5 repeated.  answers: those
-- given before, by position in requests.
--
-- The locks come first, as in commit_1, so that the answers and epochs that are read next are as young as they must be.
-- A repeated member goes on to commit_1 under epoch 0, which is fenced always.
CREATE FUNCTION {schema}.commit_2(
    service text, lock_class integer, silo bigint, now_at bigint, partitions integer[],
    members {schema}.member_1[], settles {schema}.settle_1[], changes {schema}.change_1[], marks {schema}.mark_1[],
    events {schema}.event_1[], messages {schema}.message_1[], requests {schema}.request_1[],
    OUT verdicts smallint[], OUT settled integer[], OUT kept integer[], OUT crowded integer[], OUT answers bytea[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    repeated integer[];
    one integer;
    written bigint;
    wanted bigint;
BEGIN
    PERFORM {schema}.check_isolation_1();
    PERFORM pg_advisory_xact_lock_shared(lock_class, p) FROM unnest(partitions) AS p;

    SELECT array_agg((SELECT r.answer FROM {schema}.requests AS r WHERE r.service_id = service
        AND r.grain_type = q.grain_type AND r.grain_key = q.grain_key AND r.request_id = q.request_id)
        ORDER BY q.ordinality)
    INTO answers FROM unnest(requests) WITH ORDINALITY AS q;
    SELECT coalesce(array_agg(q.member), '{}') INTO repeated FROM unnest(requests) WITH ORDINALITY AS q
    WHERE answers[q.ordinality] IS NOT NULL AND (members[q.member]).epoch <> 0 AND (members[q.member]).epoch = (
        SELECT p.epoch FROM {schema}.partitions AS p
        WHERE p.service_id = service AND p.partition = (members[q.member]).partition);
    FOREACH one IN ARRAY repeated LOOP
        members[one].epoch := 0;
    END LOOP;

    SELECT c.verdicts, c.settled, c.kept, c.crowded INTO verdicts, settled, kept, crowded
    FROM {schema}.commit_1(service, lock_class, silo, now_at, partitions, members, settles, changes, marks, events,
                           messages) AS c;
    IF crowded IS NOT NULL THEN
        RETURN;
    END IF;

    INSERT INTO {schema}.requests (service_id, grain_type, grain_key, request_id, answer, at)
    SELECT service, q.grain_type, q.grain_key, q.request_id, q.answer, q.at FROM unnest(requests) AS q
    WHERE verdicts[q.member] = 0
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    SELECT count(*) INTO wanted FROM unnest(requests) AS q WHERE verdicts[q.member] = 0;
    IF written <> wanted THEN  -- by a straggler whose answer was lost
        RAISE EXCEPTION 'a request was answered while it was committed' USING ERRCODE = '40001';
    END IF;
    FOREACH one IN ARRAY repeated LOOP
        verdicts[one] := 5;
    END LOOP;
END $$
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_material = off SET enable_memoize = off SET plan_cache_mode = force_generic_plan;

-- The service's row, locked: see "Theory of the order".
CREATE FUNCTION {schema}.lock_service_1(service text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.check_isolation_1();
    PERFORM 1 FROM {schema}.services AS s WHERE s.service_id = service FOR NO KEY UPDATE;
END $$;

-- What is told of every silo, by number: the fields of SiloRow.
CREATE FUNCTION {schema}.silos_1(service text)
RETURNS TABLE (number bigint, address text, started_at bigint, renewed_at bigint, left_at bigint, status text,
    renewals bigint, load bigint) LANGUAGE sql STABLE AS $$
    SELECT s.number, s.address, s.started_at, greatest(s.renewed_at, a.at), s.left_at, s.status, s.renewals, s.load
    FROM {schema}.silos AS s
    LEFT JOIN {schema}.signs_of_life AS a ON a.service_id = s.service_id AND a.number = s.number
    WHERE s.service_id = service ORDER BY s.number
$$;

-- A new silo under the next number whose lock this session gets; locks: what numbers are added to for their locks' keys.
-- A number whose lock somebody holds (a session whose join failed late) is passed over.  NULL: no such service.
CREATE FUNCTION {schema}.join_1(service text, locks bigint, silo_address text, now_at bigint, forget_before bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    next_number bigint;
BEGIN
    PERFORM {schema}.lock_service_1(service);
    SELECT s.last_silo INTO next_number FROM {schema}.services AS s WHERE s.service_id = service;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    LOOP
        next_number := next_number + 1;
        EXIT WHEN pg_try_advisory_lock(locks + next_number);
    END LOOP;
    UPDATE {schema}.services SET last_silo = next_number, view = view + 1 WHERE service_id = service;
    DELETE FROM {schema}.silos WHERE service_id = service AND left_at < forget_before;
    INSERT INTO {schema}.silos (service_id, number, address, started_at, renewed_at)
    VALUES (service, next_number, silo_address, now_at, now_at);
    INSERT INTO {schema}.signs_of_life (service_id, number, at) VALUES (service, next_number, now_at);
    RETURN next_number;
END $$;

-- The view's number; NULL when the silo is no member.  A sign of life needs no fsync: a crash of the server loses
-- seconds of it.
CREATE FUNCTION {schema}.renew_2(service text, silo bigint, now_at bigint, awake bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.silos SET renewed_at = now_at, renewals = renewals + 1, load = awake
    WHERE service_id = service AND number = silo AND left_at IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT s.view FROM {schema}.services AS s WHERE s.service_id = service);
END $$;

-- False when the silo is no member.
CREATE FUNCTION {schema}.set_status_1(service text, silo bigint, new_status text, now_at bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    old_status text;
BEGIN
    PERFORM {schema}.lock_service_1(service);
    SELECT s.status INTO old_status FROM {schema}.silos AS s
    WHERE s.service_id = service AND s.number = silo AND s.left_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF old_status <> new_status THEN
        UPDATE {schema}.silos SET status = new_status, renewed_at = now_at
        WHERE service_id = service AND number = silo;
        UPDATE {schema}.services SET view = view + 1 WHERE service_id = service;
    END IF;
    RETURN true;
END $$;

-- The end of a silo, LEFT or DEAD: its partitions are free and keep its last sign of life for whoever takes them.
-- expected_renewals: end it only if it has renewed that many times; NULL: however many.  False: it did not end now.
CREATE FUNCTION {schema}.end_silo_1(
    service text, lock_class integer, silo bigint, end_status text, expected_renewals bigint, now_at bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    owned integer[];
    last_sign bigint;
BEGIN
    PERFORM {schema}.check_isolation_1();
    SELECT array_agg(p.partition ORDER BY p.partition) INTO owned FROM {schema}.partitions AS p
    WHERE p.service_id = service AND p.owner = silo;
    PERFORM pg_advisory_xact_lock(lock_class, o) FROM unnest(owned) AS o;
    PERFORM {schema}.lock_service_1(service);
    UPDATE {schema}.silos SET status = end_status, left_at = now_at,
        renewed_at = CASE WHEN end_status = 'left' THEN now_at ELSE greatest(renewed_at, (
            SELECT a.at FROM {schema}.signs_of_life AS a WHERE a.service_id = service AND a.number = silo)) END
    WHERE service_id = service AND number = silo AND left_at IS NULL
        AND renewals = coalesce(expected_renewals, renewals)
    RETURNING renewed_at INTO last_sign;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.signs_of_life WHERE service_id = service AND number = silo;
    UPDATE {schema}.partitions AS p SET owner = NULL, alive_at = last_sign
    WHERE p.service_id = service AND p.owner = silo;
    UPDATE {schema}.services SET view = view + 1 WHERE service_id = service;
    RETURN true;
END $$;

-- Own the partitions, given in ascending order: exclusively locked, so that no commit under the old epoch is under way,
-- then the epoch.  Everything in one transaction.  epochs, by position: those are left out that somebody else owns or
-- that have another epoch; NULL: none is.
CREATE FUNCTION {schema}.take_2(
    service text, lock_class integer, silo bigint, now_at bigint, wanted integer[], epochs bigint[]
) RETURNS TABLE (taken integer, new_epoch bigint, previous_alive_at bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.check_isolation_1();
    IF epochs IS NOT NULL THEN
        -- whoever comes too late does not hold up the commits of the new owner
        SELECT coalesce(array_agg(p.partition ORDER BY p.partition), '{}'), coalesce(
            array_agg(p.epoch ORDER BY p.partition), '{}') INTO wanted, epochs
        FROM unnest(wanted, epochs) AS w (partition, epoch)
        JOIN {schema}.partitions AS p ON p.service_id = service AND p.partition = w.partition AND p.epoch = w.epoch
        WHERE p.owner IS NULL OR p.owner = silo;
    END IF;
    PERFORM pg_advisory_xact_lock(lock_class, w) FROM unnest(wanted) AS w;
    PERFORM {schema}.lock_service_1(service);
    PERFORM 1 FROM {schema}.silos AS s WHERE s.service_id = service AND s.number = silo AND s.left_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'silo % is not a member: join first', silo USING ERRCODE = 'FA002';
    END IF;
    RETURN QUERY
        WITH before AS MATERIALIZED (
            SELECT p.partition, coalesce(greatest(s.renewed_at, a.at), p.alive_at) AS alive_at
            FROM {schema}.partitions AS p
            LEFT JOIN {schema}.silos AS s ON s.service_id = p.service_id AND s.number = p.owner
            LEFT JOIN {schema}.signs_of_life AS a ON a.service_id = p.service_id AND a.number = p.owner
            WHERE p.service_id = service AND p.partition = ANY (wanted)
        ), raised AS (
            UPDATE {schema}.partitions AS p SET owner = silo, epoch = p.epoch + 1
            FROM unnest(wanted, epochs) AS w (partition, epoch)
            WHERE p.service_id = service AND p.partition = w.partition
                AND (epochs IS NULL OR (p.epoch = w.epoch AND (p.owner IS NULL OR p.owner = silo)))
            RETURNING p.partition, p.epoch
        )
        SELECT r.partition, r.epoch, b.alive_at FROM raised AS r JOIN before AS b ON b.partition = r.partition
        ORDER BY r.partition;
    IF FOUND THEN
        UPDATE {schema}.services SET view = view + 1 WHERE service_id = service;
    END IF;
    UPDATE {schema}.silos SET renewed_at = now_at WHERE service_id = service AND number = silo;
END $$;

-- Free those of the partitions, given in ascending order, that the silo owns.
CREATE FUNCTION {schema}.release_1(
    service text, lock_class integer, silo bigint, given integer[], now_at bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.check_isolation_1();
    PERFORM pg_advisory_xact_lock(lock_class, g) FROM unnest(given) AS g;
    PERFORM {schema}.lock_service_1(service);
    UPDATE {schema}.partitions AS p SET owner = NULL, alive_at = now_at
    WHERE p.service_id = service AND p.partition = ANY (given) AND p.owner = silo;
    IF FOUND THEN
        UPDATE {schema}.services SET view = view + 1 WHERE service_id = service;
    END IF;
END $$;
