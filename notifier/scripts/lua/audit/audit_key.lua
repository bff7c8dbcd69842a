-- audit_key: judges keys other than jobs, each in one step: whether each user with a backlog has a wake-up, and no
-- other user has one; whether claims, circuits and permits have an end.
-- ARGV 1 clock  2 '1' to repair at once  3 lanes, JSON  4 lease µs
--      5.. for each: a key of a user, @backlogs:{user} or @backlog:{user}:<category>, a claim, a route, or
--          @waiting_for_route:<route>, and ''; or a set of users, @wakeups:<lane> or @waiting_for_route:<route>, and
--          its member; or a sorted set of sends, and a permit in it that is dated ahead and is not in flight
-- returns {finding, …} (see audit.lua)
-- An emptied backlog stays noted until a worker visits its user, so it needs a wake-up too.
--! needs backlog_key backlogs_key date_permit ensure_wake_up finding findings has_wake_up job_key lanes_of look_by
--! needs note_due now_us read_backlogs text waits_for_route
local now, repair, lanes = now_us(ARGV[1]), ARGV[2] == '1', cjson.decode(ARGV[3])
local LATEST = now + ARGV[4] + 2000000 -- while a worker sends from a backlog, the wake-up may be a lease ahead
local MAX_CIRCUIT = 2 * 86400000000 -- the next probe is at most a day ahead

-- note: notes a backlog, in the lane of the first job in it.
local function note(user, category, backlog)
  local lane = lanes[#lanes]
  for _, id in ipairs(redis.call('ZRANGE', backlog, 0, 9)) do
    local origin = redis.call('HGET', job_key(id), 'origin')
    if origin then lane = origin break end
  end
  redis.call('HSET', backlogs_key(user), category, lane)
  ensure_wake_up(user, lane, now)
  return 'noted, in ' .. lane
end

local function judge_backlog(backlog, user, category)
  if redis.call('HEXISTS', backlogs_key(user), category) == 1 or redis.call('EXISTS', backlog) == 0 then return end
  finding('user ' .. user, 'has the backlog ' .. category .. ', which nobody knows of', 'in ' .. backlogs_key(user),
    repair and note(user, category, backlog))
end

local function judge_backlogs(backlogs, user)
  local fields, any = redis.call('HGETALL', backlogs), false
  for i = 1, #fields, 2 do
    local category, lane = fields[i], fields[i + 1]
    if category:sub(1, 3) == '#o:' then -- an orphan, see orphans.lua
      local id = category:sub(4)
      if redis.call('ZSCORE', '@leases', id) then any = true
      else
        if repair then redis.call('HDEL', backlogs, category) end
        finding('user ' .. user, 'is closed for the orphan ' .. id .. ', which nobody holds', 'open',
          repair and 'opened')
      end
    elseif category:sub(1, 1) ~= '#' then
      any = true
      if not has_wake_up(user, lane) then
        if repair then look_by(user, lane, now) end
        finding('user ' .. user, 'has the backlog ' .. category .. ' and no wake-up', 'a wake-up in ' .. lane,
          repair and 'given a wake-up at now')
      end
    end
  end
  if #fields > 0 and not any then
    finding('user ' .. user, 'has no backlog and is remembered', 'no ' .. backlogs,
      repair and redis.call('DEL', backlogs) and 'forgotten')
  end
end

-- judge_stray: a user who has a wake-up in a lane, or waits there for a route, must have a backlog in that lane.
local function judge_stray(key, member, user, lane)
  if not redis.call('ZSCORE', key, member) then return end
  if lanes_of(read_backlogs(user))[lane] then return end
  finding('user ' .. user, 'stands in ' .. key .. ' and has no backlog in ' .. lane, 'not there',
    repair and redis.call('ZREM', key, member) and 'taken out')
end

-- judge_wake_up: a wake-up is not to be later than the first expected time of the user's heads in the lane.
local function judge_wake_up(user, lane)
  local at, first = tonumber(redis.call('ZSCORE', '@wakeups:' .. lane, user) or 0), nil
  if at <= LATEST or waits_for_route('u' .. lane .. ' ' .. user) then return end
  local fields = redis.call('HGETALL', backlogs_key(user))
  for i = 1, #fields, 2 do
    local head = fields[i + 1] == lane and redis.call('ZRANGE', backlog_key(user, fields[i]), 0, 0)[1]
    local origin = head and redis.call('HGET', job_key(head), 'origin')
    local expected = origin and tonumber(redis.call('ZSCORE', '@rq:scheduled:' .. origin, head) or nil)
    if expected and (not first or expected < first) then first = expected end
  end
  if not first or at <= math.max(first * 1000000, now) + LATEST - now then return end
  if repair then look_by(user, lane, now) end
  finding('user ' .. user, 'is looked at in @wakeups:' .. lane .. ' long after the first that waits is expected',
    'then', repair and 'given a wake-up at now')
end

local function judge_claim(claim)
  if redis.call('PTTL', claim) ~= -1 then return end
  finding('claim ' .. claim, 'is kept for ever, and holds its backlog for one worker', 'gone with its lease',
    repair and redis.call('DEL', claim) and 'removed')
end

-- judge_circuit: passes over a pause: a person may pause a route for any time, also for ever.
local function judge_circuit(circuit)
  local state, ends = unpack(redis.call('HMGET', circuit, 'state', 'until'), 1, 2)
  if state == 'paused' or not ends or ends:find('^%d+$') and tonumber(ends) <= now + MAX_CIRCUIT then return end
  if repair then -- as a worker with a new configuration does: let the next probe go now
    redis.call('HSET', circuit, 'until', text(now), 'others', text(now))
    note_due(now)
  end
  finding('circuit ' .. circuit, 'is ' .. (state or '') .. ' until ' .. ends, 'a time in µs, within two days',
    repair and 'asked for by a probe now')
end

local function judge_waiting(waiting, route)
  if redis.call('SISMEMBER', '@routes', route) == 1 or redis.call('EXISTS', waiting) == 0 then return end
  finding('waiting for a route ' .. waiting, 'holds up users, and that route is not held',
    'gone, and its users with wake-ups', repair and redis.call('DEL', waiting) and 'removed')
end

-- judge_permit: a permit is never removed, as a worker may have sent under it.
local function judge_permit(sent, permit)
  local at = tonumber(redis.call('ZSCORE', sent, permit) or 0)
  if at <= now then return end
  local saw = ('is dated %.0f µs in '):format(at) .. sent .. ', in the future, and nothing is in flight under it'
  finding('permit ' .. permit, saw, 'dated now, as it may have been used',
    repair and date_permit(sent, permit, now) and 'dated now')
end

local function judge(key, member)
  local user, category = key:match('^@backlog:{(.*)}:([^}]*)$')
  if user then return judge_backlog(key, user, category) end
  user = key:match('^@backlogs:{(.*)}$')
  if user then return judge_backlogs(key, user) end
  if key:find('@claim:', 1, true) == 1 then return judge_claim(key) end
  if key:find('@route:', 1, true) == 1 then return judge_circuit(key) end
  local lane = key:match('^@wakeups:(.+)$')
  if lane then
    judge_wake_up(member, lane)
    return judge_stray(key, member, member, lane)
  end
  local route = key:match('^@waiting_for_route:(.*)$')
  if not route then return judge_permit(key, member) end
  if member == '' then return judge_waiting(key, route) end
  lane, user = member:match('^u(%S+) (.+)$') -- *audit_job* judges the rests of notifications
  if lane then judge_stray(key, member, user, lane) end
end

for i = 5, #ARGV, 2 do judge(ARGV[i], ARGV[i + 1]) end
return findings
