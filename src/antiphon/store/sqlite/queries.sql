-- Every statement that the store runs, by name, each with its reason.

-- name: insert_run
-- With the claim's fence and owner: whoever admits a run owns it.
INSERT INTO runs (run_id, project, response_id, state, mode, body_digest, created_at, fence, owner, commit_no,
                  next_sequence_number, keyed, requires)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_request
-- Apart from the run's row, which every commit rewrites.
INSERT INTO requests (run_id, body) VALUES (?, ?)

-- name: insert_response
INSERT INTO responses (response_id, run_id, project, status, model, mode, created_at, completed_at,
                       previous_response_id, envelope)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_key
INSERT INTO idempotency (project, key, digest, response_id, created_at) VALUES (?, ?, ?, ?, ?)

-- name: advance_run
-- The guard of a commit that leaves the run's state alone (and with it the index of open runs).
UPDATE runs SET commit_no = ?1, next_sequence_number = max(next_sequence_number, ?2),
                takeovers = CASE WHEN ?3 THEN 0 ELSE takeovers END,
                owner = CASE WHEN ?4 THEN NULL ELSE owner END
WHERE run_id = ?5 AND fence = ?6 AND owner = ?7 AND commit_no < ?1 AND state <> 'ended' AND response_id = ?8
      AND next_sequence_number <= ?9

-- name: move_run
-- The guard of a commit that moves the run's state.
UPDATE runs SET commit_no = ?1, next_sequence_number = max(next_sequence_number, ?2),
                takeovers = CASE WHEN ?3 THEN 0 ELSE takeovers END,
                owner = CASE WHEN ?4 THEN NULL ELSE owner END,
                state = ?10
WHERE run_id = ?5 AND fence = ?6 AND owner = ?7 AND commit_no < ?1 AND state <> 'ended' AND response_id = ?8
      AND next_sequence_number <= ?9

-- name: strike_events
DELETE FROM events WHERE response_id = ? AND step_id = ?

