--! exports LANES LOWERED is_background backlog_key backlogs_key sent_key collapse_key arriving_key claim_key job_key
--! exports waiting_key
-- The keys that take a user, a category or a job. All names stand in notifier/scripts/keys.py; a script writes '@' and
-- a name for one of ours, @rq:… for one of RQ's, and the loader puts the prefixes in their place.
-- In a job's hash, beside RQ's fields: push_order (its place in the backlog), push_permit (set while it is in
-- flight: the fence), push_begun (the permit under which a suspect was begun), push_deadline (µs), push_attempts,
-- push_crashes, push_refusals (how often it was refused without an attempt being spent), push_zone and push_since (see
-- quiet_hours.lua), push_answered, push_outcome, push_targets (see targets.lua),
-- push_collapse (the id under which it stands in @collapse), push_count (how many it stands for), push_by
-- (which job superseded it), push_reason (why it was dropped), push_arriving (it stands in @arriving),
-- push_read (its meta told nothing, and a worker has read its data), push_gather (until when a digest gathers, µs),
-- push_orphan (see orphans.lua), push_counted (see permits.lua), push_tagged (see tagged.lua), push_accepted
-- and push_held (see history.lua), push_rq_job (the permit under which RQ got it, behind a '0' if nothing limits
-- it; its meta steers nothing then), push_meta (see steer.lua), push_wait (µs until which it keeps its backlog
-- waiting), push_dedupe (its key), push_sent (it may have reached its user).
local LANES = {'urgent', 'default', 'bulk'}
-- A background push that waits for its device stands behind the alerts of its backlog: its order is so much higher.
local LOWERED = 4503599627370496 -- 2^52: behind all arrivals
-- is_background: whether a job's push_targets (see targets.lua) hold one.
local function is_background(targets) return targets and string.find(targets, ':b[ |]') ~= nil end

local function backlog_key(user, category) return '@backlog:{' .. user .. '}:' .. category end
local function backlogs_key(user) return '@backlogs:{' .. user .. '}' end
local function sent_key(user, category)
  if category then return '@sent:{' .. user .. '}:' .. category end
  return '@sent:{' .. user .. '}'
end
local function collapse_key(user, category) return '@collapse:{' .. user .. '}:' .. category end
local function arriving_key(user) return '@arriving:{' .. user .. '}' end
local function claim_key(user, category) return '@claim:{' .. user .. '}:' .. category end
local function waiting_key(route) return '@waiting_for_route:' .. route end
local function job_key(id) return '@rq:job:' .. id end
