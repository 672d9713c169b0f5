-- Schema 1. Ids begin with their time, so what is written together lies together: tables keep their
-- rows in the order of writing and are found through short indexes. Payloads are BLOBs, as received.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY
) STRICT, WITHOUT ROWID;

-- The row that every commit of a run touches: kept short, the request stands apart.
CREATE TABLE runs (
    run_id               TEXT PRIMARY KEY,
    project              TEXT NOT NULL,
    response_id          TEXT NOT NULL,
    state                TEXT NOT NULL CHECK (state IN ('queued', 'running', 'ended')),
    mode                 TEXT NOT NULL CHECK (mode IN ('foreground', 'stream', 'background')),
    body_digest          TEXT NOT NULL,
    created_at           REAL NOT NULL,
    fence                INTEGER NOT NULL,
    owner                TEXT,
    commit_no            INTEGER NOT NULL,
    takeovers            INTEGER NOT NULL DEFAULT 0,
    next_sequence_number INTEGER NOT NULL,
    cancel_requested     INTEGER NOT NULL DEFAULT 0,
    keyed                INTEGER NOT NULL,
    requires             TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_open ON runs (created_at) WHERE state <> 'ended';
-- By the second, then the body: a digest alone would put each new run on a page of its own.
CREATE INDEX runs_by_digest ON runs (CAST(created_at AS INTEGER), substr(body_digest, 1, 16));

CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    body   BLOB NOT NULL
) STRICT;

-- `number` rises with every response: a parent's is always lower, so no chain can be a circle.
CREATE TABLE responses (
    number               INTEGER PRIMARY KEY,
    response_id          TEXT NOT NULL UNIQUE,
    run_id               TEXT NOT NULL,
    project              TEXT NOT NULL,
    status               TEXT NOT NULL,
    model                TEXT NOT NULL,
    mode                 TEXT NOT NULL,
    created_at           REAL NOT NULL,
    completed_at         REAL,
    previous_response_id TEXT,
    deleted              INTEGER NOT NULL DEFAULT 0,
    envelope             BLOB NOT NULL
) STRICT;

CREATE INDEX responses_by_time ON responses (project, created_at, response_id);
CREATE INDEX responses_hidden ON responses (number) WHERE deleted;
CREATE INDEX responses_by_parent ON responses (previous_response_id) WHERE previous_response_id IS NOT NULL;

-- `direction`: 0 came in, 1 went out.
CREATE TABLE items (
    response_id TEXT NOT NULL,
    direction   INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    item_id     TEXT NOT NULL,
    data        BLOB NOT NULL,
    PRIMARY KEY (response_id, direction, position)
) STRICT;

CREATE INDEX items_by_id ON items (item_id);

CREATE TABLE steps (
    id               TEXT NOT NULL UNIQUE,
    request_id       TEXT NOT NULL,
    ordinal          INTEGER NOT NULL,
    prev_step_id     TEXT,
    parent_step_id   TEXT,
    step_kind        TEXT NOT NULL CHECK (step_kind IN ('model_call', 'tool_call')),
    step_sequence    INTEGER NOT NULL,
    state            TEXT NOT NULL,
    retry_attempt    INTEGER NOT NULL,
    created_at       REAL NOT NULL,
    updated_at       REAL NOT NULL,
    started_at       REAL,
    completed_at     REAL,
    failed_at        REAL,
    canceled_at      REAL,
    request_payload  BLOB NOT NULL,
    response_payload BLOB,
    error            BLOB,
    CONSTRAINT fields_of_state CHECK (
        CASE state
            WHEN 'pending' THEN response_payload IS NULL AND error IS NULL AND started_at IS NULL
            WHEN 'completed' THEN response_payload IS NOT NULL AND error IS NULL
            WHEN 'failed' THEN response_payload IS NULL AND error IS NOT NULL
            ELSE state IN ('processing', 'canceled')
        END
    )
) STRICT;

-- A step's place is its identity, at the top level too, where the parent is null.
CREATE UNIQUE INDEX steps_place ON steps (request_id, coalesce(parent_step_id, ''), ordinal);

CREATE TABLE events (
    response_id TEXT NOT NULL,
    last        INTEGER NOT NULL,
    first       INTEGER NOT NULL,
    step_id     TEXT,
    frames      BLOB NOT NULL,
    PRIMARY KEY (response_id, last)
) STRICT;

CREATE TABLE idempotency (
    project     TEXT NOT NULL,
    key         TEXT NOT NULL,
    digest      TEXT NOT NULL,
    response_id TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (project, key)
) STRICT, WITHOUT ROWID;
