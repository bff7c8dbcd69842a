-- audit_entry: judges entries of backlogs, leases and registries: whether the job exists, and belongs there.
-- ARGV 1 clock  2 '1' to take out wrong entries  3 lease µs  4.. for each entry: the key, its member
-- returns {finding, …} (see audit.lua). Whether a job should be there now is judged by *audit_job*.
-- If somebody deleted a leased job, its lease is no fault until it ends: the worker may still have the job.
--! needs backlog_key backlogs_key finding findings job_key now_us steered
local now, repair, LEASE = now_us(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local SLACK = 2 -- s: registries count in whole seconds

-- live_lease: does not believe a lease that ends later than LEASE from now: no worker wrote it.
local function live_lease(id)
  local lease = tonumber(redis.call('ZSCORE', '@leases', id) or 0)
  return lease > now and lease <= now + LEASE + SLACK * 1000000
end

local function take_out(key, member, id)
  if not repair then return '' end
  if key:find('@rq:', 1, true) == 1 and live_lease(id) then return 'left until its lease ends' end
  redis.call('ZREM', key, member)
  return 'taken out'
end

-- queue_again: puts a job whose meta names no user back in its queue. The worker that pulls the job reads its data.
local function queue_again(key, id, origin)
  if not repair then return '' end
  redis.call('ZREM', key, id)
  redis.call('ZREM', '@rq:scheduled:' .. origin, id)
  redis.call('HDEL', job_key(id), 'push_order', 'push_read')
  redis.call('HSET', job_key(id), 'status', 'queued')
  redis.call('LPUSH', '@rq:queue:' .. origin, id)
  return 'put back in its queue'
end

-- fading: a registry may keep the entry of an ended job for a moment longer than Redis keeps the job.
local function fading(kind, score)
  local ends = (kind == 'failed' or kind == 'canceled') and score
  return ends and ends <= now / 1000000 + SLACK
end

-- deleted: RQ deleted a job of a noted backlog. That is no fault: the next visit to the user skips the entry.
local function deleted(key)
  local user, category = key:match('^@backlog:{(.+)}:([^}]+)$')
  return user and redis.call('HEXISTS', backlogs_key(user), category) == 1
end

local function judge(key, member)
  local score = redis.call('ZSCORE', key, member)
  if not score then return end -- it has moved since
  local kind, lane
  if key:find('@rq:', 1, true) == 1 then kind, lane = key:sub(#'@rq:' + 1):match('^(%l+):(.+)$') end
  local id, permit = member, nil
  if kind == 'wip' then
    if score ~= 'inf' then return end -- RQ's own execution
    id, permit = member:match('^(.+):(%d%w*)$')
    if not id then return end
  end
  local job = redis.call('HMGET', job_key(id), 'origin', 'meta', 'push_permit', 'push_rq_job')
  if not job[1] then
    if key == '@leases' and tonumber(score) <= now or fading(kind, tonumber(score)) then return end
    if (key == '@leases' or kind) and live_lease(id) then return end
    local done = take_out(key, member, id)
    if not deleted(key) then finding(id, 'stands in ' .. key .. ' and has no job', 'nowhere', done) end
    return
  end
  local user, category = steered(job[2], job[4])
  if not user and not kind and key ~= '@leases' and not job[3] and not job[4] then
    local done = queue_again(key, id, job[1])
    finding('job ' .. id, 'stands in ' .. key .. ', and its meta cannot be read', 'in its queue', done)
    return
  end
  local belongs
  if kind == 'wip' then
    belongs = job[3] == permit and job[1] == lane
  elseif kind then
    belongs = not user or job[1] == lane
  else
    belongs = key == '@leases' or key == '@later' or not user or key == backlog_key(user, category)
  end
  if not belongs then
    local is = 'its job is of ' .. job[1] .. (user and ' and of ' .. user .. ':' .. category or '')
    if permit then is = is .. ', under the permit ' .. (job[3] or 'none') end
    finding(member, 'stands in ' .. key .. ', and ' .. is, 'not there', take_out(key, member, id))
  end
end

for i = 4, #ARGV, 2 do judge(ARGV[i], ARGV[i + 1]) end
return findings
