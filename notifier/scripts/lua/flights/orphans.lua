--! on_demand ORPHAN CLOSED closed_backlogs is_closed mark_orphan stay_in_flight write_lasting
--! needs backlogs_key date_sends device_key give_back job_key overall_key sent_key targets_of text
-- A job that was sent and not answered stays in flight, because the provider may still read it.
-- A worker *renews* such a job until the provider has proved that it read it.
-- An orphan is a job that was in flight with a worker that died, or that stopped before an answer came. *pull* leases
-- the orphan, under its old permit, to the worker that finds it. That worker sends nothing, waits for the same proof,
-- and settles the job as 'backlog'. Until then its user is closed: @backlogs:{user} has a field '#o:<job id>' (value:
-- its category), and of this user only jobs that bypass the rules, in other categories, may go. So the order holds
-- although a dead worker's jobs come back in parts, and no rule is broken although their permits have lapsed.
-- push_orphan in the job's hash marks an orphan.
local ORPHAN = '#o:'
local OF_ORPHAN = '^' .. ORPHAN .. '(.*)$'
local CLOSED = 60000000 -- µs until a closed user is looked at again if nobody settles the orphan

-- closed_backlogs: the categories that have orphans, {category: true}, or nil. fields: of *read_backlogs*. Every orphan
-- is leased, so the mark of one without a lease is removed.
local function closed_backlogs(user, fields)
  local closed
  for name, category in pairs(fields) do
    local id = name:match(OF_ORPHAN)
    if id and redis.call('ZSCORE', '@leases', id) then
      closed = closed or {}
      closed[category] = true
    elseif id then redis.call('HDEL', backlogs_key(user), name) end
  end
  return closed
end

local function is_closed(closed, category, bypass) return closed and (closed[category] or not bypass) end

-- mark_orphan: marks a job as possibly sent, and closes its user until it is settled.
local function mark_orphan(id, user, category)
  redis.call('HSET', job_key(id), 'push_orphan', '1')
  redis.call('HSET', backlogs_key(user), ORPHAN .. id, category)
end

local extend_by = {} -- key -> µs by which *write_lasting* extends its life

local function date_ahead(key, permit, cost, until_text, more)
  date_sends(key, permit, cost, until_text)
  extend_by[key] = math.max(extend_by[key] or 0, more)
end

local function date_devices(targets, answered, permit, until_text, more)
  for _, target in ipairs(targets_of(targets, answered, nil)) do
    local key = device_key(target.device)
    date_ahead(key, permit, 1, until_text, more)
    local full = target.kind == 'c' and redis.call('GET', key .. ':c')
    if full then
      redis.call('SET', key .. ':c', text(full + more), 'KEEPTTL')
      extend_by[key .. ':c'] = math.max(extend_by[key .. ':c'] or 0, more)
    end
  end
end

-- stay_in_flight: extends a job's lease to `until_us`, and dates its sends there for the user, the category and the
-- devices. counted: see permits.lua. ends: when the lease ended so far.
local function stay_in_flight(id, permit, counted, user, category, targets, answered, ends, until_us, until_text)
  local cost, more = counted.cost, math.max(0, until_us - ends)
  redis.call('ZADD', '@leases', until_text, id)
  for _, sent in ipairs({sent_key(user), sent_key(user, category)}) do
    local at = redis.call('ZSCORE', sent, permit)
    date_ahead(sent, permit, cost, until_text, more)
    -- If the lease was over, a burst may have counted the send at that end already.
    if at then give_back(sent, tonumber(at), cost) end
  end
  date_ahead(overall_key(category), permit, 1, until_text, more)
  if targets and counted.devices then date_devices(targets, answered, permit, until_text, more) end
end

-- write_lasting: keys with sends that were dated later live longer by as much.
local function write_lasting()
  for key, more in pairs(extend_by) do
    local left = redis.call('PTTL', key)
    if left > 0 then redis.call('PEXPIRE', key, text(left + math.ceil(more / 1000))) end
  end
end
