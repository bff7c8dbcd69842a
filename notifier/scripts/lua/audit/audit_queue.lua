-- audit_queue: judges a piece of a lane's queue in one step: whether each job in it should be there.
-- ARGV 1 '1' to take out the jobs that should not  2 lane  3 the first place, counted from the tail  4 how many jobs
-- returns {number of jobs read, {finding, …} (see audit.lua)}
-- A cancelled or deleted job may stay in its queue until *pull* finds it. A job of another lane is no fault either:
-- *pull* gives the job the lane of the queue.
--! needs backlog_key finding findings job_key steered
local repair, queue, from, most = ARGV[1] == '1', '@rq:queue:' .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local HALF = redis.call('LLEN', queue) / 2 -- LREM searches from the nearer end
local ids = redis.call('LRANGE', queue, -from - most, -from - 1)

local function why_not(id)
  local status, meta, permit, rq_job = unpack(redis.call('HMGET', job_key(id), 'status', 'meta', 'push_permit',
    'push_rq_job'), 1, 4)
  if not status then return nil end
  local user, category = steered(meta, rq_job)
  if not user or status == 'queued' and not permit or status == 'canceled' then return nil end -- or a job of RQ's
  return 'is ' .. status, status == 'scheduled' and not permit
    and not redis.call('ZSCORE', backlog_key(user, category), id) and not redis.call('ZSCORE', '@later', id)
end

local function take_out(id, alone)
  if alone then return 'left: it stands nowhere else' end
  redis.call('LREM', queue, from < HALF and -1 or 1, id)
  return 'taken out'
end

for _, id in ipairs(ids) do
  local why, alone = why_not(id)
  if why then
    finding('job ' .. id, 'stands in ' .. queue .. ' and ' .. why, 'not there', repair and take_out(id, alone))
  end
end
return {#ids, findings}
