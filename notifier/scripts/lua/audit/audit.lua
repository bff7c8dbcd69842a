--! exports findings finding steered waits_for_route has_wake_up ensure_wake_up date_permit
--! needs look_by steering text
-- What the audits share. A finding is {what, saw, right, done}: the subject, what stands there, what would be right,
-- and what was done about it: '' where nothing was asked, 'left: …' where nothing may be done. No text holds a token.
local findings = {}
local function finding(what, saw, right, done)
  findings[#findings + 1] = {what, saw, right, done or ''}
end

-- steered: the user and the category that a job's meta names, as *enter_backlog* reads them; or nil.
-- rq_job: its push_rq_job; then it was handed to RQ, whatever its meta names.
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

-- ensure_wake_up: one who waits in a lane without a wake-up is looked at now.
local function ensure_wake_up(user, lane, now)
  if not has_wake_up(user, lane) then look_by(user, lane, now) end
end

-- date_permit: a permit that is in flight no longer may have been used until now, and no later.
local function date_permit(sent, permit, now)
  local at = redis.call('ZSCORE', sent, permit)
  if not at or tonumber(at) <= now then return false end
  redis.call('ZADD', sent, text(now), permit)
  return true
end
