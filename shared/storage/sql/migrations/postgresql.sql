-- Written by tests/schema_scripts.py from the tables: edit those.
CREATE TABLE api_tokens (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    principal TEXT NOT NULL,
    rights TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    expires_us BIGINT,
    revoked_us BIGINT,
    sign_in_by_us BIGINT,
    CONSTRAINT pk_api_tokens PRIMARY KEY (ordinal),
    CONSTRAINT ck_api_tokens_digest CHECK (length(digest) = 64),
    CONSTRAINT uq_api_tokens_id UNIQUE (id)
);
CREATE TABLE artifacts (
    digest TEXT NOT NULL,
    size_bytes BIGINT DEFAULT 0 NOT NULL,
    media_type TEXT DEFAULT '' NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_artifacts PRIMARY KEY (digest)
);
CREATE TABLE audit (
    ordinal BIGSERIAL NOT NULL,
    chain TEXT NOT NULL,
    number BIGINT NOT NULL,
    time_us BIGINT NOT NULL,
    kind TEXT NOT NULL,
    session_id TEXT DEFAULT '' NOT NULL,
    data TEXT NOT NULL,
    previous TEXT DEFAULT '' NOT NULL,
    beside TEXT DEFAULT '' NOT NULL,
    digest TEXT NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (ordinal)
);
CREATE UNIQUE INDEX ix_audit_chain ON audit (chain, number);
CREATE INDEX ix_audit_session ON audit (session_id, ordinal);
CREATE TABLE budgets (
    scope TEXT NOT NULL,
    tokens BIGINT,
    microusd BIGINT,
    turns BIGINT,
    wall_us BIGINT,
    since_us BIGINT,
    stopped TEXT,
    CONSTRAINT pk_budgets PRIMARY KEY (scope),
    CONSTRAINT ck_budgets_numbers CHECK (tokens BETWEEN 0 AND 9007199254740991 AND microusd BETWEEN 0 AND 9007199254740991 AND turns BETWEEN 0 AND 9007199254740991 AND wall_us BETWEEN 0 AND 9007199254740991 AND since_us BETWEEN 0 AND 9007199254740991)
);
CREATE INDEX ix_budgets_tasks ON budgets (scope) WHERE substr(scope, 1, 5) = 'task:';
CREATE TABLE calls (
    run_id TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    position BIGINT DEFAULT 0 NOT NULL,
    tool TEXT NOT NULL,
    effect_id TEXT DEFAULT '' NOT NULL,
    is_write BIGINT DEFAULT 0 NOT NULL,
    input_digest TEXT DEFAULT '' NOT NULL,
    inputs TEXT DEFAULT '{}' NOT NULL,
    facts TEXT DEFAULT '{}' NOT NULL,
    decision_id TEXT DEFAULT '' NOT NULL,
    status TEXT DEFAULT 'started' NOT NULL,
    result TEXT,
    CONSTRAINT pk_calls PRIMARY KEY (run_id, tool_call_id),
    CONSTRAINT ck_calls_is_write CHECK (is_write IN (0, 1)),
    CONSTRAINT ck_calls_status CHECK (status IN ('started', 'ended')),
    CONSTRAINT ck_calls_numbers CHECK (position BETWEEN 0 AND 9007199254740991)
);
CREATE TABLE concurrency_limits (
    scope TEXT NOT NULL,
    slots BIGINT NOT NULL,
    is_paused BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_concurrency_limits PRIMARY KEY (scope),
    CONSTRAINT ck_concurrency_limits_slots CHECK (slots >= 1),
    CONSTRAINT ck_concurrency_limits_is_paused CHECK (is_paused IN (0, 1)),
    CONSTRAINT ck_concurrency_limits_numbers CHECK (slots BETWEEN 0 AND 9007199254740991)
);
CREATE INDEX ix_concurrency_limits_standing ON concurrency_limits (scope) WHERE substr(scope, 1, 8) <> 'session:';
CREATE TABLE consumptions (
    decision_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    consumed_us BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_consumptions PRIMARY KEY (decision_id),
    CONSTRAINT ck_consumptions_numbers CHECK (consumed_us BETWEEN 0 AND 9007199254740991)
);
CREATE TABLE event_consumers (
    name TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    since_us BIGINT NOT NULL,
    CONSTRAINT pk_event_consumers PRIMARY KEY (name)
);
CREATE TABLE event_cursors (
    consumer TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    state TEXT NOT NULL,
    CONSTRAINT pk_event_cursors PRIMARY KEY (consumer, run_id),
    CONSTRAINT ck_event_cursors_seq CHECK (seq >= 1)
);
CREATE TABLE events (
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    type TEXT NOT NULL,
    time_us BIGINT NOT NULL,
    data TEXT DEFAULT '{}' NOT NULL,
    preceding TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_events PRIMARY KEY (run_id, seq),
    CONSTRAINT ck_events_seq CHECK (seq >= 1),
    CONSTRAINT ck_events_numbers CHECK (seq BETWEEN 0 AND 9007199254740991 AND time_us BETWEEN 0 AND 9007199254740991)
);
CREATE TABLE log_lines (
    run_id TEXT NOT NULL,
    place BIGINT NOT NULL,
    number BIGINT NOT NULL,
    lines TEXT DEFAULT '[]' NOT NULL,
    CONSTRAINT pk_log_lines PRIMARY KEY (run_id, place),
    CONSTRAINT ck_log_lines_numbers CHECK (place BETWEEN 0 AND 9007199254740991 AND number BETWEEN 0 AND 9007199254740991)
);
CREATE TABLE metric_totals (
    name TEXT NOT NULL,
    labels TEXT NOT NULL,
    total BIGINT NOT NULL,
    CONSTRAINT pk_metric_totals PRIMARY KEY (name, labels)
);
CREATE TABLE nodes (
    run_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    parent BIGINT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT DEFAULT '{}' NOT NULL,
    created_us BIGINT NOT NULL,
    preceding TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_nodes PRIMARY KEY (run_id, number),
    CONSTRAINT ck_nodes_number CHECK (number >= 1 AND parent < number),
    CONSTRAINT ck_nodes_kind CHECK (kind IN ('system', 'user', 'assistant', 'tool_result', 'result', 'memory_context', 'skill', 'compaction', 'celery_task', 'refused')),
    CONSTRAINT ck_nodes_numbers CHECK (number BETWEEN 0 AND 9007199254740991 AND parent BETWEEN 0 AND 9007199254740991 AND created_us BETWEEN 0 AND 9007199254740991)
);
CREATE TABLE notices (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    channel TEXT NOT NULL,
    event TEXT NOT NULL,
    session_id TEXT DEFAULT '' NOT NULL,
    request_id TEXT DEFAULT '' NOT NULL,
    created_us BIGINT NOT NULL,
    due_us BIGINT NOT NULL,
    facts TEXT NOT NULL,
    message_id TEXT DEFAULT '' NOT NULL,
    state TEXT DEFAULT 'waiting' NOT NULL,
    attempts BIGINT DEFAULT 0 NOT NULL,
    error TEXT DEFAULT '' NOT NULL,
    ended_us BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_notices PRIMARY KEY (ordinal),
    CONSTRAINT ck_notices_state CHECK (state IN ('waiting', 'sent', 'dropped', 'dead', 'gone')),
    CONSTRAINT uq_notices_id UNIQUE (id)
);
CREATE INDEX ix_notices_ended ON notices (ended_us);
CREATE INDEX ix_notices_unsent ON notices (ordinal) WHERE state IN ('waiting', 'dead', 'gone');
CREATE INDEX ix_notices_waiting ON notices (channel, due_us, id) WHERE state = 'waiting';
CREATE TABLE owners (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    host TEXT DEFAULT '' NOT NULL,
    pid BIGINT DEFAULT 0 NOT NULL,
    started_us BIGINT DEFAULT 0 NOT NULL,
    state TEXT DEFAULT 'live' NOT NULL,
    beat BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_owners PRIMARY KEY (ordinal),
    CONSTRAINT ck_owners_state CHECK (state IN ('live', 'draining', 'gone')),
    CONSTRAINT uq_owners_id UNIQUE (id)
);
CREATE INDEX ix_owners_alive ON owners (ordinal) WHERE state <> 'gone';
CREATE TABLE runs (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    agent_id TEXT DEFAULT '' NOT NULL,
    role TEXT NOT NULL,
    definition TEXT DEFAULT '' NOT NULL,
    parent_run_id TEXT DEFAULT '' NOT NULL,
    parent_agent_id TEXT DEFAULT '' NOT NULL,
    task_id TEXT DEFAULT '' NOT NULL,
    step_key TEXT DEFAULT '' NOT NULL,
    step_title TEXT DEFAULT '' NOT NULL,
    model TEXT DEFAULT '' NOT NULL,
    dispatched_by TEXT DEFAULT '' NOT NULL,
    is_foreign BIGINT DEFAULT 0 NOT NULL,
    surface TEXT DEFAULT '' NOT NULL,
    token TEXT DEFAULT '' NOT NULL,
    attempt BIGINT DEFAULT 1 NOT NULL,
    retry_of TEXT DEFAULT '' NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    worker_id TEXT DEFAULT '' NOT NULL,
    fence BIGINT DEFAULT 0 NOT NULL,
    started_us BIGINT,
    last_seq BIGINT DEFAULT 0 NOT NULL,
    status TEXT NOT NULL,
    last_node BIGINT DEFAULT 0 NOT NULL,
    tainted_us BIGINT,
    ended_us BIGINT,
    end_reason TEXT,
    usage TEXT DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_runs PRIMARY KEY (ordinal),
    CONSTRAINT uq_runs_id UNIQUE (id)
)
 WITH (fillfactor = 30);
