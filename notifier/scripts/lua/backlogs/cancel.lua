-- cancel: ends notifications that have not been handed to a worker yet.
-- ARGV 1 clock  2 keep, see ends.lua  3.. job ids
-- returns for each 'cancelled', 'sending' (too late: it is in flight), 'ended' (too late; also where one of its devices
--   took it: then it is delivered, and the others get it no more) or 'unknown'
--! needs end_cancelled ends job_key now_us UNSENT waits
local now, reply = now_us(ARGV[1]), {}
ends.read(ARGV[2])

-- What RQ's statuses say of a job that cannot be cancelled here. The others are those of what RQ has not queued yet.
local TOO_LATE = {started = 'sending', finished = 'ended', failed = 'ended', stopped = 'ended'}

local function cancel(id)
  local job = redis.call('HMGET', job_key(id), 'origin', 'push_permit', 'status', 'push_outcome')
  if not job[1] then return redis.call('ZSCORE', '@delivered', id) and 'ended' or 'unknown' end
  if job[2] then return 'sending' end
  -- The same call again.
  if job[3] == 'canceled' and UNSENT[job[4]] then return job[4] == 'cancelled' and 'cancelled' or 'ended' end
  if job[3] ~= 'queued' and job[3] ~= 'scheduled' and job[3] ~= 'canceled' then return TOO_LATE[job[3]] or 'unknown' end
  return end_cancelled(now, id)
end

for i = 3, #ARGV do reply[#reply + 1] = cancel(ARGV[i]) end
waits.write()
return reply
