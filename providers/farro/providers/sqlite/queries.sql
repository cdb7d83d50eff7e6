-- Every statement on rows that the SQLite store runs.  "-- name:" opens a query, the comment lines under it describe
-- it; "-- fragment:" opens a piece of text that queries use as {fragment}.  ?1 is always the service id.
--
-- {rows} stands for as many rows of values as the caller has: Python lets go of its global lock at every step of a
-- statement and may wait milliseconds for it on a busy event loop, so a batch must be few steps, not few bytes.
--
-- A write that must find its rows begins with its verb: Python tells how many rows a statement found only of those.
--
-- OR FAIL: a statement of many rows that fails could undo itself alone, and copies every page before its first change
-- for that.  Here whatever fails ends in a rollback of the transaction or of a savepoint, and without the copies such
-- a statement takes half of the time or less.

-- fragment: given_rows
-- A list of rows is filled up with rows of NULL, whose service id is none.
SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL

-- fragment: reminder_columns
-- The fields of ReminderRow, in the order of the class.
grain_type, grain_key, partition, name, operation, key, args, start_at, period_us, cron, timezone, day_match,
until_at, times_left, jitter_us, next_due_at, wake_at, last_fire_at, priority, action, registration, occurrence,
attempts, missed_count, first_missed_at, catch_up_left, status, note

-- fragment: packed_reminder_columns
-- The same as JSON can hold them.
grain_type, grain_key, partition, name, operation, key, CASE WHEN length(args) <= 2048 THEN hex(args) END,
start_at, period_us, cron, timezone, day_match, until_at, times_left, jitter_us, next_due_at, wake_at, last_fire_at,
priority, action, registration, occurrence, attempts, missed_count, first_missed_at, catch_up_left, status, note

-- fragment: progress_columns
-- The fields of Progress, in the order of the class.
next_due_at, wake_at, last_fire_at, occurrence, times_left, attempts, missed_count, first_missed_at,
catch_up_left, status, note

-- name: read_setting
-- One number that the service keeps beside its rows.
SELECT value FROM stores WHERE service_id = ?1 AND key = ?2

-- name: write_setting
-- Sets such a number, whether it was there or not.
INSERT INTO stores (service_id, key, value) VALUES (?1, ?2, ?3)
ON CONFLICT (service_id, key) DO UPDATE SET value = excluded.value

-- name: move_view
-- The view's number grows with everything that cluster() tells, renewals apart.
INSERT INTO stores (service_id, key, value) VALUES (?1, 'view', 1)
ON CONFLICT (service_id, key) DO UPDATE SET value = value + 1

-- name: add_silo
-- A new member, alive at ?4.
INSERT INTO silos (service_id, number, address, started_at, renewed_at, status) VALUES (?1, ?2, ?3, ?4, ?4, 'joining')

-- name: forget_silos
-- Those that left or died before ?2.
DELETE FROM silos WHERE service_id = ?1 AND left_at < ?2

-- name: silos
-- Every silo that is still recorded, by number, in the order of SiloRow.
SELECT number, address, started_at, renewed_at, left_at, status, renewals, load
FROM silos WHERE service_id = ?1 ORDER BY number

-- name: silo
-- One silo that has joined and not left: its status, its renewals and its sign of life.
SELECT status, renewals, renewed_at FROM silos WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL

-- name: member_numbers
-- The numbers of the silos that have joined and not left.
SELECT number FROM silos WHERE service_id = ?1 AND left_at IS NULL

-- name: sign_of_life
-- One row when the silo is a member, none otherwise.
UPDATE silos SET renewed_at = ?3 WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL

-- name: vouch
-- The sign of life of a member; no row unless each partition in the JSON object ?4 has the epoch that stands there,
-- and no grain in the JSON array ?5 has more reminders than there is room for: [[type, key, room]].
UPDATE silos SET renewed_at = ?3 WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM json_each(?4) AS made LEFT JOIN partitions
    ON partitions.service_id = ?1 AND partitions.partition = CAST(made.key AS INTEGER)
    WHERE partitions.epoch IS NOT made.value)
