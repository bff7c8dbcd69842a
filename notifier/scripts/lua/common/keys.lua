--! exports LANES LOWERED is_background backlog_key backlogs_key sent_key collapse_key arriving_key claim_key
--! exports waiting_key
-- The keys that contain a user or a category. notifier/scripts/keys.py lists all keys. A script writes '@<name>' for a
-- key of ours and '@rq:<name>' for one of RQ's; the loader replaces both by the prefixes.
local LANES = {'urgent', 'default', 'bulk'}
-- Added to the order of a background push that waits for its device: it moves behind all alerts of its backlog.
local LOWERED = 4503599627370496 -- 2^52
-- is_background: whether a job's push_targets (see targets.lua) contain a background push.
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
