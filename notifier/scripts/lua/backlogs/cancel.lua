-- cancel: ends notifications that no worker has in flight.
-- ARGV 1 clock  2 keep, see ends.lua  3.. job ids
-- returns for each 'cancelled', 'sending' (too late: it is in flight), 'ended' (too late; also if a device has got it:
--   then it ends as delivered, and the other devices do not get it) or 'unknown'
--! needs end_cancelled ends job_key now_us UNSENT waits
local now, reply = now_us(ARGV[1]), {}
ends.read(ARGV[2])

-- The answers for jobs whose status in RQ excludes a cancel. RQ has not queued jobs with any other status yet.
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