AND NOT EXISTS (
    SELECT 1 FROM json_each(?5) AS asked WHERE json_extract(asked.value, '$[2]') < (
        SELECT count(*) FROM reminders AS r WHERE r.service_id = ?1
            AND r.grain_type = json_extract(asked.value, '$[0]') AND r.grain_key = json_extract(asked.value, '$[1]')))

-- name: renew
-- A sign of life that others can count; one row when the silo is a member, none otherwise.
UPDATE silos SET renewed_at = ?3, renewals = renewals + 1, load = ?4
WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL

-- name: set_status
-- The next status of a member.
UPDATE silos SET status = ?4, renewed_at = ?3 WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL

-- name: leave
-- One row when the silo was a member until now.
UPDATE silos SET status = 'left', renewed_at = ?3, left_at = ?3
WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL

-- name: mark_dead
-- Its last sign of life stays.
UPDATE silos SET status = 'dead', left_at = ?3 WHERE service_id = ?1 AND number = ?2 AND left_at IS NULL

-- name: free_partitions
-- What a silo owned is free, and remembers its last sign of life.
UPDATE partitions SET owner = NULL, alive_at = ?3 WHERE service_id = ?1 AND owner = ?2

-- name: release_partitions
-- The same for those in the JSON array ?4.
UPDATE partitions SET owner = NULL, alive_at = ?3
WHERE service_id = ?1 AND owner = ?2 AND partition IN (SELECT value FROM json_each(?4))

-- name: owned
-- Each partition that was ever taken: its owner (NULL when free), its epoch and the last sign of life of whoever
-- owned it last.
SELECT p.partition, p.owner, p.epoch, coalesce(s.renewed_at, p.alive_at)
FROM partitions p LEFT JOIN silos s ON s.service_id = p.service_id AND s.number = p.owner
WHERE p.service_id = ?1

-- name: take_partition
-- The new owner and the next epoch, which fences every older commit.
INSERT INTO partitions (service_id, partition, owner, epoch) VALUES (?1, ?2, ?3, 1)
ON CONFLICT (service_id, partition) DO UPDATE SET owner = excluded.owner, epoch = epoch + 1

-- name: fences
-- All partitions and their epochs as two lists: two values cost less than a row for each partition.
SELECT json_group_array(partition), json_group_array(epoch) FROM partitions WHERE service_id = ?1

-- name: sequences
-- All partitions and the last numbers that they gave, as fences.
SELECT json_group_array(partition), json_group_array(sequence) FROM partitions WHERE service_id = ?1

-- name: move_sequences
-- The last number given in each partition that got events or messages.
WITH moved (service_id, partition, sequence) AS (VALUES {rows})
UPDATE OR FAIL partitions SET sequence = moved.sequence FROM moved
WHERE partitions.service_id = moved.service_id AND partitions.partition = moved.partition

-- name: load_grain
-- The row of one grain, in the order of GrainRow.
SELECT grain_type, grain_key, partition, version, incarnation, layout, state
FROM grains WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3

-- name: load_grains
-- Grains that exist, with the caller's numbers, as one JSON array; states in hexadecimal, long ones as 0.
WITH asked (number, service_id, grain_type, grain_key) AS (VALUES {rows})
SELECT json_group_array(json_array(
    asked.number, g.grain_type, g.grain_key, g.partition, g.version, g.incarnation, g.layout,
    CASE WHEN g.state IS NULL THEN NULL WHEN length(g.state) > 2048 THEN 0 ELSE hex(g.state) END))
FROM asked CROSS JOIN grains AS g
WHERE g.service_id = asked.service_id AND g.grain_type = asked.grain_type AND g.grain_key = asked.grain_key

-- name: versions
-- {number: version} of the grains that exist, by the caller's numbers.
WITH asked (number, service_id, grain_type, grain_key) AS (VALUES {rows})
SELECT json_group_object(asked.number, grains.version) FROM asked CROSS JOIN grains
WHERE grains.service_id = asked.service_id AND grains.grain_type = asked.grain_type
    AND grains.grain_key = asked.grain_key

-- name: positions
-- [[number, source, position]] of what each grain has consumed of the sources asked for.
WITH asked (number, service_id, grain_type, grain_key, source) AS (VALUES {rows})
SELECT json_group_array(json_array(asked.number, w.source, w.position)) FROM asked CROSS JOIN watermarks AS w
WHERE w.service_id = asked.service_id AND w.grain_type = asked.grain_type AND w.grain_key = asked.grain_key
    AND w.source = asked.source

