-- Every statement of the PostgreSQL store but the functions of its migrations.  "-- name:" opens a query, the comment
-- lines under it describe it; "-- fragment:" opens a piece of text that queries use as {fragment}.  $1 is the service id
-- where a query is about one service.  {schema} is the store's schema, quoted.

-- fragment: reminder_columns
-- The fields of ReminderRow, in the order of the class.
grain_type, grain_key, partition, name, operation, key, args, start_at, period_us, cron, timezone, day_match,
until_at, times_left, jitter_us, next_due_at, wake_at, last_fire_at, priority, action, registration, occurrence,
attempts, missed_count, first_missed_at, catch_up_left, status, note

-- name: who_answers
-- Which server this is and which of its processes answers.  pg_control_checkpoint() would tell the old timeline for a
-- while after a promotion.  No setting of the server may weaken what a commit's answer means.
SELECT c.system_identifier::text AS system,
    pg_is_in_recovery() AS standby,
    CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END AS timeline,
    pg_backend_pid() AS pid,
    a.backend_start AS started_at,
    set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
        ELSE current_setting('synchronous_commit') END, false) AS synchronous_commit
FROM pg_control_system() AS c, pg_stat_get_activity(pg_backend_pid()) AS a

-- name: self_test
-- What a store must be to keep its promises.
SELECT current_setting('server_version_num')::integer AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('fsync') AS fsync,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,
    (SELECT count(*) FROM {schema}.partitions WHERE service_id = $1) AS partition_rows

-- name: hold_test_lock
-- The exclusive lock that only this process's test uses: partitions are not negative.
SELECT pg_try_advisory_lock($1, -pg_backend_pid())

-- name: try_test_lock
-- Whether another process's test lock could be shared; it must not.
SELECT pg_try_advisory_xact_lock_shared($1, -$2::integer)

-- name: drop_test_lock
-- The end of hold_test_lock.
SELECT pg_advisory_unlock($1, -pg_backend_pid())

-- name: end_straggler
-- Ends the process that a lost connection belonged to, if it is still that one, and waits until it is gone.
SELECT pg_terminate_backend($1, $3) FROM pg_stat_get_activity($1) WHERE backend_start = $2

-- name: pass_locks
-- Waits for every transaction that holds one of the partitions, in ascending order, and lets go at once.
SELECT count(pg_advisory_xact_lock($1, p)) FROM unnest($2::integer[]) AS p

-- name: commit
-- One batch of members with distinct grains: see migrations/0002_commit.sql.
SELECT verdicts, settled, kept, crowded
FROM {schema}.commit_1($1, $2, $3, $4, $5::integer[], $6::{schema}.member_1[], $7::{schema}.settle_1[],
    $8::{schema}.change_1[], $9::{schema}.mark_1[], $10::{schema}.event_1[], $11::{schema}.message_1[])

-- name: commit_answering
-- A batch in which a member answers a request: see migrations/0003_cluster.sql.
SELECT verdicts, settled, kept, crowded, answers
FROM {schema}.commit_2($1, $2, $3, $4, $5::integer[], $6::{schema}.member_1[], $7::{schema}.settle_1[],
    $8::{schema}.change_1[], $9::{schema}.mark_1[], $10::{schema}.event_1[], $11::{schema}.message_1[],
    $12::{schema}.request_1[])

-- name: answer_to
-- What was answered to one request.
SELECT answer FROM {schema}.requests
WHERE service_id = $1 AND grain_type = $2 AND grain_key = $3 AND request_id = $4

-- name: forget_requests
-- The oldest first, at most $3.
WITH gone AS (
    DELETE FROM {schema}.requests WHERE ctid = ANY (ARRAY (
        SELECT r.ctid FROM {schema}.requests AS r WHERE r.service_id = $1 AND r.at < $2 ORDER BY r.at LIMIT $3))
    RETURNING 1
)
SELECT count(*) FROM gone

-- name: reminder_operations
-- The reminders of one grain, for its bound.
SELECT name, operation FROM {schema}.reminders WHERE service_id = $1 AND grain_type = $2 AND grain_key = $3

-- name: join
-- The number of a new silo, whose lock this session then holds.  This and what follows: see migrations/0003_cluster.sql.
SELECT {schema}.join_1($1, $2, $3, $4, $5)

-- name: hold_silo_lock
-- True when this session holds the lock with that key now.
SELECT pg_try_advisory_lock($1)

-- name: is_silo_locked
-- Read, not tried: to try it could be in its holder's way.
SELECT EXISTS (
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND (classid::bigint << 32) | objid::bigint = $1::bigint
)

-- name: silos
-- Every silo of the service that is still recorded.
SELECT number, address, started_at, renewed_at, left_at, status, renewals, load FROM {schema}.silos_1($1)
ORDER BY number

-- name: cluster
-- Silos and partitions in one snapshot, that of this statement.
SELECT v.view,
    ARRAY (SELECT ROW (s.number, s.address, s.started_at, s.renewed_at, s.left_at, s.status, s.renewals, s.load)
           FROM {schema}.silos_1($1) AS s ORDER BY s.number) AS silos,
    ARRAY (SELECT coalesce(p.owner, 0) FROM {schema}.partitions AS p WHERE p.service_id = $1
           ORDER BY p.partition) AS owners,
    ARRAY (SELECT p.epoch FROM {schema}.partitions AS p WHERE p.service_id = $1 ORDER BY p.partition) AS epochs
FROM {schema}.services AS v WHERE v.service_id = $1

-- name: renew
-- The view's number, NULL when the silo is no member.
SELECT {schema}.renew_2($1, $2, $3, $4)

