-- Several silos on one file, and answers that a repeated request gets again.
--
-- status: joining, active, draining, left or dead; a silo of before that has not left is one that was killed, or
-- lives still.  renewals: how often it has said that it lives, which others compare with what they saw.  load: how
-- many grains were awake at its last renewal.  The number of the view is in stores, under "view".

ALTER TABLE silos ADD COLUMN status TEXT NOT NULL DEFAULT 'active';
ALTER TABLE silos ADD COLUMN renewals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE silos ADD COLUMN load INTEGER NOT NULL DEFAULT 0;
UPDATE silos SET status = 'left' WHERE left_at IS NOT NULL;

-- What grains have answered to requests.  It outlives the grain's state.
CREATE TABLE requests (
    service_id TEXT NOT NULL,
    grain_type TEXT NOT NULL,
    grain_key TEXT NOT NULL,
    request_id TEXT NOT NULL,
    answer BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (service_id, grain_type, grain_key, request_id)
) STRICT, WITHOUT ROWID;

-- Old answers are forgotten in this order.
CREATE INDEX requests_by_age ON requests (service_id, at);