-- name: move_watermarks
-- How far grains have consumed their sources now.
INSERT INTO watermarks (service_id, grain_type, grain_key, source, position)
{given_rows}
ON CONFLICT (service_id, grain_type, grain_key, source) DO UPDATE SET position = excluded.position

-- name: watermarks
-- What one grain has consumed of each source.
SELECT source, position FROM watermarks
WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 ORDER BY source

-- name: add_requests
-- What grains answer for the first time; a request that has an answer keeps it, and is not counted.
INSERT OR FAIL INTO requests (service_id, grain_type, grain_key, request_id, answer, at)
{given_rows}
ON CONFLICT (service_id, grain_type, grain_key, request_id) DO NOTHING

-- name: answers
-- (number, answer) of the requests that were answered before.
WITH asked (number, service_id, grain_type, grain_key, request_id) AS (VALUES {rows})
SELECT asked.number, r.answer FROM asked CROSS JOIN requests AS r
WHERE r.service_id = asked.service_id AND r.grain_type = asked.grain_type AND r.grain_key = asked.grain_key
    AND r.request_id = asked.request_id

-- name: answer_to
-- What one grain has answered to one request.
SELECT answer FROM requests WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 AND request_id = ?4

-- name: forget_requests
-- At most ?3 answers given before ?2, the oldest first.
DELETE FROM requests WHERE (service_id, grain_type, grain_key, request_id) IN (
    SELECT service_id, grain_type, grain_key, request_id FROM requests
    WHERE service_id = ?1 AND at < ?2 ORDER BY at LIMIT ?3)

-- name: crowded
-- [number] of the grains that have more reminders than there is room for.
WITH asked (number, service_id, grain_type, grain_key, room) AS (VALUES {rows})
SELECT json_group_array(asked.number) FROM asked WHERE asked.room < (
    SELECT count(*) FROM reminders AS r
    WHERE r.service_id = asked.service_id AND r.grain_type = asked.grain_type AND r.grain_key = asked.grain_key
)

-- name: reminder_operations
-- The reminders of one grain with their operations, to count what a commit would leave.
SELECT name, operation FROM reminders WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3

-- name: add_grains
-- New grains; one that exists is left alone and not counted.
INSERT OR FAIL INTO grains (service_id, grain_type, grain_key, partition, version, incarnation, layout, state)
{given_rows}
ON CONFLICT (service_id, grain_type, grain_key) DO NOTHING

-- name: write_states
-- The next state of grains that have the version expected.
UPDATE OR FAIL grains SET version = written.version + 1, layout = written.layout, state = written.state FROM (
    WITH written (service_id, grain_type, grain_key, version, layout, state) AS (VALUES {rows}) SELECT * FROM written) AS written
WHERE grains.service_id = written.service_id AND grains.grain_type = written.grain_type
    AND grains.grain_key = written.grain_key AND grains.version = written.version

-- name: write_states_alone
-- write_states as a transaction of its own: nothing, unless as many grains as said have the version expected and each
-- partition in the JSON object has the epoch that stands there.
WITH written (service_id, grain_type, grain_key, version, layout, state) AS (VALUES {rows})
UPDATE grains SET version = written.version + 1, layout = written.layout, state = written.state FROM written
WHERE grains.service_id = written.service_id AND grains.grain_type = written.grain_type
    AND grains.grain_key = written.grain_key AND grains.version = written.version
    AND ? = (
        SELECT count(*) FROM written AS asked CROSS JOIN grains AS found
        WHERE found.service_id = asked.service_id AND found.grain_type = asked.grain_type
            AND found.grain_key = asked.grain_key AND found.version = asked.version)
    AND NOT EXISTS (
        SELECT 1 FROM json_each(?) AS made LEFT JOIN partitions
        ON partitions.service_id = ? AND partitions.partition = CAST(made.key AS INTEGER)
        WHERE partitions.epoch IS NOT made.value)

