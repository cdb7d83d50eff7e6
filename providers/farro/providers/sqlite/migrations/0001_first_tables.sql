-- The first tables.  service_id leads every key, so that several services share one file without meeting.
-- Instants and durations are integer microseconds.  WITHOUT ROWID: one b-tree per table instead of two, which
-- halves the pages that a turn's commit writes.

CREATE TABLE stores (
    service_id TEXT NOT NULL,
    key TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (service_id, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE silos (
    service_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    address TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    left_at INTEGER,
    PRIMARY KEY (service_id, number)
) STRICT, WITHOUT ROWID;

-- owner: NULL when free.  alive_at: last sign of life of an owner that left.  sequence: the last number given
-- to an event or an outbox row of the partition; numbers are never given twice, so it is not max(sequence).
CREATE TABLE partitions (
    service_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    owner INTEGER,
    epoch INTEGER NOT NULL,
    alive_at INTEGER,
    sequence INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (service_id, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE grains (
    service_id TEXT NOT NULL,
    grain_type TEXT NOT NULL,
    grain_key TEXT NOT NULL,
    partition INTEGER NOT NULL,
    version INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    layout INTEGER NOT NULL,
    state BLOB,
    PRIMARY KEY (service_id, grain_type, grain_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE reminders (
    service_id TEXT NOT NULL,
    grain_type TEXT NOT NULL,
    grain_key TEXT NOT NULL,
    partition INTEGER NOT NULL,
    name TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT,
    args BLOB NOT NULL,
    start_at INTEGER NOT NULL,
    period_us INTEGER,
    cron TEXT,
    timezone TEXT NOT NULL,
    day_match TEXT NOT NULL,
    until_at INTEGER,
    times_left INTEGER,
    jitter_us INTEGER NOT NULL,
    next_due_at INTEGER,
    wake_at INTEGER,
    last_fire_at INTEGER,
    priority INTEGER NOT NULL,
    action INTEGER NOT NULL,
    registration INTEGER NOT NULL,
    occurrence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    missed_count INTEGER NOT NULL,
    first_missed_at INTEGER,
    catch_up_left INTEGER,
    status TEXT NOT NULL,
    note TEXT,
    PRIMARY KEY (service_id, grain_type, grain_key, name)
) STRICT, WITHOUT ROWID;

-- The poll reads this index in its own order, one range per priority, and sorts nothing.
CREATE INDEX reminders_to_wake
    ON reminders (service_id, priority, wake_at, registration, grain_type, grain_key, name)
    WHERE status = 'scheduled' AND wake_at IS NOT NULL;

-- What no poll can see and repair must find: its cost grows with such rows alone.
CREATE INDEX reminders_unpollable
    ON reminders (service_id, grain_type, grain_key, name)
    WHERE status = 'scheduled' AND (wake_at IS NULL OR next_due_at IS NULL OR priority NOT IN (0, 1, 2));

-- How far a grain has consumed each source of messages.  It outlives the grain's state.
CREATE TABLE watermarks (
    service_id TEXT NOT NULL,
    grain_type TEXT NOT NULL,
    grain_key TEXT NOT NULL,
    source TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (service_id, grain_type, grain_key, source)
) STRICT, WITHOUT ROWID;

-- The last number of each stream in each partition, which trimming its events must not forget.
CREATE TABLE stream_heads (
    service_id TEXT NOT NULL,
    stream TEXT NOT NULL,
    partition INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (service_id, stream, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    service_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    stream TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    payload BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (service_id, partition, stream, sequence)
) STRICT, WITHOUT ROWID;

-- The sender is kept for the order per (sender, target) that a durable tell promises.
CREATE TABLE outbox (
    service_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    sender_type TEXT NOT NULL,
    sender_key TEXT NOT NULL,
    target_type TEXT NOT NULL,
    target_key TEXT NOT NULL,
    method TEXT NOT NULL,
    args BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (service_id, partition, sequence)
) STRICT, WITHOUT ROWID;
