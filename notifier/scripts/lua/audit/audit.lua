--! exports findings finding steered waits_for_route has_wake_up ensure_wake_up date_permit
--! needs look_by steering text
-- Shared by the audit scripts. A finding is {what, saw, right, done}: the subject, its state, the state that would be
-- right, and the repair: '' if the caller asked for none, 'left …' if none is allowed. No text holds a token.
local findings = {}
local function finding(what, saw, right, done)
  findings[#findings + 1] = {what, saw, right, done or ''}
end

-- steered: the user and the category in a job's meta, read as *enter_backlog* reads them; or nil.
-- rq_job: the job's push_rq_job. If it is set, RQ has the job, whatever the meta says.
local function steered(meta, rq_job)
  local read = not rq_job and steering(meta)
  if read then return read.user, read.category end
end

local function waits_for_route(member)
  for _, name in ipairs(redis.call('SMEMBERS', '@routes')) do
    if redis.call('ZSCORE', '@waiting_for_route:' .. name, member) then return true end
  end
  return false
end

local function has_wake_up(user, lane)
  return redis.call('ZSCORE', '@wakeups:' .. lane, user) or waits_for_route('u' .. lane .. ' ' .. user)
end

-- ensure_wake_up: makes a user due now who has no wake-up in the lane.
local function ensure_wake_up(user, lane, now)
  if not has_wake_up(user, lane) then look_by(user, lane, now) end
end

-- date_permit: dates a permit back from the future to now. It is not in flight any more, so no send comes after now.
local function date_permit(sent, permit, now)
  local at = redis.call('ZSCORE', sent, permit)
  if not at or tonumber(at) <= now then return false end
  redis.call('ZADD', sent, text(now), permit)
  return true
end
