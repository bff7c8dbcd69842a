--! exports LANES LOWERED is_background backlog_key backlogs_key sent_key collapse_key arriving_key claim_key
--! exports waiting_key
-- The keys that take a user or a category. All names stand in notifier/scripts/keys.py; a script writes '@' and
-- a name for one of ours, @rq:… for one of RQ's, and the loader puts the prefixes in their place.
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
