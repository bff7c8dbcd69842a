-- audit_user: judges users, each in one step: whether everybody who waits is looked at, and nobody for nothing.
-- ARGV 1 clock  2 '1' to put right what is not, at once  3 lanes, JSON  4 lease µs
--      5.. for each: a key that names a user, @backlogs:{user} or @backlog:{user}:<category>, and '';
--          or a set of users, @wakeups:<lane> or @waiting_for_route:<route>, and its member
-- returns {finding, …} (see audit.lua)
-- A backlog that was emptied stays noted until its user is looked at: so it needs a wake-up as well.
--! needs backlog_key backlogs_in backlogs_key ensure_wake_up finding findings has_wake_up job_key look_by now_us
--! needs waits_for_route
local now, repair, lanes = now_us(ARGV[1]), ARGV[2] == '1', cjson.decode(ARGV[3])
local LATEST = now + ARGV[4] + 2000000 -- who is being looked at is looked at again after a lease

-- note: the backlog is of the lane of the first in it that has a job.
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

-- judge_stray: who has a wake-up in a lane, or waits there for a route, has a backlog in it.
local function judge_stray(key, member, user, lane)
  if not redis.call('ZSCORE', key, member) then return end
  local _, lanes_of_user = backlogs_in(redis.call('HGETALL', backlogs_key(user)))
  if lanes_of_user[lane] then return end
  finding('user ' .. user, 'stands in ' .. key .. ' and has no backlog in ' .. lane, 'not there',
    repair and redis.call('ZREM', key, member) and 'taken out')
end

-- judge_wake_up: it opens when the first of the heads in its lane is expected, or before.
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

local function judge(key, member)
  local user, category = key:match('^@backlog:{(.*)}:([^}]*)$')
  if user then return judge_backlog(key, user, category) end
  user = key:match('^@backlogs:{(.*)}$')
  if user then return judge_backlogs(key, user) end
  local lane = key:match('^@wakeups:(.+)$')
  if lane then
    judge_wake_up(member, lane)
    return judge_stray(key, member, member, lane)
  end
  lane, user = member:match('^u(%S+) (.+)$') -- the rests of notifications are judged with their jobs
  if lane then judge_stray(key, member, user, lane) end
end

for i = 5, #ARGV, 2 do judge(ARGV[i], ARGV[i + 1]) end
return findings