-- name: insert_step
INSERT INTO steps (id, request_id, ordinal, step_kind, step_sequence, request_payload, state, created_at, updated_at,
                   prev_step_id, parent_step_id, response_payload, error, retry_attempt, started_at, completed_at,
                   failed_at, canceled_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: replace_step
-- By id; a row that names another place is not this step. The legal moves (domain.steps.LEGAL_MOVES) are part
-- of the statement, where an open step may keep its state: a trigger would cost as much as the update itself.
UPDATE steps SET request_payload = ?6, state = ?7, created_at = ?8, updated_at = ?9, prev_step_id = ?10,
                 response_payload = ?12, error = ?13, retry_attempt = ?14, started_at = ?15, completed_at = ?16,
                 failed_at = ?17, canceled_at = ?18
WHERE id = ?1 AND request_id = ?2 AND ordinal = ?3 AND step_kind = ?4 AND step_sequence = ?5
      AND parent_step_id IS ?11
      AND CASE state
              WHEN 'pending' THEN ?7 <> 'completed'
              WHEN 'processing' THEN 1
              ELSE 0
          END

-- name: insert_events
INSERT INTO events (response_id, first, last, step_id, frames) VALUES (?, ?, ?, ?, ?)

-- name: insert_item
INSERT INTO items (response_id, direction, position, item_id, data) VALUES (?, ?, ?, ?, ?)

-- name: update_response
UPDATE responses SET status = ?, envelope = ?, completed_at = ? WHERE response_id = ?

-- name: create_step
-- `insert_step` for one caller: a claim, where there is one, is checked by the same statement.
INSERT INTO steps (id, request_id, ordinal, step_kind, step_sequence, request_payload, state, created_at, updated_at,
                   prev_step_id, parent_step_id, retry_attempt)
SELECT :id, :request_id, :ordinal, :step_kind, :step_sequence, :request_payload, 'pending', :now, :now,
       :prev_step_id, :parent_step_id, 0
WHERE :run_id IS NULL
      OR (:request_id = :run_id AND EXISTS (
              SELECT 1 FROM runs
              WHERE run_id = :run_id AND fence = :fence AND owner = :owner AND state <> 'ended'))

-- name: move_step
-- One legal move, under the claim where there is one; no row means: look why.
UPDATE steps SET state = :state, updated_at = :now, response_payload = :response_payload, error = :error,
                 retry_attempt = retry_attempt + (:state = 'pending'),
                 started_at = CASE :state WHEN 'processing' THEN :now WHEN 'pending' THEN NULL ELSE started_at END,
                 completed_at = CASE :state WHEN 'completed' THEN :now ELSE completed_at END,
                 failed_at = CASE :state WHEN 'failed' THEN :now ELSE failed_at END,
                 canceled_at = CASE :state WHEN 'canceled' THEN :now ELSE canceled_at END
WHERE id = :id
      AND CASE :state
              WHEN 'processing' THEN state = 'pending'
              WHEN 'pending' THEN state = 'processing'
              WHEN 'completed' THEN state = 'processing'
              ELSE state IN ('pending', 'processing')
          END
      AND (:run_id IS NULL
           OR (request_id = :run_id AND EXISTS (
                   SELECT 1 FROM runs
                   WHERE run_id = :run_id AND fence = :fence AND owner = :owner AND state <> 'ended')))

-- name: claim_allows
-- Why a guard matched no row: the claim, or else what the entry says of the run.
SELECT response_id FROM runs WHERE run_id = ? AND fence = ? AND owner = ? AND commit_no < ? AND state <> 'ended'

-- name: claim_holds
-- Why a fenced statement changed nothing.
SELECT 1 FROM runs WHERE run_id = ? AND fence = ? AND owner = ? AND state <> 'ended'

-- name: step_by_id
SELECT id, request_id, ordinal, step_kind, step_sequence, request_payload, state, created_at, updated_at,
       prev_step_id, parent_step_id, response_payload, error, retry_attempt, started_at, completed_at, failed_at,
       canceled_at
FROM steps WHERE id = ?

-- name: step_in_the_way
-- Which step has this id, or stands at this place.
SELECT id FROM steps WHERE id = ?
UNION ALL
SELECT id FROM steps WHERE request_id = ? AND coalesce(parent_step_id, '') = coalesce(?, '') AND ordinal = ?
LIMIT 1

-- name: steps_of_run
-- By the index of places; a run's steps are few enough to sort.
SELECT id, request_id, ordinal, step_kind, step_sequence, request_payload, state, created_at, updated_at,
       prev_step_id, parent_step_id, response_payload, error, retry_attempt, started_at, completed_at, failed_at,
       canceled_at
FROM steps WHERE request_id = ? ORDER BY step_sequence, rowid

-- name: steps_of_scope
SELECT id, request_id, ordinal, step_kind, step_sequence, request_payload, state, created_at, updated_at,
       prev_step_id, parent_step_id, response_payload, error, retry_attempt, started_at, completed_at, failed_at,
       canceled_at
FROM steps WHERE request_id = ? AND coalesce(parent_step_id, '') = coalesce(?, '') ORDER BY step_sequence, rowid

-- name: take_over
-- Counts only where the run had an owner: a run that was handed back did no harm.
UPDATE runs SET fence = fence + 1, takeovers = takeovers + (owner IS NOT NULL), owner = ? WHERE state <> 'ended'

-- name: open_runs
SELECT runs.run_id, project, response_id, state, mode, body, body_digest, created_at, fence, owner, commit_no,
       takeovers, next_sequence_number, cancel_requested, keyed, requires
FROM runs JOIN requests ON requests.run_id = runs.run_id
WHERE state <> 'ended' ORDER BY created_at, runs.run_id

-- name: seize
-- Fence, owner and the wish to cancel in one statement: whoever drove the run can write no more.
UPDATE runs SET fence = fence + 1, owner = ?2, cancel_requested = max(cancel_requested, ?3)
WHERE run_id = ?1 AND state <> 'ended'
RETURNING 1

-- name: run_by_id
SELECT runs.run_id, project, response_id, state, mode, body, body_digest, created_at, fence, owner, commit_no,
       takeovers, next_sequence_number, cancel_requested, keyed, requires
FROM runs JOIN requests ON requests.run_id = runs.run_id
WHERE runs.run_id = ?

-- name: newest_second
SELECT max(CAST(created_at AS INTEGER)) FROM runs

-- name: runs_by_digest_lately
-- One probe of the index for each second since then. The unary plus keeps SQLite from putting the one equality
-- into the other, which would then match no index.
WITH RECURSIVE second (number) AS (
    VALUES (CAST(:since AS INTEGER))
    UNION ALL
    SELECT number + 1 FROM second WHERE number < :newest
)
SELECT runs.run_id, runs.project, runs.response_id, state, runs.mode, body, body_digest, runs.created_at, fence, owner,
       commit_no, takeovers, next_sequence_number, cancel_requested, keyed, requires
FROM second
CROSS JOIN runs ON CAST(runs.created_at AS INTEGER) = second.number
                   AND substr(body_digest, 1, 16) = substr(:body_digest, 1, 16)
JOIN requests ON requests.run_id = runs.run_id
JOIN responses ON responses.response_id = runs.response_id AND NOT responses.deleted
WHERE +body_digest = :body_digest AND runs.project = :project AND runs.created_at >= :since
ORDER BY runs.created_at DESC, runs.run_id DESC

-- name: runs_by_digest_ever
-- The same over any time: reads all of the index from then on.
SELECT runs.run_id, runs.project, runs.response_id, state, runs.mode, body, body_digest, runs.created_at, fence, owner,
       commit_no, takeovers, next_sequence_number, cancel_requested, keyed, requires
FROM runs
JOIN requests ON requests.run_id = runs.run_id
JOIN responses ON responses.response_id = runs.response_id AND NOT responses.deleted
WHERE CAST(runs.created_at AS INTEGER) >= CAST(:since AS INTEGER)
      AND substr(body_digest, 1, 16) = substr(:body_digest, 1, 16)
      AND +body_digest = :body_digest AND runs.project = :project AND runs.created_at >= :since
ORDER BY runs.created_at DESC, runs.run_id DESC

-- name: holder_of_key
SELECT response_id, digest FROM idempotency WHERE project = ? AND key = ?

-- name: response_by_id
SELECT responses.response_id, responses.run_id, responses.project, status, model, responses.mode,
       responses.created_at, envelope, previous_response_id, completed_at, next_sequence_number
FROM responses JOIN runs ON runs.run_id = responses.run_id
WHERE responses.response_id = ?2 AND responses.project = ?1 AND NOT deleted

-- name: output_of_response
SELECT item_id, position, data FROM items WHERE response_id = ? AND direction = 1 ORDER BY position

-- name: place_of_response
-- Where a page begins. A hidden response still marks its place.
SELECT created_at FROM responses WHERE response_id = ?2 AND project = ?1

-- name: responses_newest_first
SELECT responses.response_id, responses.run_id, responses.project, status, model, responses.mode,
       responses.created_at, envelope, previous_response_id, completed_at, next_sequence_number
FROM responses JOIN runs ON runs.run_id = responses.run_id
WHERE responses.project = :project AND NOT deleted
      AND (responses.created_at, responses.response_id) < (:created_at, :response_id)
      AND (:status IS NULL OR status = :status)
ORDER BY responses.created_at DESC, responses.response_id DESC
LIMIT :limit

-- name: responses_oldest_first
SELECT responses.response_id, responses.run_id, responses.project, status, model, responses.mode,
       responses.created_at, envelope, previous_response_id, completed_at, next_sequence_number
FROM responses JOIN runs ON runs.run_id = responses.run_id
WHERE responses.project = :project AND NOT deleted
      AND (responses.created_at, responses.response_id) > (:created_at, :response_id)
      AND (:status IS NULL OR status = :status)
ORDER BY responses.created_at, responses.response_id
LIMIT :limit

-- name: responses_with_prefix_newest_first
-- The unary plus keeps the index by time out of it: few ids share a prefix.
SELECT responses.response_id, responses.run_id, responses.project, status, model, responses.mode,
       responses.created_at, envelope, previous_response_id, completed_at, next_sequence_number
FROM responses JOIN runs ON runs.run_id = responses.run_id
WHERE +responses.project = :project AND NOT deleted
      AND (+responses.created_at, +responses.response_id) < (:created_at, :response_id)
      AND (:status IS NULL OR status = :status)
      AND ((responses.response_id >= :low AND responses.response_id < :high)
           OR (responses.response_id >= :named_low AND responses.response_id < :named_high))
ORDER BY +responses.created_at DESC, +responses.response_id DESC
LIMIT :limit

-- name: responses_with_prefix_oldest_first
SELECT responses.response_id, responses.run_id, responses.project, status, model, responses.mode,
       responses.created_at, envelope, previous_response_id, completed_at, next_sequence_number
FROM responses JOIN runs ON runs.run_id = responses.run_id
WHERE +responses.project = :project AND NOT deleted
      AND (+responses.created_at, +responses.response_id) > (:created_at, :response_id)
      AND (:status IS NULL OR status = :status)
      AND ((responses.response_id >= :low AND responses.response_id < :high)
           OR (responses.response_id >= :named_low AND responses.response_id < :named_high))
ORDER BY +responses.created_at, +responses.response_id
LIMIT :limit

-- name: history
-- Of a response that is visible: from the last turn back to the first by the index of ids, then each turn's
-- items by their primary key. What is visited is what is returned. A deleted turn is still what its
-- descendants were told.
WITH RECURSIVE chain (number, response_id, previous_response_id, depth) AS (
    SELECT number, response_id, previous_response_id, 0
    FROM responses WHERE response_id = :response_id
    UNION ALL
    SELECT parent.number, parent.response_id, parent.previous_response_id, chain.depth + 1
    FROM chain CROSS JOIN responses AS parent ON parent.response_id = chain.previous_response_id
    WHERE parent.project = :project AND parent.number < chain.number
)
SELECT item_id, position, data
FROM chain CROSS JOIN items ON items.response_id = chain.response_id
ORDER BY depth DESC, direction, position

-- name: visible_response
SELECT 1 FROM responses WHERE response_id = ?2 AND project = ?1 AND NOT deleted

-- name: place_of_input_item
-- The last place of the id when reading upwards, the first when reading downwards: a page never repeats itself.
SELECT max(position), min(position) FROM items WHERE response_id = ? AND direction = 0 AND item_id = ?

-- name: input_items_last_first
SELECT item_id, position, data FROM items
WHERE response_id = ? AND direction = 0 AND position < ? ORDER BY position DESC LIMIT ?

-- name: input_items_first_first
SELECT item_id, position, data FROM items
WHERE response_id = ? AND direction = 0 AND position > ? ORDER BY position LIMIT ?

-- name: items_by_id
-- Oldest first, so that the newest of several with one id is what stays.
SELECT items.item_id, items.data
FROM items JOIN responses ON responses.response_id = items.response_id
WHERE items.item_id IN (SELECT value FROM json_each(?2)) AND project = ?1 AND NOT deleted
ORDER BY items.rowid

-- name: events_after
SELECT first, last, step_id, frames FROM events
WHERE response_id = ?1 AND last > ?2
      AND NOT EXISTS (SELECT 1 FROM responses WHERE response_id = ?1 AND deleted)
ORDER BY last LIMIT ?3

-- name: state_of_response
SELECT state FROM responses JOIN runs ON runs.run_id = responses.run_id
WHERE responses.response_id = ?2 AND responses.project = ?1 AND NOT deleted

-- name: hide_response
UPDATE responses SET deleted = 1 WHERE response_id = ?

-- name: erasable_response
-- Hidden, and nothing descends from it any more.
SELECT run_id, previous_response_id FROM responses AS parent
WHERE response_id = ? AND deleted
      AND NOT EXISTS (SELECT 1 FROM responses WHERE previous_response_id = parent.response_id)

-- name: erase_items
DELETE FROM items WHERE response_id = ?

-- name: erase_events
DELETE FROM events WHERE response_id = ?

-- name: erase_steps
DELETE FROM steps WHERE request_id = ?

-- name: erase_request
DELETE FROM requests WHERE run_id = ?

-- name: erase_run
DELETE FROM runs WHERE run_id = ?

-- name: erase_response
DELETE FROM responses WHERE response_id = ?

-- name: prove_writable
INSERT INTO meta (name, value) VALUES ('checked_at', ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: count_open_runs
-- Of the index of open runs alone.
SELECT state, count(*) FROM runs WHERE state <> 'ended' GROUP BY state

-- name: count_rows
-- By the smallest index of each; a run for each response, hidden ones among them.
SELECT (SELECT count(*) FROM responses), (SELECT count(*) FROM responses WHERE deleted),
       (SELECT count(*) FROM items), (SELECT count(*) FROM steps), (SELECT count(*) FROM events)