CREATE INDEX ix_runs_session_id ON runs (session_id);
CREATE INDEX ix_runs_task ON runs (task_id);
CREATE TABLE sessions (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    project TEXT DEFAULT '' NOT NULL,
    cwd TEXT DEFAULT '' NOT NULL,
    approval_mode TEXT NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    policy TEXT DEFAULT '{}' NOT NULL,
    principal TEXT DEFAULT '' NOT NULL,
    owner_id TEXT DEFAULT '' NOT NULL,
    owner_epoch BIGINT DEFAULT 0 NOT NULL,
    is_closed BIGINT DEFAULT 0 NOT NULL,
    last_claimed BIGINT DEFAULT 0 NOT NULL,
    project_id TEXT DEFAULT '' NOT NULL,
    closes_with_task BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_sessions PRIMARY KEY (ordinal),
    CONSTRAINT ck_sessions_approval_mode CHECK (approval_mode IN ('prompt', 'inbox', 'deny')),
    CONSTRAINT ck_sessions_is_closed CHECK (is_closed IN (0, 1)),
    CONSTRAINT ck_sessions_closes_with_task CHECK (closes_with_task IN (0, 1)),
    CONSTRAINT ck_sessions_numbers CHECK (last_claimed BETWEEN 0 AND 9007199254740991),
    CONSTRAINT uq_sessions_id UNIQUE (id)
);
CREATE INDEX ix_sessions_last_claimed ON sessions (last_claimed);
CREATE INDEX ix_sessions_owner ON sessions (owner_id) WHERE is_closed = 0;
CREATE TABLE signing_keys (
    id TEXT NOT NULL,
    public_key BYTEA NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    is_first BIGINT,
    CONSTRAINT pk_signing_keys PRIMARY KEY (id),
    CONSTRAINT ck_signing_keys_public_key CHECK (length(public_key) = 32),
    CONSTRAINT ck_signing_keys_is_first CHECK (is_first = 1),
    CONSTRAINT uq_signing_keys_is_first UNIQUE (is_first)
);
CREATE TABLE steps (
    ordinal BIGSERIAL NOT NULL,
    key TEXT NOT NULL,
    task_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    step_id TEXT NOT NULL,
    title TEXT DEFAULT '' NOT NULL,
    kind TEXT NOT NULL,
    priority BIGINT DEFAULT 0 NOT NULL,
    pool TEXT DEFAULT 'default' NOT NULL,
    needs TEXT DEFAULT '[]' NOT NULL,
    definition TEXT DEFAULT '' NOT NULL,
    model TEXT DEFAULT '' NOT NULL,
    lane TEXT NOT NULL,
    claim_mode TEXT DEFAULT 'assigned' NOT NULL,
    is_pull_worker BIGINT DEFAULT 0 NOT NULL,
    run_id TEXT DEFAULT '' NOT NULL,
    attempt BIGINT DEFAULT 1 NOT NULL,
    max_attempts BIGINT DEFAULT 1 NOT NULL,
    on_failure TEXT DEFAULT 'skip_dependents' NOT NULL,
    gate TEXT DEFAULT 'workers' NOT NULL,
    map_key TEXT DEFAULT '' NOT NULL,
    item_index BIGINT,
    growths BIGINT DEFAULT 0 NOT NULL,
    lost_leases BIGINT DEFAULT 0 NOT NULL,
    lost_to TEXT DEFAULT '' NOT NULL,
    is_settled BIGINT DEFAULT 0 NOT NULL,
    is_paused BIGINT DEFAULT 0 NOT NULL,
    is_unparked BIGINT DEFAULT 0 NOT NULL,
    cancel_reason TEXT,
    progress TEXT DEFAULT '' NOT NULL,
    holder_run_id TEXT DEFAULT '' NOT NULL,
    not_before_us BIGINT,
    open_deps BIGINT DEFAULT 0 NOT NULL,
    ready_us BIGINT,
    worker_id TEXT DEFAULT '' NOT NULL,
    fence BIGINT DEFAULT 0 NOT NULL,
    starts BIGINT DEFAULT 0 NOT NULL,
    started_us BIGINT,
    status TEXT DEFAULT 'pending' NOT NULL,
    ended_us BIGINT,
    outcome TEXT,
    error TEXT,
    output TEXT,
    spec TEXT DEFAULT '{}' NOT NULL,
    depends_on TEXT,
    dependents TEXT,
    CONSTRAINT pk_steps PRIMARY KEY (ordinal),
    CONSTRAINT uq_steps_key UNIQUE (key)
)
 WITH (fillfactor = 30);
