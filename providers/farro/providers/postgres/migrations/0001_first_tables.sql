-- The first tables.  service_id leads every key, so that several services share one schema without meeting.
-- Instants and durations are integer microseconds: no session's time zone and no type's range touches them.
-- COLLATE "C" orders text by code point on every server, as the other stores do.

-- partitions: a power of two, fixed when the service is created.  last_silo: a number stays used after its row is gone.
CREATE TABLE {schema}.services (
    service_id text COLLATE "C" NOT NULL,
    partitions integer NOT NULL,
    last_silo bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (service_id)
);

-- Renewed every second: room in the page keeps these updates off the index.
CREATE TABLE {schema}.silos (
    service_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    address text COLLATE "C" NOT NULL,
    started_at bigint NOT NULL,
    renewed_at bigint NOT NULL,
    left_at bigint,
    PRIMARY KEY (service_id, number)
) WITH (fillfactor = 50);

-- Every partition has its row from the start; epoch 0: nobody owned it yet.  owner: NULL when free.  alive_at: last
-- sign of life of an owner that left.  sequence: the last number given to an event or an outbox row of the partition.
CREATE TABLE {schema}.partitions (
    service_id text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    owner bigint,
    epoch bigint NOT NULL DEFAULT 0,
    alive_at bigint,
    sequence bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (service_id, partition)
) WITH (fillfactor = 50);

CREATE TABLE {schema}.grains (
    service_id text COLLATE "C" NOT NULL,
    grain_type text COLLATE "C" NOT NULL,
    grain_key text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    version bigint NOT NULL,
    incarnation bigint NOT NULL,
    layout bigint NOT NULL,
    state bytea,
    PRIMARY KEY (service_id, grain_type, grain_key)
) WITH (fillfactor = 85);

CREATE TABLE {schema}.reminders (
    service_id text COLLATE "C" NOT NULL,
    grain_type text COLLATE "C" NOT NULL,
    grain_key text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    args bytea NOT NULL,
    start_at bigint NOT NULL,
    period_us bigint,
    cron text COLLATE "C",
    timezone text COLLATE "C" NOT NULL,
    day_match text COLLATE "C" NOT NULL,
    until_at bigint,
    times_left bigint,
    jitter_us bigint NOT NULL,
    next_due_at bigint,
    wake_at bigint,
    last_fire_at bigint,
    priority bigint NOT NULL,
    action bigint NOT NULL,
    registration bigint NOT NULL,
    occurrence bigint NOT NULL,
    attempts bigint NOT NULL,
    missed_count bigint NOT NULL,
    first_missed_at bigint,
    catch_up_left bigint,
    status text COLLATE "C" NOT NULL,
    note text COLLATE "C",
    PRIMARY KEY (service_id, grain_type, grain_key, name)
) WITH (fillfactor = 85);

-- The poll reads this index in its own order, one range per priority, and sorts nothing.
CREATE INDEX reminders_to_wake
    ON {schema}.reminders (service_id, priority, wake_at, registration, grain_type, grain_key, name)
    WHERE status = 'scheduled' AND wake_at IS NOT NULL;

-- What no poll can see and repair must find: its cost grows with such rows alone.
CREATE INDEX reminders_unpollable
    ON {schema}.reminders (service_id, grain_type, grain_key, name)
    WHERE status = 'scheduled' AND (wake_at IS NULL OR next_due_at IS NULL OR priority NOT IN (0, 1, 2));

-- How far a grain has consumed each source of messages.  It outlives the grain's state.
CREATE TABLE {schema}.watermarks (
    service_id text COLLATE "C" NOT NULL,
    grain_type text COLLATE "C" NOT NULL,
    grain_key text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (service_id, grain_type, grain_key, source)
);

-- The last number of each stream in each partition, which trimming its events must not forget.
CREATE TABLE {schema}.stream_heads (
    service_id text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    sequence bigint NOT NULL,
    PRIMARY KEY (service_id, stream, partition)
);

CREATE TABLE {schema}.events (
    service_id text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    stream text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    payload bytea NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (service_id, partition, stream, sequence)
);

-- The sender is kept for the order per (sender, target) that a durable tell promises.
CREATE TABLE {schema}.outbox (
    service_id text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    sequence bigint NOT NULL,
    sender_type text COLLATE "C" NOT NULL,
    sender_key text COLLATE "C" NOT NULL,
    target_type text COLLATE "C" NOT NULL,
    target_key text COLLATE "C" NOT NULL,
    method text COLLATE "C" NOT NULL,
    args bytea NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (service_id, partition, sequence)
);