-- name: touch_grains
-- The next version of grains that have the version expected and whose state stays.
UPDATE OR FAIL grains SET version = touched.version + 1 FROM (
    WITH touched (service_id, grain_type, grain_key, version) AS (VALUES {rows}) SELECT * FROM touched) AS touched
WHERE grains.service_id = touched.service_id AND grains.grain_type = touched.grain_type
    AND grains.grain_key = touched.grain_key AND grains.version = touched.version

-- name: destroy_grains
-- The next incarnation, without a state, of grains that have the version expected.
UPDATE OR FAIL grains SET version = destroyed.version + 1, incarnation = incarnation + 1, layout = destroyed.layout, state = NULL
FROM (
    WITH destroyed (service_id, grain_type, grain_key, version, layout) AS (VALUES {rows}) SELECT * FROM destroyed) AS destroyed
WHERE grains.service_id = destroyed.service_id AND grains.grain_type = destroyed.grain_type
    AND grains.grain_key = destroyed.grain_key AND grains.version = destroyed.version

-- name: delete_reminders_of
-- Every reminder of one grain.
DELETE FROM reminders WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3

-- name: settled
-- The numbers of those whose registration and occurrence are the stored ones.
WITH asked (number, service_id, grain_type, grain_key, name, registration, occurrence) AS (VALUES {rows})
SELECT json_group_array(asked.number) FROM asked CROSS JOIN reminders AS r
WHERE r.service_id = asked.service_id AND r.grain_type = asked.grain_type AND r.grain_key = asked.grain_key
    AND r.name = asked.name AND r.registration = asked.registration AND r.occurrence = asked.occurrence

-- name: move_reminders
-- The new progress of reminders that a settle matches.  A paused row moves on its grid but sleeps on.
UPDATE OR FAIL reminders SET
    next_due_at = moved.next_due_at,
    wake_at = CASE WHEN reminders.status <> 'paused' THEN moved.wake_at END,
    last_fire_at = moved.last_fire_at, occurrence = moved.occurrence, times_left = moved.times_left,
    attempts = moved.attempts, missed_count = moved.missed_count, first_missed_at = moved.first_missed_at,
    catch_up_left = moved.catch_up_left,
    status = CASE WHEN reminders.status = 'paused' THEN reminders.status ELSE moved.status END,
    note = CASE WHEN reminders.status = 'paused' THEN reminders.note ELSE moved.note END
FROM (
    WITH moved (service_id, grain_type, grain_key, name, registration, consumed, {progress_columns}) AS (VALUES {rows}) SELECT * FROM moved) AS moved
WHERE reminders.service_id = moved.service_id AND reminders.grain_type = moved.grain_type
    AND reminders.grain_key = moved.grain_key AND reminders.name = moved.name
    AND reminders.registration = moved.registration AND reminders.occurrence = moved.consumed

