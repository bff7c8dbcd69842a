--! exports rules_read read_rules rules_of is_untried is_dropped digest_at
--! needs is_counting job_key number text
-- The rule table, as notifier/scripts/rule_table.py writes it; rules.lua describes a policy. Features that nobody uses
-- have no field, save users, categories and lanes.
--   users          array of policies: everyone's, then those of users with other rules, see users_rules.lua
--   categories     {category: its rules}; a category that is not configured follows the rules of 'default'
--     policy
--     bypass         no rules hold it back
--     cost           how many sends a message counts as
--     app            see limits.lua
--     overall        {limit, µs}, see overall.lua
--     ignores_quiet  see quiet_hours.lua
--     digest         µs for which a digest gathers
--     drops          a message is dropped if the rules hold it back
--     join           how a new message joins one in its backlog: 'collapse', 'note', or how many complete a digest
--   bypasses       whether any category bypasses the rules
--   lanes          array
--   prefers        whether any user has preferences, see users_rules.lua; set by *read_rules*
--   forgets        whether sends of forgotten users still count, see forgotten.lua; set by *read_rules*
--   version        if the caller follows rules that may change
--   own, chosen    versions, see users_rules.lua; no `own` if no user has rules of their own
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

-- is_untried: whether no worker has tried to send a job; only such a job is dropped, because the rules hold it back or
-- too many wait.
local function is_untried(id)
  local job = redis.call('HMGET', job_key(id), 'push_attempts', 'push_crashes', 'push_answered', 'push_refusals',
    'push_sent')
  return not (job[1] or job[2] or job[3] or job[4] or job[5])
end

-- is_dropped: whether the head of a backlog that may not go is dropped. backlog: as of *opens_at*, with drops.
local function is_dropped(backlog)
  return backlog.mutes or backlog.drops and is_untried(backlog.head)
end

-- digest_at: when the head of a backlog may go that the rules admit at `at`. In a category with a digest, a head that
-- was held back gathers others, and goes once the time is over or the digest is complete. A head that a worker has had
-- in flight gathers nothing.
local function digest_at(backlog, at, now)
  local within = backlog.of.digest
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
