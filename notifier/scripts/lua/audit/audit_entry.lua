-- audit_entry: judges what stands in backlogs, leases and registries: whether there is such a job, and it belongs
-- there.
-- ARGV 1 clock  2 '1' to take out what does not belong there  3 lanes, JSON  4 keep_failed s
--      5.. for each: the key, its member
-- returns {finding, …} (see audit.lua). Whether a job that belongs there should stand there now is judged by audit_job.
-- What a lease names that has not ended is left to it: its worker may have the job still, though somebody deleted it.
--! include clock keys idle_leaders audit
local now, repair, lanes, keep = now_us(ARGV[1]), ARGV[2] == '1', {}, tonumber(ARGV[4])
for _, lane in ipairs(cjson.decode(ARGV[3])) do lanes[lane] = true end
local SLACK = 2 -- s: registries count in whole ones

local function live_lease(id)
  local lease = redis.call('ZSCORE', '@leases', id)
  return lease and tonumber(lease) > now
end

local function take_out(key, member, id)
  if not repair then return '' end
  if key ~= '@later' and not key:find('^@line') and live_lease(id) then
    return 'left until its lease ends'
  end
  redis.call('ZREM', key, member)
  return 'taken out'
end

-- fading: of what has ended the registry may remember for a moment longer than the job is kept.
local function fading(kind, score)
  local ends = (kind == 'failed' or kind == 'canceled') and score
  return ends and ends <= now / 1000000 + SLACK
end

-- deleted: by RQ's hands, from a backlog that is known. It is no fault: the look at its user passes over it.
local function deleted(key)
  local user, category = key:match('^@line:{(.+)}:([^}]+)$')
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
    local done = take_out(key, member, id)
    if not deleted(key) then finding(id, 'stands in ' .. key .. ' and has no job', 'nowhere', done) end
    return
  end
  local user, category = steered(job[2], job[4])
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

for i = 5, #ARGV, 2 do judge(ARGV[i], ARGV[i + 1]) end
return findings
