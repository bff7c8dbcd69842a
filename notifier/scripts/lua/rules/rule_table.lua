--! exports rules_read read_rules rules_of is_dropped digest_at
--! needs is_counting job_key number text
-- The rule table, as notifier/scripts/rule_table.py writes it. A policy is told of in rules.lua. What nobody uses is
-- left out, save users, categories and lanes.
--   users          array of policies: of everyone, and behind it of the users who are met, see users_rules.lua
--   categories     {category: its rules}; a category that is not (or no longer) among them follows those of 'default'
--     policy; bypass: no rules hold it back; cost: as how many sends one counts; app, see limits.lua; overall: {limit,
--     µs}, see overall.lua; ignores_quiet, see quiet_hours.lua; digest: µs in which one gathers; drops: what the rules
--     hold back is dropped; join: what comes finds in its backlog: 'collapse', 'note', or after how many a digest goes
--   bypasses       whether any of them bypasses the rules
--   lanes          array
--   prefers        whether any user has preferences, see users_rules.lua; *read_rules* says so
--   forgets        whether anybody was forgotten whose sends still count, see forgotten.lua; the same
--   version        where the caller follows rules that may change
--   own, chosen    versions, see users_rules.lua; no `own` where nobody has rules of their own
--   clock          see quiet_hours.lua
--   limited, devices, background, collapsible, projects   see limits.lua
local rules_read = {} -- the version of the table that was read last
local function read_rules(json)
  local rules, rare = cjson.decode(json), redis.call('EXISTS', '@counting', '@preferences', '@forgotten') > 0
  rules.prefers = rare and redis.call('EXISTS', '@preferences') == 1
  rules.forgets = rare and redis.call('EXISTS', '@forgotten') == 1
  rules_read.version = rules.version
  if rare and is_counting() then
    for _, policy in ipairs(rules.users) do policy.counted = true end
    for _, of in pairs(rules.categories) do of.policy.counted = true end
  end
  return rules
end

local function rules_of(rules, category) return rules.categories[category] or rules.categories.default end

-- is_untried: no worker has tried it, so it is dropped where its category lets nothing wait and the rules hold it back.
local function is_untried(id)
  local job = redis.call('HMGET', job_key(id), 'push_attempts', 'push_crashes', 'push_answered', 'push_refusals',
    'push_sent')
  return not (job[1] or job[2] or job[3] or job[4] or job[5])
end

-- is_dropped: whether the head of a backlog is dropped while it may not go. backlog: as of *opens_at*, with drops.
local function is_dropped(backlog)
  return backlog.mutes or backlog.drops and is_untried(backlog.head)
end

-- digest_at: when the head of a backlog may go that the rules admit at `at`: in a category with a digest one that was
-- held back gathers others, and goes no sooner than the time is over or there are enough. One that a worker has had
-- does not.
local function digest_at(rules, backlog, at, now)
  local within = rules_of(rules, backlog.category).digest
  if not within then return at end
  local key = job_key(backlog.head)
  local job = redis.call('HMGET', key, 'push_gather', 'push_collapse')
  if not job[2] then return at end
  local till = number(job[1])
  if not till and at > now then
    till = now + within
    redis.call('HSET', key, 'push_gather', text(till))
  end
  if (till or 0) <= at then return at end
  backlog.by = 'g'
  return till
end