CREATE INDEX ix_steps_additional ON steps (holder_run_id) WHERE holder_run_id <> '' AND status = 'running';
CREATE INDEX ix_steps_blocked ON steps (session_id) WHERE status = 'blocked';
CREATE INDEX ix_steps_children ON steps (map_key, item_index) WHERE map_key <> '';
CREATE INDEX ix_steps_due ON steps (session_id, not_before_us) WHERE status = 'pending' AND not_before_us IS NOT NULL;
CREATE INDEX ix_steps_expanding ON steps (session_id) WHERE status = 'expanding';
CREATE INDEX ix_steps_holder ON steps (holder_run_id) WHERE holder_run_id <> '';
CREATE INDEX ix_steps_leased ON steps (worker_id) WHERE status = 'running';
CREATE INDEX ix_steps_ready ON steps (lane, is_unparked DESC, priority DESC, ordinal) WHERE status = 'ready' AND is_paused = 0;
CREATE INDEX ix_steps_task ON steps (task_id, status);
CREATE INDEX ix_steps_unsettled ON steps (session_id) WHERE status = 'failed' AND is_settled = 0;
CREATE INDEX ix_steps_untold ON steps (session_id, task_id) WHERE kind = 'map' AND ready_us IS NOT NULL;
ALTER TABLE steps DROP CONSTRAINT IF EXISTS pk_steps;
ALTER TABLE steps REPLICA IDENTITY USING INDEX uq_steps_key;
CREATE TABLE surfaces (
    digest TEXT NOT NULL,
    body TEXT NOT NULL,
    CONSTRAINT pk_surfaces PRIMARY KEY (digest)
);
CREATE TABLE workers (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    node_name TEXT DEFAULT '' NOT NULL,
    host TEXT DEFAULT '' NOT NULL,
    pid BIGINT DEFAULT 0 NOT NULL,
    slots BIGINT DEFAULT 0 NOT NULL,
    pools TEXT DEFAULT '[]' NOT NULL,
    capabilities TEXT DEFAULT '[]' NOT NULL,
    started_us BIGINT DEFAULT 0 NOT NULL,
    protocol BIGINT DEFAULT 0 NOT NULL,
    state TEXT DEFAULT 'live' NOT NULL,
    beat BIGINT DEFAULT 0 NOT NULL,
    left_over TEXT DEFAULT '' NOT NULL,
    credential TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_workers PRIMARY KEY (ordinal),
    CONSTRAINT ck_workers_id CHECK (id <> ''),
    CONSTRAINT ck_workers_state CHECK (state IN ('live', 'draining', 'gone')),
    CONSTRAINT ck_workers_numbers CHECK (pid BETWEEN 0 AND 9007199254740991 AND slots BETWEEN 0 AND 9007199254740991 AND started_us BETWEEN 0 AND 9007199254740991 AND protocol BETWEEN 0 AND 9007199254740991 AND beat BETWEEN 0 AND 9007199254740991),
    CONSTRAINT uq_workers_id UNIQUE (id)
);
CREATE INDEX ix_workers_alive ON workers (ordinal) WHERE state <> 'gone';
CREATE INDEX ix_workers_credential ON workers (credential);
CREATE TABLE call_aborts (
    run_id TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_call_aborts PRIMARY KEY (run_id, tool_call_id),
    CONSTRAINT fk_call_aborts_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE charges (
    run_id TEXT NOT NULL,
    fence BIGINT NOT NULL,
    number BIGINT NOT NULL,
    session_id TEXT NOT NULL,
    day TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    microusd BIGINT,
    is_open BIGINT NOT NULL,
    turns BIGINT,
    CONSTRAINT pk_charges PRIMARY KEY (run_id, fence, number),
    CONSTRAINT ck_charges_is_open CHECK (is_open IN (0, 1)),
    CONSTRAINT ck_charges_numbers CHECK (fence BETWEEN 0 AND 9007199254740991 AND number BETWEEN 0 AND 9007199254740991 AND tokens BETWEEN 0 AND 9007199254740991 AND microusd BETWEEN 0 AND 9007199254740991 AND turns BETWEEN 0 AND 9007199254740991),
    CONSTRAINT fk_charges_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_charges_day ON charges (day);
CREATE INDEX ix_charges_session ON charges (session_id);
CREATE TABLE commands (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT DEFAULT '' NOT NULL,
    principal TEXT DEFAULT '' NOT NULL,
    may_approve BIGINT DEFAULT 0 NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    detail TEXT DEFAULT '{}' NOT NULL,
    refusal TEXT DEFAULT '' NOT NULL,
    refusal_type TEXT DEFAULT 'conflict' NOT NULL,
    is_ended BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_commands PRIMARY KEY (ordinal),
    CONSTRAINT ck_commands_kind CHECK (kind IN ('pause', 'resume', 'cancel', 'abort', 'retry', 'close', 'update', 'complete', 'fail', 'spawn', 'dispatch')),
    CONSTRAINT ck_commands_may_approve CHECK (may_approve IN (0, 1)),
    CONSTRAINT ck_commands_refusal_type CHECK (refusal_type IN ('conflict', 'limit_exceeded')),
    CONSTRAINT ck_commands_is_ended CHECK (is_ended IN (0, 1)),
    CONSTRAINT uq_commands_id UNIQUE (id),
    CONSTRAINT fk_commands_session_id FOREIGN KEY(session_id) REFERENCES sessions (id)
);
CREATE INDEX ix_commands_open ON commands (session_id) WHERE is_ended = 0;
CREATE TABLE key_retirements (
    key_id TEXT NOT NULL,
    is_revoked BIGINT NOT NULL,
    retired_us BIGINT NOT NULL,
    principal TEXT DEFAULT '' NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_key_retirements PRIMARY KEY (key_id, is_revoked),
    CONSTRAINT ck_key_retirements_is_revoked CHECK (is_revoked IN (0, 1)),
    CONSTRAINT fk_key_retirements_key_id FOREIGN KEY(key_id) REFERENCES signing_keys (id)
);
CREATE TABLE permission_requests (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    body TEXT NOT NULL,
    CONSTRAINT pk_permission_requests PRIMARY KEY (ordinal),
    CONSTRAINT ck_permission_requests_state CHECK (state IN ('pending', 'decided', 'withdrawn', 'expired')),
    CONSTRAINT ck_permission_requests_numbers CHECK (created_us BETWEEN 0 AND 9007199254740991),
    CONSTRAINT uq_permission_requests_id UNIQUE (id),
    CONSTRAINT fk_permission_requests_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE UNIQUE INDEX ix_permission_requests_call ON permission_requests (run_id, tool_call_id) WHERE state IN ('pending', 'decided');
CREATE INDEX ix_permission_requests_pending ON permission_requests (session_id, ordinal) WHERE state = 'pending';
CREATE INDEX ix_permission_requests_run_id ON permission_requests (run_id);
CREATE TABLE reports (
    ordinal BIGSERIAL NOT NULL,
    run_id TEXT NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    time_us BIGINT NOT NULL,
    is_taken BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_reports PRIMARY KEY (ordinal),
    CONSTRAINT ck_reports_is_taken CHECK (is_taken IN (0, 1)),
    CONSTRAINT ck_reports_numbers CHECK (time_us BETWEEN 0 AND 9007199254740991),
    CONSTRAINT fk_reports_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_reports_new ON reports (ordinal) WHERE is_taken = 0;
CREATE TABLE responders (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    principal TEXT DEFAULT '' NOT NULL,
    channel TEXT DEFAULT '' NOT NULL,
    beat BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_responders PRIMARY KEY (ordinal),
    CONSTRAINT uq_responders_id UNIQUE (id),
    CONSTRAINT fk_responders_session_id FOREIGN KEY(session_id) REFERENCES sessions (id)
);
CREATE INDEX ix_responders_session_id ON responders (session_id);
CREATE TABLE tasks (
    ordinal BIGSERIAL NOT NULL,
    id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    kind TEXT DEFAULT 'plan' NOT NULL,
    title TEXT DEFAULT '' NOT NULL,
    status TEXT DEFAULT 'running' NOT NULL,
    plan TEXT DEFAULT '{}' NOT NULL,
    inputs TEXT DEFAULT '{}' NOT NULL,
    root_run_id TEXT NOT NULL,
    created_us BIGINT DEFAULT 0 NOT NULL,
    ended_us BIGINT,
    reason TEXT DEFAULT '' NOT NULL,
    is_recorded BIGINT DEFAULT 0 NOT NULL,
    trace_parent TEXT DEFAULT '' NOT NULL,
    tags TEXT DEFAULT '[]' NOT NULL,
    CONSTRAINT pk_tasks PRIMARY KEY (ordinal),
    CONSTRAINT ck_tasks_kind CHECK (kind IN ('plan', 'ask')),
    CONSTRAINT ck_tasks_status CHECK (status IN ('running', 'paused', 'completed', 'failed', 'cancelled')),
    CONSTRAINT ck_tasks_is_recorded CHECK (is_recorded IN (0, 1)),
    CONSTRAINT uq_tasks_id UNIQUE (id),
    CONSTRAINT fk_tasks_session_id FOREIGN KEY(session_id) REFERENCES sessions (id)
);
CREATE INDEX ix_tasks_ended ON tasks (ended_us, id) WHERE is_recorded = 1 AND status IN ('completed', 'failed', 'cancelled');
CREATE INDEX ix_tasks_open ON tasks (session_id, ordinal) WHERE status IN ('running', 'paused');
CREATE INDEX ix_tasks_session ON tasks (session_id, ordinal);
CREATE INDEX ix_tasks_unrecorded ON tasks (ordinal) WHERE is_recorded = 0 AND status IN ('completed', 'failed', 'cancelled');
CREATE TABLE waits (
    parent_run TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    child_run TEXT NOT NULL,
    CONSTRAINT pk_waits PRIMARY KEY (parent_run, tool_call_id, child_run),
    CONSTRAINT fk_waits_parent_run FOREIGN KEY(parent_run) REFERENCES runs (id),
    CONSTRAINT fk_waits_child_run FOREIGN KEY(child_run) REFERENCES runs (id)
);
CREATE TABLE answers (
    request_id TEXT NOT NULL,
    choice TEXT,
    principal TEXT DEFAULT '' NOT NULL,
    channel TEXT DEFAULT '' NOT NULL,
    input_digest TEXT DEFAULT '' NOT NULL,
    answered_us BIGINT DEFAULT 0 NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    metadata TEXT DEFAULT '{}' NOT NULL,
    provenance TEXT DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_answers PRIMARY KEY (request_id),
    CONSTRAINT ck_answers_choice CHECK (choice IN ('allow_once', 'allow_for_session', 'deny')),
    CONSTRAINT fk_answers_request_id FOREIGN KEY(request_id) REFERENCES permission_requests (id)
);
CREATE TABLE decisions (
    request_id TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    CONSTRAINT pk_decisions PRIMARY KEY (request_id),
    CONSTRAINT fk_decisions_request_id FOREIGN KEY(request_id) REFERENCES permission_requests (id),
    CONSTRAINT uq_decisions_id UNIQUE (id)
);