-- name: store_time
-- The server's clock in microseconds since the epoch.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: set_status
-- False when the silo is no member.
SELECT {schema}.set_status_1($1, $2, $3, $4)

-- name: end_silo
-- Whether the silo's end is this one.
SELECT {schema}.end_silo_1($1, $2, $3, $4, $5, $6)

-- name: take
-- The partitions with their new epochs.
SELECT taken, new_epoch, previous_alive_at FROM {schema}.take_2($1, $2, $3, $4, $5::integer[], $6::bigint[])

-- name: release
-- Frees what the silo owns of them.
SELECT {schema}.release_1($1, $2, $3, $4::integer[], $5)

-- name: load
-- The grains asked for, in the order asked; NULLs where there is none.
SELECT g.grain_type, g.grain_key, g.partition, g.version, g.incarnation, g.layout, g.state
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS a (grain_type, grain_key, number)
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.grains AS s
    WHERE s.service_id = $1 AND s.grain_type = a.grain_type AND s.grain_key = a.grain_key LIMIT 1
) AS g ON true
ORDER BY a.number

-- name: watermarks
-- What one grain has consumed.
SELECT source, position FROM {schema}.watermarks
WHERE service_id = $1 AND grain_type = $2 AND grain_key = $3 ORDER BY source

-- name: reminder
-- One reminder.
SELECT {reminder_columns} FROM {schema}.reminders
WHERE service_id = $1 AND grain_type = $2 AND grain_key = $3 AND name = $4

-- name: reminders_of
-- The reminders of one grain.
SELECT {reminder_columns} FROM {schema}.reminders
WHERE service_id = $1 AND grain_type = $2 AND grain_key = $3 ORDER BY name

-- name: poll
-- One index range: priority $2, wake_at up to $3, after the key $4…$8, at most $9 rows, of the partitions $10 (NULL: all).
-- The instants are parameters: a volatile function in their place is evaluated for every row, at thirty times the cost.
SELECT {reminder_columns} FROM {schema}.reminders
WHERE service_id = $1 AND priority = $2 AND status = 'scheduled' AND wake_at IS NOT NULL AND wake_at <= $3
    AND (wake_at, registration, grain_type, grain_key, name) > ($4, $5, $6, $7, $8)
    AND ($10::integer[] IS NULL OR partition = ANY ($10::integer[]))
ORDER BY wake_at, registration, grain_type, grain_key, name
LIMIT $9

-- name: unpollable
-- The condition is word for word that of the index reminders_unpollable.
SELECT {reminder_columns} FROM {schema}.reminders
WHERE service_id = $1
    AND status = 'scheduled' AND (wake_at IS NULL OR next_due_at IS NULL OR priority NOT IN (0, 1, 2))
ORDER BY grain_type, grain_key, name
LIMIT $2

-- name: list_reminders
-- {filters} is put together from the fixed texts of reading.py; values are always bound.
SELECT {reminder_columns} FROM {schema}.reminders
WHERE service_id = $1 {filters}
ORDER BY grain_type, grain_key, name
LIMIT $2

-- name: count_reminders
-- {filters} as in list_reminders.
SELECT priority, status, count(*) FROM {schema}.reminders
WHERE service_id = $1 {filters}
GROUP BY priority, status
ORDER BY priority, status

-- name: events
-- A page of one stream in one partition.
SELECT sequence, stream, payload, at FROM {schema}.events
WHERE service_id = $1 AND partition = $2 AND stream = $3 AND sequence > $4 ORDER BY sequence LIMIT $5

-- name: trim_events
-- The head of the stream stays.
WITH gone AS (
    DELETE FROM {schema}.events
    WHERE service_id = $1 AND stream = $2 AND partition = $3 AND sequence <= $4 RETURNING 1
)
SELECT count(*) FROM gone

-- name: stream_heads
-- The last number of the stream in each partition that ever had one of its events.
SELECT partition, sequence FROM {schema}.stream_heads WHERE service_id = $1 AND stream = $2 ORDER BY partition

-- name: outbox
-- A page of the messages that one partition sends.
SELECT sequence, target_type, target_key, method, args, at FROM {schema}.outbox
WHERE service_id = $1 AND partition = $2 AND sequence > $3 ORDER BY sequence LIMIT $4

-- name: has_schema
-- Whether the schema exists, whether farro's own list of migrations is in it, and the other tables it has.
SELECT to_regnamespace($1) IS NOT NULL AS there, to_regclass($1 || '.farro_migrations') IS NOT NULL AS farros,
    ARRAY (SELECT c.relname::text FROM pg_class AS c WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'r'
           ORDER BY 1) AS tables

-- name: applied
-- What was applied, in order.
SELECT number, name, checksum FROM {schema}.farro_migrations ORDER BY number

-- name: create_migrations
-- The list of what was applied.
CREATE TABLE {schema}.farro_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at bigint NOT NULL
)

-- name: add_migration
-- One more was applied.
INSERT INTO {schema}.farro_migrations (number, name, checksum, applied_at) VALUES ($1, $2, $3, $4)

-- name: partitions_of_service
-- How many partitions the service was created with.
SELECT partitions FROM {schema}.services WHERE service_id = $1

-- name: create_service
-- The service with the row of each of its partitions; an existing one is left alone.
WITH created AS (
    INSERT INTO {schema}.services (service_id, partitions) VALUES ($1, $2)
    ON CONFLICT (service_id) DO NOTHING RETURNING partitions
)
INSERT INTO {schema}.partitions (service_id, partition)
SELECT $1, p FROM created, generate_series(0, created.partitions - 1) AS p