-- name: move_by_operator
-- As move_reminders, but an operator's word also wakes a paused row.
UPDATE reminders SET ({progress_columns}) = (?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 AND name = ?4 AND registration = ?5 AND occurrence = ?6

-- name: delete_settled
-- Reminders that a settle matches and ends.
DELETE FROM reminders WHERE (service_id, grain_type, grain_key, name, registration, occurrence) IN (
    WITH gone (service_id, grain_type, grain_key, name, registration, occurrence) AS (VALUES {rows}) SELECT * FROM gone)

-- name: put_reminders
-- Rows that stand whatever stood there before.
INSERT OR REPLACE INTO reminders (service_id, {reminder_columns})
{given_rows}

-- name: put_reminder_if_missing
-- No row when one of that name exists.
INSERT INTO reminders (service_id, {reminder_columns})
{given_rows}
ON CONFLICT (service_id, grain_type, grain_key, name) DO NOTHING

-- name: delete_reminders
-- "IN (VALUES …)" would read the whole table; "IN (SELECT …)" finds each row by its key.
WITH gone (service_id, grain_type, grain_key, name) AS (VALUES {rows})
DELETE FROM reminders
WHERE (service_id, grain_type, grain_key, name) IN (SELECT service_id, grain_type, grain_key, name FROM gone)

-- name: delete_operation
-- Every reminder of one operation of one grain, whatever its key.
DELETE FROM reminders WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 AND operation = ?4

-- name: edit_reminder
-- An operator's priority and action; NULL leaves what there is.
UPDATE reminders SET priority = coalesce(?5, priority), action = coalesce(?6, action)
WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 AND name = ?4

-- name: add_events
-- Events with the numbers that their partition gave them.
INSERT OR FAIL INTO events (service_id, partition, sequence, stream, payload, at)
{given_rows}

-- name: move_stream_heads
-- The last number of each stream in each partition that got events.
INSERT INTO stream_heads (service_id, stream, partition, sequence)
{given_rows}
ON CONFLICT (service_id, stream, partition) DO UPDATE SET sequence = excluded.sequence

-- name: stream_heads
-- The last number of one stream in every partition that ever had it.
SELECT partition, sequence FROM stream_heads WHERE service_id = ?1 AND stream = ?2 ORDER BY partition

-- name: trim_events
-- Events of one stream in one partition up to a number.
DELETE FROM events WHERE service_id = ?1 AND stream = ?2 AND partition = ?3 AND sequence <= ?4

-- name: add_messages
-- Outbox rows with the numbers that their partition gave them.
INSERT OR FAIL INTO outbox (
    service_id, partition, sequence, sender_type, sender_key, target_type, target_key, method, args, at
)
{given_rows}

-- name: reminder
-- One reminder, in the order of ReminderRow.
SELECT {reminder_columns} FROM reminders
WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 AND name = ?4

-- name: reminders_of
-- Every reminder of one grain, by name.
SELECT {reminder_columns} FROM reminders
WHERE service_id = ?1 AND grain_type = ?2 AND grain_key = ?3 ORDER BY name

-- fragment: due_rows
-- One index range: priority ?2, wake_at up to ?3, after the key ?4…?8, at most ?9 rows, of the partitions in the JSON
-- array ?10 (NULL: all).
SELECT {reminder_columns} FROM reminders
WHERE service_id = ?1 AND priority = ?2 AND status = 'scheduled' AND wake_at IS NOT NULL AND wake_at <= ?3
    AND (wake_at, registration, grain_type, grain_key, name) > (?4, ?5, ?6, ?7, ?8)
    AND (?10 IS NULL OR partition IN (SELECT value FROM json_each(?10)))
ORDER BY wake_at, registration, grain_type, grain_key, name
LIMIT ?9

-- name: poll
-- The rows of that range, in its order.
{due_rows}

-- name: poll_packed
-- The same as one JSON array of rows, args in hexadecimal; how many they are, the last one of them, and how many have
-- args so long that they are left out.
SELECT packed, json_array_length(packed), json_extract(packed, '$[#-1]'), left_out FROM (
    SELECT json_group_array(json_array({packed_reminder_columns})) AS packed, sum(length(args) > 2048) AS left_out
    FROM ({due_rows}))

-- name: unpollable
-- The condition is word for word that of the index reminders_unpollable.
SELECT {reminder_columns} FROM reminders INDEXED BY reminders_unpollable
WHERE service_id = ?1
    AND status = 'scheduled' AND (wake_at IS NULL OR next_due_at IS NULL OR priority NOT IN (0, 1, 2))
ORDER BY grain_type, grain_key, name
LIMIT ?2

-- name: list_reminders
-- {filters} is put together from the fixed texts of reading.py; values are always bound.
SELECT {reminder_columns} FROM reminders
WHERE service_id = :service_id {filters}
ORDER BY grain_type, grain_key, name
LIMIT :limit

-- name: count_reminders
-- How many by priority and status; {filters} as in list_reminders.
SELECT priority, status, count(*) FROM reminders
WHERE service_id = :service_id {filters}
GROUP BY priority, status
ORDER BY priority, status

-- name: events
-- Events of one stream in one partition after a number.
SELECT sequence, stream, payload, at FROM events
WHERE service_id = ?1 AND partition = ?2 AND stream = ?3 AND sequence > ?4 ORDER BY sequence LIMIT ?5

-- name: outbox
-- Outbox rows of one partition after a number.
SELECT sequence, target_type, target_key, method, args, at FROM outbox
WHERE service_id = ?1 AND partition = ?2 AND sequence > ?3 ORDER BY sequence LIMIT ?4
